"""Matrix norms of Jacobian blocks: exact, accumulated over rows, or estimated from random rows."""

import math

import torch
from jaxtyping import Bool, Float
from scipy import special  # `scipy.stats` takes a second to import
from torch import Tensor

FOLDS = 4  # parts of a sketch, of which each judges what the others find
PROBES = 8  # random directions that show what rounding does to a derivative
ROUNDED = 1e-6  # what is added to gaps of eigenvalues, relative to the largest; far above their rounding in float64


def normals(seed: int, *shape: int) -> Tensor:
    """Independent standard normal numbers in float64, drawn on the CPU: directions for products of a Jacobian."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def spectral_norms(
    blocks: Float[Tensor, "*position out in"],
) -> Float[Tensor, "*position"]:
    """The spectral norm ‖J‖₂ of each block, exact, in float64."""
    rows, columns = blocks.shape[-2:]
    return largest(gram_of(blocks if rows <= columns else blocks.mT))


def gram_of(rows: Float[Tensor, "*many out in"]) -> Float[Tensor, "*many out out"]:
    """``J Jᵀ`` of each block, in float64. That of several blocks side by side is the sum of theirs."""
    wide = rows.double()
    return wide @ wide.mT


def largest(gram: Float[Tensor, "*many out out"]) -> Float[Tensor, "*many"]:
    """The spectral norm ``√λ_max(J Jᵀ)`` of each block, from its Gram matrix.

    The Gram matrix squares the condition number. This makes small singular values inaccurate, but not the largest.
    """
    return torch.linalg.eigvalsh(gram)[..., -1].clamp(min=0).sqrt()


def squared_frobenius(
    rows: Float[Tensor, "cotangent *position in"],
) -> Float[Tensor, "*position"]:
    """The sum of squares over rows and coordinates in float64: what a batch of VJPs adds to ``‖J‖_F²``."""
    return rows.double().square().sum(dim=(0, -1))


def sketch_factors(probes: int, chance: float) -> tuple[float, float]:
    """Factors that turn a sketched Frobenius norm into lower and upper bounds, each failing with probability `chance`.

    With k = `probes` standard normal rows in G, ``X = ‖GJ‖_F² / (k ‖J‖_F²)`` is a mean of weighted χ² variables. For
    weights λ_r of sum 1, ``Π(1 ± 2sλ_r)`` is smallest if there is only one weight, so Chernoff's bound for rank one
    holds for every J: ``P(X ≤ t) ≤ (t e^(1−t))^(k/2)`` for t < 1, and the same for P(X ≥ t) with t > 1. The factors are
    ``t^(-½)`` at the two t where this bound equals `chance`: −t is a value of Lambert's W, on either real branch.
    """
    value = -(chance ** (2 / probes)) / math.e
    t_above_1 = float(-special.lambertw(value, -1).real)
    t_below_1 = float(-special.lambertw(value, 0).real)
    return t_above_1**-0.5, t_below_1**-0.5


def missing_sizes(
    products: Float[Tensor, "cotangent *key in"], chance: float
) -> Float[Tensor, "*key"]:
    """Upper bounds on ‖Δ_i‖_F for each key i from products GΔ_i, G random normal directions (cotangents).

    They all hold together except with probability `chance`.
    """
    keys = products[0, ..., 0].numel()  # among which the chance of an error is divided
    _, factor = sketch_factors(len(products), chance / keys)
    return factor * (squared_frobenius(products) / len(products)).sqrt()


def with_rounding(
    bounds: Float[Tensor, "row key"],
    reached: Bool[Tensor, "row key"],
    rounding: float | Float[Tensor, "#row #key"],
) -> Float[Tensor, "row key"]:
    """Raise bounds by the rounding error of their computation, so that they bound the exact derivative.

    The error of a bound is at most `rounding` times the largest of its row. This also covers cancellation and
    underflow: a weight that underflows to 0 gets this bound. Without a path (not `reached`), a bound of 0 stays 0.
    """
    lost = rounding * bounds.amax(dim=-1, keepdim=True)
    return bounds * (1 + rounding) + torch.where(reached | (bounds > 0), lost, 0.0)


def direction_factor(probes: int, chance: float) -> float:
    """The factor by which `spike_sizes` or ‖GJ‖_F bound ‖J‖₂, except with probability `chance`; G has `probes` rows.

    With σ₁, u, v the top singular triple of J, ``‖GJ‖ ≥ ‖GJv‖ = σ₁ ‖Gu‖`` in the spectral and in the Frobenius norm,
    and ‖Gu‖² is χ² with `probes` degrees of freedom. The factor is 1/√q, where q is its quantile at `chance`.
    """
    return float(2 * special.gammaincinv(probes / 2, chance)) ** -0.5


def spike_sizes(
    gram: Float[Tensor, "*position cotangent cotangent"],
) -> Float[Tensor, "*position"]:
    """A size of the sketch GJ, at most ‖GJ‖₂, that bounds ‖J‖₂ by the same factor `direction_factor` as ‖GJ‖₂ does.

    It is ``√ Π_i (λ₁ − λ_{i+1})^(1/k)``, where λ₁ ≥ … ≥ λ_k are the eigenvalues of the Gram matrix ``GJ(GJ)ᵀ`` and
    λ_{k+1} = 0; docs/certificates.md has the proof. Eigenvalues are rounded, so `ROUNDED` times λ₁ is added to each
    gap. If J has rank one, the size is ‖GJ‖₂.
    """
    values = torch.linalg.eigvalsh(gram).clamp(min=0)
    top = values[..., -1:]  # λ₁: eigenvalues are in ascending order
    others = torch.nn.functional.pad(values[..., :-1], (1, 0))  # λ_{k+1} = 0 in front
    gaps = (top - others) / top.where(top > 0, 1.0) + ROUNDED
    return (gaps.log().mean(dim=-1) / 2).exp() * top[..., 0].sqrt()


def moment_sizes(
    gram: Float[Tensor, "*position cotangent cotangent"],
) -> Float[Tensor, "*position"]:
    """An estimate of ``√(Σσ⁶/Σσ⁴) ≤ ‖J‖₂`` from the sketch GJ, where σ are the singular values of J.

    With ``A = GJ(GJ)ᵀ``, which is `gram`, the means of A_ij A_ji over i < j and of A_ij A_jl A_li over i < j < l have
    the expected values Σσ⁴ and Σσ⁶, because different rows of G are independent. Their ratio is too small on average if
    G has few rows. It is 0 for two rows, and NaN where one of the estimates is not positive.

    Source: Kong and Valiant 2017, "Spectrum estimation from samples".
    """
    k = gram.shape[-1]
    above = gram.triu(1)  # A_ij for i < j, so that `above @ above` sums over i < j < l
    of_pairs = (above * gram).sum(dim=(-2, -1)) / max(1, math.comb(k, 2))
    of_triples = ((above @ above) * gram).sum(dim=(-2, -1)) / max(1, math.comb(k, 3))
    return (of_triples / of_pairs).sqrt()


def unmixing(
    directions: Float[Tensor, "cotangent d"],
) -> Float[Tensor, "row cotangent"]:
    """The matrix W for which the rows of WG are an orthonormal basis of the row space of the directions G.

    With ``G = U S Vᵀ`` it is ``S⁻¹ Uᵀ``, and ``WG = Vᵀ``. So ``‖W(GJ)‖₂ = ‖VᵀJ‖₂ ≤ ‖J‖₂`` is the largest lower bound
    on ‖J‖₂ that products with G give, for every J. With d directions or more it is ‖J‖₂.
    """
    u, s, _ = torch.linalg.svd(directions, full_matrices=False)
    return u.mT / s[:, None]


def length_factor(probes: int, chance: float) -> float:
    """The factor by which ‖Gx‖ is a lower bound on ‖x‖, except with probability `chance`: ‖Gx‖²/‖x‖² is χ²."""
    return float(special.chdtri(probes, chance)) ** -0.5


def crossed(
    gram: Float[Tensor, "*position cotangent cotangent"],
) -> Float[Tensor, "*position fold"]:
    """‖G₂Jv‖ for each quarter G₂ of G, where v is the unit vector for which ‖G₁Jv‖ is largest; G₁ is the rest of G.

    G₂ knows nothing of v. So ``‖G₂Jv‖²/k₂`` is an unbiased estimate of ``‖Jv‖² ≤ ‖J‖₂²``, whatever J is. `gram` is
    ``GJ(GJ)ᵀ``, of a multiple of four rows: with λ and u the largest eigenvalue of its part for G₁ and its vector,
    ``v = (G₁J)ᵀu/√λ``.
    """
    rows = torch.arange(gram.shape[-1], device=gram.device)
    size = len(rows) // FOLDS
    lengths: list[Tensor] = []
    for start in range(0, len(rows), size):
        quarter = rows[start : start + size]  # of G₂
        rest = torch.cat([rows[:start], rows[start + size :]])  # of G₁
        values, vectors = torch.linalg.eigh(gram[..., rest[:, None], rest])
        value = values[..., -1]
        vector = vectors[..., -1:]
        # ‖G₂J (G₁J)ᵀu‖/√λ
        across = gram[..., quarter[:, None], rest] @ vector
        length = across[..., 0].norm(dim=-1)
        lengths.append(length / value.where(value > 0, 1.0).sqrt())
    return torch.stack(lengths, dim=-1)
