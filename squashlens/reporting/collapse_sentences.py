"""Sentences of the report on collapse and separators, computed from the results, whether or not a claim holds.

A claim holds or fails if at least nine in ten lengths agree. `squashlens.reporting.sentences` has the words for trends;
their intervals take into account that neighbouring lengths are alike.
"""

from dataclasses import replace

import numpy as np
import xarray as xr

from squashlens.reporting.sentences import Rank, number, times
from squashlens.theory.distances import NOISE_FLOORS

CLEAR = 0.9  # share of lengths that must agree
FEW = 5  # with fewer lengths no claim is made


def falls(ds: xr.Dataset, p: float) -> str:
    """How D at the last layer changes with length; `p` is corrected for the panels tested together."""
    last, lengths = _last(ds, "distance"), ds["length"].values
    rank = replace(Rank.of(ds.isel(layer=-1), "length_trend"), p=p)
    ends = f"{number(last[0])} at {lengths[0]} and {number(last[-1])} at {lengths[-1]} content tokens"
    trend = rank.trend("grows", ends=(float(last[0]), float(last[-1])))
    return f"Over {len(lengths)} lengths D at the last layer {trend}: {ends}."


def against_contrast(ds: xr.Dataset) -> str:
    """How close v and v* are compared with a pair whose last token differs."""
    ratio = (_last(ds, "distance") / _last(ds, "contrast")).values
    nearer = int((ratio < 1).sum())
    share = nearer / len(ratio)
    verdict = "closer than" if share >= CLEAR else "no closer than" if share <= 1 - CLEAR else "sometimes closer than"
    return (
        f"v and v* are {verdict} a pair whose last token differs: they are closer at {nearer} of {len(ratio)} lengths "
        f"(median ratio {number(np.median(ratio))})."
    )


def above_noise(ds: xr.Dataset) -> str:
    """Whether D is larger than rounding errors."""
    floor = float(_last(ds, "noise_floor").max())
    last = _last(ds, "distance").values
    lost = int((last <= NOISE_FLOORS * floor).sum())
    if lost == 0:
        return f"Nothing is lost in rounding: the smallest D is {times(last.min() / floor)} the noise floor."
    return (
        f"At {lost} of {len(last)} lengths D is at most {NOISE_FLOORS} times the noise floor ({number(floor)}), so it "
        "cannot be told from rounding errors."
    )


def precision(ds: xr.Dataset, rounded: xr.Dataset) -> str:
    """Whether v and v* become identical in floating-point precision, as the paper predicts."""
    dtype = rounded["ulps"].attrs["units"].removeprefix("ulp (").removesuffix(")")
    own = ds["ulps"].attrs["units"].removeprefix("ulp (").removesuffix(")")
    identical = _last(rounded, "bit_identical")
    gone = int((identical == 1).sum())
    share = f"{100 * float(identical.mean()):.3g} % of the coordinates are the same"
    head = (
        f"Rounded to {dtype}, the last representations are bit-identical at {gone} of {len(identical)} lengths"
        if gone
        else f"Rounded to {dtype}, the last representations are bit-identical at no length"
    )
    least = number(_last(ds, "ulps").min())
    return f"{head} ({share} on average). In {own} they differ by at least {least} units in the last place."


def answers(ds: xr.Dataset) -> str:
    """Whether the predicted next token differs between v and v*."""
    if "same_argmax" not in ds:
        return "The next token could not be compared for this architecture."
    same, n = int(ds["same_argmax"].sum()), ds.sizes["length"]
    return (
        f"The most likely next token is the same for v and v* at {same} of {n} lengths. The total variation between "
        f"their next-token distributions has median {number(ds['total_variation'].median())}, on a scale from 0 to 2."
    )


def premises(ds: xr.Dataset) -> str:
    """Whether the proof's two premises hold on the model's heads: δ and the weight on itself go to 0."""
    trends = []
    texts = {"attention_tv": "the change δ of the attention row", "self_weight": "the new token's weight on itself"}
    for name, text in texts.items():
        values = ds[f"{name}_mean"].mean("block").values
        ends = float(values[0]), float(values[-1])
        trend = Rank.of(ds, f"{name}_trend").trend("grows", ends)
        trends.append(f"{text} {trend}, from {number(ends[0])} to {number(ends[1])} (mean over heads and blocks)")
    n = ds.sizes["length"]
    return (
        f"Theorem B.3 has two premises about the limit of growing length. Over {n} lengths, {trends[0]}; {trends[1]}. "
        "A trend over finitely many lengths does not show a limit."
    )


def tightness(ds: xr.Dataset) -> str:
    """How much larger the proof's bound is than the observed distance at block 0."""
    ratio = (ds["bound"] / ds["observed"].where(ds["observed"] > 0)).values
    ratio = ratio[np.isfinite(ratio)]
    if not ratio.size:
        return "At block 0 the attention outputs are identical, so the bound cannot be compared with a distance."
    return (
        f"At block 0 the proof's bound, with measured value norms, is {number(ratio.min())} to "
        f"{number(ratio.max())} times the observed distance. Equal tokens have equal values, so an attention row may "
        "change much while its output changes little."
    )


def parts(ds: xr.Dataset) -> str:
    """How much residual stream, attention and MLP of the last block contribute to the distance."""
    share = ds["share"].isel(block=-1).median("length")
    text = ", ".join(f"{name} {100 * float(share.sel(part=name)):.0f} %" for name in ds["part"].values)
    return f"Contributions to D after the last block (median over lengths): {text}."


def separators_help(ds: xr.Dataset) -> str:
    """Whether separators keep v and v* apart."""
    gap = _last(ds, "distance").sel(edit="separators") - _last(ds, "distance").sel(edit="none")
    floor = float(_last(ds, "noise_floor"))
    after = int(np.argmax(ds["before_separator"].values)) + 1 if ds["before_separator"].any() else 0
    gap = gap.isel(length=slice(after, None))
    n = gap.sizes["length"]
    if n == 0:
        return "The sequence is too short to contain a separator."
    if not np.isfinite(floor):
        return "The noise floor was not measured, so the effect of separators cannot be told from rounding errors."
    if n < FEW:
        return f"Too few lengths have a separator before their last token ({n}) to say whether separators help."
    up, down = int((gap > NOISE_FLOORS * floor).sum()), int((gap < -NOISE_FLOORS * floor).sum())
    verdict = (
        "Separators keep v and v* further apart"
        if up >= CLEAR * n
        else "Separators do not help: they bring v and v* closer together"
        if down >= CLEAR * n
        else "Separators make no difference beyond rounding errors"
        if up + down <= (1 - CLEAR) * n
        else "Separators do not reliably help"
    )
    kept = ds["distance"].isel(layer=-1, length=slice(after, None))
    ratio = float((kept.sel(edit="separators") / kept.sel(edit="none")).median())
    return (
        f"{verdict}: at the last layer D is larger with them at {up}, smaller at {down} of {n} lengths "
        f"(median ratio {number(ratio)})."
    )


def controls(ds: xr.Dataset) -> str:
    """How much of the separators' effect remains under the controls."""
    texts = {
        "substitute": "replaced by another token",
        "extra_digits": "replaced by a digit",
        "random_places": "moved to random places",
        "delete_keep_positions": "deleted, with positions kept",
    }
    kept = ds["retained"].isel(layer=-1).median("length")
    if not bool(np.isfinite(kept.drop_sel(edit=["none", "separators"])).all()):
        return "The effect is too small for a comparison with controls, or its noise floor was not measured."
    shares = [f"{text} {number(kept.sel(edit=name))}" for name, text in texts.items() if name in ds["edit"].values]
    return (
        "Share of this effect that remains at the last layer if the separators are changed (median over lengths; "
        f"1: all of it, 0: none): {', '.join(shares)}."
    )


def presence_or_content(ds: xr.Dataset) -> str:
    """Whether separators act by their presence, or by what they have read."""
    if ds.sizes["length"] < FEW:
        return f"There are too few lengths ({ds.sizes['length']}) to say what about a separator matters."
    first = int(ds["from_block"].values[0])
    left = float(ds["retained_from"].sel(hook="mean_residual", from_block=first).isel(layer=-1).median("length"))
    if not np.isfinite(left):
        return "The effect is too small to tell what about a separator matters."
    verdict = (
        "what matters is that a separator is present, not what it has read"
        if left >= CLEAR
        else "what matters is what a separator has read"
        if left <= 1 - CLEAR
        else "both its presence and what it has read matter"
    )
    return (
        f"If the separators' residual streams are replaced by their mean over other prompts from block {first} on, "
        f"{number(left)} of the effect remains: {verdict}."
    )


def last_block_that_matters(ds: xr.Dataset, hook: str = "mask") -> str:
    """From which block on the separators are no longer needed."""
    kept = ds["retained_from"].sel(hook=hook).isel(layer=-1).median("length")
    blocks = ds["from_block"].values
    ablation = {"mask": "Masking the separators", "zero_values": "Zeroing the separators' values"}[hook]
    table = ", ".join(f"block {int(b)}: {number(kept.sel(from_block=b))}" for b in blocks)
    if not bool(np.isfinite(kept).all()):
        return f"{ablation} cannot be compared with deleting them: the effect of separators is too small."
    lasting = next((int(b) for i, b in enumerate(blocks) if bool((abs(kept[i:] - 1) <= 1 - CLEAR).all())), None)
    verdict = (
        "changes their effect up to the last block"
        if lasting is None
        else "does not change their effect, whichever block it starts from"
        if lasting == blocks[0]
        else f"no longer changes their effect from block {lasting} on: separators act in earlier blocks"
    )
    return f"{ablation} {verdict}. Effect that remains at the last layer, by the first ablated block: {table}."


def _last(ds: xr.Dataset, name: str) -> xr.DataArray:
    return ds[name].isel(layer=-1)
