"""What finitely many lengths can show of a limit: whether values fall at each of them as a limit of 0 would have it."""

import math
from collections.abc import Sequence
from itertools import pairwise

from squashlens.errors import InputError

FEWEST = 4  # lengths: three steps, so that a single fall with a level part before or after it is seen as one
SPAN = 10  # the longest over the shortest: over less, 1/log n hardly differs from a constant
# Least local exponent, in log n, of what is taken to fall: 1/log n has 1, n^(−p) and exponentials have more at large n,
# a constant has 0, and what levels off tends to 0.
RATE = 0.5


def growing(longest: int) -> list[int]:
    """Five lengths up to `longest`, over two decades where it is long enough, evenly spaced on a logarithmic axis.

    >>> growing(1000)
    [10, 32, 100, 316, 1000]
    """
    first = max(1, longest // 100)
    return sorted({round(first * (longest / first) ** (k / 4)) for k in range(5)})


def check_lengths(lengths: Sequence[int]) -> list[int]:
    """The lengths, or why they show no limit: fewer than four, not growing, or over less than a factor of ten."""
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in lengths):
        raise InputError(f"lengths={list(lengths)!r} are not whole numbers from 1 on.", "Give numbers of entries.")
    if len(lengths) < FEWEST or any(a >= b for a, b in pairwise(lengths)) or lengths[-1] < SPAN * lengths[0]:
        raise InputError(
            f"Lengths {list(lengths)} show no limit.",
            f"Give at least {FEWEST} different lengths in growing order, the last at least {SPAN} times the first.",
        )
    return list(lengths)


def decays(lengths: Sequence[int], values: Sequence[float]) -> bool:
    """Whether values of 0 or more fall at every step as a limit of 0 would have it; needed for it, never enough.

    Every step has ``x_{i+1} ≤ x_i (log(n_i + 1)/log(n_{i+1} + 1))^½``. 1/√n, 1/log n, 1/n and exponentials pass;
    constants, what stops falling, what rises and what returns to its size do not. What will level off beyond the last
    length passes. So does what is 0 throughout. NaN and infinity do not.

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
