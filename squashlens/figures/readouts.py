"""Answers, probes and collapse by length: whether a count is answered, represented but not read out, or lost."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.answers import LENGTH, cannot_be_judged
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import (
    band,
    curve,
    extremes,
    grid,
    interval,
    layer_map,
    name_rows,
    tint,
)
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import BROWN, COLOURS
from squashlens.records.sentences import beside_random, listed, plural, sentence

# For each panel, the name and colour of its curves from 0 to 1 over length.
PANELS = {
    "Prompts: is the answer right, and can a probe read it?": {
        "accuracy": ("answered", "#009E73"),
        "probe_right_y": ("read by the probe", "#0072B2"),
    },
    "R² of the probe of y, beside baselines": {
        "r2_y": ("this model", "#0072B2"),
        "r2_random_model_y": ("random weights", BROWN),
        "r2_control_y": ("control task", "#7F7F7F"),
    },
    "Pairs, the last item repeated in one: what is the same?": {
        "same_argmax": ("next token", "#E69F00"),
        "same_answer": ("answer", "#D55E00"),
        "same_truth": ("right answer", "#009E73"),
        "bit_identical": ("all bits", "#CC79A7"),
    },
}
HEIGHT, ROW = 120, 22  # pixels of a panel, and of a row of verdicts
TICKS = [0, 0.2, 0.4, 0.6, 0.8, 1]


@draws(
    "squashlens.collapse_vs_readout",
    "distance: length seed",
    "accuracy accuracy_low accuracy_high same_argmax verdict: length",
)
def collapse_vs_readout(found: xr.Dataset) -> go.Figure:
    """Draw answers, probe, pairs, distance D, and verdicts, each by length.

    D is the distance at the last layer between a prompt and the same prompt with its last item repeated: the median
    over seeds, with a band from minimum to maximum; zeros are missing. Error bars are Wilson's 95 % interval for
    accuracy, and the middle 95 % over splits for R². R² below 0 is drawn at 0. Without a probe, its panel is missing.
    """
    panels = {
        title: {name: curves[name] for name in curves if name in found}
        for title, curves in PANELS.items()
    }
    panels = {title: curves for title, curves in panels.items() if curves}
    verdicts = found["verdict"].values.astype(str)
    rows = [*dict.fromkeys(map(str, verdicts))]
    heights = [*[HEIGHT] * (len(panels) + 1), ROW * (len(rows) + 1)]
    titles = [
        *panels,
        f"Distance {distance_of(found)} of pairs: median, smallest to largest",
        "Verdict",
    ]
    figure, _ = grid(titles, heights=heights, shared_xaxes=True)
    for row, curves in enumerate(panels.values(), start=1):
        for name, (text, colour) in curves.items():
            figure.add_trace(_share(found, name, text, colour), row=row, col=1)
        figure.update_yaxes(range=[-0.07, 1.07], row=row)
    lengths, distance = (
        found["length"].values,
        found["distance"].where(found["distance"] > 0),
    )
    low, middle, high = (
        distance.min("seed"),
        found["distance"].median("seed"),
        distance.max("seed"),
    )
    colour, hover = COLOURS["distance"], "%{x} items: median D %{y:.3g}"
    if found.sizes["seed"] > 1:
        figure.add_traces(
            band(lengths, low.values, high.values, tint(colour), "D"),
            len(titles) - 1,
            1,
        )
    line = curve(lengths, middle.values, colour=colour, hover=hover, log=True)
    figure.add_trace(line, row=len(titles) - 1, col=1)
    figure.update_yaxes(type="log", row=len(titles) - 1)
    places = [rows.index(name) for name in verdicts]
    marks = curve(
        lengths,
        places,
        colour=BROWN,
        mode="markers",
        symbol="square",
        size=9,
        hover="%{x} items",
    )
    figure.add_trace(marks, row=len(titles), col=1)
    name_rows(figure, [escape(name) for name in rows], len(titles))
    figure.update_xaxes(title=LENGTH)
    notes = (*_notes(found), *cannot_be_judged({"": found}))
    counts = [f"“{escape(name)}” at {(verdicts == name).sum()}" for name in rows]
    says = f"Of {plural(len(lengths), 'length')}, the verdict is {listed(counts)}."
    return finish(
        figure, "Collapsed, or not read out?", sum(heights), found, *notes, says=says
    )


@draws("squashlens.probe", "r2: layer length", "r2_y: length")
def probe(found: xr.Dataset) -> go.Figure:
    """Draw R² of a linear probe for the right answer, as a map of layer × length with y on top.

    R² below 0 has the colour of 0. A panel on the right shows the same probe on models with random weights, if
    measured. Blank cells have no R², because the right answer does not vary or there are too few different prompts. The
    column "all" uses all lengths together, if measured.
    """
    each = _with_y(found, "r2")
    if "r2_overall" in found and "r2_overall_y" in found:
        each = xr.concat(
            [each, _with_y(found, "r2_overall").expand_dims(length=["all"], axis=1)],
            dim="length",
        )
    panels = {"this model": each}
    twin = "r2_random_model"
    notes = [
        "y: the last layer's output after the final norm",
        *["blank: no R²"] * bool(np.isnan(each).any()),
    ]
    ends = {
        end: _with_y(found, f"r2_{end}").reindex_like(each)
        for end in ("low", "high")
        if f"r2_{end}" in found
    }
    says = extremes(each.assign_coords(ends), "R²")
    if (
        twin in found
        and f"{twin}_y" in found
        and not bool(np.isnan(found[f"{twin}_y"]).all())
    ):
        panels["random weights, same architecture"] = _with_y(found, twin)
        says = f"{sentence(beside_random(found))}."
    figure, _ = grid(
        list(panels) if len(panels) > 1 else [""], len(panels), shared_yaxes=True
    )
    bar = {"tickvals": TICKS, "ticktext": ["≤ 0", *map(str, TICKS[1:])]}
    for column, panel in enumerate(panels.values(), start=1):
        cells = layer_map(panel, "R²", zmin=0, zmax=1, showscale=column == len(panels))
        figure.add_trace(cells.update(colorbar=bar), row=1, col=column)
    figure.update_xaxes(type="category", title=LENGTH)
    figure.update_yaxes(type="category", showgrid=False, title="layer ℓ")
    title = "How well a linear probe predicts the right answer"
    return finish(figure, title, 260, found, *notes, says=says)


def _notes(found: xr.Dataset) -> list[str]:
    """Notes for the line under the title, on values that cannot be drawn at their place."""
    notes = ["no probe at these lengths"] if "r2_y" not in found else []
    same = int((found["distance"].median("seed") == 0).sum())
    return notes + [
        f"median D is 0, and not drawn, at {plural(same, 'length')}"
    ] * bool(same)


def _with_y(found: xr.Dataset, name: str) -> xr.DataArray:
    """A variable with y as an additional layer, and with layers and lengths as text."""
    texts = {
        dim: [str(value) for value in found[dim].values] for dim in found[name].dims
    }
    found = found.assign_coords(texts)
    return xr.concat(
        [found[name], found[f"{name}_y"].expand_dims(layer=["y"])], dim="layer"
    )


def _share(found: xr.Dataset, name: str, text: str, colour: str) -> go.Scatter:
    """A curve from 0 to 1 over length; values below 0 are drawn at 0."""
    values, lengths, bars = (
        found[name].values.astype(np.float64),
        found["length"].values,
        None,
    )
    ends = [
        name.removesuffix("_y") + end + "_y" * name.endswith("_y")
        for end in ("_low", "_high")
    ]
    if all(end in found for end in ends) and found.sizes["seed"] > 1:
        low, high = (np.maximum(found[end].values, 0) for end in ends)
        bars = interval(np.maximum(values, 0), low, high, colour, 4)
    hover = [
        f"{text}, {plural(n, 'item')}: {value:.3g}"
        for n, value in zip(lengths, values, strict=True)
    ]
    shown = np.where(values < 0, 0, values)
    return curve(
        lengths, shown, text, colour=colour, error_y=bars, text=hover, hover="%{text}"
    )
