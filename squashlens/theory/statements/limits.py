"""Statements on softmax as sequences grow, by which representations collapse: B.1 to B.4.

A limit is checked at increasing lengths: an inequality at each, which implies the limit if the premises hold at every
length, and whether the sides decrease. The inequalities are theorems, so only an error of arithmetic can break them; a
right side above the largest possible left side says nothing.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Extended, positive
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.distances import distance, total_variation
from squashlens.theory.statements.statement import Statement, Step, distributions

EPS = torch.finfo(torch.float64).eps
ROUNDING = 1e-9


@validated
def lemma_b1(
    a: Float[Tensor, " position"],
    b: Extended,
    c: Extended,
    *,
    bound: Extended,
    lengths: Sequence[int] | None = None,
) -> Statement:
    """Check Lemma B.1: one more entry takes weight from the last entry, by an amount that tends to 0.

    The claim is 0 < softmax([a c])_n − softmax([a b c])_{n+1} ≤ e^{2M}/n. With Z the sum of the exponentials without b,
    the difference is e^c e^b / (Z (Z + e^b)): positive, and the product of the last weight without b and the weight of
    b. If all entries are at most M in absolute value, the last weight is at most e^M / (n e^{−M}), which tends to 0 at
    rate 1/n, as in the paper's ε argument.

    Args:
        a: the entries before the last, for the longest sequence.
        b, c: the additional entry, and the last entry.
        bound: M, a finite premise. Without a bound, the last entry can grow with n and keep its weight.
        lengths: at least four increasing lengths n, with the first n − 1 entries of `a`; by default five, up to the
            longest.

    >>> lemma_b1(torch.rand(99), 0.5, 0.2, bound=1.0).verdict
    'consistent'
    """
    entries, found = (
        torch.cat([a.double(), torch.tensor([b, c], dtype=torch.float64)]),
        dict[str, float](),
    )
    steps: list[Step] = []
    for n in check_lengths(lengths, len(a) + 1):
        x, star = (
            torch.cat([entries[: n - 1], entries[k:]]).log_softmax(dim=0)
            for k in (-1, -2)
        )
        # As a product, since the difference of nearly equal numbers is rounding; in logarithms, which do not underflow.
        gap, right = float(x[-1] + star[-2]), 2 * bound - math.log(n)
        steps.append(
            Step(
                n, _exp(gap), _exp(right), gap <= right + 8 * EPS * max(1.0, abs(right))
            )
        )
        found = {
            "softmax(x)_n": _exp(float(x[-1])),
            "softmax(x*)_{n+1}": _exp(float(star[-1])),
        }
    claim = "0 < softmax(x)_n − softmax(x*)_{n+1} ≤ e^{2M}/n → 0"
    return _of_a_limit(
        "Lemma B.1", claim, _bounded(entries, bound), steps, found, most=1.0
    )


@validated
def lemma_b2(
    x: Float[Tensor, " position"],
    x_star: Float[Tensor, " position"],
    *,
    bound: Extended,
    lengths: Sequence[int] | None = None,
) -> Statement:
    """Check Lemma B.2: if the differences of two sequences tend to 0, so does the distance of their softmaxes.

    The claim is δ(y, y*) ≤ 2 e^{2M} · mean_i |x_i − x*_i|. With Z, Z* the partition functions, δ ≤ |Z − Z*|/Z* +
    Σ|e^{x_i} − e^{x*_i}|/Z* ≤ 2 Σ|e^{x_i} − e^{x*_i}|/Z*, where Z* ≥ n e^{−M} and |e^s − e^t| ≤ e^M |s − t| for entries
    of at most M in absolute value. If x_n − x*_n tends to 0, so does its running mean. If only k entries differ, the
    right side decreases as 1/n.

    Args:
        x, x_star: the two sequences.
        bound: M, a finite premise.
        lengths: increasing lengths n, at which the first n entries are compared; as in `lemma_b1`. Differences tend to
            0, a premise, if the largest between successive lengths decreases at every step (`decays` in
            `squashlens.theory.statements.limits`).

    >>> x = torch.rand(10_000)
    >>> lemma_b2(x, x + 1 / torch.arange(1, 10_001).sqrt(), bound=2.0).verdict
    'consistent'
    """
    if x.shape != x_star.shape:
        raise InputError(
            f"x has {len(x)} entries and x_star has {len(x_star)}.",
            "Give two sequences of equal length.",
        )
    x, x_star = x.double(), x_star.double()
    chosen, apart = check_lengths(lengths, len(x)), (x - x_star).abs()
    largest = [
        float(part.max()) for part in apart[: chosen[-1]].tensor_split(chosen[:-1])
    ]
    steps = []
    for n in chosen:
        left, mean = (
            float(total_variation(x[:n].softmax(dim=0), x_star[:n].softmax(dim=0))),
            float(apart[:n].mean()),
        )
        right = 2 * _exp(2 * bound) * mean if mean else 0.0
        steps.append(Step(n, left, right, left <= right + n * EPS))
    claim, premises = (
        "δ(y, y*) ≤ 2 e^{2M} mean|x − x*| → 0",
        _bounded(torch.cat([x, x_star]), bound),
    )
    premises["differences decrease from each length to the next"] = decays(
        chosen, largest
    )
    found = {f"largest difference up to n = {chosen[0]}": largest[0]}
    found["largest difference of the last step"] = largest[-1]
    return _of_a_limit("Lemma B.2", claim, premises, steps, found, most=2.0)


def _bounded(entries: Tensor, bound: float) -> dict[str, bool]:
    """The premises that entries and M = `bound` are finite, and no entry is larger than M."""
    most = float(entries.abs().max())
    return {
        "entries and M are finite": math.isfinite(most) and math.isfinite(bound),
        f"|entries| ≤ {bound:g}": most <= bound,
    }


def _exp(x: float) -> float:
    """eˣ, or infinity if it overflows float64."""
    return math.inf if x > 709 else math.exp(x)


Rows = tuple[
    Float[Tensor, " _"], Float[Tensor, " _"]
]  # weights over n and over n + 1 tokens


@validated
def theorem_b3(
    rows: Sequence[Rows], values: Float[Tensor, "position d"], *, bound: Extended
) -> Statement:
    """Check Theorem B.3 (4.2) for one layer: representations of the last token and of its repetition become equal.

    The claim is ‖z_n − z*_{n+1}‖₁ ≤ max_i ‖v_i‖₁ · (δ(α_n, α*_{n+1}) + α*_{n+1,n+1}), where the right side tends to 0
    if positional information decays. With z_n = Σ_i α_ni v_i + v_a and z*_{n+1} = Σ_i α*_{n+1,i} v_i + α*_{n+1,n+1} v_a
    + v_a, the residual v_a cancels, since both sequences end in a. The triangle inequality bounds the difference
    Σ_{i≤n} (α_ni − α*_{n+1,i}) v_i − α*_{n+1,n+1} v_a by the right side. δ is taken over the first n entries; the paper
    pads instead. If positional information decays, δ tends to 0 by Lemma B.2, and the self-weight by Lemma B.1.

    The paper continues by induction over layers, where rows also differ because representations do. Only one layer is
    checked here. `squashlens.collapse` and `squashlens.collapse_mechanism` measure every layer of a model.

    Args:
        rows: pairs of attention rows, α_n over n tokens and α*_{n+1} over n + 1 tokens, at four or more lengths n that
            increase at least tenfold. Positional information decays, a premise, if δ + α*_{n+1,n+1} decreases at every
            length (`decays` in `squashlens.theory.statements.limits`).
        values: value vectors of the tokens at the longest length, (position, d). At length n the first n are used, and
            the n-th is repeated.
        bound: upper bound on ‖v_i‖₁, in the units of the values; finite, a premise.

    >>> sizes = (10, 30, 60, 100)
    >>> rows = [(torch.full((n,), 1 / n), torch.full((n + 1,), 1 / (n + 1))) for n in sizes]
    >>> theorem_b3(rows, torch.rand(100, 3), bound=3.0).verdict
    'consistent'
    """
    sizes = check_lengths([len(row) for row, _ in rows], len(values))
    if (
        len(values) > sizes[-1]
        or not values.shape[1]
        or any(len(star) != len(row) + 1 for row, star in rows)
    ):
        raise InputError(
            f"{sizes} and {[len(star) for _, star in rows]} weights do not match values of {tuple(values.shape)}.",
            "Give n and n + 1 weights at each length, and values (position, d) for the last n.",
        )
    values, norms = values.double(), values.double().abs().sum(dim=-1)
    apart = [
        (float(total_variation(row.double(), star[:-1].double())), float(star[-1]))
        for row, star in rows
    ]
    together, steps = [delta + own for delta, own in apart], []
    for n, (row, star), most in zip(sizes, rows, together, strict=True):
        z, z_star = (
            row.double() @ values[:n],
            star.double() @ torch.cat([values[:n], values[n - 1 : n]]),
        )
        left, right = float(distance(z, z_star, "l1")), float(norms[:n].max()) * most
        steps.append(Step(n, left, right, left <= right + ROUNDING * max(1.0, right)))
    premises = {
        "attention rows are distributions": all(
            distributions(one) for pair in rows for one in pair
        ),
        f"‖v_i‖₁ ≤ {bound:g} < ∞": float(norms.max()) <= bound < math.inf,
        "positional information decays (δ + α* decreases from each length to the next)": decays(
            sizes, together
        ),
    }
    found = {
        "δ": apart[-1][0],
        "α*_{n+1,n+1}": apart[-1][1],
        f"δ + α* at n = {sizes[0]}": together[0],
    }
    shows = (
        f"the inequality for one layer at {len(sizes)} lengths from {sizes[0]:,} to {sizes[-1]:,}, and whether a side "
        "decreases at each of them. The induction over layers is not checked, and no finite check proves a limit"
    )
    claim = "‖z_n − z*_{n+1}‖₁ ≤ max‖v‖₁ (δ + α*_{n+1,n+1}) → 0"
    return _of_a_limit("Theorem B.3", claim, premises, steps, found, shows)


@validated
def proposition_b4(n: int) -> Statement:
    """Check Proposition B.4: the softmaxes of 1010… and 0101… have the distance 2(e − 1)/(e + 1) at every even n.

    In both, half of the entries are e/Z and half are 1/Z, with Z = n(e + 1)/2, and these are exchanged: δ = n (e −
    1)/Z. The paper divides by Z twice in between; its limit is right, and equals the value at every even n.

    Args:
        n: number of entries; an odd number violates the premise.

    >>> print(proposition_b4(10))
    Proposition B.4: 0.924234 = 0.924234, holds
    """
    positive(n, "n", "a number of entries", most=10**8)
    x = torch.arange(1, n + 1, dtype=torch.float64) % 2
    left, right = (
        float(total_variation(x.softmax(dim=0), (1 - x).softmax(dim=0))),
        2 * (math.e - 1) / (math.e + 1),
    )
    claim, holds = "δ(y, y*) = 2(e − 1)/(e + 1)", abs(left - right) <= (8 + n) * EPS
    return Statement(
        "Proposition B.4", claim, {"n is even": n % 2 == 0}, left, "=", right, holds
    )


def _of_a_limit(
    name: str,
    claim: str,
    premises: Mapping[str, bool],
    steps: Sequence[Step],
    found: Mapping[str, float],
    shows: str = "",
    most: float = math.inf,
) -> Statement:
    """The statement that both sides tend to 0, from their values at some lengths; no left side exceeds `most`."""
    last, lengths = steps[-1], [step.at for step in steps]
    decreases = decays(lengths, [s.left for s in steps]) or decays(
        lengths, [min(s.right, most) for s in steps]
    )
    empty, holds = (
        sum(step.right >= most for step in steps),
        all(step.holds for step in steps),
    )
    shows = shows or (
        f"the inequality at {len(steps)} lengths from {lengths[0]:,} to {last.at:,}, which is proved, so only an "
        "arithmetic error can break it"
        + (
            f" (at {empty} of them its right side is at least {most:g}, so it says nothing)"
            if empty
            else ""
        )
        + "; and whether a side decreases at each of these lengths. No finite check proves a limit"
    )
    return Statement(
        name,
        claim,
        premises,
        last.left,
        "≤",
        last.right,
        holds,
        found,
        shows,
        tuple(steps),
        decreases,
    )


FEWEST = 4  # lengths: three steps, so that a single drop before or after a constant part is not taken for a trend
SPAN = 10  # least ratio of longest to shortest length: for less, 1/log n is almost constant
# Least local exponent in log n of a decreasing series: 1/log n has 1, n^(−p) and exponentials have more at large n, a
# constant has 0, and a series that levels off tends to 0.
RATE = 0.5


def check_lengths(lengths: Sequence[int] | None, longest: int) -> list[int]:
    """The lengths, or by default five up to `longest`, evenly spaced on a logarithmic axis over at most two decades."""
    if lengths is None:
        first = max(1, longest // 100)
        lengths = sorted(
            {round(first * (longest / first) ** (k / 4)) for k in range(5)}
        )
    few = (
        len(lengths) < FEWEST
        or lengths[0] < 1
        or any(a >= b for a, b in pairwise(lengths))
    )
    if few or not SPAN * lengths[0] <= lengths[-1] <= longest:
        raise InputError(
            f"lengths={list(lengths)} are too few, too close or too long to show a limit.",
            f"Give at least {FEWEST} increasing lengths from 1 to {longest}, the last at least {SPAN} times the first.",
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
    return all(
        b <= a * (math.log(n + 1) / math.log(m + 1)) ** RATE for (n, m), (a, b) in steps
    )
