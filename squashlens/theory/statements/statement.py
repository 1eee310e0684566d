"""What a statement of the paper claims about given inputs, what is found, and whether its premises hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from squashlens.errors import InputError

Verdict = Literal["holds", "consistent", "undecided", "fails", "premise violated"]


class Step(NamedTuple):
    """Both sides at one length."""

    at: int
    left: float
    right: float
    holds: bool


@dataclass(frozen=True)
class Statement:
    """One statement on one set of inputs.

    `left` and `right` are the two sides of `relation`; `found` are further numbers. `holds` says whether the relation
    does, whatever the premises: a conclusion can hold by luck where they do not. A statement about a limit also has
    `steps`, both sides at lengths that grow, of which `left` and `right` are the last, and `limit`, whether what should
    tend to 0 fell at every step. `shows` says what was checked, and what no finite check can show.
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
        """``"premise violated"`` where any premise is, ``"fails"`` where the relation does not hold, else ``"holds"``.

        For a limit, which no finite check shows, ``"consistent"`` stands for "holds" where the values fell at every
        length, and ``"undecided"`` where they did not.
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


def rounding(rows: Tensor) -> float:
    """How far from 1 the sum of a row of weights may be by rounding.

    Two units in the last place for storing the weights in their dtype, and one of float32 (of float64, where weights
    have that) for each that softmax summed: half precision is computed in float32.
    """
    eps = torch.finfo(rows.dtype).eps
    return 2 * eps + rows.shape[-1] * min(eps, torch.finfo(torch.float32).eps)


def distributions(rows: Tensor) -> bool:
    """Whether every row is one: no entry below 0, the sum 1 up to rounding."""
    off = (rows.double().sum(dim=-1) - 1).abs()
    return bool((rows >= 0).all()) and bool((off <= rounding(rows)).all())


def row_of(values: Tensor, name: str) -> Tensor:
    """`values` in float64, which must be a single row of at least one number."""
    if values.dim() != 1 or not len(values) or values.is_complex() or values.dtype == torch.bool:
        raise InputError(
            f"{name} has shape {tuple(values.shape)} and dtype {values.dtype}.", "Give one row of real numbers."
        )
    return values.detach().double()
