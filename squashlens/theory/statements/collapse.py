"""Theorem B.3 at one layer, and Corollary B.10: a repeated last token, and the count that it costs."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.errors import InputError
from squashlens.theory.distances import distance, identical, total_variation
from squashlens.theory.statements.statement import Statement, distributions

ROUNDING = 1e-9
HALVING = -math.log10(2)  # exponent of what halves whenever n grows tenfold
Rows = tuple[Float[Tensor, " _"], Float[Tensor, " _"]]  # of n and of n + 1 tokens


def theorem_b3(rows: Sequence[Rows], values: Float[Tensor, "position d"], *, bound: float) -> Statement:
    """‖z_n − z*_{n+1}‖₁ ≤ max_i ‖v_i‖₁ · (δ(α_n, α*_{n+1}) + α*_{n+1,n+1}) for the last token a and the same repeated.

    z_n = Σ_i α_ni v_i + v_a and z*_{n+1} = Σ_i α*_{n+1,i} v_i + α*_{n+1,n+1} v_a + v_a: the residual cancels, as both
    end in a. What is left is Σ_{i≤n} (α_ni − α*_{n+1,i}) v_i − α*_{n+1,n+1} v_a, by the triangle inequality at most the
    right side. δ is over the first n entries, where the paper pads. If positional information decays it tends to 0 by
    Lemma B.2, and the self-weight does by Lemma B.1; the next layer starts from representations that are close.

    Args:
        rows: α_n over n tokens and α*_{n+1} over n + 1, at two lengths n or more that grow; the inequality is checked
            at the last. No single length shows a limit. The premise that positional information decays is taken as:
            δ + α*_{n+1,n+1} at least halves whenever n grows tenfold, from the first length to the last.
        values: what attention mixes, of the last length's n tokens; the one more has the last one's.
        bound: on ‖v_i‖₁, a premise.

    Source: Barbero et al. 2024, Theorem B.3 (4.2), first step; units of the values.

    >>> rows = [(torch.full((n,), 1 / n), torch.full((n + 1,), 1 / (n + 1))) for n in (10, 50)]
    >>> theorem_b3(rows, torch.rand(50, 3), bound=3.0).verdict
    'holds'
    """
    sizes = [len(row) for row, _ in rows]
    if len(sizes) < 2 or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
        raise InputError(f"Rows over {sizes} tokens show no limit.", "Give pairs of rows at lengths that grow.")
    if any(len(star) != len(row) + 1 for row, star in rows) or len(values) != sizes[-1]:
        raise InputError(
            f"Rows of {sizes} and {[len(star) for _, star in rows]} weights over {len(values)} values are no pairs.",
            "Give n weights and n + 1 weights at each length, and values for the last n.",
        )
    apart = [_apart(row, star) for row, star in rows]
    least = (sizes[-1] / sizes[0]) ** HALVING
    row, row_star, values = rows[-1][0].double(), rows[-1][1].double(), values.double()
    z, z_star = row @ values, row_star @ torch.cat([values, values[-1:]])
    largest, (delta, own) = float(values.abs().sum(dim=-1).max()), apart[-1]
    left, right = float(distance(z, z_star, "l1")), largest * (delta + own)
    return Statement(
        "Theorem B.3",
        "‖z_n − z*_{n+1}‖₁ ≤ max‖v‖₁ (δ + α*_{n+1,n+1})",
        {
            "attention rows are distributions": all(distributions(one) for pair in rows for one in pair),
            f"‖v_i‖₁ ≤ {bound:g}": largest <= bound,
            "positional information decays (δ + α* at least halves whenever n grows tenfold)": sum(apart[-1])
            <= least * sum(apart[0]),
        },
        left,
        "≤",
        right,
        left <= right + ROUNDING * max(1.0, right),
        {"δ": delta, "α*_{n+1,n+1}": own, f"δ + α* at n = {sizes[0]}": sum(apart[0])},
    )


def _apart(row: Float[Tensor, " position"], star: Float[Tensor, " and_one"]) -> tuple[float, float]:
    """δ over the first n entries, and the weight of the one more."""
    return float(total_variation(row.double(), star[:-1].double())), float(star[-1])


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
