"""Matrix norms of Jacobian blocks: exact, accumulated over rows, or estimated from random rows."""

import math

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

FOLDS = 4  # parts of a sketch, of which each judges what the others find


def spectral_norms(blocks: Float[Tensor, "*position out in"]) -> Float[Tensor, "*position"]:
    """The spectral norm of each block, ``‖J‖₂ = √λ_max(J Jᵀ)``, exact, in float64.

    The Gram matrix squares the condition number. This makes small singular values inaccurate, but not the largest.

    >>> spectral_norms(torch.tensor([[[3.0, 0.0], [0.0, 4.0]]])).tolist()
    [4.0]
    """
    wide = blocks.double()
    gram = wide @ wide.mT if wide.shape[-2] <= wide.shape[-1] else wide.mT @ wide
    return torch.linalg.eigvalsh(gram)[..., -1].clamp(min=0).sqrt()


def away_from_singular(metric: Float[Tensor, "stack stack"], floor: float) -> Float[Tensor, "stack stack"]:
    """The matrix with `floor` times its largest diagonal entry added to the diagonal, so that it can be inverted.

    >>> away_from_singular(torch.tensor([[4.0, 0.0], [0.0, 0.0]]), 0.25).tolist()
    [[5.0, 0.0], [0.0, 1.0]]
    """
    least = floor * metric.diagonal().max().clamp(min=torch.finfo(metric.dtype).tiny)
    return metric + least * torch.eye(len(metric), dtype=metric.dtype, device=metric.device)


def squared_frobenius(rows: Float[Tensor, "cotangent *position in"]) -> Float[Tensor, "*position"]:
    """The sum of squares over rows and coordinates in float64: what a batch of VJPs adds to ``‖J‖_F²``.

    >>> squared_frobenius(torch.tensor([[[3.0, 4.0]]])).tolist()
    [25.0]
    """
    return rows.double().square().sum(dim=(0, -1))


def sketch_factors(probes: int, chance: float) -> tuple[float, float]:
    """Factors that turn a sketched Frobenius norm into lower and upper bounds, each failing with probability `chance`.

    With k = `probes` standard normal rows in G, ``X = ‖GJ‖_F² / (k ‖J‖_F²)`` is a mean of weighted χ² variables. For
    weights λ_r of sum 1, ``Π(1 ± 2sλ_r)`` is smallest if there is only one weight, so Chernoff's bound for rank one
    holds for every J: ``P(X ≤ t) ≤ (t e^(1−t))^(k/2)`` for t < 1, and the same for P(X ≥ t) with t > 1. The factors are
    ``t^(-½)`` at the two t where this bound equals `chance`.

    >>> low, high = sketch_factors(32, 1e-6)
    >>> round(low, 2), round(high, 2)
    (0.58, 2.31)
    """
    goal = 2 * math.log(chance) / probes

    def solution(inside: float, outside: float) -> float:  # log t + 1 − t decreases from 0 at t = 1 in both directions
        for _ in range(200):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if math.log(middle) + 1 - middle > goal else (inside, middle)
        return outside

    return solution(1.0, 2 - 2 * goal + 2) ** -0.5, solution(1.0, math.exp(goal - 1)) ** -0.5


def direction_factor(probes: int, chance: float) -> float:
    """The factor by which ‖GJ‖ bounds ‖J‖₂, except with probability `chance`; G has `probes` standard normal rows.

    With σ₁, u, v the top singular triple of J, ``‖GJ‖ ≥ ‖GJv‖ = σ₁ ‖Gu‖`` in the spectral and in the Frobenius norm,
    and ‖Gu‖² is χ² with `probes` degrees of freedom. The factor is 1/√q, where q is its quantile at `chance`.

    >>> round(direction_factor(32, 1e-6), 3), round(direction_factor(8, 1e-10), 1)
    (0.377, 8.4)
    """
    return float(stats.chi2.ppf(chance, probes)) ** -0.5


def sketch_stages(first: int, d: int) -> list[int]:
    """The numbers of rows at which a growing sketch is looked at: from `first`, a quarter more each, below 4/5 of d.

    They are fixed before anything is drawn, so that a union bound over them allows for any way of stopping.

    >>> sketch_stages(16, 64)
    [16, 20, 25, 32, 40, 50]
    """
    found: list[int] = []
    k = first
    while 5 * k < 4 * d:
        found.append(k)
        k += -(-k // 4)
    return found


def unmixing(directions: Float[Tensor, "cotangent d"]) -> Float[Tensor, "row cotangent"]:
    """The matrix W for which the rows of WG are an orthonormal basis of the row space of the directions G.

    With ``G = U S Vᵀ`` it is ``S⁻¹ Uᵀ``, and ``WG = Vᵀ``. So ``‖W(GJ)‖₂ = ‖VᵀJ‖₂ ≤ ‖J‖₂`` is the largest lower bound
    on ‖J‖₂ that products with G give, for every J. With d directions or more it is ‖J‖₂.

    >>> (unmixing(torch.tensor([[2.0, 0.0, 0.0]])) @ torch.tensor([[2.0, 0.0, 0.0]])).abs().tolist()
    [[1.0, 0.0, 0.0]]
    """
    u, s, _ = torch.linalg.svd(directions, full_matrices=False)
    return u.mT / s[:, None]


def length_factor(probes: int, chance: float) -> float:
    """The factor by which ‖Gx‖ is a lower bound on ‖x‖, except with probability `chance`; G has `probes` rows.

    ‖Gx‖²/‖x‖² is χ² with `probes` degrees of freedom. The factor is 1/√q, where q is exceeded with probability
    `chance`.

    >>> round(length_factor(32, 1e-6), 3)
    0.108
    """
    return float(stats.chi2.isf(chance, probes)) ** -0.5


def crossed(rows: Float[Tensor, "*position cotangent in"]) -> Float[Tensor, "*position fold"]:
    """‖G₂Jv‖ for each quarter G₂ of G, where v is the unit vector for which ‖G₁Jv‖ is largest; G₁ is the rest of G.

    G₂ knows nothing of v. So ``‖G₂Jv‖²/k₂`` is an unbiased estimate of ``‖Jv‖² ≤ ‖J‖₂²``, whatever J is. `rows` is GJ,
    of a multiple of four rows.

    >>> crossed(torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 0.5], [1.0, 0.0]])).tolist()
    [3.0, 2.0, 0.0, 1.0]
    """
    parts = rows.double().unflatten(-2, (FOLDS, -1)).unbind(dim=-3)
    found: list[Tensor] = []
    for fold, other in enumerate(parts):
        one = torch.cat([part for place, part in enumerate(parts) if place != fold], dim=-2)
        best = one.mT @ torch.linalg.eigh(one @ one.mT).eigenvectors[..., -1:]
        size = best.norm(dim=-2, keepdim=True)
        found.append((other @ (best / size.where(size > 0, torch.ones_like(size))))[..., 0].norm(dim=-1))
    return torch.stack(found, dim=-1)


def mean_interval(samples: Float[Tensor, "cotangent ..."]) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """The mean of samples and half the width of its 95 % interval, by Student's t.

    For a single sample the half width is NaN.

    >>> mean, half = mean_interval(torch.tensor([1.0, 3.0]))
    >>> mean.item(), round(half.item(), 3)
    (2.0, 12.706)
    """
    k = len(samples)
    if k < 2:
        return samples.mean(dim=0), torch.full_like(samples.mean(dim=0), torch.nan)
    return samples.mean(dim=0), float(stats.t.ppf(0.975, k - 1)) * samples.std(dim=0) / math.sqrt(k)
