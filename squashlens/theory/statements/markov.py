"""Lemmas B.6 and B.7 and Proposition B.8: attention as a triangular row-stochastic matrix, and its powers."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import positive
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.statements.statement import Statement, distributions, rounding

ROUNDING = 1e-9
TRIANGULAR, TWO = "triangular", "each row after the first has at least two entries"


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
    return Statement(
        "Lemma B.6",
        "multiplicity of the eigenvalue 1 = 1",
        {**_stochastic(pattern), TWO: _two_each(a)},
        multiplicity,
        "=",
        1.0,
        multiplicity == 1 and abs(largest - 1) <= slack,
        {"largest eigenvalue": largest},
    )


@validated
def lemma_b7(
    first: Float[Tensor, "query key"], second: Float[Tensor, "query key"], *, triangular: bool = True
) -> Statement:
    """Check Lemma B.7: a product of triangular row-stochastic matrices is triangular and row-stochastic.

    Σ_j (AB)_ij = Σ_k A_ik Σ_j B_kj = Σ_k A_ik = 1. The sum (AB)_ij = Σ_{j≤k≤i} A_ik B_kj is empty for j > i, and
    non-negative entries have non-negative products and sums.

    Args:
        first: the matrix A, (query, key).
        second: the matrix B, (query, key).
        triangular: False checks only the lemma's first half, for any two row-stochastic matrices.

    Returns:
        The statement; its left side is the largest error: of a row sum from 1, of an entry above the diagonal from 0,
        or of a negative entry from 0. Its right side is the allowance for rounding.

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
    parts = [(product.sum(dim=-1) - 1).abs(), -product, *[product.triu(1).abs()] * triangular]
    off, allowed = max(float(part.max()) for part in parts), rounding(first) + rounding(second)
    premises = {
        f"{name}: {premise}": true
        for name, m in (("A", first), ("B", second))
        for premise, true in _stochastic(m).items()
        if triangular or premise != TRIANGULAR
    }
    claim = "AB is triangular and row-stochastic" if triangular else "AB is row-stochastic"
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
    return Statement(
        "Proposition B.8",
        "mass^{1/L} ≤ (Σ_k C(L, k) λ^{L−k} ν^k)^{1/L} → λ",
        {**_stochastic(pattern), TWO: _two_each(a)},
        math.exp(found),
        "≤",
        math.exp(bound),
        log_rate < 0 and log_rate - slack <= found <= bound + slack,
        {
            "λ": math.exp(log_rate),
            "factor of the last layer": factor,
            "log of the mass elsewhere": log_mass,
            "rows that share λ": float((stays >= log_rate - ROUNDING).sum()),
        },
    )


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
    return {TRIANGULAR: not bool(pattern.triu(1).any()), "rows are distributions": distributions(pattern)}


def _two_each(a: Tensor) -> bool:
    return bool(((a != 0).sum(dim=-1)[1:] >= 2).all())
