"""Test at finitely many lengths whether values decrease as a limit of 0 requires."""

import math
from collections.abc import Sequence
from itertools import pairwise

from squashlens.errors import InputError

FEWEST = 4  # lengths: three steps, so that a single drop before or after a constant part is not taken for a trend
SPAN = 10  # least ratio of longest to shortest length: for less, 1/log n is almost constant
# Least local exponent in log n of a decreasing series: 1/log n has 1, n^(−p) and exponentials have more at large n, a
# constant has 0, and a series that levels off tends to 0.
RATE = 0.5


def growing_lengths(longest: int) -> list[int]:
    """Five lengths up to `longest`, evenly spaced on a logarithmic axis, over two decades if `longest` is large enough.

    >>> growing_lengths(1000)
    [10, 32, 100, 316, 1000]
    """
    first = max(1, longest // 100)
    return sorted({round(first * (longest / first) ** (k / 4)) for k in range(5)})


def check_lengths(lengths: Sequence[int]) -> list[int]:
    """The lengths, after a check that there are at least four, increasing, over a factor of at least ten."""
    few = len(lengths) < FEWEST or lengths[0] < 1
    if few or any(a >= b for a, b in pairwise(lengths)) or lengths[-1] < SPAN * lengths[0]:
        raise InputError(
            f"lengths={list(lengths)} are too few or too close to show a limit.",
            f"Give at least {FEWEST} increasing positive lengths, the last at least {SPAN} times the first.",
        )
    return list(lengths)


def decays(lengths: Sequence[int], values: Sequence[float]) -> bool:
    """Whether non-negative values decrease at every step as a limit of 0 requires; necessary for it, not sufficient.

    Every step must have ``x_{i+1} ≤ x_i (log(n_i + 1)/log(n_{i+1} + 1))^½``. 1/√n, 1/log n, 1/n, exponentials and zeros
    pass. Constants, series that level off, increase or return to an earlier size, NaN and infinity do not pass. A
    series that levels off only beyond the last length passes.

    >>> n = [10, 30, 100, 300, 1000]
    >>> decays(n, [1 / math.log(k) for k in n]), decays(n, [1.0, 1.0, 0.1, 0.1, 0.1])
    (True, False)
    >>> decays(n, [1.0, 0.1, 1.0, 0.1, 0.0])
    False
    """
    if not all(0 <= value < math.inf for value in values):
        return False
    steps = zip(pairwise(lengths), pairwise(values), strict=True)
    return all(b <= a * (math.log(n + 1) / math.log(m + 1)) ** RATE for (n, m), (a, b) in steps)
