"""Certified spectral norms of operators that are given only by their products with vectors, by Lanczos iteration.

Lanczos on ``A = JᵀJ`` with a random unit vector x gives orthonormal vectors ``q_m = p_m(A) x``, where the polynomials
p_m follow a three-term recurrence. For the largest eigenvalue λ and its eigenvector u, ``u·q_m = p_m(λ) u·x``, and by
Bessel's inequality

    (u·x)² Σ_m p_m(λ)² ≤ 1

A random x is rarely almost orthogonal to u: ``P((u·x)² < t) ≤ √(2 d t/π)``. Except with this probability, the sum at λ
is below 1/t. Above the largest Ritz value the sum increases, so the point where it reaches 1/t is an upper bound on λ.
The bound is as tight as the spectrum allows: if λ is isolated, it converges one or two steps after the Ritz value.

Source: van Dorsselaer, Hochstenbach and van der Vorst 2000, "Computing probabilistic bounds for extreme eigenvalues of
symmetric matrices with the Lanczos method", using Bessel's inequality instead of its last term. The a-priori number
of steps is from Kuczyński and Woźniakowski 1992, Theorem 4.2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.theory.probes import normals

EXHAUSTED = 1e-13  # relative norm below which a remaining vector is only rounding
CHECK_EVERY = 4  # steps between two comparisons of the bounds
BISECTIONS = 40  # enough to reach rounding precision


@dataclass(frozen=True)
class Certified:
    """Lower bounds (roots of the largest Ritz values) and upper bounds on spectral norms, and the number of steps.

    The upper bounds hold jointly, except with `failure_probability`, over the random starting vectors.
    """

    lower: Float[Tensor, " operator"]
    upper: Float[Tensor, " operator"]
    failure_probability: float
    steps: int


def lanczos_steps(d: int, norms: int, inflation: float, failure: float) -> int:
    """The number of Lanczos steps that give all norms within 1 + `inflation`, except with probability `failure`.

    With a starting vector that is uniform on the sphere, k steps on a positive d × d matrix have a relative error above
    ε in the largest eigenvalue with probability at most ``1.648 √d exp(−√ε (2k − 1))``. For the norm, its root,
    ε = 1 − (1 + inflation)⁻². The result is at most d; d steps are exact.
    """
    missed = 1 - (1 + inflation) ** -2
    needed = (math.log(1.648 * math.sqrt(d) * norms / failure) / math.sqrt(missed) + 1) / 2
    return min(d, max(1, math.ceil(needed)))


def certified_spectral_norms(
    gram: Callable[[Float[Tensor, "operator d"]], Float[Tensor, "operator d"]], operators: int, d: int, *, seed: int,
    inflation: float = 0.05, failure: float = 1e-6, norms: int | None = None, device: torch.device | str = "cpu",
) -> Certified:  # fmt: skip
    """Certified spectral norms ‖J‖₂ of many operators at once, each given only by the products ``gram(x) = Jᵀ(J x)``.

    The result is the smaller of two upper bounds, one from the polynomials and one from the number of steps. It is
    within a factor 1 + `inflation` of the lower bound, at the latest after `lanczos_steps`. `failure` is the largest
    probability that any of `norms` upper bounds fails, of which this call may compute only some. Lanczos runs with full
    reorthogonalisation in float64; scipy's ARPACK certifies nothing and takes one operator at a time.
    """
    together = operators if norms is None else norms
    each = failure / 2  # the smaller of two bounds is used, and either may fail
    steps = lanczos_steps(d, together, inflation, each)
    goal = math.log(2 * d / math.pi) + 2 * math.log(together / each)  # value of ln Σ p_m², that is −ln t
    start = normals(seed)(operators, d).to(device)
    basis = start.new_zeros(operators, steps + 1, d)
    basis[:, 0] = start / start.norm(dim=-1, keepdim=True)
    projected = start.new_zeros(operators, steps, steps)
    links = start.new_zeros(operators, steps)
    scale = start.new_zeros(operators, 1)
    for k in range(steps):
        image = gram(basis[:, k]).double()
        scale = torch.maximum(scale, image.norm(dim=-1, keepdim=True))
        held = basis[:, : k + 1]
        along = torch.einsum("okd,od->ok", held, image)
        projected[:, : k + 1, k] = projected[:, k, : k + 1] = along
        image = image - torch.einsum("okd,ok->od", held, along)
        image = image - torch.einsum("okd,od,oke->oe", held, image, held)  # a second time, to stay orthogonal
        size = image.norm(dim=-1, keepdim=True)
        # An operator whose Krylov space is exhausted continues with zeros, which change nothing.
        size = torch.where(size > EXHAUSTED * scale, size, 0.0)
        basis[:, k + 1] = torch.where(size > 0, image / size, 0.0)
        links[:, k] = size[:, 0]
        if (k + 1) % CHECK_EVERY == 0 and k + 1 < steps:
            lower = _largest(projected[:, : k + 1, : k + 1])
            upper = _upper(lower, projected[:, : k + 1, : k + 1], links[:, : k + 1], goal)
            if bool((upper <= lower * (1 + inflation)).all()):
                return Certified(lower, upper, failure, k + 1)
    lower = _largest(projected)
    if steps == d:
        return Certified(lower, lower, 0.0, steps)
    upper = _upper(lower, projected, links, goal)
    return Certified(lower, torch.minimum(upper, lower * (1 + inflation)), failure, steps)


def _largest(projected: Float[Tensor, "operator step step"]) -> Float[Tensor, " operator"]:
    """The lower bound on the norm: the root of the largest Ritz value."""
    return torch.linalg.eigvalsh(projected)[:, -1].clamp(min=0).sqrt()


def _upper(
    lower: Float[Tensor, " operator"], projected: Float[Tensor, "operator step step"],
    links: Float[Tensor, "operator step"], goal: float,
) -> Float[Tensor, " operator"]:  # fmt: skip
    """The upper bound on the norm: the root of the point above the largest Ritz value where ``ln Σ p_m²`` is `goal`."""
    diagonal = projected.diagonal(dim1=1, dim2=2)
    inside, outside = lower.square(), 2 * lower.square()
    while bool((short := (_log_sum(diagonal, links, outside) < goal) & (outside > 0)).any()):
        outside = torch.where(short, 2 * outside, outside)
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2
        short = _log_sum(diagonal, links, middle) < goal
        inside, outside = torch.where(short, middle, inside), torch.where(short, outside, middle)
    return outside.sqrt()


def _log_sum(
    diagonal: Float[Tensor, "operator step"], links: Float[Tensor, "operator step"], at: Float[Tensor, " operator"]
) -> Float[Tensor, " operator"]:
    """``ln Σ_m p_m(λ)²`` above the largest Ritz value; infinite if the Krylov space is exhausted."""
    before, here, log = torch.zeros_like(at), torch.ones_like(at), torch.zeros_like(at)
    link = torch.zeros_like(at)
    for m in range(diagonal.shape[1]):  # all divided by the root of the sum so far, to avoid overflow
        after = ((at - diagonal[:, m]) * here - link * before) / links[:, m]
        size = (1 + after.square()).sqrt()
        before, here, link, log = here / size, after / size, links[:, m], log + 2 * size.log()
    return log.nan_to_num(nan=torch.inf)
