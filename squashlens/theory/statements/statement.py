"""What a statement of the paper claims about given inputs, what is found, and whether its premises hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Verdict = Literal["holds", "fails", "premise violated"]


@dataclass(frozen=True)
class Statement:
    """One statement on one set of inputs.

    `left` and `right` are the two sides of `relation`; `found` are further numbers. `holds` says whether the relation
    does, whatever the premises: a conclusion can hold by luck where they do not.
    """

    name: str
    claim: str
    premises: Mapping[str, bool]
    left: float
    relation: Literal["<", "≤", "="]
    right: float
    holds: bool
    found: Mapping[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """``"premise violated"`` where any premise is, else whether the statement holds."""
        if not all(self.premises.values()):
            return "premise violated"
        return "holds" if self.holds else "fails"

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
