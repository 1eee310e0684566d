"""Lemmas B.1 and B.2 and Proposition B.4: what softmax does to one entry more, and to two sequences that differ.

Lemmas about limits are stated here as inequalities at finite n that imply them, so that a given sequence can contradict
them. Softmax is computed in float64.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import positive
from squashlens.errors import InputError
from squashlens.theory.distances import total_variation
from squashlens.theory.statements.statement import Statement

EPS = torch.finfo(torch.float64).eps


def lemma_b1(a: Float[Tensor, " position"], b: float, c: float, *, bound: float) -> Statement:
    """One entry more takes weight from the last: 0 < softmax([a c])_n − softmax([a b c])_{n+1} ≤ e^{2M}/n.

    With Z the sum of the exponentials without b, the difference is e^c e^b / (Z (Z + e^b)): positive, and the product
    of the last weight without b and the weight of b. Where no entry exceeds M in size, the last weight alone is at most
    e^M / (n e^{−M}), which goes to 0 as the paper's ε argument has it, at rate 1/n.

    Args:
        a: the first n − 1 entries.
        bound: M. A premise; without one, the last entry can grow with n and keep its weight.

    Source: Barbero et al. 2024, Lemma B.1.

    >>> lemma_b1(torch.rand(99), 0.5, 0.2, bound=1.0).verdict
    'holds'
    """
    x = torch.cat([a.double(), torch.tensor([c], dtype=torch.float64)])
    more = torch.cat([a.double(), torch.tensor([b, c], dtype=torch.float64)])
    last, kept = x.log_softmax(dim=0)[-1], more.log_softmax(dim=0)
    # As a product: of two nearly equal numbers the difference is rounding. In logarithms, where none can underflow.
    gap = float(last + kept[-2])
    right = 2 * bound - math.log(len(x))
    return Statement(
        "Lemma B.1",
        "0 < softmax(x)_n − softmax(x*)_{n+1} ≤ e^{2M}/n",
        {f"|entries| ≤ {bound:g}": bool(more.abs().max() <= bound)},
        _exp(gap),
        "≤",
        _exp(right),
        gap <= right + 8 * EPS * max(1.0, abs(right)),
        {"softmax(x)_n": _exp(float(last)), "softmax(x*)_{n+1}": _exp(float(kept[-1]))},
    )


def lemma_b2(
    x: Float[Tensor, " position"], x_star: Float[Tensor, " position"], *, bound: float, tolerance: float = 1e-2
) -> Statement:
    """Sequences that grow alike have softmaxes that do: δ(y, y*) ≤ 2 e^{2M} · mean_i |x_i − x*_i|, |entries| ≤ M.

    With Z, Z* the partition functions, δ ≤ |Z − Z*|/Z* + Σ|e^{x_i} − e^{x*_i}|/Z* ≤ 2 Σ|e^{x_i} − e^{x*_i}|/Z*, where
    Z* ≥ n e^{−M} and |e^s − e^t| ≤ e^M |s − t|. If x_n − x*_n tends to 0 then so does its running mean. With k entries
    that differ and no other, the right side falls as 1/n.

    Args:
        tolerance: the premise that differences tend to 0 is taken as: none of the second half exceeds this share of
            the largest of all. No finite part of two sequences shows more.

    Source: Barbero et al. 2024, Lemma B.2; δ without the factor ½.

    >>> x = torch.rand(1000)
    >>> lemma_b2(x, x + 1 / torch.arange(1, 1001), bound=2.0).verdict
    'holds'
    """
    if x.shape != x_star.shape:
        raise InputError(f"The sequences have {len(x)} and {len(x_star)} entries.", "Give two of one length.")
    x, x_star = x.double(), x_star.double()
    apart = (x - x_star).abs()
    tail, most = float(apart[len(x) // 2 :].max()), float(apart.max())
    left = float(total_variation(x.softmax(dim=0), x_star.softmax(dim=0)))
    right = 2 * _exp(2 * bound) * float(apart.mean()) if most else 0.0
    largest = max(float(x.abs().max()), float(x_star.abs().max()))
    return Statement(
        "Lemma B.2",
        "δ(y, y*) ≤ 2 e^{2M} mean|x − x*| → 0",
        {
            f"|entries| ≤ {bound:g}": largest <= bound,
            f"differences tend to 0 (in the second half ≤ {tolerance:g} of the largest)": tail <= tolerance * most,
        },
        left,
        "≤",
        right,
        left <= right + len(x) * EPS,
        {"largest difference": most, "largest difference in the second half": tail},
    )


def proposition_b4(n: int) -> Statement:
    """Alternating sequences stay apart: of 1010… and 0101…, δ(y, y*) = 2(e − 1)/(e + 1) at every even n.

    Half of the entries are e/Z and half 1/Z with Z = n(e + 1)/2 in both, and the two swap places: δ = n (e − 1)/Z. The
    paper divides by Z twice on the way; its limit is right, and is reached at once.

    Source: Barbero et al. 2024, Proposition B.4.

    >>> print(proposition_b4(10))
    Proposition B.4: 0.924234 = 0.924234, holds
    """
    positive(n, "n", "a number of entries")
    x = torch.arange(1, n + 1, dtype=torch.float64) % 2
    left = float(total_variation(x.softmax(dim=0), (1 - x).softmax(dim=0)))
    right = 2 * (math.e - 1) / (math.e + 1)
    return Statement(
        "Proposition B.4", "δ(y, y*) = 2(e − 1)/(e + 1)", {"n is even": n % 2 == 0}, left, "=", right,
        abs(left - right) <= 8 * EPS + n * EPS,
    )  # fmt: skip


def _exp(x: float) -> float:
    """eˣ, infinite where a float64 cannot hold it."""
    return math.exp(x) if x < 709 else math.inf
