"""Spectral norms of operators that are known only by what they do, certified by how Lanczos got there.

Lanczos on ``A = JᵀJ`` from a random unit vector x makes orthonormal vectors ``q_m = p_m(A) x``, p_m polynomials with a
three-term recurrence. For the top eigenpair, ``u·q_m = p_m(λ) u·x``, and by Bessel's inequality

    (u·x)² Σ_m p_m(λ)² ≤ 1

A random x is seldom almost orthogonal to u: ``P((u·x)² < t) ≤ √(2 d t/π)``. But for that chance λ is one at which the
sum stays below 1/t, and beyond the largest Ritz value the sum only grows: where it reaches 1/t is a bound from above.
It is as good as the spectrum at hand allows, a step or two behind the Ritz value where the top is isolated.

Source: van Dorsselaer, Hochstenbach and van der Vorst 2000, "Computing probabilistic bounds for extreme eigenvalues of
symmetric matrices with the Lanczos method", by Bessel's inequality instead of its last term. The number of steps after
which the error is known before anything is computed: Kuczyński and Woźniakowski 1992, Theorem 4.2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

EXHAUSTED = 1e-13  # what is left of a vector, relative to the operator's scale, when it is rounding
LOOK = 4  # steps between two looks at how far the bounds are apart
BISECTIONS = 40  # to where rounding ends them


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
    which is its root. At most d, and d without any inflation: then Lanczos is exact.

    >>> lanczos_steps(2048, 1, 0.05, 1e-6), lanczos_steps(2048, 100_000, 0.05, 1e-6)
    (31, 50)
    """
    if inflation == 0:
        return d
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

    Two bounds from above, by the polynomials and by the number of steps, fail with half of `failure` each; the smaller
    is taken. Full reorthogonalisation, in float64. Ends when every `upper` is within 1 + `inflation` of its `lower`, at
    `lanczos_steps` at the latest. `norms` is the number that must hold together, where more are taken than in this
    call. scipy's ARPACK iterates until it seems to have converged and certifies nothing, and takes one operator at a
    time.

    >>> blocks = torch.diag_embed(torch.tensor([[3.0, 1.0], [2.0, 5.0]], dtype=torch.float64))
    >>> found = certified_spectral_norms(
    ...     lambda x: (blocks.mT @ (blocks @ x[..., None]))[..., 0], 2, 2, generator=torch.Generator().manual_seed(0))
    >>> found.upper.round(decimals=9).tolist(), found.failure_probability
    ([3.0, 5.0], 0.0)
    """
    together = operators if norms is None else norms
    each = failure / 2  # the least of two bounds is taken, and either may fail
    steps = lanczos_steps(d, together, inflation, each)
    goal = math.log(2 * d / math.pi) + 2 * math.log(together / each)  # of ln Σ p_m², which is −ln t
    start = torch.randn(operators, d, dtype=torch.float64, device=generator.device, generator=generator)
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
        image = image - torch.einsum("okd,od,oke->oe", held, image, held)  # once more, to stay orthogonal
        size = image.norm(dim=-1, keepdim=True)
        # An operator whose Krylov space is used up goes on with zeros, which add nothing.
        size = torch.where(size > EXHAUSTED * scale, size, 0.0)
        basis[:, k + 1] = torch.where(size > 0, image / size, 0.0)
        links[:, k] = size[:, 0]
        if inflation > 0 and (k + 1) % LOOK == 0 and k + 1 < steps:
            lower = _largest(projected[:, : k + 1, : k + 1])
            upper = _above(lower, projected[:, : k + 1, : k + 1], links[:, : k + 1], goal)
            if bool((upper <= lower * (1 + inflation)).all()):
                return Certified(lower, upper, failure, k + 1)
    lower = _largest(projected)
    if steps == d:
        return Certified(lower, lower, 0.0, steps)
    upper = _above(lower, projected, links, goal)
    return Certified(lower, torch.minimum(upper, lower * (1 + inflation)), failure, steps)


def _largest(projected: Float[Tensor, "operator step step"]) -> Float[Tensor, " operator"]:
    """The norm from below: the root of the largest Ritz value."""
    return torch.linalg.eigvalsh(projected)[:, -1].clamp(min=0).sqrt()


def _above(
    lower: Float[Tensor, " operator"],
    projected: Float[Tensor, "operator step step"],
    links: Float[Tensor, "operator step"],
    goal: float,
) -> Float[Tensor, " operator"]:
    """The norm from above: the root of where, beyond the largest Ritz value, ``ln Σ p_m²`` reaches `goal`."""
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
    """``ln Σ_m p_m(λ)²`` beyond the largest Ritz value; infinite where Krylov's space is used up."""
    before, here, log = torch.zeros_like(at), torch.ones_like(at), torch.zeros_like(at)
    link = torch.zeros_like(at)
    for m in range(diagonal.shape[1]):  # all divided by the root of the sum so far, which would overflow
        after = ((at - diagonal[:, m]) * here - link * before) / links[:, m]
        size = (1 + after.square()).sqrt()
        before, here, link, log = here / size, after / size, links[:, m], log + 2 * size.log()
    return log.nan_to_num(nan=torch.inf)
