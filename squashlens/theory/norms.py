"""Matrix norms of Jacobian blocks, each formula once: exact, streamed, certified without writing the block out."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
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


def mean_interval(samples: Float[Tensor, "cotangent ..."]) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """The mean of several draws and half the width of its 95 % interval, from their spread: Student's t.

    The quantile is that of Cornish and Fisher's expansion, right to 0.1 % from five draws on.
    """
    k, z = len(samples), 1.959963984540054
    free = k - 1
    quantile = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return samples.mean(dim=0), quantile * samples.std(dim=0) / math.sqrt(k)


EXHAUSTED = 1e-13  # what is left of a vector, relative to the operator's scale, when it is rounding


@dataclass(frozen=True)
class Certified:
    """Spectral norms from below and from above: `upper` holds for all of them at once but for a known chance.

    `lower` is the largest Ritz value's root, never above the norm but for rounding. `failure_probability` is the
    chance, over the random starts, that any of the norms exceeds its `upper`.
    """

    lower: Float[Tensor, " operator"]
    upper: Float[Tensor, " operator"]
    failure_probability: float
    steps: int


def lanczos_steps(d: int, norms: int, inflation: float, failure: float) -> int:
    """The fewest Lanczos steps after which `norms` norms are all known to within 1 + `inflation`, but for `failure`.

    From a start that is uniform on the sphere, k steps on a positive d × d matrix miss the largest eigenvalue by a
    relative ε with probability at most ``1.648 √d exp(−√ε (2k − 1))``; ε = 1 − (1 + inflation)⁻² for the norm,
    which is its root. At most d: then Lanczos is exact.

    Source: Kuczyński and Woźniakowski 1992, Theorem 4.2.

    >>> lanczos_steps(2048, 1, 0.05, 1e-6), lanczos_steps(2048, 100_000, 0.05, 1e-6)
    (31, 50)
    """
    missed = 1 - (1 + inflation) ** -2
    needed = (math.log(1.648 * math.sqrt(d) * norms / failure) / math.sqrt(missed) + 1) / 2
    return min(d, max(1, math.ceil(needed)))


def certified_spectral_norms(
    gram: Callable[[Float[Tensor, "operator d"]], Float[Tensor, "operator d"]],
    operators: int,
    d: int,
    *,
    generator: torch.Generator,
    inflation: float = 0.05,
    failure: float = 1e-6,
    norms: int | None = None,
) -> Certified:
    """‖J‖₂ of operators that are only known by what they do: ``gram(x) = Jᵀ(J x)``, many of them side by side.

    Lanczos with full reorthogonalisation in float64 from random starts; the root of the largest Ritz value is
    divided by ``√(1 − ε)``. `norms` is the number that must hold together, where more are taken than in this call.
    scipy's ARPACK iterates until it seems to have converged and certifies nothing, and takes one operator at a time.

    >>> blocks = torch.diag_embed(torch.tensor([[3.0, 1.0], [2.0, 5.0]], dtype=torch.float64))
    >>> found = certified_spectral_norms(
    ...     lambda x: (blocks.mT @ (blocks @ x[..., None]))[..., 0], 2, 2, generator=torch.Generator().manual_seed(0))
    >>> found.upper.round(decimals=9).tolist(), found.failure_probability
    ([3.0, 5.0], 0.0)
    """
    steps = lanczos_steps(d, operators if norms is None else norms, inflation, failure)
    start = torch.randn(operators, d, dtype=torch.float64, device=generator.device, generator=generator)
    basis = (start / start.norm(dim=-1, keepdim=True))[:, None]
    projected = start.new_zeros(operators, steps, steps)
    scale = start.new_zeros(operators, 1)
    for k in range(steps):
        image = gram(basis[:, k]).double()
        scale = torch.maximum(scale, image.norm(dim=-1, keepdim=True))
        along = torch.einsum("okd,od->ok", basis, image)
        projected[:, : k + 1, k] = projected[:, k, : k + 1] = along
        image = image - torch.einsum("okd,ok->od", basis, along)
        image = image - torch.einsum("okd,od,oke->oe", basis, image, basis)  # once more, to stay orthogonal
        size = image.norm(dim=-1, keepdim=True)
        # An operator whose Krylov space is used up goes on with zeros, which add nothing.
        further = torch.where(size > EXHAUSTED * scale, image / size, 0.0)
        basis = torch.cat([basis, further[:, None]], dim=1)
    largest = torch.linalg.eigvalsh(projected)[:, -1].clamp(min=0).sqrt()
    if steps == d:
        return Certified(largest, largest, 0.0, steps)
    return Certified(largest, largest * (1 + inflation), failure, steps)
