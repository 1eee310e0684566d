"""Lemmas B.6 and B.7 and Proposition B.8: attention as a triangular row-stochastic matrix, and its powers."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import positive
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.statements.statement import Statement, distributions, rounding

ROUNDING = 1e-9
TRIANGULAR, TWO = "triangular", "each row but the first has two entries or more"


@validated
def lemma_b6(pattern: Float[Tensor, "query key"]) -> Statement:
    """The largest eigenvalue is 1, once, if every row but the first has two entries that are not 0.

    The eigenvalues of a triangular matrix are its diagonal. Rows sum to 1, so none exceeds 1, and the first row's only
    entry is a 1. A diagonal entry of 1 further down would leave nothing for the rest of its row, which then has one
    entry: the premise forbids just that, and the multiplicity is the number of such ones.

    Source: Barbero et al. 2024, Lemma B.6.

    >>> print(lemma_b6(torch.tensor([[1.0, 0.0], [0.5, 0.5]])))
    Lemma B.6: 1 = 1, holds
    """
    a, slack = _square(pattern), rounding(pattern)
    # A share of 0.999999997 is 1 in float32, and what is left of its row says that it is none.
    ones = (a.diagonal() >= 1 - slack) & (_left(a) == 0)
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
    """A product of triangular row-stochastic matrices is one: how far any row's sum is from 1, what should be 0 from 0,
    and any entry below it.

    Σ_j (AB)_ij = Σ_k A_ik Σ_j B_kj = Σ_k A_ik = 1; (AB)_ij = Σ_{j≤k≤i} A_ik B_kj is empty for j > i, and sums of
    products of what is not negative are not.

    Args:
        triangular: False for the lemma's first half alone: a product of any two row-stochastic matrices is one.

    Source: Barbero et al. 2024, Lemma B.7.

    >>> a = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    >>> lemma_b7(a, a).verdict
    'holds'
    """
    a, b = _square(first), _square(second)
    if a.shape != b.shape:
        raise InputError(f"{tuple(a.shape)} and {tuple(b.shape)} have no product.", "Give two of one size.")
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
    """(½(Λ + I))^L tends to the first column: what is elsewhere is at most Σ_{k<n−1} C(L, k) λ^{L−k} ν^k, with λ the
    second-largest eigenvalue, max_{i>1} (1 + α_ii)/2, and falls by λ a layer in the limit.

    ½(Λ + I) is triangular and row-stochastic with eigenvalues (1 + α_ii)/2, of which 1 belongs to the first token alone
    (Lemma B.6). What is not on the first token is moved by the block B without row and column 1. B ≤ λI + N entry by
    entry, N being what lies below B's diagonal, with row sums ν at most, and N^{n−1} = 0: so B^L 1 is at most the sum
    above, which is λ^L times a polynomial in L. It is at least λ^L, the L-th power of B's largest diagonal entry. The
    L-th root of both ends tends to λ. The bound on paths tends to e₁ so; the derivative itself need not be 1 at the
    first token.

    Args:
        depth: L.

    Returns: L-th roots of the mass elsewhere and of its bound: the mean factor by which it falls in a layer. `holds`
    says also that λ^L is not above the mass, and that λ is below 1.

    Source: Barbero et al. 2024, Proposition B.8 (5.2).

    >>> found = proposition_b8(torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.5, 0.3]]))
    >>> found.verdict, round(found.found["factor of the last layer"], 6), found.found["λ"]
    ('holds', 0.75, 0.75)
    """
    a = _square(pattern)
    positive(depth, "depth", "a number of layers")
    if depth < 2 or len(a) < 2:
        raise InputError(f"{len(a)} tokens and {depth} layers show no rate.", "Give two of each, or more.")
    stays = torch.log1p(-_left(a)[1:] / 2)  # log of (1 + α_ii)/2, to full precision where α_ii is nearly 1
    below = a[1:, 1:].tril(-1) / 2
    log_mass, factor = _log_mass(below + stays.exp().diag(), depth)
    log_rate = float(stays.max())
    found, bound = log_mass / depth, min(0.0, _log_bound(log_rate, float(below.sum(dim=-1).max()), len(below), depth))
    slack = ROUNDING + rounding(pattern)  # in each layer, as rows need not sum to 1 to the last bit
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
    """Logarithm of the largest row sum of a power of a matrix, and the factor of the last multiplication."""
    mass, sizes = torch.ones(len(block), dtype=torch.float64), torch.zeros(depth, dtype=torch.float64)
    for layer in range(depth):  # kept at size 1: 0.75²⁰⁰⁰ is no float64
        mass = block @ mass
        sizes[layer] = mass.max()
        mass = mass / sizes[layer]
    return float(sizes.log().sum()), float(sizes[-1])


def _log_bound(log_rate: float, nu: float, tokens: int, depth: int) -> float:
    """Logarithm of Σ_{k<tokens} C(L, k) λ^{L−k} ν^k, ÷ L."""
    k = torch.arange(min(tokens, depth + 1), dtype=torch.float64)
    choose = math.lgamma(depth + 1) - (k + 1).lgamma() - (depth - k + 1).lgamma()
    terms = choose + (depth - k) * log_rate + torch.special.xlogy(k, torch.tensor(nu, dtype=torch.float64))
    return float(terms.logsumexp(dim=0)) / depth


def _square(pattern: Tensor) -> Tensor:
    if pattern.shape[0] != pattern.shape[1] or not len(pattern):
        raise InputError(f"A pattern of shape {tuple(pattern.shape)} is not square.", "Give one row a token.")
    return pattern.double()


def _left(a: Float[Tensor, "query key"]) -> Float[Tensor, " query"]:
    """1 − α_ii, as what the rest of the row holds."""
    return a.tril(-1).sum(dim=-1)


def _stochastic(pattern: Tensor) -> dict[str, bool]:
    return {TRIANGULAR: not bool(pattern.triu(1).any()), "rows are distributions": distributions(pattern)}


def _two_each(a: Tensor) -> bool:
    return bool(((a != 0).sum(dim=-1)[1:] >= 2).all())
