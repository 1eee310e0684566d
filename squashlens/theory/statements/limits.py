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
    entries = torch.cat([a.double(), torch.tensor([b, c], dtype=torch.float64)])
    steps: list[Step] = []
    weights: dict[str, float] = {}
    for n in check_lengths(lengths, len(a) + 1):
        before = entries[: n - 1]
        log_x = torch.cat([before, entries[-1:]]).log_softmax(dim=0)
        log_star = torch.cat([before, entries[-2:]]).log_softmax(dim=0)
        # As a product, since the difference of nearly equal numbers is rounding; in logarithms, which do not underflow.
        log_gap = float(log_x[-1] + log_star[-2])  # of the last entry, and of b
        log_right = 2 * bound - math.log(n)
        slack = 8 * EPS * max(1.0, abs(log_right))
        holds = log_gap <= log_right + slack
        steps.append(Step(n, _exp(log_gap), _exp(log_right), holds))
        weights["softmax(x)_n"] = _exp(float(log_x[-1]))
        weights["softmax(x*)_{n+1}"] = _exp(float(log_star[-1]))
    claim = "0 < softmax(x)_n − softmax(x*)_{n+1} ≤ e^{2M}/n → 0"
    premises = _bounded(entries, bound)
    return _of_a_limit("Lemma B.1", claim, premises, steps, weights, most=1.0)


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
    x = x.double()
    x_star = x_star.double()
    chosen = check_lengths(lengths, len(x))
    differences = (x - x_star).abs()
    steps: list[Step] = []
    for n in chosen:
        left = float(total_variation(x[:n].softmax(dim=0), x_star[:n].softmax(dim=0)))
        mean = float(differences[:n].mean())
        right = 2 * _exp(2 * bound) * mean if mean else 0.0
        steps.append(Step(n, left, right, left <= right + n * EPS))
    # Cut at each length: the entries that it has beyond the length before.
    between_lengths = differences[: chosen[-1]].tensor_split(chosen[:-1])
    largest = [float(part.max()) for part in between_lengths]
    premises = _bounded(torch.cat([x, x_star]), bound)
    premises["differences decrease from each length to the next"] = decays(
        chosen, largest
    )
    found = {
        f"largest difference up to n = {chosen[0]}": largest[0],
        "largest difference of the last step": largest[-1],
    }
    claim = "δ(y, y*) ≤ 2 e^{2M} mean|x − x*| → 0"
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


# Weights over n and over n + 1 tokens.
Rows = tuple[Float[Tensor, " _"], Float[Tensor, " _"]]


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
    star_sizes = [len(star) for _, star in rows]
    if (
        len(values) > sizes[-1]
        or not values.shape[1]
        or star_sizes != [n + 1 for n in sizes]
    ):
        raise InputError(
            f"{sizes} and {star_sizes} weights do not match values of {tuple(values.shape)}.",
            "Give n and n + 1 weights at each length, and values (position, d) for the last n.",
        )
    values = values.double()
    norms = values.abs().sum(dim=-1)
    are_distributions = True
    delta = self_weight = 0.0
    moved: list[float] = []  # δ + α*_{n+1,n+1} at each length
    steps: list[Step] = []
    for n, (row, star) in zip(sizes, rows, strict=True):
        # in their own dtype, which determines the rounding of row sums
        are_distributions &= distributions(row) and distributions(star)
        row = row.double()
        star = star.double()
        z = row @ values[:n]
        z_star = star @ torch.cat([values[:n], values[n - 1 : n]])
        delta = float(total_variation(row, star[:-1]))
        self_weight = float(star[-1])
        moved.append(delta + self_weight)
        left = float(distance(z, z_star, "l1"))
        right = float(norms[:n].max()) * moved[-1]
        steps.append(Step(n, left, right, left <= right + ROUNDING * max(1.0, right)))
    premises = {
        "attention rows are distributions": are_distributions,
        f"‖v_i‖₁ ≤ {bound:g} < ∞": float(norms.max()) <= bound < math.inf,
        "positional information decays (δ + α* decreases from each length to the next)": decays(
            sizes, moved
        ),
    }
    found = {
        "δ": delta,
        "α*_{n+1,n+1}": self_weight,
        f"δ + α* at n = {sizes[0]}": moved[0],
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
    left = float(total_variation(x.softmax(dim=0), (1 - x).softmax(dim=0)))
    right = 2 * (math.e - 1) / (math.e + 1)
    premises = {"n is even": n % 2 == 0}
    holds = abs(left - right) <= (8 + n) * EPS
    claim = "δ(y, y*) = 2(e − 1)/(e + 1)"
    return Statement("Proposition B.4", claim, premises, left, "=", right, holds)


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
    last = steps[-1]
    lengths = [step.at for step in steps]
    lefts = [step.left for step in steps]
    # A right side above `most` says nothing, so its decrease down to there does not count.
    rights = [min(step.right, most) for step in steps]
    decreases = decays(lengths, lefts) or decays(lengths, rights)
    return Statement(
        name=name,
        claim=claim,
        premises=premises,
        left=last.left,
        relation="≤",
        right=last.right,
        holds=all(step.holds for step in steps),
        found=found,
        shows=shows or _shown_of_a_limit(steps, most),
        steps=tuple(steps),
        limit=decreases,
    )


def _shown_of_a_limit(steps: Sequence[Step], most: float) -> str:
    """What the inequality at some lengths shows; it says nothing where the right side is at least `most`."""
    first = steps[0]
    last = steps[-1]
    shows = (
        f"the inequality at {len(steps)} lengths from {first.at:,} to {last.at:,}, which is proved, so only an "
        "arithmetic error can break it"
    )
    silent = sum(step.right >= most for step in steps)
    if silent:
        shows += f" (at {silent} of them its right side is at least {most:g}, so it says nothing)"
    return f"{shows}; and whether a side decreases at each of these lengths. No finite check proves a limit"


FEWEST = 4  # lengths: three steps, so that a single drop before or after a constant part is not taken for a trend
SPAN = 10  # least ratio of longest to shortest length: for less, 1/log n is almost constant
# Least local exponent in log n of a decreasing series: 1/log n has 1, n^(−p) and exponentials have more at large n, a
# constant has 0, and a series that levels off tends to 0.
RATE = 0.5


def check_lengths(lengths: Sequence[int] | None, longest: int) -> list[int]:
    """The lengths, or by default five up to `longest`, evenly spaced on a logarithmic axis over at most two decades."""
    if lengths is None:
        first = max(1, longest // 100)
        ratio = longest / first
        lengths = sorted({round(first * ratio ** (k / 4)) for k in range(5)})
    increasing = all(shorter < longer for shorter, longer in pairwise(lengths))
    if (
        len(lengths) < FEWEST
        or lengths[0] < 1
        or not increasing
        or lengths[-1] < SPAN * lengths[0]
        or lengths[-1] > longest
    ):
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
    sizes = torch.tensor(values, dtype=torch.float64)
    if not bool((sizes >= 0).all() and sizes.isfinite().all()):
        return False
    logs = torch.tensor(lengths, dtype=torch.float64).log1p()
    most = sizes[:-1] * (logs[:-1] / logs[1:]) ** RATE
    return bool((sizes[1:] <= most).all())
