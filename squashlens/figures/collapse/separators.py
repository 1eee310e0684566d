"""The effect of separators by layer: a trace for every ablation, and a map of the blocks where ablation matters."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens._typing import Ablation
from squashlens.checks.results import chosen
from squashlens.errors import InputError
from squashlens.figures.drawing.inputs.facts import distance_of, notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.maps import layer_map
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
ENDS = {"none", "separators", "delete"}  # `retained` of these is 0, 1 and 0 by definition


@draws("squashlens.separator_ablation", "distance: edit layer length")
def layer_trace(ablation: xr.Dataset, *, length: int | None = None, from_block: int | None = None) -> go.Figure:
    """Draw the distance D by layer for every ablation of the separators, with a logarithmic scale.

    Ablations that change the prompt and ablations by hooks have a panel each, so that no panel has a colour twice; the
    prompts with and without separators are in both.

    Args:
        ablation: a result of `squashlens.separator_ablation`.
        length: the length to draw, in content tokens; the longest by default.
        from_block: ablations by hooks are drawn as they act from this block on; the first measured by default.

    Returns:
        The figure.
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
        for name, curve in (both | own).items():
            figure.add_trace(_trace(curve, name, NAMES[name]), row=row, col=1)
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
        ablation: a result of `squashlens.separator_ablation`.
        hook: the ablation to draw.
        length: the length to draw, in content tokens; the longest by default.

    Returns:
        The figure.

    Raises:
        InputError: if this ablation was not measured.
    """
    if "retained_from" not in ablation or hook not in ablation["hook"].values:
        raise InputError(f"hook={hook!r} was not measured.", f"Call separator_ablation(…, kinds=[{hook!r}]).")
    at = chosen(ablation, "length", length)
    values = ablation["retained_from"].sel(hook=hook, length=at)
    scale = [[0, "#0072B2"], [1 / 3, "#d9dce1"], [2 / 3, COLOURS["separators"]], [1, "#5c2600"]]
    figure = go.Figure(layer_map(values, "retained", colorscale=scale, zmin=-1, zmax=2, hoverongaps=False))
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
        ablation: a result of `squashlens.separator_ablation`.
        layer: the layer to draw; the last one by default.
        from_block: ablations by hooks are drawn as they act from this block on; the first measured by default.

    Returns:
        The figure.

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
    for height, (name, (kind, values)) in enumerate(rows.items()):
        _spread(figure, height, name, values[np.isfinite(values)], COLOURS[kind])
    for place, dash in ((0, "dot"), (1, "dot")):
        figure.add_vline(x=place, line={"color": COLOURS["null"], "dash": dash, "width": 1})
    figure.update_xaxes(title="retained effect (0: as if deleted; 1: nothing changed)", range=[-0.65, 1.65])
    figure.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=list(rows), range=[len(rows) - 0.4, -0.6], showgrid=False
    )
    title = f"Retained effect of the separators at layer {at}"
    figure.update_traces(showlegend=False)
    return finish(figure, title=title, height=ROW * (len(rows) + 1), notes=notes_of(ablation, *notes))


ROW = 30  # pixels


def _spread(figure: go.Figure, height: int, name: str, values: np.ndarray, colour: str) -> None:
    """Draw one row: dots for all values, a bar over their middle half, and a mark at the median."""
    if not len(values):
        return
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    shown = np.clip(values, -0.6, 1.6)
    dots = {"color": colour, "size": 5, "opacity": 0.25}
    figure.add_scatter(x=shown, y=np.full(len(shown), height), mode="markers", marker=dots, hoverinfo="skip")
    figure.add_scatter(
        x=[low, high], y=[height] * 2, mode="lines", line={"color": colour, "width": 4}, hoverinfo="skip"
    )
    figure.add_scatter(
        x=[middle], y=[height], mode="markers",
        marker={"color": "white", "size": 11, "line": {"color": colour, "width": 3}},
        hovertemplate=f"{name}<br>median {middle:.3f}, middle half {low:.3f} to {high:.3f}<extra></extra>",
    )  # fmt: skip


@draws(
    "squashlens.search_separators",
    "gain separation: separator every",
    "separation_none best_separator best_every:",
    "random: placement",
)
def separator_search(prescribed: xr.Dataset) -> go.Figure:
    """Draw the gain in separation for each separator and period, and the best choice next to random placements.

    Args:
        prescribed: a result of `squashlens.search_separators`.

    Returns:
        The figure.
    """
    gain = prescribed["gain"]
    has_accuracy = "accuracy" in prescribed
    first, second = str(prescribed["best_separator"].item()), int(prescribed["best_every"])
    figure = make_subplots(
        cols=2,
        column_widths=[0.6, 0.4],
        subplot_titles=[
            "gain in separation" + (", and accuracy" if has_accuracy else ""),
            "best choice and random placement",
        ],
    )
    shown = gain.values.astype(np.float64)
    text = [[f"{value:.2f}" for value in row] for row in shown]
    if has_accuracy:
        right = prescribed["accuracy"].values
        text = [
            [f"{cell}<br>{100 * r:.0f} %" for cell, r in zip(*rows, strict=True)]
            for rows in zip(text, right, strict=True)
        ]
    rows = [f"“{label(str(name))}”" for name in gain["separator"].values]
    figure.add_heatmap(
        z=np.log(shown), x=[f"every {k}" for k in gain["every"].values], y=rows, text=text, texttemplate="%{text}",
        zmid=0, colorscale=DIVERGING, showscale=False, hoverinfo="text", row=1, col=1,
    )  # fmt: skip
    random = prescribed["random"].values
    figure.add_scatter(
        x=np.zeros(len(random)), y=random, mode="markers", name="at random places", row=1, col=2,
        marker={"color": COLOURS["random_places"], "size": 7, "opacity": 0.5},
    )  # fmt: skip
    marks = {
        f"“{label(first)}” after every {second}": (float(prescribed["separation"].max()), COLOURS["separators"]),
        "no separators": (float(prescribed["separation_none"]), COLOURS["none"]),
    }
    for name, (height, colour) in marks.items():
        line = {"color": colour, "width": 3, "dash": "dot" if name == "no separators" else "solid"}
        figure.add_scatter(x=[-0.5, 0.5], y=[height] * 2, mode="lines", name=name, line=line, row=1, col=2)
    figure.update_yaxes(autorange="reversed", showgrid=False, row=1, col=1)
    figure.update_yaxes(title=f"median of {distance_of(prescribed, 'separation')}", rangemode="tozero", row=1, col=2)
    figure.update_xaxes(showticklabels=False, range=[-1, 1], row=1, col=2)
    height = 46 * max(4, len(rows))
    return finish(figure, title="Separation by separator and period", height=height, notes=notes_of(prescribed))


DIVERGING = [[0, "#0072B2"], [0.5, "#f4f5f7"], [1, "#D55E00"]]


def _trace(values: xr.DataArray, name: str, shown: str) -> go.Scatter:
    data = values.values.astype(np.float64)
    _, dash, symbol = series(list(NAMES).index(name))
    return go.Scatter(
        x=values["layer"].values,
        y=np.where(data > 0, data, np.nan),
        name=shown,
        mode="lines+markers",
        line={"color": COLOURS[name], "width": 3 if name in WIDE else 1.8, "dash": dash},
        marker={"symbol": symbol, "size": 6},
        hovertemplate=f"layer %{{x}}<br>{shown}: %{{y:.4g}}<extra></extra>",
    )
