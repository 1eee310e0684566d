"""The effect of separators: a trace for every ablation, the blocks where ablation matters, and the search for one."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens._typing import Ablation
from squashlens.checks.results import chosen
from squashlens.errors import InputError
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of, notes_of
from squashlens.figures.drawing.shapes import curve, layer_map, name_rows, spread
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import label
from squashlens.figures.drawing.themes import COLOURS, series

NAMES = {
    "none": "no separators",
    "separators": "separators",
    "delete_keep_positions": "deleted, positions kept",
    "substitute": "replaced by another token",
    "extra_digits": "replaced by a digit",
    "random_places": "at random places",
    "mask": "masked",
    "zero_pattern": "attention weights to them zeroed",
    "zero_values": "values zeroed",
    "zero_residual": "residual streams zeroed",
    "mean_residual": "mean residual streams",
    "resample_residual": "residual streams of another prompt",
}
DOING = {
    "mask": "masking the separators",
    "zero_pattern": "zeroing attention weights to separators",
    "zero_values": "zeroing the separators' values",
    "zero_residual": "zeroing the separators' residual streams",
    "mean_residual": "mean ablation of the separators",
    "resample_residual": "resampling the separators",
}
WIDE = ("none", "separators")
DIVERGING = [[0, "#0072B2"], [0.5, "#f4f5f7"], [1, "#D55E00"]]
ENDS = {"none", "separators", "delete"}  # `retained` of these is 0, 1 and 0 by definition


@draws("squashlens.separator_ablation", "distance: edit layer length")
def layer_trace(ablation: xr.Dataset, *, length: int | None = None, from_block: int | None = None) -> go.Figure:
    """Draw the distance D by layer for every ablation of the separators, with a logarithmic scale.

    Ablations that change the prompt and ablations by hooks have a panel each, so that no panel has a colour twice; the
    prompts with and without separators are in both.

    Args:
        length: the length to draw, in content tokens; the longest by default.
        from_block: ablations by hooks are drawn as they act from this block on; the first measured by default.
    """
    at = chosen(ablation, "length", length)
    here = ablation.sel(length=at)
    shown = [str(name) for name in here["edit"].values if name != "delete"]  # "delete" gives the same prompts as "none"
    edits = {name: here["distance"].sel(edit=name) for name in shown}
    both = {name: edits.pop(name) for name in WIDE if name in edits}
    panels = {"changed prompts": edits}
    if "distance_from" in here:
        first = chosen(here, "from_block", from_block, last=False)
        values = here["distance_from"].sel(from_block=first)
        panels[f"hooks from block {first} on"] = {str(name): values.sel(hook=name) for name in here["hook"].values}
    panels = {title: own for title, own in panels.items() if own} or {"": {}}
    figure = make_subplots(
        rows=len(panels), shared_xaxes=True, shared_yaxes="all", subplot_titles=list(panels),  # pyright: ignore
    )  # fmt: skip
    for row, own in enumerate(panels.values(), start=1):
        for name, values in (both | own).items():
            figure.add_trace(_trace(values, name).update(legend=f"legend{row}" if row > 1 else None), row=row, col=1)
    figure.update_xaxes(title="layer ℓ", dtick=1, row=len(panels))
    figure.update_yaxes(title=distance_of(ablation), type="log")
    title = f"Distance of v and v* at {at} content tokens, by layer"
    height = 320 if len(panels) == 1 else 220 * len(panels)
    return finish(figure, title=title, height=height, notes=notes_of(ablation))


@draws("squashlens.separator_ablation", "distance: edit layer length", usual=False)
def from_block_map(ablation: xr.Dataset, *, hook: Ablation = "mask", length: int | None = None) -> go.Figure:
    """Draw the retained effect of the separators when a hook acts from a given block on, as a map of block × layer.

    1 (orange) means that the ablation changed nothing; 0 (grey) means that it had the effect of deleting the
    separators. Colours are limited to the range from −1 to 2; the hover text has the value. White means that the effect
    of the separators is too small to divide by.

    Args:
        hook: the ablation to draw.
        length: the length to draw, in content tokens; the longest by default.

    Raises:
        InputError: if this ablation was not measured.
    """
    if "retained_from" not in ablation or hook not in ablation["hook"].values:
        raise InputError(f"hook={hook!r} was not measured.", f"Call separator_ablation(…, kinds=[{hook!r}]).")
    at = chosen(ablation, "length", length)
    values = ablation["retained_from"].sel(hook=hook, length=at)
    scale = [[0, "#0072B2"], [1 / 3, "#d9dce1"], [2 / 3, COLOURS["separators"]], [1, "#5c2600"]]
    figure = go.Figure(layer_map(values, "retained", colorscale=scale, zmin=-1, zmax=2))
    figure.update_xaxes(title="layer ℓ", dtick=1)
    figure.update_yaxes(title="hook acts from block", dtick=1)
    title = f"Retained effect after {DOING[hook]}, at {at} content tokens"
    notes = notes_of(ablation, "1: nothing changed", "0: as if deleted", "white: too small an effect to divide by")
    return finish(figure, title=title, height=240, notes=notes)


@draws("squashlens.separator_ablation", "distance retained: edit layer length", usual=False)
def retained_by_kind(ablation: xr.Dataset, *, layer: int | None = None, from_block: int | None = None) -> go.Figure:
    """Draw the retained effect of the separators for every kind of ablation, at one layer.

    Faint dots are single lengths, rings are medians, and bars span the middle half of the lengths. Dots beyond −0.6 and
    1.6 are drawn at the edge. Lengths where the effect of the separators is too small to divide by are left out.

    Args:
        layer: the layer to draw; the last one by default.
        from_block: ablations by hooks are drawn as they act from this block on; the first measured by default.

    Raises:
        InputError: if no ablation was measured.
    """
    at = chosen(ablation, "layer", layer)
    here = ablation.sel(layer=at)
    rows = {
        NAMES[str(edit)]: (str(edit), here["retained"].sel(edit=edit).values)
        for edit in here["edit"].values
        if edit not in ENDS
    }
    notes = ["dots: lengths", "rings: medians", "bars: middle half"]
    if "retained_from" in here:
        first = chosen(here, "from_block", from_block, last=False)
        for hook in here["hook"].values:
            values = here["retained_from"].sel(hook=hook, from_block=first).values
            rows[NAMES[str(hook)]] = (str(hook), values)
        notes.append(f"ablations by hooks act from block {first} on")
    if not rows:
        raise InputError("There is no ablation to draw.", "Call separator_ablation with at least one kind in kinds=.")
    figure = go.Figure()
    for row, (name, (kind, values)) in enumerate(rows.items()):
        spread(figure, row, name, values[np.isfinite(values)], COLOURS[kind], middle_half=True, ends=(-0.6, 1.6))
    for place in (0, 1):
        figure.add_vline(x=place, line={"color": COLOURS["null"], "dash": "dot", "width": 1})
    figure.update_xaxes(title="retained effect (0: as if deleted; 1: nothing changed)", range=[-0.65, 1.65])
    name_rows(figure, list(rows))
    title = f"Retained effect of the separators at layer {at}"
    return finish(figure, title=title, height=30 * (len(rows) + 1), notes=notes_of(ablation, *notes))


@draws(
    "squashlens.search_separators",
    "gain separation: separator every",
    "separation_none best_separator best_every:",
    "random: placement",
)
def separator_search(prescribed: xr.Dataset) -> go.Figure:
    """Draw the gain in separation for each separator and period, and the best choice next to random placements."""
    gain, asked = prescribed["gain"].values.astype(np.float64), "accuracy" in prescribed
    first, second = str(prescribed["best_separator"].item()), int(prescribed["best_every"])
    titles = [f"gain in separation{', and accuracy' if asked else ''}", "best choice and random placement"]
    figure = make_subplots(cols=2, column_widths=[0.6, 0.4], subplot_titles=titles)
    text = np.vectorize("{:.2f}".format)(gain).astype(object)
    if asked:
        text += np.vectorize("<br>{:.0f} %".format)(100 * prescribed["accuracy"].values)
    rows = [f"“{label(str(name))}”" for name in prescribed["separator"].values]
    figure.add_heatmap(
        z=np.log(gain), x=[f"every {k}" for k in prescribed["every"].values], y=rows, text=text,
        texttemplate="%{text}", zmid=0, colorscale=DIVERGING, showscale=False, hoverinfo="text", row=1, col=1,
    )  # fmt: skip
    random = prescribed["random"].values
    figure.add_scatter(
        x=np.zeros(len(random)), y=random, mode="markers", showlegend=False, row=1, col=2,
        marker={"color": COLOURS["random_places"], "size": 7, "opacity": 0.5},
    )  # fmt: skip
    best = float(prescribed["separation"].max()), float(prescribed["separation_none"])
    for place, (height, kind) in enumerate(zip(best, ("separators", "none"), strict=True), start=1):
        line = {"color": COLOURS[kind], "width": 3}
        x = [place - 0.35, place + 0.35]
        figure.add_scatter(x=x, y=[height] * 2, mode="lines", line=line, showlegend=False, row=1, col=2)
    names = ["random places", f"“{label(first)}” every {second}", "no separators"]
    figure.update_yaxes(autorange="reversed", showgrid=False, row=1, col=1)
    figure.update_yaxes(title=f"median of {distance_of(prescribed, 'separation')}", rangemode="tozero", row=1, col=2)
    figure.update_xaxes(tickvals=[0, 1, 2], ticktext=names, range=[-0.6, 2.6], row=1, col=2)
    height = 46 * max(4, len(rows))
    return finish(figure, title="Separation by separator and period", height=height, notes=notes_of(prescribed))


def _trace(values: xr.DataArray, name: str) -> go.Scatter:
    """The curve of one ablation by layer."""
    _, dash, symbol = series(list(NAMES).index(name))
    return curve(
        values["layer"].values, values.values, NAMES[name], colour=COLOURS[name], dash=dash, symbol=symbol, log=True,
        width=3 if name in WIDE else 1.8, hover=f"layer %{{x}}<br>{NAMES[name]}: %{{y:.4g}}",
    )  # fmt: skip
