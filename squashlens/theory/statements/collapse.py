"""Theorem B.3 at one layer, and Corollary B.10: a repeated last token, and the count that it costs."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.errors import InputError
from squashlens.theory.distances import distance, identical, total_variation
from squashlens.theory.statements.statement import Statement

ROUNDING = 1e-9


def theorem_b3(
    row: Float[Tensor, " position"],
    row_star: Float[Tensor, " and_one"],
    values: Float[Tensor, "position d"],
    *,
    bound: float,
    tolerance: float = 0.1,
) -> Statement:
    """‖z_n − z*_{n+1}‖₁ ≤ max_i ‖v_i‖₁ · (δ(α_n, α*_{n+1}) + α*_{n+1,n+1}) for the last token a and the same repeated.

    z_n = Σ_i α_ni v_i + v_a and z*_{n+1} = Σ_i α*_{n+1,i} v_i + α*_{n+1,n+1} v_a + v_a: the residual cancels, as both
    end in a. What is left is Σ_{i≤n} (α_ni − α*_{n+1,i}) v_i − α*_{n+1,n+1} v_a, by the triangle inequality at most the
    right side. δ is over the first n entries, where the paper pads. If positional information decays it tends to 0 by
    Lemma B.2, and the self-weight does by Lemma B.1; the next layer starts from representations that are close.

    Args:
        row: α_n over n tokens. row_star: α*_{n+1} over n + 1.
        values: what attention mixes, of the n tokens; the one more has the last one's.
        bound: on ‖v_i‖₁, a premise.
        tolerance: the premise that positional information decays is taken as δ ≤ this, at the n given.

    Source: Barbero et al. 2024, Theorem B.3 (4.2), first step; units of the values.

    >>> row, row_star = torch.full((50,), 1 / 50), torch.full((51,), 1 / 51)
    >>> theorem_b3(row, row_star, torch.rand(50, 3), bound=3.0).verdict
    'holds'
    """
    if len(row_star) != len(row) + 1 or len(values) != len(row):
        raise InputError(
            f"Rows of {len(row)} and {len(row_star)} weights over {len(values)} values are no pair.",
            "Give n weights, n + 1 weights, and n values.",
        )
    off = max(len(r) * torch.finfo(r.dtype).eps for r in (row, row_star))  # that rounding may put a sum from 1
    row, row_star, values = row.double(), row_star.double(), values.double()
    z = row @ values
    z_star = row_star @ torch.cat([values, values[-1:]])
    delta, own = float(total_variation(row, row_star[:-1])), float(row_star[-1])
    largest = float(values.abs().sum(dim=-1).max())
    left, right = float(distance(z, z_star, "l1")), largest * (delta + own)
    distributions = all(bool((r >= 0).all()) and abs(float(r.sum()) - 1) <= off for r in (row, row_star))
    return Statement(
        "Theorem B.3",
        "‖z_n − z*_{n+1}‖₁ ≤ max‖v‖₁ (δ + α*_{n+1,n+1})",
        {
            "attention rows are distributions": distributions,
            f"‖v_i‖₁ ≤ {bound:g}": largest <= bound,
            f"positional information decays (δ ≤ {tolerance:g})": delta <= tolerance,
        },
        left,
        "≤",
        right,
        left <= right + ROUNDING * max(1.0, right),
        {"δ": delta, "α*_{n+1,n+1}": own},
    )


def corollary_b10(
    y: Float[Tensor, " d"],
    y_star: Float[Tensor, " d"],
    count: Callable[[Tensor], int],
    n: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> Statement:
    """Of n and n + 1 tokens at least one is miscounted, whatever reads the count off y, once y and y* are one.

    A function of one argument has one value: count(y) = count(y*), and n ≠ n + 1. Nothing about attention is used; that
    the two become one is Theorem B.3 and a finite number format.

    Args:
        count: reads a count off a representation stored in `dtype`.
        n: how many there are in the shorter sequence.

    Source: Barbero et al. 2024, Corollary B.10 (6.2).

    >>> y = torch.ones(4)
    >>> print(corollary_b10(y, y + 1e-4, lambda rows: 7, 7))
    Corollary B.10: 1 ≤ 1, holds
    """
    same = float(identical(y, y_star, dtype))
    answers = [count(rows.to(dtype)) for rows in (y, y_star)]
    wrong = sum(answer != truth for answer, truth in zip(answers, (n, n + 1), strict=True))
    return Statement(
        "Corollary B.10",
        "1 ≤ wrong counts among n and n + 1",
        {f"y and y* are the same bits in {str(dtype).removeprefix('torch.')}": same == 1},
        1.0,
        "≤",
        float(wrong),
        wrong >= 1,
        {"count(y)": float(answers[0]), "count(y*)": float(answers[1])},
    )
