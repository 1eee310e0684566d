"""Answers, probes and collapse by length: whether a count is answered, represented but not read out, or lost."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.figures.answers.accuracy import LENGTH
from squashlens.figures.answers.modes import labelled, percent
from squashlens.figures.drawing.inputs.facts import distance_of, notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.maps import interval, layer_map
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped
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
BAND = "rgba(213, 94, 0, 0.18)"


@draws("squashlens.collapse_vs_readout", "distance: length seed", "verdict: length")
def collapse_vs_readout(found: xr.Dataset) -> go.Figure:
    """Draw answers and probe, pairs, distance D, and verdicts, each by length.

    D is the distance at the last layer between a prompt and the same prompt with its last item repeated: the median
    over seeds, with a band from minimum to maximum. Error bars are Wilson's 95 % interval for accuracy, and the middle
    95 % over splits for R². R² below 0 is drawn at 0 as a triangle. A triangle at the bottom of the panel of D is a
    zero. Without a probe, its curves are missing.

    Args:
        found: a result of `squashlens.collapse_vs_readout`.

    Returns:
        The figure.
    """
    by_length = ["accuracy", "accuracy_low", "accuracy_high", "same_argmax", "verdict"]
    shown = [name for name in SHARES if name in found or name in by_length]
    needed = dict.fromkeys([*by_length, *shown], ("length",)) | {"distance": ("length", "seed")}
    labelled(found, needed, "squashlens.collapse_vs_readout")
    figure = make_subplots(rows=4, shared_xaxes=True, row_heights=list(HEIGHTS))
    for name in shown:
        figure.add_trace(_share(found, name), row=1 if name in PROMPTS else 2, col=1)
    for trace in _distances(found["distance"]):
        figure.add_trace(trace, row=3, col=1)
    for trace in _strip(found["verdict"]):
        figure.add_trace(trace, row=4, col=1)
    figure.update_xaxes(title=LENGTH, row=4)
    figure.update_yaxes(range=[-0.07, 1.07], row=1)
    figure.update_yaxes(range=[-0.07, 1.07], row=2)
    figure.update_yaxes(title="share of prompts, R²", row=1).update_yaxes(title="share of pairs", row=2)
    figure.update_yaxes(type="log", title=distance_of(found), row=3)
    figure.update_yaxes(visible=False, range=[0, 1], row=4)
    figure.update_layout(bargap=0, barmode="overlay")
    notes = notes_of(found, *_notes(found))
    return finish(figure, title="Collapsed, or not read out?", height=sum(HEIGHTS), notes=notes)


@draws("squashlens.probe", "r2: layer length", "r2_y: length")
def probe(found: xr.Dataset) -> go.Figure:
    """Draw R² of a linear probe for the right answer, as a map of layer × length with y on top.

    R² below 0 has the colour of 0. A panel on the right shows the same probe on models with random weights, if
    measured. White cells have no R², because the right answer does not vary or there are too few different prompts. The
    column "all" uses all lengths together, if measured.

    Args:
        found: a result of `squashlens.probe`.

    Returns:
        The figure.
    """
    labelled(found, {"r2": ("layer", "length"), "r2_y": ("length",)}, "squashlens.probe")
    each = _with_y(found, "r2")
    if "r2_overall" in found and "r2_overall_y" in found:
        each = xr.concat([each, _with_y(found, "r2_overall").expand_dims(length=["all"], axis=1)], dim="length")
    panels = {"this model": each}
    if (
        "r2_random_model" in found
        and "r2_random_model_y" in found
        and not bool(np.isnan(found["r2_random_model_y"]).all())
    ):
        panels["random weights, same architecture"] = _with_y(found, "r2_random_model")
    several = len(panels) > 1
    figure = make_subplots(
        cols=len(panels), shared_yaxes=True, subplot_titles=list(panels) if several else None,
        column_widths=[panel.sizes["length"] for panel in panels.values()],
    )  # fmt: skip
    for column, panel in enumerate(panels.values(), start=1):
        last = column == len(panels)
        cells = layer_map(panel, "R²", colorscale="Viridis", zmin=0, zmax=1, hoverongaps=False, showscale=last)
        figure.add_trace(cells, row=1, col=column)
    figure.update_xaxes(type="category", title=LENGTH)
    figure.update_yaxes(type="category", showgrid=False).update_yaxes(title="layer ℓ", col=1)
    notes = ["white: no R²"] if bool(np.isnan(each).any()) else []
    figure.update_traces(colorbar={"tickvals": TICKS, "ticktext": ["≤ 0", *map(str, TICKS[1:])]})
    title = "How well a linear probe predicts the right answer"
    return finish(figure, title=title, height=260, notes=notes_of(found, *notes))


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
    layers = found[name].assign_coords(texts)
    found = found.assign_coords(texts)
    return xr.concat([layers, found[f"{name}_y"].expand_dims(layer=["y"])], dim="layer")


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
    marks = {"symbol": np.where(values < 0, "triangle-down", "circle"), "size": np.where(values < 0, 13, 8)}
    return go.Scatter(
        x=lengths, y=np.where(values < 0, 0, values), name=label_text, mode="lines+markers", error_y=bars, text=text,
        line={"color": colour, "dash": dash}, marker={"color": colour} | marks | PLAIN,
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _distances(distance: xr.DataArray) -> list[go.Scatter]:
    """Traces of the median over seeds and of a band from minimum to maximum; zeros are marks at the bottom."""
    lengths, values = distance["length"].values, distance.values.astype(np.float64)
    ground = np.min(values, where=values > 0, initial=np.inf) / 2 if (values > 0).any() else 1.0
    low, middle, high = (np.maximum(of(values, axis=1), ground) for of in (np.min, np.median, np.max))
    text = [
        f"D, {length} items: median {np.median(own):.3g}, {own.min():.3g} to {own.max():.3g}"
        for length, own in zip(lengths, values, strict=True)
    ]
    there = np.median(values, axis=1) > 0
    marks = {"symbol": np.where(there, "circle", "triangle-down"), "size": np.where(there, 8, 13)} | PLAIN
    name = D[values.shape[1] == 1]
    line = go.Scatter(
        x=lengths, y=middle, name=name, legendgroup=name, mode="lines+markers", text=text, marker=marks,
        line={"color": COLOURS["distance"]}, hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    if values.shape[1] == 1:
        return [line]
    band = go.Scatter(
        x=[*lengths, *lengths[::-1]], y=[*high, *low[::-1]], fill="toself", mode="none", fillcolor=BAND,
        name=name, legendgroup=name, showlegend=False, hoverinfo="skip",
    )  # fmt: skip
    return [band, line]


def _strip(verdict: xr.DataArray) -> list[go.Bar]:
    """One box for each measured length in the colour of its verdict; all are equally wide and none touch."""
    lengths, said = verdict["length"].values.astype(np.float64), verdict.values.astype(str)
    wide = 0.7 * float(np.diff(lengths).min()) if len(lengths) > 1 else 1.0
    boxes = []
    for name in (*VERDICTS, *sorted(set(said) - set(VERDICTS))):
        own = said == name
        if own.any():
            shown, (colour, pattern) = escaped(name), VERDICTS.get(name, (FAINT, "+"))
            boxes.append(
                go.Bar(
                    x=lengths[own], width=wide, y=np.ones(own.sum()), name=shown,
                    legend="legend2",
                    marker={"color": colour, "line": {"width": 0}, "pattern": {"shape": pattern, "size": 5}},
                    customdata=verdict["length"].values[own], showlegend=True,
                    hovertemplate=f"%{{customdata}} items: {shown}<extra></extra>",
                )
            )  # fmt: skip
    return boxes
