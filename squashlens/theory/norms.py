"""Matrix norms of Jacobian blocks, each formula once: exact, streamed, estimated from a few rows."""

import math

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor


def spectral_norms(blocks: Float[Tensor, "*position out in"]) -> Float[Tensor, "*position"]:
    """The largest singular value of each block, ``‖J‖₂ = √λ_max(J Jᵀ)``, exact, in float64.

    Forming the Gram matrix squares the condition number, which spoils small singular values and leaves the
    largest as accurate as the arithmetic.

    >>> spectral_norms(torch.tensor([[[3.0, 0.0], [0.0, 4.0]]])).tolist()
    [4.0]
    """
    wide = blocks.double()
    gram = wide @ wide.mT if wide.shape[-2] <= wide.shape[-1] else wide.mT @ wide
    return torch.linalg.eigvalsh(gram)[..., -1].clamp(min=0).sqrt()


def away_from_singular(metric: Float[Tensor, "stack stack"], floor: float) -> Float[Tensor, "stack stack"]:
    """A positive matrix that can be inverted: `floor` times its largest diagonal entry is added to all of them.

    >>> away_from_singular(torch.tensor([[4.0, 0.0], [0.0, 0.0]]), 0.25).tolist()
    [[5.0, 0.0], [0.0, 1.0]]
    """
    least = floor * metric.diagonal().max().clamp(min=torch.finfo(metric.dtype).tiny)
    return metric + least * torch.eye(len(metric), dtype=metric.dtype, device=metric.device)


def squared_frobenius(rows: Float[Tensor, "cotangent *position in"]) -> Float[Tensor, "*position"]:
    """Σ over rows and coordinates of the squares: what a batch of VJPs adds to ``‖J‖_F²``. float64.

    >>> squared_frobenius(torch.tensor([[[3.0, 4.0]]])).tolist()
    [25.0]
    """
    return rows.double().square().sum(dim=(0, -1))


def sketch_factors(probes: int, chance: float) -> tuple[float, float]:
    """What to multiply a sketched Frobenius norm by to be below and above the true one, each but for `chance`.

    With G of `probes` standard normal rows, ``X = ‖GJ‖_F² / (probes ‖J‖_F²)`` is a mean of weighted χ². Weights of sum
    1 make ``Π(1 ± 2sλ_r)`` least when there is one of them, so that Chernoff's bound for rank one holds for every J:
    ``P(X ≤ t) ≤ (t e^(1−t))^(k/2)`` for t < 1, and the same for X ≥ t > 1. The factors are ``t^(-½)`` where it is
    `chance`.

    >>> low, high = sketch_factors(32, 1e-6)
    >>> round(low, 2), round(high, 2)
    (0.58, 2.31)
    """
    goal = 2 * math.log(chance) / probes

    def where(inside: float, outside: float) -> float:  # log t + 1 − t falls from 0 at t = 1 to both sides
        for _ in range(200):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if math.log(middle) + 1 - middle > goal else (inside, middle)
        return outside

    return where(1.0, 2 - 2 * goal + 2) ** -0.5, where(1.0, math.exp(goal - 1)) ** -0.5


def direction_factor(probes: int, chance: float) -> float:
    """What to multiply the norm of GJ by to be above ‖J‖₂, but for `chance`; G has `probes` standard normal rows.

    With σ₁, u, v the top singular triple of J, ``‖GJ‖ ≥ ‖GJv‖ = σ₁ ‖Gu‖`` in the spectral norm, and in Frobenius' all
    the more, and ‖Gu‖² is χ² with `probes` degrees of freedom. The factor is 1/√q, q the quantile of `chance`.

    >>> round(direction_factor(32, 1e-6), 3), round(direction_factor(8, 1e-10), 1)
    (0.377, 8.4)
    """
    return float(stats.chi2.ppf(chance, probes)) ** -0.5


def mean_interval(samples: Float[Tensor, "cotangent ..."]) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """The mean of several draws and half the width of its 95 % interval, from their spread: Student's t.

    NaN in place of the half width for one draw, which has no spread.

    >>> mean, half = mean_interval(torch.tensor([1.0, 3.0]))
    >>> mean.item(), round(half.item(), 3)
    (2.0, 12.706)
    """
    k = len(samples)
    if k < 2:
        return samples.mean(dim=0), torch.full_like(samples.mean(dim=0), torch.nan)
    return samples.mean(dim=0), float(stats.t.ppf(0.975, k - 1)) * samples.std(dim=0) / math.sqrt(k)
