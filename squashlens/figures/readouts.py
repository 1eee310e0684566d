"""Answers, probes and collapse by length: whether a count is answered, represented but not read out, or lost."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.figures.answers import LENGTH, cannot_be_judged, percent
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import curve, interval, layer_map, tint
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import COLOURS, FAINT, INK

# Name, colour and dash of each curve from 0 to 1 over length: first those of prompts, then those of pairs.
PROMPTS = {
    "accuracy": ("answered correctly", "#009E73", "solid"),
    "probe_right_y": ("predicted by the probe of y", "#0072B2", "longdash"),
    "r2_y": ("R² of the probe of y", "#56B4E9", "dashdot"),
    "r2_random_model_y": ("R² with random weights", INK, "dash"),
    "r2_control_y": ("R² of the control task", "#7F7F7F", "dot"),
}
PAIRS = {
    "same_argmax": ("pair: same next token", "#E69F00", "dash"),
    "same_answer": ("pair: same answer", "#332288", "solid"),
    "same_truth": ("pair: same right answer", "#009E73", "dot"),
    "bit_identical": ("pair: identical bits", "#CC79A7", "dashdot"),
}
SHARES = PROMPTS | PAIRS
VERDICTS = {  # colour and pattern
    "read out": ("#009E73", ""),
    "represented, not read out": ("#0072B2", "/"),
    "partly represented, not read out": ("#56B4E9", "."),
    "collapsed": ("#D55E00", "x"),
    "no more than a baseline": ("#7F7F7F", "-"),
    "given by length": ("#E69F00", "|"),
    "undecided": ("#D9D9D9", ""),
}
HEIGHTS = (210, 150, 150, 22)  # pixels: prompts, pairs, distances, verdicts
TICKS = [0, 0.2, 0.4, 0.6, 0.8, 1]
D = ("D: median, minimum to maximum", "D, last layer")  # for several seeds, and for one
PLAIN = {"opacity": 1, "line": {"width": 0}}  # plotly makes marks of several sizes transparent by default


@draws(
    "squashlens.collapse_vs_readout",
    "distance: length seed",
    "accuracy accuracy_low accuracy_high same_argmax verdict: length",
)
def collapse_vs_readout(found: xr.Dataset) -> go.Figure:
    """Draw answers and probe, pairs, distance D, and verdicts, each by length.

    D is the distance at the last layer between a prompt and the same prompt with its last item repeated: the median
    over seeds, with a band from minimum to maximum. Error bars are Wilson's 95 % interval for accuracy, and the middle
    95 % over splits for R². R² below 0 is drawn at 0 as a triangle. A triangle at the bottom of the panel of D is a
    zero. Without a probe, its curves are missing.
    """
    figure = make_subplots(rows=4, shared_xaxes=True, row_heights=list(HEIGHTS))
    for name in SHARES:
        if name in found:
            figure.add_trace(_share(found, name), row=1 if name in PROMPTS else 2, col=1)
    for trace in _distances(found["distance"]):
        figure.add_trace(trace, row=3, col=1)
    for trace in _strip(found["verdict"]):
        figure.add_trace(trace, row=4, col=1)
    figure.update_xaxes(title=LENGTH)
    figure.update_yaxes(range=[-0.07, 1.07], title="share of prompts, R²", row=1)
    figure.update_yaxes(range=[-0.07, 1.07], title="share of pairs", row=2)
    figure.update_yaxes(type="log", title=distance_of(found), row=3)
    figure.update_yaxes(visible=False, range=[0, 1], row=4)
    figure.update_layout(bargap=0, barmode="overlay")
    notes = (*_notes(found), *cannot_be_judged([found]))
    return finish(figure, "Collapsed, or not read out?", sum(HEIGHTS), found, *notes)


@draws("squashlens.probe", "r2: layer length", "r2_y: length")
def probe(found: xr.Dataset) -> go.Figure:
    """Draw R² of a linear probe for the right answer, as a map of layer × length with y on top.

    R² below 0 has the colour of 0. A panel on the right shows the same probe on models with random weights, if
    measured. White cells have no R², because the right answer does not vary or there are too few different prompts. The
    column "all" uses all lengths together, if measured.
    """
    each = _with_y(found, "r2")
    if "r2_overall" in found and "r2_overall_y" in found:
        each = xr.concat([each, _with_y(found, "r2_overall").expand_dims(length=["all"], axis=1)], dim="length")
    panels = {"this model": each}
    twin = "r2_random_model"
    if twin in found and f"{twin}_y" in found and not bool(np.isnan(found[f"{twin}_y"]).all()):
        panels["random weights, same architecture"] = _with_y(found, twin)
    figure = make_subplots(
        cols=len(panels), shared_yaxes=True, subplot_titles=list(panels) if len(panels) > 1 else None,
        column_widths=[panel.sizes["length"] for panel in panels.values()],
    )  # fmt: skip
    bar = {"tickvals": TICKS, "ticktext": ["≤ 0", *map(str, TICKS[1:])]}
    for column, panel in enumerate(panels.values(), start=1):
        cells = layer_map(panel, "R²", zmin=0, zmax=1, showscale=column == len(panels))
        figure.add_trace(cells.update(colorbar=bar), row=1, col=column)
    figure.update_xaxes(type="category", title=LENGTH)
    figure.update_yaxes(type="category", showgrid=False).update_yaxes(title="layer ℓ", col=1)
    notes = ["white: no R²"] * bool(np.isnan(each).any())
    return finish(figure, "How well a linear probe predicts the right answer", 260, found, *notes)


def _notes(found: xr.Dataset) -> list[str]:
    """Notes for the line under the title, on values that cannot be drawn at their place."""
    notes = ["no probe at these lengths"] if "r2_y" not in found else []
    r2 = found["r2_y"].values if "r2_y" in found else np.zeros(0)
    low = [found[name].values for name in PROMPTS if name.startswith("r2") and name in found]
    if np.isnan(r2).any():
        notes.append(f"no R² at {', '.join(map(str, found['length'].values[np.isnan(r2)]))} items")
    notes += ["▼ R² is below 0"] if any((values < 0).any() for values in low) else []
    return notes + (["▼ D is 0"] if bool((found["distance"].median("seed") == 0).any()) else [])


def _with_y(found: xr.Dataset, name: str) -> xr.DataArray:
    """A variable with y as an additional layer, and with layers and lengths as text."""
    texts = {dim: [str(value) for value in found[dim].values] for dim in found[name].dims}
    found = found.assign_coords(texts)
    return xr.concat([found[name], found[f"{name}_y"].expand_dims(layer=["y"])], dim="layer")


def _share(found: xr.Dataset, name: str) -> go.Scatter:
    """The trace of one of SHARES; values below 0 are drawn at 0 with a triangle."""
    label_text, colour, dash = SHARES[name]
    values, lengths = found[name].values.astype(np.float64), found["length"].values
    is_r2, bars = name.startswith("r2"), None
    ends = [name.removesuffix("_y") + end + "_y" * name.endswith("_y") for end in ("_low", "_high")]
    if all(end in found for end in ends) and found.sizes["seed"] > 1:
        low, high = (np.maximum(found[end].values, 0) for end in ends)
        bars = interval(np.maximum(values, 0), low, high, colour, 4)
    text = [
        f"{label_text}, {length} items: " + (f"{value:.3g}" if is_r2 else percent(value))
        for length, value in zip(lengths, values, strict=True)
    ]
    return _triangles(
        lengths, np.where(values < 0, 0, values), label_text, values < 0, colour, dash, text, error_y=bars
    )


def _triangles(
    lengths: np.ndarray, values: np.ndarray, name: str, below: np.ndarray, colour: str, dash: str, text: list[str],
    **more: Any,
) -> go.Scatter:  # fmt: skip
    """A curve with triangles in place of values that are `below` what can be drawn."""
    symbol, size = np.where(below, "triangle-down", "circle"), np.where(below, 13, 8)
    line = curve(lengths, values, name, colour=colour, dash=dash, symbol=symbol, size=size, text=text, hover="%{text}")
    return line.update(marker=PLAIN | {"color": colour}, **more)


def _distances(distance: xr.DataArray) -> list[go.Scatter]:
    """Traces of the median over seeds and of a band from minimum to maximum; zeros are marks at the bottom."""
    lengths, values = distance["length"].values, distance.values.astype(np.float64)
    ground = np.min(values, where=values > 0, initial=np.inf) / 2 if (values > 0).any() else 1.0
    low, middle, high = (np.maximum(of(values, axis=1), ground) for of in (np.min, np.median, np.max))
    text = [
        f"D, {length} items: median {np.median(own):.3g}, {own.min():.3g} to {own.max():.3g}"
        for length, own in zip(lengths, values, strict=True)
    ]
    name = D[values.shape[1] == 1]
    line = _triangles(lengths, middle, name, np.median(values, axis=1) == 0, COLOURS["distance"], "solid", text)
    if values.shape[1] == 1:
        return [line]
    band = go.Scatter(
        x=[*lengths, *lengths[::-1]], y=[*high, *low[::-1]], fill="toself", mode="none", hoverinfo="skip",
        fillcolor=tint(COLOURS["distance"]), legendgroup=name,
    )  # fmt: skip
    return [band, line]


def _strip(verdict: xr.DataArray) -> list[go.Bar]:
    """One box for each measured length in the colour of its verdict; all are equally wide and none touch."""
    lengths, said = verdict["length"].values.astype(np.float64), verdict.values.astype(str)
    wide = 0.7 * float(np.diff(lengths).min()) if len(lengths) > 1 else 1.0
    boxes = []
    for name in (*VERDICTS, *sorted(set(said) - set(VERDICTS))):
        own, shown, (colour, pattern) = said == name, escape(name), VERDICTS.get(name, (FAINT, "+"))
        marker = {"color": colour, "line": {"width": 0}, "pattern": {"shape": pattern, "size": 5}}
        box = go.Bar(
            x=lengths[own], width=wide, y=np.ones(own.sum()), name=shown, marker=marker,
            showlegend=True, customdata=verdict["length"].values[own],
            hovertemplate=f"%{{customdata}} items: {shown}<extra></extra>",
        )  # fmt: skip
        boxes += [box] if own.any() else []
    return boxes
