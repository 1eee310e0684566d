"""Distances between representations and between distributions; each measure is defined only here.

Vectors are compared along the last axis. Total variation is the L1 norm of the difference without the factor ½, as in
the paper (appendix B); the Kullback–Leibler divergence is in nats.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Distance

ORDERS: dict[Distance, float] = {"linf": float("inf"), "l1": 1.0, "l2": 2.0}
NOISE_FLOORS = 3  # a difference of no more than this many noise floors may be rounding


def distance(
    v: Float[Tensor, "*many d"], w: Float[Tensor, "*many d"], norm: Distance
) -> Float[Tensor, "*many"]:
    """The distance ‖v − w‖ in L∞ (``"linf"``), L1 (``"l1"``) or L2 (``"l2"``), computed in float64."""
    return torch.linalg.vector_norm(v.double() - w.double(), ord=ORDERS[norm], dim=-1)


def rms(v: Float[Tensor, "*many d"]) -> Float[Tensor, "*many"]:
    """Root mean square of the coordinates."""
    return v.double().square().mean(dim=-1).sqrt()


def shares(
    parts: Float[Tensor, "part *many d"], norm: Distance
) -> tuple[Float[Tensor, "part ..."], Float[Tensor, "*many"]]:
    """The share of each of several vectors in the norm of their sum, and that norm.

    With g the gradient of the norm at the sum Δ = Σ_p Δ_p, part p contributes ``⟨g, Δ_p⟩ / ‖Δ‖``. Shares sum to 1,
    since ⟨g, Δ⟩ = ‖Δ‖ (Euler); a part that opposes the others has a negative share. NaN where Δ is zero.
    """
    parts = parts.double()
    total = parts.sum(dim=0)
    size = torch.linalg.vector_norm(total, ord=ORDERS[norm], dim=-1)
    if norm == "l2":
        gradient = total / size[..., None]
    elif norm == "l1":
        gradient = total.sign()
    else:
        largest = total.abs().argmax(dim=-1, keepdim=True)
        sign = total.gather(-1, largest).sign()
        gradient = torch.zeros_like(total).scatter(-1, largest, sign)
    return (parts * gradient).sum(dim=-1) / size, size


def ulp(x: Float[Tensor, "*many"], dtype: torch.dtype) -> Float[Tensor, "*many"]:
    """The spacing of `dtype`'s numbers at the magnitude of x: 2^(⌊log₂|x|⌋) ε, at least the smallest subnormal."""
    info = torch.finfo(dtype)
    # |x| = m 2^e with m from ½ to 1, so that ⌊log₂|x|⌋ = e − 1
    _, exponent = torch.frexp(x.double())
    eps = torch.full_like(x, info.eps, dtype=torch.float64)
    spacing = torch.where(x == 0, 0.0, torch.ldexp(eps, exponent - 1))
    return spacing.clamp(min=info.smallest_normal * info.eps)


def noise(
    v: Float[Tensor, "*many d"],
    second_run: Float[Tensor, "*many d"],
    norm: Distance,
    roundings: int,
) -> Float[Tensor, "*many"]:
    """How far rounding can move a vector: its distance ‖v − ṽ‖ from that of a second run, but at least ‖½ ulp(v)‖.

    Two runs can round to the same numbers by chance. A float64 model that rounds to float32 inside does so in every
    run; then the least is one ½ ulp of float32 for each of these `roundings`.
    """
    stored = torch.float32 if roundings else v.dtype
    least = torch.linalg.vector_norm(ulp(v, stored) / 2, ord=ORDERS[norm], dim=-1)
    return torch.maximum(distance(v, second_run, norm), max(1, roundings) * least)


def ulps(
    v: Float[Tensor, "*many d"], w: Float[Tensor, "*many d"], dtype: torch.dtype
) -> Float[Tensor, "*many"]:
    """‖v − w‖ at the coordinate that attains L∞, in units in the last place of `dtype`, ulp(max(|v_c|, |w_c|))."""
    v = v.double()
    w = w.double()
    gap = (v - w).abs()
    units = gap / ulp(torch.maximum(v.abs(), w.abs()), dtype)
    widest = gap.argmax(dim=-1, keepdim=True)
    return units.gather(-1, widest)[..., 0]


def relative_median(
    v: Float[Tensor, "*many d"], w: Float[Tensor, "*many d"]
) -> Float[Tensor, "*many"]:
    """The median over coordinates of |v_c − w_c| ÷ max(|v_c|, |w_c|), from 0 to 2; 0 where both are 0.

    Each coordinate is measured by its own size. So it does not depend on the width, and one large coordinate does not
    rule it, as it rules every norm of v − w.
    """
    v = v.double()
    w = w.double()
    gap = (v - w).abs()
    relative = gap / torch.maximum(v.abs(), w.abs())
    return middle(torch.where(gap == 0, 0.0, relative))


def middle(values: Float[Tensor, "*many d"]) -> Float[Tensor, "*many"]:
    """The median along the last axis: the mean of the two in the middle."""
    d = values.shape[-1]
    ordered = values.sort(dim=-1).values  # torch.quantile stops at 16 million entries
    return (ordered[..., (d - 1) // 2] + ordered[..., d // 2]) / 2


def identical(
    v: Float[Tensor, "*many d"], w: Float[Tensor, "*many d"], dtype: torch.dtype
) -> Float[Tensor, "*many"]:
    """The share of coordinates with the same bits after rounding to `dtype`; −0 differs from 0, and equal NaNs
    agree."""
    # Bits are compared as whole numbers of the same size.
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    whole = integers[dtype.itemsize]
    bits_of_v = v.to(dtype).contiguous().view(whole)
    bits_of_w = w.to(dtype).contiguous().view(whole)
    same: Bool[Tensor, "*many d"] = bits_of_v == bits_of_w
    return same.double().mean(dim=-1)


def total_variation(
    p: Float[Tensor, "*many outcome"], q: Float[Tensor, "*many outcome"]
) -> Float[Tensor, "*many"]:
    """The total variation δ(p, q) = Σ_i |p_i − q_i|, between 0 and 2."""
    return distance(p, q, "l1")


def divergence(
    log_p: Float[Tensor, "*#many outcome"], log_q: Float[Tensor, "*#many outcome"]
) -> Float[Tensor, "*many"]:
    """KL(p ‖ q) = Σ_i p_i (log p_i − log q_i) in nats, from log-probabilities; outcomes with p_i = 0 add 0."""
    p = log_p.double().exp()
    log_ratio = log_p.double() - log_q.double()
    terms = torch.where(log_p == -torch.inf, 0.0, p * log_ratio)
    return terms.sum(dim=-1).clamp(min=0)  # only rounding can make it negative


def log_odds(
    log_p: Float[Tensor, "*#many outcome"], log_q: Float[Tensor, "*#many outcome"]
) -> Float[Tensor, "*many"]:
    """The largest change ``max_ij |log (p_i/p_j) − log (q_i/q_j)|`` of the log odds of two outcomes, in nats.

    It is the range of the differences of logits, and does not change with a constant added to all of them. It bounds
    the total variation: δ(p, q) ≤ 2 tanh(s/4) for the range s. An outcome that is impossible in both adds nothing.
    """
    log_p, log_q = torch.broadcast_tensors(log_p.double(), log_q.double())
    gap = torch.where(log_p == log_q, 0.0, log_p - log_q)
    possible = log_p > -torch.inf
    highest = torch.where(possible, gap, -torch.inf).amax(dim=-1)
    lowest = torch.where(possible, gap, torch.inf).amin(dim=-1)
    return highest - lowest
