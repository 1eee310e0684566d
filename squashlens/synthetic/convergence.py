"""Representational collapse in random stacks (figure 8), measured together with the premise of Theorem B.3.

If positional information decays with distance, δ(α_n, α*_{n+1}) → 0, and D ≤ max_i ‖value_i‖ δ. So δ shows whether the
premise holds in a given stack. D can decrease without it, as `rate` explains.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Distance, dtype_name
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.records.labels import Variable, dataset_of
from squashlens.records.provenance import versions
from squashlens.synthetic.stack import Stack, chosen_lengths, chosen_seeds
from squashlens.synthetic.stack_passes import last_tokens
from squashlens.theory.distances import distance
from squashlens.theory.statistics.ranks import mean_interval
from squashlens.theory.statistics.trends import Labelled, with_ends

HALVING = -math.log10(2)  # exponent of what halves whenever n grows tenfold
NORMS: dict[Distance, str] = {"linf": "L∞", "l1": "L1", "l2": "L2"}


@validated
def convergence(
    stack: Stack,
    lengths: Iterable[int],
    *,
    seeds: int | Iterable[int] = 5,
    norm: Distance = "l1",
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> xr.Dataset:
    """The distance D of the last tokens of v and v*, δ of their attention rows, and how fast both decrease with length.

    Args:
        stack: the stack to run; `PAPER` has two readings of the stack of figure 8.
        lengths: n, the numbers of tokens of v. Exponents are fitted on the tail, the upper half of the range of log n,
            with at least three of them. Every length has a different last token, so curves are rough, and many lengths
            make a fit more stable.
        seeds: number of random draws, or their seeds. With fewer than five there are no intervals.
        norm: norm of D; ``"l1"`` by default, because Theorem B.3 is stated in it.
        dtype: dtype of the computation; everything is drawn in float64 and then rounded.
        device: device of the computation.

    Returns:
        Dataset over (seed, layer, length), with layers from 1: `distance`, D; `total_variation`, δ(α_n, α*_{n+1}) with
        α_n padded by a 0, and `self_weight`, α*_{n+1,n+1}, both as means over heads. (The δ that
        `squashlens.collapse_mechanism` measures leaves the self-weight out.) Over (seed, layer): `exponent`, the slope
        of log D on log n in the tail, and
        `fit`, its R². Over (layer): `exponent_mean`, and its 95 % interval over seeds (Student's t) with the endings
        `_low` and `_high`. The same for δ as `variation_exponent…` and `variation_fit`. `variation_zero`: the share of
        δ in the tail that is exactly 0 and therefore in no fit. `premise`: whether δ decays by its fit, see below.
        `rate`: the order of D that can be derived, otherwise NaN (`squashlens.synthetic.convergence.rate`).

    `premise` is True if every exponent in the interval of δ means that δ at least halves when n grows tenfold, or if δ
    is 0 throughout. That the interval ends below 0 is not enough: a δ that is about to become constant has such an
    interval too. `premise` is False with too few seeds, and where δ is known not to decay (ALiBi, windows). It is about
    these lengths only: use longer lengths if `total_variation` at the longest is not small. Exponents are descriptive,
    and their intervals are over random draws at these lengths, not over lengths.

    Source: Barbero et al. 2024, appendix C.3, figure 8; Theorem B.3.

    >>> ds = convergence(Stack(projections="direct"), [10, 30, 100, 300, 1000, 3000])
    >>> round(ds["exponent_mean"].item(), 1), bool(ds["premise"].item())
    (-1.0, True)
    """
    ns = chosen_lengths(lengths)
    numbers = chosen_seeds(seeds)
    in_tail = tail_of(ns)
    tail = torch.tensor(ns, dtype=torch.float64)[in_tail]
    tokens = last_tokens(stack, ns, seeds=numbers, dtype=dtype, device=device)
    # (seed, layer, length), as means over heads where there are any
    gaps = distance(tokens.v, tokens.star, norm)
    variation = tokens.total_variation.mean(dim=-1)
    self_weight = tokens.self_weight.mean(dim=-1)
    zero_share = (variation[..., in_tail] == 0).double().mean(dim=(0, 2))

    by_layer = ("layer",)
    d_tail = gaps[..., in_tail]
    slopes = slopes_of("exponent", "fit", "D", tail, d_tail, by_layer)
    names = ("variation_exponent", "variation_fit")
    slopes |= slopes_of(*names, "δ", tail, variation[..., in_tail], by_layer)
    _, upper_end, _, _ = slopes["variation_exponent_high"]
    premise = (upper_end < HALVING) | (zero_share == 1)
    if never_decays(stack):
        premise = torch.zeros_like(premise)

    over = ("seed", "layer", "length")
    text = "last tokens of v and v*"
    of_self = "attention of the repeated token to itself"
    of_zero = "share of δ in the tail that is exactly 0"
    of_premise = "whether the fit of δ halves at least when n grows tenfold"
    of_rate = "order of D that can be derived, as an exponent"
    variables: dict[str, Variable] = {
        "distance": (over, gaps, f"{NORMS[norm]} distance of the {text}", "1"),
        "total_variation": (
            over,
            variation,
            f"δ of the attention rows of the {text}",
            "1",
        ),
        "self_weight": (over, self_weight, of_self, "1"),
        **slopes,
        "variation_zero": (by_layer, zero_share, of_zero, "1"),
        "premise": (by_layer, premise, of_premise, "1"),
        "rate": ((), rate(stack), of_rate, "1"),
    }
    layers = list(range(1, stack.depth + 1))
    return dataset_of(
        "convergence of a synthetic stack",
        {"seed": numbers, "layer": layers, "length": ns},
        variables,
        facts("convergence", stack, numbers, dtype, device, lengths=ns, norm=norm),
    )


def rate(stack: Stack) -> float:
    """The exponent of n in D that can be derived, for one layer of attention without a window; otherwise NaN.

    It is −1 without encodings and with T5's ranges of distance: from n to n + 1 finitely many scores change, each of a
    weight of order 1/n. It is −½, reached only asymptotically, if q, k and v are drawn directly and scores do not
    converge but are bounded (``"sinusoidal_qk"``, ``"rope"``): values are then independent of the weights, so
    E ‖v_n − v*_{n+1}‖₂² = scale² Σ_i w_i², where w_i is the difference of the weights of token i, of order 1/n each.
    That is the law of large numbers, not the theorem.
    """
    if stack.depth > 1 or stack.window is not None or stack.mlp:
        return math.nan
    if stack.encoding in ("none", "t5"):
        return -1.0
    if stack.projections == "direct" and stack.encoding in ("sinusoidal_qk", "rope"):
        return -0.5
    return math.nan


def never_decays(stack: Stack) -> bool:
    """Whether δ is known not to decay to 0: with ALiBi, and with a window.

    δ ≥ α*_{n+1,n+1}, its last summand, which in both cases depends on nearby tokens and not on n. With ALiBi in a head
    of slope m and equal scores, weights are geometric in the distance and δ → 2 (1 − e^−m); with scores between −S and
    S, δ ≥ e^−2S (1 − e^−m). At lengths beyond a window a row has `window` weights. In all other cases decay
    has to be measured: scores that stop depending on distance lead to 0, others (RoPE, sines) need not.
    """
    return stack.encoding == "alibi" or stack.window is not None


FEWEST = 3  # points for a fit
DRAWS = 5  # with fewer draws, Student's interval relies on normally distributed draws, which cannot be checked


def tail_of(lengths: list[int]) -> Bool[Tensor, " length"]:
    """A mask of the lengths in the upper half of the range of log n; an error if there are fewer than three."""
    logs = torch.tensor(lengths, dtype=torch.float64).log()
    in_tail = logs >= (logs[-1] + logs[0]) / 2 - 1e-12  # the range includes its end
    if int(in_tail.sum()) < FEWEST:
        raise InputError(
            f"Only {int(in_tail.sum())} of the lengths are in the tail that is fitted.",
            f"Give at least {FEWEST} lengths there.",
        )
    return in_tail


def power_law(
    lengths: Float[Tensor, " length"], values: Float[Tensor, "*many length"]
) -> tuple[Float[Tensor, "*many"], Float[Tensor, "*many"]]:
    """Slope and R² of the least-squares line of log value on log length, which describes these lengths only.

    Values of 0 are left out; with fewer than three other values both results are NaN. R² of a constant is NaN.
    """
    fitted = (values > 0) & values.isfinite()
    log_n = torch.where(fitted, lengths.log(), torch.nan)
    log_value = torch.where(fitted, values.log(), torch.nan)
    # centred, so that the line has no intercept
    x = log_n - log_n.nanmean(dim=-1, keepdim=True)
    y = log_value - log_value.nanmean(dim=-1, keepdim=True)
    xy = (x * y).nansum(dim=-1)
    xx = x.square().nansum(dim=-1)
    yy = y.square().nansum(dim=-1)
    least = values.where(fitted, torch.inf).amin(dim=-1)
    most = values.where(fitted, 0).amax(dim=-1)
    few = fitted.sum(dim=-1) < FEWEST
    slope = torch.where(few, torch.nan, xy / xx)
    r_squared = xy.square() / (xx * yy)
    return slope, torch.where(few | (least == most), torch.nan, r_squared)


def of_draws(
    name: str, slopes: Float[Tensor, "seed ..."], text: str, dims: tuple[str, ...] = ()
) -> Labelled:
    """The mean over draws, NaN if one has no slope, and the ends of its 95 % interval, also NaN below five draws.

    They are variables of a result: `name_mean`, `name_low` and `name_high`, over `dims`.
    """
    # mean, lower and upper end
    estimate = torch.stack(mean_interval(slopes.movedim(0, -1)))
    estimate = estimate.where(~slopes.isnan().any(dim=0), torch.nan)
    if len(slopes) < DRAWS:
        estimate[1:] = torch.nan
    variables = with_ends(name, dims, estimate, f"{text}, mean over seeds")
    return {f"{name}_mean": variables.pop(name), **variables}


def slopes_of(
    name: str,
    fit: str,
    what: str,
    lengths: Float[Tensor, " length"],
    values: Float[Tensor, "seed *many length"],
    dims: tuple[str, ...] = (),
) -> dict[str, Variable]:
    """Exponents by seed and `dims`, their means and intervals, and R² of the fits, as variables of a Dataset.

    The exponents are called `name`, and the R² `fit`; `what` is the quantity that is fitted, such as ``"D"``.
    """
    slope, r_squared = power_law(lengths, values)
    by_seed = ("seed", *dims)
    text = f"slope of log {what} on log n in the tail"
    return {
        name: (by_seed, slope, text, "1"),
        fit: (by_seed, r_squared, f"R² of the fitted line of the {text}", "1"),
        **of_draws(name, slope, text, dims),
    }


def facts(
    function: str,
    stack: Stack | None,
    seeds: list[int],
    dtype: torch.dtype = torch.float64,
    device: object = "cpu",
    **arguments: Any,
) -> dict[str, Any]:
    """The facts for the provenance of a result on a random stack."""
    return {
        "stack": None if stack is None else asdict(stack),
        "seeds": seeds,
        "dtype": dtype_name(dtype),
        "device": str(device),
        "versions": versions(),
        "call": {"function": function} | arguments,
    }
