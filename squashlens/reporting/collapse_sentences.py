"""What the report says of collapse and of separators, as functions of the data: right also when a claim is false.

A claim is said to hold or to fail where nine in ten lengths agree. Words for trends are those of
`squashlens.reporting.strength`; their intervals allow for lengths next to one another being alike.
"""

from dataclasses import replace

import numpy as np
import xarray as xr

from squashlens.reporting.strength import Rank

CLEAR = 0.9  # share of lengths that must agree
NOISE_FLOORS = 3


def falls(ds: xr.Dataset, p: float) -> str:
    """Whether D at the last layer falls with length, and how far; `p` is corrected for the panels tested together."""
    last, lengths = _last(ds, "distance"), ds["length"].values
    rank = replace(Rank.of(ds.isel(layer=-1), "length_trend"), p=p)
    ends = f"{_g(last[0])} at {lengths[0]} and {_g(last[-1])} at {lengths[-1]} content tokens"
    if not rank.measured:
        return f"D at the last layer is {ends}; too few different values to speak of a trend."
    return f"Over {len(lengths)} lengths D at the last layer {rank.trend('grows')}: {ends}."


def against_contrast(ds: xr.Dataset) -> str:
    """How close v and v* are beside a pair whose last token differs."""
    ratio = (_last(ds, "distance") / _last(ds, "contrast")).values
    nearer = int((ratio < 1).sum())
    share = nearer / len(ratio)
    verdict = "closer than" if share >= CLEAR else "no closer than" if share <= 1 - CLEAR else "sometimes closer than"
    return (
        f"v and v* are {verdict} a pair whose last token differs: at {nearer} of {len(ratio)} lengths, "
        f"by a median ratio of {_g(np.median(ratio))}."
    )


def above_noise(ds: xr.Dataset) -> str:
    """Whether D is a number or arithmetic."""
    floor = float(_last(ds, "noise_floor").max())
    last = _last(ds, "distance").values
    lost = int((last <= NOISE_FLOORS * floor).sum())
    if lost == 0:
        return f"The smallest D is {_g(last.min() / floor)} times the noise floor ({_g(floor)}), so none is arithmetic."
    return (
        f"At {lost} of {len(last)} lengths D lies within {NOISE_FLOORS} noise floors ({_g(floor)}) and means nothing."
    )


def precision(ds: xr.Dataset, rounded: xr.Dataset) -> str:
    """Whether v and v* are below floating-point precision, as the paper says they come to be."""
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
    least = _g(_last(ds, "ulps").min())
    return f"{head} ({share} on average); in {own} they are at least {least} units in the last place apart."


def answers(ds: xr.Dataset) -> str:
    """Whether the next token still tells v from v*."""
    if "same_argmax" not in ds:
        return "The next token could not be compared for this family."
    same, n = int(ds["same_argmax"].sum()), ds.sizes["length"]
    return (
        f"The most likely next token is the same for v and v* at {same} of {n} lengths; the total variation of the "
        f"next token has median {_g(ds['total_variation'].median())} (0 to 2)."
    )


def premises(ds: xr.Dataset) -> str:
    """Whether the proof's two premises hold on the real heads: δ and the self-weight go to 0."""
    told = []
    shown = {"attention_tv": "the change δ of the attention row", "self_weight": "the new token's own weight"}
    for name, text in shown.items():
        values = ds[f"{name}_mean"].mean("block")
        ends = f"mean over heads and blocks {_g(values[0])} → {_g(values[-1])}"
        told.append(f"{text} {Rank.of(ds, f'{name}_trend').trend('grows')}, {ends}")
    n = ds.sizes["length"]
    return (
        f"Theorem B.3 rests on two premises, which speak of a limit. Over {n} lengths, {told[0]}; {told[1]}. "
        "A trend over these lengths is no limit."
    )


def tightness(ds: xr.Dataset) -> str:
    """How far the proof's bound lies above what happens at block 0."""
    ratio = (ds["bound"] / ds["observed"].where(ds["observed"] > 0)).values
    ratio = ratio[np.isfinite(ratio)]
    if not ratio.size:
        return "At block 0 the attention outputs are identical, and the bound says nothing."
    return (
        f"At block 0 the proof's bound, value norms measured, holds; it is {_g(ratio.min())} to {_g(ratio.max())} "
        "times the observed distance: equal tokens give equal values, so a row may change much and its output little."
    )


def parts(ds: xr.Dataset) -> str:
    """Which part of the last block makes the distance."""
    share = ds["share"].isel(block=-1).median("length")
    text = ", ".join(f"{name} {100 * float(share.sel(part=name)):.0f} %" for name in ds["part"].values)
    return f"Behind the last block, D comes from (median over lengths): {text}."


def separators_help(ds: xr.Dataset) -> str:
    """Whether separators keep v and v* apart."""
    gap = _last(ds, "distance").sel(edit="separators") - _last(ds, "distance").sel(edit="none")
    floor = float(_last(ds, "noise_floor"))
    after = int(np.argmax(ds["before_separator"].values)) + 1 if ds["before_separator"].any() else 0
    gap = gap.isel(length=slice(after, None))
    n = gap.sizes["length"]
    if n == 0:
        return "The sequence is too short to have a separator inside."
    if not np.isfinite(floor):
        return "The noise floor was not measured, so nothing tells what separators do from rounding."
    up, down = int((gap > NOISE_FLOORS * floor).sum()), int((gap < -NOISE_FLOORS * floor).sum())
    verdict = (
        "Separators keep v and v* further apart"
        if up >= CLEAR * n
        else "Separators do not help: they bring v and v* closer together"
        if down >= CLEAR * n
        else "Separators make no difference above rounding"
        if up + down <= (1 - CLEAR) * n
        else "Separators do not reliably help"
    )
    kept = ds["distance"].isel(layer=-1, length=slice(after, None))
    ratio = float((kept.sel(edit="separators") / kept.sel(edit="none")).median())
    return (
        f"{verdict}: at the last layer D is larger with them at {up}, smaller at {down} of {n} lengths "
        f"(median ratio {_g(ratio)})."
    )


def controls(ds: xr.Dataset) -> str:
    """What of the effect the controls keep."""
    shown = {
        "substitute": "another token in their place",
        "extra_digits": "a digit in their place",
        "random_places": "random places",
        "delete_keep_positions": "only the gap in positions",
    }
    kept = ds["retained"].isel(layer=-1).median("length")
    if not bool(np.isfinite(kept.drop_sel(edit=["none", "separators"])).all()):
        return "The effect is too small, or its noise floor was not measured, to ask what the controls leave of it."
    told = [f"{text} {_g(kept.sel(edit=name))}" for name, text in shown.items() if name in ds["edit"].values]
    return f"Of that effect, this much is left at the last layer (median; 1 all, 0 nothing): {', '.join(told)}."


def standing_or_reading(ds: xr.Dataset) -> str:
    """Whether separators work by standing there, or by what they have read."""
    first = int(ds["from_block"].values[0])
    left = float(ds["retained_from"].sel(hook="mean_resid", from_block=first).isel(layer=-1).median("length"))
    if not np.isfinite(left):
        return "The effect is too small to ask what of a separator it is."
    verdict = (
        "what matters is that a separator stands there, not what it has read"
        if left >= CLEAR
        else "what matters is what a separator has read"
        if left <= 1 - CLEAR
        else "what a separator has read is part of it"
    )
    return f"With mean streams of other prompts in their place from block {first} on, {_g(left)} is left: {verdict}."


def deepest(ds: xr.Dataset, hook: str = "mask") -> str:
    """From which block on the separators are no longer needed."""
    kept = ds["retained_from"].sel(hook=hook).isel(layer=-1).median("length")
    blocks = ds["from_block"].values
    done = {"mask": "Masking separators", "zero_value": "Zeroing their values"}[hook]
    table = ", ".join(f"{int(b)}: {_g(kept.sel(from_block=b))}" for b in blocks)
    if not bool(np.isfinite(kept).all()):
        return f"{done} leaves nothing to compare: the effect itself is too small."
    lasting = next((int(b) for i, b in enumerate(blocks) if bool((abs(kept[i:] - 1) <= 1 - CLEAR).all())), None)
    verdict = (
        "takes effect in every block"
        if lasting is None
        else "has no effect from any block on"
        if lasting == blocks[0]
        else f"no longer matters from block {lasting} on: what they do is done below"
    )
    return f"{done} {verdict} (effect left at the last layer when acting from block – {table})."


def _last(ds: xr.Dataset, name: str) -> xr.DataArray:
    return ds[name].isel(layer=-1)


def _g(value: object) -> str:
    return f"{float(value):.3g}"  # pyright: ignore[reportArgumentType]
