"""Lemmas B.6 and B.7 and Proposition B.8: attention as a triangular row-stochastic matrix, and its powers."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.errors import InputError
from squashlens.theory.statements.statement import Statement

ROUNDING = 1e-9


def lemma_b6(pattern: Float[Tensor, "query key"]) -> Statement:
    """The largest eigenvalue is 1, once, if every row but the first has two entries that are not 0.

    The eigenvalues of a triangular matrix are its diagonal. Rows sum to 1, so none exceeds 1, and the first row's only
    entry is a 1. A diagonal entry of 1 further down would leave nothing for the rest of its row, which then has one
    entry: the premise forbids just that, and the multiplicity is the number of such ones.

    Source: Barbero et al. 2024, Lemma B.6.

    >>> print(lemma_b6(torch.tensor([[1.0, 0.0], [0.5, 0.5]])))
    Lemma B.6: 1 = 1, holds
    """
    a = _square(pattern)
    diagonal = a.diagonal()
    largest = float(diagonal.max())
    multiplicity = int((diagonal >= 1 - _rounding(pattern)).sum())
    return Statement(
        "Lemma B.6",
        "multiplicity of the eigenvalue 1 = 1",
        {**_stochastic(pattern), "each row but the first has two entries or more": _two_each(a)},
        float(multiplicity),
        "=",
        1.0,
        multiplicity == 1 and abs(largest - 1) <= _rounding(pattern),
        {"largest eigenvalue": largest},
    )


def lemma_b7(first: Float[Tensor, "query key"], second: Float[Tensor, "query key"]) -> Statement:
    """A product of triangular row-stochastic matrices is one: how far any row's sum is from 1, what should be 0 from 0,
    and any entry below it.

    Σ_j (AB)_ij = Σ_k A_ik Σ_j B_kj = Σ_k A_ik = 1; (AB)_ij = Σ_{j≤k≤i} A_ik B_kj is empty for j > i, and sums of
    products of what is not negative are not.

    Source: Barbero et al. 2024, Lemma B.7.

    >>> a = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    >>> lemma_b7(a, a).verdict
    'holds'
    """
    a, b = _square(first), _square(second)
    if a.shape != b.shape:
        raise InputError(f"{tuple(a.shape)} and {tuple(b.shape)} have no product.", "Give two of one size.")
    product = a @ b
    off = max(float(part.max()) for part in ((product.sum(dim=-1) - 1).abs(), product.triu(1).abs(), -product))
    allowed = _rounding(first) + _rounding(second)
    premises = {f"{name}: {p}": true for name, m in (("A", first), ("B", second)) for p, true in _stochastic(m).items()}
    return Statement("Lemma B.7", "AB is triangular and row-stochastic", premises, off, "≤", allowed, off <= allowed)


def proposition_b8(pattern: Float[Tensor, "query key"], *, depth: int = 1000, tolerance: float = 1e-3) -> Statement:
    """(½(Λ + I))^L tends to the first column: mass elsewhere falls by the second-largest (1 + α_ii)/2 a layer.

    ½(Λ + I) is triangular and row-stochastic with eigenvalues (1 + α_ii)/2, of which 1 belongs to the first token alone
    (Lemma B.6). What is not on the first token is moved by the block without row and column 1, whose largest eigenvalue
    is the rate. Where several rows share it, Jordan blocks add a factor that grows with L like a polynomial, and the
    rate is approached slowly. The bound tends to e₁ so; the derivative itself need not be 1 at the first token.

    Args:
        depth: L; the rate is observed over the last of so many layers.
        tolerance: how close to the rate that is to be, beside twice what it still moved over the last half.

    Source: Barbero et al. 2024, Proposition B.8 (5.2).

    >>> print(proposition_b8(torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.5, 0.3]])))
    Proposition B.8: 0.75 = 0.75, holds
    """
    a = _square(pattern)
    if depth < 2 or len(a) < 2:
        raise InputError(f"{len(a)} tokens and {depth} layers show no rate.", "Give two of each, or more.")
    block = (a[1:, 1:] + torch.eye(len(a) - 1, dtype=torch.float64)) / 2
    shares = block.diagonal()
    predicted = float(shares.max())
    mass, sizes = torch.ones(len(block), dtype=torch.float64), []
    for _ in range(depth):  # kept at size 1: 0.75²⁰⁰⁰ is no float64
        mass = block @ mass
        sizes.append(float(mass.max()))
        mass = mass / sizes[-1]
    repeated = int((shares >= predicted - ROUNDING).sum())
    observed = sizes[-1]
    allowed = tolerance + 2 * abs(sizes[-1] - sizes[len(sizes) // 2])
    return Statement(
        "Proposition B.8",
        "rate of the mass elsewhere = max_{i>1} (1 + α_ii)/2",
        {**_stochastic(pattern), "each row but the first has two entries or more": _two_each(a)},
        observed,
        "=",
        predicted,
        abs(observed - predicted) <= allowed and observed < 1,
        {"log of the mass elsewhere": sum(map(math.log, sizes)), "rows that share the rate": float(repeated)},
    )


def _square(pattern: Tensor) -> Tensor:
    if pattern.shape[0] != pattern.shape[1] or not len(pattern):
        raise InputError(f"A pattern of shape {tuple(pattern.shape)} is not square.", "Give one row a token.")
    return pattern.double()


def _rounding(pattern: Tensor) -> float:
    """What rounding in the dtype of a pattern may put a row's sum from 1."""
    return len(pattern) * torch.finfo(pattern.dtype).eps


def _stochastic(pattern: Tensor) -> dict[str, bool]:
    off = (pattern.double().sum(dim=-1) - 1).abs()
    return {
        "triangular": not bool(pattern.triu(1).any()),
        "rows are distributions": bool((pattern >= 0).all()) and bool((off <= _rounding(pattern)).all()),
    }


def _two_each(a: Tensor) -> bool:
    return bool(((a != 0).sum(dim=-1)[1:] >= 2).all())
