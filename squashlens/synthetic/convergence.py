"""Representational collapse in random stacks (figure 8), measured together with the premise of Theorem B.3.

If positional information decays with distance, δ(α_n, α*_{n+1}) → 0, and D ≤ max_i ‖value_i‖ δ. So δ shows whether the
premise holds in a given stack. D can decrease without it, as `rate` explains.
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

    It is −1 without encodings and with T5's ranges of distance: from n to n + 1 finitely many scores change, each of a
    weight of order 1/n. It is −½, reached only asymptotically, if q, k and v are drawn directly and scores do not
    converge but are bounded (``"sinusoidal_qk"``, ``"rope"``): values are then independent of the weights, so
    E ‖v_n − v*_{n+1}‖₂² = scale² Σ_i w_i², where w_i is the difference of the weights of token i, of order 1/n each.
    That is the law of large numbers, not the theorem.
    """
    if stack.depth > 1 or stack.mask == "window" or stack.mlp:
        return float("nan")
    if stack.encoding in ("none", "t5"):
        return -1.0
    return -0.5 if stack.projections == "direct" and stack.encoding in ("sinusoidal_qk", "rope") else float("nan")


def never_decays(stack: Stack) -> bool:
    """Whether δ is known not to decay to 0: with ALiBi, and with a window.

    δ ≥ α*_{n+1,n+1}, its last summand, which in both cases depends on nearby tokens and not on n. With ALiBi in a head
    of slope m and equal scores, weights are geometric in the distance and δ → 2 (1 − e^−m); with scores between −S and
    S, δ ≥ e^−2S (1 − e^−m). At lengths beyond a window a row has `window` + `sinks` weights. In all other cases decay
    has to be measured: scores that stop depending on distance lead to 0, others (RoPE, sines) need not.
    """
    return stack.encoding == "alibi" or stack.mask == "window"
