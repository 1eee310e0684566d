"""Representational collapse in random stacks (figure 8), measured together with the premise of Theorem B.3.

The theorem says: if positional information decays with distance, D(n) = ‖v_n − v*_{n+1}‖ → 0. Its proof shows that
δ(α_n, α*_{n+1}) → 0, and uses D ≤ max_i ‖value_i‖ δ. So δ shows whether the premise holds in a given stack. D can
decrease without the premise, as `rate` explains: if values are drawn independently of the scores, many small
differences of weights average out, and the few large ones shrink because the divisor of all weights grows.
"""

import math
from collections.abc import Iterable

import torch
import xarray as xr

from squashlens._typing import Distance
from squashlens.checks.arguments import validated
from squashlens.records.results import signed
from squashlens.synthetic.fits import facts, slopes_of, tail_of
from squashlens.synthetic.stacks.draws import chosen_lengths, chosen_seeds
from squashlens.synthetic.stacks.forward import last_tokens
from squashlens.synthetic.stacks.stack import Stack
from squashlens.theory.distances import distance

HALVING = -math.log10(2)  # exponent of what halves whenever n grows tenfold
NORMS: dict[Distance, str] = {"linf": "L∞", "l1": "L1", "l2": "L2"}


@validated
def convergence(
    stack: Stack,
    lengths: Iterable[int],
    *,
    seeds: int | Iterable[int] = 5,
    norm: Distance = "l1",
    tail: float = 0.5,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> xr.Dataset:
    """The distance D of the last tokens of v and v*, δ of their attention rows, and how fast both decrease with length.

    Args:
        stack: the stack to run; `PAPER` has two readings of the stack of figure 8.
        lengths: n, the numbers of tokens of v; at least three of them in the tail.
        seeds: number of random draws, or their seeds. With fewer than five there are no intervals.
        norm: norm of D. Theorem B.3 uses L1.
        tail: the upper share of the range of log n that exponents are fitted on.
        dtype: dtype of the computation; everything is drawn in float64 and then rounded.
        device: device of the computation.
        progress: whether to show a progress bar.

    Returns:
        Dataset over (seed, layer, length), with layers from 1: `distance`, D; `total_variation`, δ(α_n, α*_{n+1}) with
        α_n padded by a 0, and `self_weight`, α*_{n+1,n+1}, both as means over heads. Over (seed, layer): `exponent`,
        the slope of log D on log n in the tail, and `fit`, its R². Over (layer): `exponent_mean`, and its 95 % interval
        over seeds (Student's t) with the endings `_low` and `_high`. The same for δ as `variation_exponent…` and
        `variation_fit`. `variation_zero`: the share of δ in the tail that is exactly 0 and therefore in no fit.
        `premise`: whether δ was observed to decay: every exponent in its interval means that δ at least halves when n
        grows tenfold, or δ is 0 throughout. It is False with too few seeds, and always where δ is known not to decay
        (`never_decays`). `rate`: the order of D that can be derived, otherwise NaN; see `rate`.

    An interval that merely ends below 0 is not enough for `premise`, because a δ that is about to become constant has
    one too. In the paper's own stack δ falls as n^−0.03 and is above 0.1 at n = 100,000.

    `premise` is about these lengths only. A δ that becomes constant beyond the longest length counts as decaying.
    Compare `total_variation` at the longest length, and use longer lengths if it is not small.

    δ as measured on a model by `squashlens.mechanism` leaves out the new token; δ here is that plus `self_weight`.

    Every length has a different last token, so curves are rough, and many lengths make a fit more stable. Exponents are
    descriptive: a curve that bends has one too, and R² shows the bend only in part. Intervals are over random draws at
    these lengths, not over lengths.

    Source: Barbero et al. 2024, appendix C.3, figure 8; Theorem B.3.

    >>> ds = convergence(Stack(projections="direct"), [10, 30, 100, 300, 1000, 3000], progress=False)
    >>> round(ds["exponent_mean"].item(), 1), bool(ds["premise"].item())
    (-1.0, True)
    """
    chosen, numbers = chosen_lengths(lengths), chosen_seeds(seeds)
    among = tail_of(chosen, tail)
    found = last_tokens(stack, chosen, seeds=numbers, dtype=dtype, device=device, progress=progress)
    apart = distance(found.v, found.star, norm)
    variation, own = found.total_variation.mean(dim=-1), found.self_weight.mean(dim=-1)
    fitted = torch.tensor(chosen, dtype=torch.float64)[among]
    zero = (variation[..., among] == 0).double().mean(dim=(0, 2))
    slopes = slopes_of("exponent", "fit", "D", fitted, apart[..., among], ("layer",))
    slopes |= slopes_of("variation_exponent", "variation_fit", "δ", fitted, variation[..., among], ("layer",))
    seen = (slopes["variation_exponent_high"][1] < HALVING) | (zero == 1)
    premise = torch.zeros_like(seen) if never_decays(stack) else seen
    each, by_layer, text = ("seed", "layer", "length"), ("layer",), "last tokens of v and v*"
    noted = facts("convergence", stack, numbers, dtype, str(device), lengths=chosen, norm=norm, tail=tail)
    return signed(
        "convergence of a synthetic stack",
        {"seed": numbers, "layer": list(range(1, stack.depth + 1)), "length": chosen},
        {
            "distance": (each, apart, f"{NORMS[norm]} distance of the {text}", "1"),
            "total_variation": (each, variation, f"δ of the attention rows of the {text}", "1"),
            "self_weight": (each, own, "attention of the repeated token to itself", "1"),
            **slopes,
            "variation_zero": (by_layer, zero, "share of δ in the tail that is exactly 0", "1"),
            "premise": (by_layer, premise, "whether positional information was observed to decay", "1"),
            "rate": ((), rate(stack), "order of D that can be derived, as an exponent", "1"),
        },
        noted,
    )


def rate(stack: Stack) -> float:
    """The exponent of n in D that can be derived, for one layer of attention without a window; otherwise NaN.

    It is −1 without encodings and with T5's ranges of distance. From n to n + 1 finitely many scores change, and each
    belongs to a weight of order 1/n, so δ and D are of order 1/n.

    It is −½ if q, k and v are drawn directly and scores do not converge but are bounded (``"sinusoidal_qk"``,
    ``"rope"``). Values are then independent of the weights, so E ‖v_n − v*_{n+1}‖₂² = scale² Σ_i w_i², where w_i is the
    difference of the weights of token i, of order 1/n each. This is the law of large numbers, not the theorem.

    −½ is reached only asymptotically. At smaller n the few weights near the last token, above all that of the repeated
    token, contribute more to Σ w² than the many distant ones, though not to δ. They shrink as the divisor of all
    weights grows, finally as 1/n each. With sines on queries and keys at base 10,000 the last 32 tokens contribute
    92 % of Σ w² at n = 10³, 46 % at 10⁵ and 8 % at 10⁶. D falls as n^−0.78 from 10⁴ to 10⁵ and as n^−0.51 from 10⁶ to
    10⁷.

    >>> rate(Stack()), rate(Stack(encoding="rope", projections="direct")), rate(Stack(encoding="alibi"))
    (-1.0, -0.5, nan)
    """
    if stack.depth > 1 or stack.mask == "window" or stack.mlp:
        return float("nan")
    if stack.encoding in ("none", "t5"):
        return -1.0
    return -0.5 if stack.projections == "direct" and stack.encoding in ("sinusoidal_qk", "rope") else float("nan")


def never_decays(stack: Stack) -> bool:
    """Whether δ is known not to decay to 0: with ALiBi, and with a window.

    δ ≥ α*_{n+1,n+1}, which is its last summand. In both cases that weight depends on nearby tokens and not on n.

    ALiBi, in a head of slope m: the weights of the nearest tokens tend to a geometric distribution over distance. With
    equal scores they are (1 − e^−m) e^(−m·distance), v* has the same weights shifted by one place, and so
    δ → 2 (1 − e^−m). With scores between −S and S, δ ≥ e^−2S (1 − e^−m). The last head has m = 2^−8, so with one head δ
    falls as 1/n until n is well beyond 2^8: lengths up to 1,000 do not show the lower limit.

    Window: at lengths beyond the window a row has `window` + `sinks` weights at any n, so they do not become smaller.
    Lengths within the window show the decay of a causal mask.

    In all other cases decay has to be measured: scores that stop depending on distance lead to 0, others (RoPE, sines)
    need not.

    >>> never_decays(Stack(encoding="alibi")), never_decays(Stack(mask="window", window=500)), never_decays(Stack())
    (True, True, False)
    """
    return stack.encoding == "alibi" or stack.mask == "window"
