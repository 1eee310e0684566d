"""The result of checking a statement of the paper: both sides, and whether its premises hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
        if self.limit is None:
            return "holds"
        return "consistent" if self.limit else "undecided"

    def __str__(self) -> str:
        text = f"{self.name}: {self.left:.6g} {self.relation} {self.right:.6g}, {self.verdict}"
        broken = [premise for premise, true in self.premises.items() if not true]
        return f"{text} ({'; '.join(broken)})" if broken else text


def rounding(rows: Tensor) -> float:
    """The largest difference from 1 that rounding can cause in the sum of a row of weights.

    Two units in the last place of the weights' dtype, plus one of float32 (float64 for float64 weights) per weight.
    """
    eps = torch.finfo(rows.dtype).eps
    return 2 * eps + rows.shape[-1] * min(eps, torch.finfo(torch.float32).eps)


def distributions(rows: Tensor) -> bool:
    """Whether every row is a distribution: no negative entry, and the sum 1 up to rounding."""
    off = (rows.double().sum(dim=-1) - 1).abs()
    are_weights = (rows >= 0).all() & (off <= rounding(rows)).all()
    return bool(are_weights)


def require_shape(given: object, shape: tuple[int, ...], what: str) -> None:
    """Raise an error unless a user's function returned a tensor of this shape."""
    if not isinstance(given, Tensor) or given.shape != shape:
        raise InputError(
            f"{what} returned {short_repr(given)}.",
            f"It must return a tensor of shape {tuple(shape)}.",
        )
