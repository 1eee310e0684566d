"""The result of checking a statement of the paper: both sides, and whether its premises hold."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from squashlens._typing import short_repr
from squashlens.errors import InputError

Verdict = Literal["holds", "consistent", "undecided", "fails", "premise violated"]


class Step(NamedTuple):
    """Both sides of a statement at one length."""

    at: int
    left: float
    right: float
    holds: bool


@dataclass(frozen=True)
class Statement:
    """The result of checking one statement of the paper on one set of inputs.

    Attributes:
        name: the statement's name in the paper.
        claim: the claim as a formula.
        premises: each premise, and whether it holds.
        left, relation, right: both sides of the claim, at the last length for a limit.
        holds: whether the relation holds, also if a premise does not.
        found: further numbers.
        shows: what was checked, and what a finite check cannot prove.
        steps: for a limit, both sides at increasing lengths.
        limit: for a limit, whether what should tend to 0 decreased at every step; otherwise None.
    """

    name: str
    claim: str
    premises: Mapping[str, bool]
    left: float
    relation: Literal["<", "≤", "="]
    right: float
    holds: bool
    found: Mapping[str, float] = field(default_factory=dict)
    shows: str = "both sides at this input"
    steps: tuple[Step, ...] = ()
    limit: bool | None = None

    @property
    def verdict(self) -> Verdict:
        """``"premise violated"`` if a premise does not hold, ``"fails"`` if the relation does not, else ``"holds"``.

        For a limit, which no finite check proves, ``"holds"`` is replaced by ``"consistent"`` if the values decreased
        at every length, and by ``"undecided"`` if they did not.
        """
        if not all(self.premises.values()):
            return "premise violated"
        if not self.holds:
            return "fails"
        return "holds" if self.limit is None else "consistent" if self.limit else "undecided"

    def __str__(self) -> str:
        broken = [premise for premise, true in self.premises.items() if not true]
        why = f" ({'; '.join(broken)})" if broken else ""
        return f"{self.name}: {self.left:.6g} {self.relation} {self.right:.6g}, {self.verdict}{why}"


def of_a_limit(
    name: str, claim: str, premises: Mapping[str, bool], steps: Sequence[Step], found: Mapping[str, float], shows: str,
    most: float = math.inf,
) -> Statement:  # fmt: skip
    """The statement that both sides tend to 0, from their values at some lengths; no left side exceeds `most`."""
    last, lengths = steps[-1], [step.at for step in steps]
    decreases = decays(lengths, [s.left for s in steps]) or decays(lengths, [min(s.right, most) for s in steps])
    holds = all(step.holds for step in steps)
    return Statement(name, claim, premises, last.left, "≤", last.right, holds, found, shows, tuple(steps), decreases)


def rounding(rows: Tensor) -> float:
    """The largest difference from 1 that rounding can cause in the sum of a row of weights.

    Two units in the last place of the weights' dtype, plus one of float32 (float64 for float64 weights) for each
    weight.
    """
    eps = torch.finfo(rows.dtype).eps
    return 2 * eps + rows.shape[-1] * min(eps, torch.finfo(torch.float32).eps)


def distributions(rows: Tensor) -> bool:
    """Whether every row is a distribution: no negative entry, and the sum 1 up to rounding."""
    off = (rows.double().sum(dim=-1) - 1).abs()
    return bool((rows >= 0).all()) and bool((off <= rounding(rows)).all())


def require_tokens(given: object, tokens: Tensor, what: str) -> None:
    """Raise an error unless a user's function returned a tensor of the tokens' shape."""
    if not isinstance(given, Tensor) or given.shape != tokens.shape:
        raise InputError(
            f"{what} returned {short_repr(given)}.", f"It must return a tensor of shape {tuple(tokens.shape)}."
        )


FEWEST = 4  # lengths: three steps, so that a single drop before or after a constant part is not taken for a trend
SPAN = 10  # least ratio of longest to shortest length: for less, 1/log n is almost constant
# Least local exponent in log n of a decreasing series: 1/log n has 1, n^(−p) and exponentials have more at large n, a
# constant has 0, and a series that levels off tends to 0.
RATE = 0.5


def growing_lengths(longest: int) -> list[int]:
    """Five lengths up to `longest`, evenly spaced on a logarithmic axis, over two decades if `longest` is large
    enough."""
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
    pass. Constants, series that level off, increase or return to an earlier size, NaN and infinity do not pass.
    """
    if not all(0 <= value < math.inf for value in values):
        return False
    steps = zip(pairwise(lengths), pairwise(values), strict=True)
    return all(b <= a * (math.log(n + 1) / math.log(m + 1)) ** RATE for (n, m), (a, b) in steps)
