"""Lemmas B.1 and B.2 and Proposition B.4: what softmax does to one entry more, and to two sequences that differ.

B.1 and B.2 are about limits. Each is checked at several growing lengths of one sequence: an inequality at each length,
which implies the limit where the premises hold at every length, and whether the sides fall over all lengths given. The
inequalities are theorems and cannot fail at any length except by an error of arithmetic; where the right side is above
what the left side can ever be, they say nothing. Softmax is computed in float64.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Extended, positive
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.distances import total_variation
from squashlens.theory.statements.limits import check_lengths, decays, growing
from squashlens.theory.statements.statement import Statement, Step, row_of

EPS = torch.finfo(torch.float64).eps
WEIGHT, VARIATION = 1.0, 2.0  # the most that a weight and a total variation can be


@validated
def lemma_b1(
    a: Float[Tensor, " position"], b: Extended, c: Extended, *, bound: Extended, lengths: Sequence[int] | None = None
) -> Statement:
    """One entry more takes weight from the last: 0 < softmax([a c])_n − softmax([a b c])_{n+1} ≤ e^{2M}/n, which tends
    to 0.

    With Z the sum of the exponentials without b, the difference is e^c e^b / (Z (Z + e^b)): positive, and the product
    of the last weight without b and the weight of b. Where no entry exceeds M in size, the last weight alone is at most
    e^M / (n e^{−M}), which goes to 0 as the paper's ε argument has it, at rate 1/n.

    Args:
        a: the entries before the last, of the longest sequence.
        bound: M, finite. A premise: without one, the last entry can grow with n and keep its weight.
        lengths: n, growing; at each, the first n − 1 entries of a are taken. Five up to the longest if not given.

    Source: Barbero et al. 2024, Lemma B.1.

    >>> lemma_b1(torch.rand(99), 0.5, 0.2, bound=1.0).verdict
    'consistent'
    """
    entries = row_of(a, "a")
    chosen = _lengths(lengths, len(entries) + 1)
    more = torch.cat([entries, torch.tensor([b, c], dtype=torch.float64)])
    steps, weights = [], (math.nan, math.nan)
    for n in chosen:
        x, star = (torch.cat([entries[: n - 1], more[k:]]).log_softmax(dim=0) for k in (-1, -2))
        # As a product: of two nearly equal numbers the difference is rounding. In logarithms, where none can underflow.
        gap, right = float(x[-1] + star[-2]), 2 * bound - math.log(n)
        steps.append(Step(n, _exp(gap), _exp(right), gap <= right + 8 * EPS * max(1.0, abs(right))))
        weights = _exp(float(x[-1])), _exp(float(star[-1]))
    return _of_a_limit(
        "Lemma B.1",
        "0 < softmax(x)_n − softmax(x*)_{n+1} ≤ e^{2M}/n → 0",
        {
            "entries and M are finite": bool(more.isfinite().all()) and math.isfinite(bound),
            f"|entries| ≤ {bound:g}": bool(more.abs().max() <= bound),
        },
        steps,
        WEIGHT,
        {"softmax(x)_n": weights[0], "softmax(x*)_{n+1}": weights[1]},
    )


@validated
def lemma_b2(
    x: Float[Tensor, " position"],
    x_star: Float[Tensor, " position"],
    *,
    bound: Extended,
    lengths: Sequence[int] | None = None,
) -> Statement:
    """Sequences that grow alike have softmaxes that do: δ(y, y*) ≤ 2 e^{2M} · mean_i |x_i − x*_i|, which tends to 0.

    With Z, Z* the partition functions, δ ≤ |Z − Z*|/Z* + Σ|e^{x_i} − e^{x*_i}|/Z* ≤ 2 Σ|e^{x_i} − e^{x*_i}|/Z*, where
    Z* ≥ n e^{−M} and |e^s − e^t| ≤ e^M |s − t| for entries of at most M in size. If x_n − x*_n tends to 0 then so does
    its running mean. With k entries that differ and no other, the right side falls as 1/n.

    Args:
        bound: M, finite, a premise.
        lengths: n, growing; the first n entries of both are compared at each. Five up to the longest if not given.
            The premise that differences tend to 0 is taken as: the largest difference from each length on to the next
            falls at every step (`squashlens.theory.statements.limits.decays`). No finite part shows more.

    Source: Barbero et al. 2024, Lemma B.2; δ without the factor ½.

    >>> x = torch.rand(10_000)
    >>> lemma_b2(x, x + 1 / torch.arange(1, 10_001).sqrt(), bound=2.0).verdict
    'consistent'
    """
    if x.shape != x_star.shape:
        raise InputError(
            f"The sequences have shapes {tuple(x.shape)} and {tuple(x_star.shape)}.", "Give two of one length."
        )
    x, x_star = row_of(x, "x"), row_of(x_star, "x_star")
    chosen = _lengths(lengths, len(x))
    apart = (x - x_star).abs()
    starts = [0, *chosen[:-1]]
    largest = [float(apart[start:n].max()) for start, n in zip(starts, chosen, strict=True)]
    steps = []
    for n in chosen:
        left = float(total_variation(x[:n].softmax(dim=0), x_star[:n].softmax(dim=0)))
        mean = float(apart[:n].mean())
        right = 2 * _exp(2 * bound) * mean if mean else 0.0
        steps.append(Step(n, left, right, left <= right + n * EPS))
    most = max(float(x.abs().max()), float(x_star.abs().max()))
    return _of_a_limit(
        "Lemma B.2",
        "δ(y, y*) ≤ 2 e^{2M} mean|x − x*| → 0",
        {
            "entries and M are finite": math.isfinite(most) and math.isfinite(bound),
            f"|entries| ≤ {bound:g}": most <= bound,
            "differences fall from each length to the next": decays(chosen, largest),
        },
        steps,
        VARIATION,
        {f"largest difference up to n = {chosen[0]}": largest[0], "largest difference of the last step": largest[-1]},
    )


def _lengths(lengths: Sequence[int] | None, longest: int) -> list[int]:
    chosen = check_lengths(growing(longest) if lengths is None else lengths)
    if chosen[-1] > longest:
        raise InputError(f"lengths={chosen} go beyond the {longest} entries.", f"Give lengths up to {longest}.")
    return chosen


def _of_a_limit(
    name: str, claim: str, premises: dict[str, bool], steps: list[Step], most: float, found: dict[str, float]
) -> Statement:
    """A statement that both sides tend to 0, where the left one is never above `most`, whatever the input."""
    lengths, last = [step.at for step in steps], steps[-1]
    # The right side shows something only where it is below what the left side can ever be.
    sides = ([step.left for step in steps], [min(step.right, most) for step in steps])
    empty = sum(step.right >= most for step in steps)
    shows = (
        f"the inequality at {len(steps)} lengths from {lengths[0]:,} to {lengths[-1]:,}, which is a theorem and cannot "
        f"fail but by arithmetic"
        + (f" (at {empty} of them its right side is not below {most:g}, so it says nothing)" if empty else "")
        + "; and whether a side falls at each of these lengths. No finite check shows a limit"
    )
    return Statement(
        name, claim, premises, last.left, "≤", last.right, all(step.holds for step in steps), found, shows,
        tuple(steps), any(decays(lengths, side) for side in sides),
    )  # fmt: skip


@validated
def proposition_b4(n: int) -> Statement:
    """Alternating sequences stay apart: of 1010… and 0101…, δ(y, y*) = 2(e − 1)/(e + 1) at every even n.

    Half of the entries are e/Z and half 1/Z with Z = n(e + 1)/2 in both, and the two swap places: δ = n (e − 1)/Z. The
    paper divides by Z twice on the way; its limit is right, and is reached at once.

    Source: Barbero et al. 2024, Proposition B.4.

    >>> print(proposition_b4(10))
    Proposition B.4: 0.924234 = 0.924234, holds
    """
    positive(n, "n", "a number of entries", most=10**8)
    x = torch.arange(1, n + 1, dtype=torch.float64) % 2
    left = float(total_variation(x.softmax(dim=0), (1 - x).softmax(dim=0)))
    right = 2 * (math.e - 1) / (math.e + 1)
    return Statement(
        "Proposition B.4", "δ(y, y*) = 2(e − 1)/(e + 1)", {"n is even": n % 2 == 0}, left, "=", right,
        abs(left - right) <= 8 * EPS + n * EPS,
    )  # fmt: skip


def _exp(x: float) -> float:
    """eˣ, infinite where a float64 cannot hold it."""
    return math.inf if x > 709 else math.exp(x)
