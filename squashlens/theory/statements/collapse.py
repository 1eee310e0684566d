"""Theorem B.3 at one layer, and Corollary B.10: a repeated last token, and the count that it costs."""

import math
from collections.abc import Callable, Sequence
from numbers import Real

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Extended, shown
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.distances import distance, identical, total_variation
from squashlens.theory.statements.limits import check_lengths, decays
from squashlens.theory.statements.statement import Statement, Step, distributions

ROUNDING = 1e-9
Rows = tuple[Float[Tensor, " _"], Float[Tensor, " _"]]  # of n and of n + 1 tokens


@validated
def theorem_b3(rows: Sequence[Rows], values: Float[Tensor, "position d"], *, bound: Extended) -> Statement:
    """‖z_n − z*_{n+1}‖₁ ≤ max_i ‖v_i‖₁ · (δ(α_n, α*_{n+1}) + α*_{n+1,n+1}) for the last token a and the same repeated,
    at one layer, and the right side tends to 0 where positional information decays.

    z_n = Σ_i α_ni v_i + v_a and z*_{n+1} = Σ_i α*_{n+1,i} v_i + α*_{n+1,n+1} v_a + v_a: the residual cancels, as both
    end in a. What is left is Σ_{i≤n} (α_ni − α*_{n+1,i}) v_i − α*_{n+1,n+1} v_a, by the triangle inequality at most the
    right side. δ is over the first n entries, where the paper pads. If positional information decays it tends to 0 by
    Lemma B.2, and the self-weight does by Lemma B.1. The paper goes on by induction: the next layer starts from
    representations that are close, and its rows differ for that reason too. That induction is not executed here: only
    one layer is checked. `squashlens.collapse` and `squashlens.mechanism` measure every layer of a model.

    Args:
        rows: α_n over n tokens and α*_{n+1} over n + 1, at four lengths n or more that grow at least tenfold. The
            premise that positional information decays is taken as: δ + α*_{n+1,n+1} falls at every one of them
            (`squashlens.theory.statements.limits.decays`). No finite check shows a limit.
        values: what attention mixes, of the longest length's tokens. At each length n its first n are taken, and the
            n-th is repeated.
        bound: on ‖v_i‖₁, finite, a premise.

    Source: Barbero et al. 2024, Theorem B.3 (4.2), first step; units of the values.

    >>> sizes = (10, 30, 60, 100)
    >>> rows = [(torch.full((n,), 1 / n), torch.full((n + 1,), 1 / (n + 1))) for n in sizes]
    >>> theorem_b3(rows, torch.rand(100, 3), bound=3.0).verdict
    'consistent'
    """
    sizes = check_lengths([len(row) for row, _ in rows])
    shaped = values.dim() == 2 and len(values) == sizes[-1] and values.shape[1] > 0
    if not shaped or any(row.dim() != 1 or star.shape != (len(row) + 1,) for row, star in rows):
        raise InputError(
            f"Rows of {sizes} and {[len(star) for _, star in rows]} weights over values of shape {tuple(values.shape)} "
            "are no pairs.",
            "Give n weights and n + 1 weights at each length, and values (position, d) for the last n.",
        )
    values = values.detach().double()
    norms = values.abs().sum(dim=-1)
    apart = [_apart(row, star) for row, star in rows]
    steps = []
    for n, (row, star), (delta, own) in zip(sizes, rows, apart, strict=True):
        z, z_star = row.double() @ values[:n], star.double() @ torch.cat([values[:n], values[n - 1 : n]])
        left, right = float(distance(z, z_star, "l1")), float(norms[:n].max()) * (delta + own)
        steps.append(Step(n, left, right, left <= right + ROUNDING * max(1.0, right)))
    together, largest = [delta + own for delta, own in apart], float(norms.max())
    sides = ([step.left for step in steps], [step.right for step in steps])
    return Statement(
        "Theorem B.3",
        "‖z_n − z*_{n+1}‖₁ ≤ max‖v‖₁ (δ + α*_{n+1,n+1}) → 0",
        {
            "attention rows are distributions": all(distributions(one) for pair in rows for one in pair),
            f"‖v_i‖₁ ≤ {bound:g} < ∞": largest <= bound < math.inf,
            "positional information decays (δ + α* falls from each length to the next)": decays(sizes, together),
        },
        steps[-1].left,
        "≤",
        steps[-1].right,
        all(step.holds for step in steps),
        {"δ": apart[-1][0], "α*_{n+1,n+1}": apart[-1][1], f"δ + α* at n = {sizes[0]}": together[0]},
        f"the inequality at one layer and {len(sizes)} lengths from {sizes[0]:,} to {sizes[-1]:,}, and whether a side "
        "falls at each of them. The induction through the layers is not executed, and no finite check shows a limit",
        tuple(steps),
        any(decays(sizes, side) for side in sides),
    )


def _apart(row: Float[Tensor, " position"], star: Float[Tensor, " and_one"]) -> tuple[float, float]:
    """δ over the first n entries, and the weight of the one more."""
    return float(total_variation(row.double(), star[:-1].double())), float(star[-1])


@validated
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
    the two become one is Theorem B.3 and a finite number format. Bits are compared: −0 is not 0, and a NaN is itself.

    Args:
        count: reads a count off a representation stored in `dtype`.
        n: how many there are in the shorter sequence.

    Source: Barbero et al. 2024, Corollary B.10 (6.2).

    >>> y = torch.ones(4)
    >>> print(corollary_b10(y, y + 1e-4, lambda rows: 7, 7))
    Corollary B.10: 1 ≤ 1, holds
    """
    if y.shape != y_star.shape or not y.numel():
        raise InputError(
            f"y and y* have shapes {tuple(y.shape)} and {tuple(y_star.shape)}.", "Give two of one shape, not empty."
        )
    same = float(identical(y.flatten(), y_star.flatten(), dtype))
    answers = [count(rows.to(dtype)) for rows in (y, y_star)]
    if not all(isinstance(answer, Real) for answer in answers):
        raise InputError(f"count gave {shown(answers)}.", "Let it give a whole number.")
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
        "the bits of y and y* as they are stored, and this one way of reading a count",
    )
