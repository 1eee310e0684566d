"""The lemmas on softmax (B.1, B.2, B.4) and on attention as a triangular row-stochastic matrix (B.6 to B.8).

B.1 and B.2 are about limits. Each is checked at increasing lengths of one sequence: an inequality, which implies the
limit if the premises hold at every length, and whether the sides decrease. The inequalities are theorems, so only an
error of arithmetic can break them; a right side above the largest possible left side says nothing.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Extended, positive
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.distances import total_variation
from squashlens.theory.statements.statement import (
    Statement,
    Step,
    check_lengths,
    decays,
    distributions,
    growing_lengths,
    of_a_limit,
    rounding,
)

EPS = torch.finfo(torch.float64).eps
WEIGHT, VARIATION = 1.0, 2.0  # largest values of a weight and of a total variation


@validated
def lemma_b1(
    a: Float[Tensor, " position"], b: Extended, c: Extended, *, bound: Extended, lengths: Sequence[int] | None = None
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
        lengths: increasing lengths n, with the first n − 1 entries of `a`; by default five, up to the longest.

    Raises:
        InputError: the lengths are too few, too close, or too long.

    Source: Barbero et al. 2024, Lemma B.1.

    >>> lemma_b1(torch.rand(99), 0.5, 0.2, bound=1.0).verdict
    'consistent'
    """
    entries = a.double()
    chosen = _lengths(lengths, len(entries) + 1)
    more = torch.cat([entries, torch.tensor([b, c], dtype=torch.float64)])
    steps, weights = [], (math.nan, math.nan)
    for n in chosen:
        x, star = (torch.cat([entries[: n - 1], more[k:]]).log_softmax(dim=0) for k in (-1, -2))
        # As a product, since the difference of nearly equal numbers is rounding; in logarithms, which do not underflow.
        gap, right = float(x[-1] + star[-2]), 2 * bound - math.log(n)
        steps.append(Step(n, _exp(gap), _exp(right), gap <= right + 8 * EPS * max(1.0, abs(right))))
        weights = _exp(float(x[-1])), _exp(float(star[-1]))
    claim = "0 < softmax(x)_n − softmax(x*)_{n+1} ≤ e^{2M}/n → 0"
    premises = _bounded(float(more.abs().max()), bound)
    found = {"softmax(x)_n": weights[0], "softmax(x*)_{n+1}": weights[1]}
    return of_a_limit("Lemma B.1", claim, premises, steps, found, _shows(steps, WEIGHT), WEIGHT)


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
        lengths: increasing lengths n, at which the first n entries are compared; by default five, up to the longest.
            Differences tend to 0, a premise, if the largest between successive lengths decreases at every step
            (`squashlens.theory.statements.statement.decays`).

    Raises:
        InputError: the sequences have different lengths, or `lengths` are too few, too close, or too long.

    Source: Barbero et al. 2024, Lemma B.2; δ without the factor ½.

    >>> x = torch.rand(10_000)
    >>> lemma_b2(x, x + 1 / torch.arange(1, 10_001).sqrt(), bound=2.0).verdict
    'consistent'
    """
    if x.shape != x_star.shape:
        raise InputError(
            f"x and x_star have shapes {tuple(x.shape)} and {tuple(x_star.shape)}.", "Give two of equal length."
        )
    x, x_star = x.double(), x_star.double()
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
    claim = "δ(y, y*) ≤ 2 e^{2M} mean|x − x*| → 0"
    premises = _bounded(float(torch.cat([x, x_star]).abs().max()), bound)
    premises["differences decrease from each length to the next"] = decays(chosen, largest)
    found = {
        f"largest difference up to n = {chosen[0]}": largest[0],
        "largest difference of the last step": largest[-1],
    }
    return of_a_limit("Lemma B.2", claim, premises, steps, found, _shows(steps, VARIATION), VARIATION)


def _bounded(most: float, bound: float) -> dict[str, bool]:
    """The premises that entries of at most `most` are finite and at most M = `bound`, which is finite too."""
    finite = math.isfinite(most) and math.isfinite(bound)
    return {"entries and M are finite": finite, f"|entries| ≤ {bound:g}": most <= bound}


def _lengths(lengths: Sequence[int] | None, longest: int) -> list[int]:
    chosen = check_lengths(growing_lengths(longest) if lengths is None else lengths)
    if chosen[-1] > longest:
        raise InputError(f"lengths={chosen} exceed the {longest} entries.", f"Give lengths up to {longest}.")
    return chosen


def _shows(steps: Sequence[Step], most: float) -> str:
    """What was checked. A right side of at least `most`, the largest possible left side, says nothing."""
    empty = sum(step.right >= most for step in steps)
    return (
        f"the inequality at {len(steps)} lengths from {steps[0].at:,} to {steps[-1].at:,}, which is proved, so "
        "only an arithmetic error can break it"
        + (f" (at {empty} of them its right side is at least {most:g}, so it says nothing)" if empty else "")
        + "; and whether a side decreases at each of these lengths. No finite check proves a limit"
    )


@validated
def proposition_b4(n: int) -> Statement:
    """Check Proposition B.4: the softmaxes of 1010… and 0101… have the distance 2(e − 1)/(e + 1) at every even n.

    In both, half of the entries are e/Z and half are 1/Z, with Z = n(e + 1)/2, and these are exchanged: δ = n (e −
    1)/Z. The paper divides by Z twice in between; its limit is right, and equals the value at every even n.

    Args:
        n: number of entries; an odd number violates the premise.

    Raises:
        InputError: n is not a positive whole number, or too large.

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
    """eˣ, or infinity if it overflows float64."""
    return math.inf if x > 709 else math.exp(x)


ROUNDING = 1e-9


@validated
def lemma_b6(pattern: Float[Tensor, "query key"]) -> Statement:
    """Check Lemma B.6: the largest eigenvalue is 1 with multiplicity 1, if each later row has two non-zero entries.

    The eigenvalues of a triangular matrix are its diagonal entries. Rows sum to 1, so none exceeds 1, and the only
    entry of the first row is 1. Another diagonal entry of 1 would leave 0 for the rest of its row, which the premise
    excludes. The multiplicity is the number of diagonal entries equal to 1.

    Args:
        pattern: attention pattern (query, key).

    Returns:
        The statement, with the multiplicity of the eigenvalue 1 on the left side.

    Raises:
        InputError: the pattern is not square.

    Source: Barbero et al. 2024, Lemma B.6.

    >>> print(lemma_b6(torch.tensor([[1.0, 0.0], [0.5, 0.5]])))
    Lemma B.6: 1 = 1, holds
    """
    a, slack = _square(pattern), rounding(pattern)
    # A weight of 0.999999997 is 1 in float32, but the rest of its row shows that it is less than 1.
    ones = (a.diagonal() >= 1 - slack) & (_off_diagonal(a) == 0)
    triangular = not bool(a.triu(1).any())
    largest = float(a.diagonal().max()) if triangular else math.nan
    multiplicity = float(ones.sum()) if triangular else math.nan
    claim, holds = "multiplicity of the eigenvalue 1 = 1", multiplicity == 1 and abs(largest - 1) <= slack
    found = {"largest eigenvalue": largest}
    return Statement("Lemma B.6", claim, _of_a_chain(pattern), multiplicity, "=", 1.0, holds, found)


@validated
def lemma_b7(first: Float[Tensor, "query key"], second: Float[Tensor, "query key"]) -> Statement:
    """Check Lemma B.7: a product of triangular row-stochastic matrices is triangular and row-stochastic.

    Σ_j (AB)_ij = Σ_k A_ik Σ_j B_kj = Σ_k A_ik = 1. The sum (AB)_ij = Σ_{j≤k≤i} A_ik B_kj is empty for j > i, and
    non-negative entries have non-negative products and sums.

    Args:
        first, second: the matrices A and B, (query, key).

    Returns:
        The statement; its left side is the largest error of a row sum, of an entry above the diagonal, or of a negative
        entry, and its right side the allowance for rounding.

    Raises:
        InputError: a matrix is not square, or their sizes differ.

    Source: Barbero et al. 2024, Lemma B.7.

    >>> a = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    >>> lemma_b7(a, a).verdict
    'holds'
    """
    a, b = _square(first), _square(second)
    if a.shape != b.shape:
        raise InputError(
            f"first and second have shapes {tuple(a.shape)} and {tuple(b.shape)}.", "Give two matrices of equal size."
        )
    product = a @ b
    parts = [(product.sum(dim=-1) - 1).abs(), -product, product.triu(1).abs()]
    off, allowed = max(float(part.max()) for part in parts), rounding(first) + rounding(second)
    both = (("A", first), ("B", second))
    premises = {f"{name}: {premise}": true for name, m in both for premise, true in _stochastic(m).items()}
    claim = "AB is triangular and row-stochastic"
    return Statement("Lemma B.7", claim, premises, off, "≤", allowed, off <= allowed * (1 + allowed))


@validated
def proposition_b8(pattern: Float[Tensor, "query key"], *, depth: int = 1000) -> Statement:
    """Check Proposition B.8: with depth, the path bound concentrates on the first token.

    (½(Λ + I))^L tends to the first column. The mass elsewhere is at most Σ_{k<n−1} C(L, k) λ^{L−k} ν^k, and decreases
    by a factor λ in each layer in the limit; λ = max_{i>1} (1 + α_ii)/2 is the second-largest eigenvalue.

    ½(Λ + I) is triangular and row-stochastic with eigenvalues (1 + α_ii)/2, and only the first token has eigenvalue 1
    (Lemma B.6). Let B be the matrix without its first row and column, which moves the mass that is not on the first
    token, and N the part of B below its diagonal, with row sums of at most ν. Then B ≤ λI + N entry by entry and
    N^{n−1} = 0. So B^L 1 is at most the sum above, which is λ^L times a polynomial in L, and at least λ^L, the L-th
    power of B's largest diagonal entry. The L-th roots of both tend to λ. This concerns the path bound; the derivative
    itself need not concentrate on the first token.

    Args:
        pattern: attention pattern Λ, (query, key).
        depth: number of layers L.

    Returns:
        The statement. Its sides are the L-th roots of the mass elsewhere and of its bound: mean factors of decrease in
        one layer. `holds` also requires that λ^L is at most the mass, and that λ is less than 1.

    Raises:
        InputError: fewer than two tokens or two layers, or the pattern is not square.

    Source: Barbero et al. 2024, Proposition B.8 (5.2).

    >>> found = proposition_b8(torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.5, 0.3]]))
    >>> found.verdict, round(found.found["factor of the last layer"], 6), found.found["λ"]
    ('holds', 0.75, 0.75)
    """
    a = _square(pattern)
    positive(depth, "depth", "a number of layers")
    if depth < 2 or len(a) < 2:
        raise InputError(f"{len(a)} tokens and depth={depth} show no rate.", "Give at least two tokens and two layers.")
    stays = torch.log1p(-_off_diagonal(a)[1:] / 2)  # log of (1 + α_ii)/2, accurate for α_ii near 1
    below = a[1:, 1:].tril(-1) / 2
    log_mass, factor = _log_mass(below + stays.exp().diag(), depth)
    log_rate = float(stays.max())
    found, bound = log_mass / depth, min(0.0, _log_bound(log_rate, float(below.sum(dim=-1).max()), len(below), depth))
    slack = ROUNDING + rounding(pattern)  # for each layer, since rows sum to 1 only up to rounding
    claim, premises = "mass^{1/L} ≤ (Σ_k C(L, k) λ^{L−k} ν^k)^{1/L} → λ", _of_a_chain(pattern)
    holds = log_rate < 0 and log_rate - slack <= found <= bound + slack
    more = {"λ": math.exp(log_rate), "factor of the last layer": factor, "log of the mass elsewhere": log_mass}
    more["rows that share λ"] = float((stays >= log_rate - ROUNDING).sum())
    return Statement("Proposition B.8", claim, premises, math.exp(found), "≤", math.exp(bound), holds, more)


def _log_mass(block: Float[Tensor, "query key"], depth: int) -> tuple[float, float]:
    """The logarithm of the largest row sum of ``block^depth``, and the factor of the last multiplication."""
    mass, sizes = torch.ones(len(block), dtype=torch.float64), torch.zeros(depth, dtype=torch.float64)
    for layer in range(depth):  # rescaled to size 1: 0.75³⁰⁰⁰ underflows in float64
        mass = block @ mass
        sizes[layer] = mass.max()
        mass = mass / sizes[layer]
    return float(sizes.log().sum()), float(sizes[-1])


def _log_bound(log_rate: float, nu: float, tokens: int, depth: int) -> float:
    """The logarithm of Σ_{k<tokens} C(L, k) λ^{L−k} ν^k, divided by L."""
    k = torch.arange(min(tokens, depth + 1), dtype=torch.float64)
    choose = math.lgamma(depth + 1) - (k + 1).lgamma() - (depth - k + 1).lgamma()
    terms = choose + (depth - k) * log_rate + torch.special.xlogy(k, torch.tensor(nu, dtype=torch.float64))
    return float(terms.logsumexp(dim=0)) / depth


def _square(pattern: Tensor) -> Tensor:
    if pattern.shape[0] != pattern.shape[1] or not len(pattern):
        raise InputError(
            f"The pattern has shape {tuple(pattern.shape)}, which is not square.", "Give one row for each token."
        )
    return pattern.double()


def _off_diagonal(a: Float[Tensor, "query key"]) -> Float[Tensor, " query"]:
    """1 − α_ii, computed as the sum of the rest of the row."""
    return a.tril(-1).sum(dim=-1)


def _stochastic(pattern: Tensor) -> dict[str, bool]:
    return {"triangular": not bool(pattern.triu(1).any()), "rows are distributions": distributions(pattern)}


def _of_a_chain(pattern: Tensor) -> dict[str, bool]:
    two = bool(((pattern != 0).sum(dim=-1)[1:] >= 2).all())
    return {**_stochastic(pattern), "each row after the first has at least two entries": two}
