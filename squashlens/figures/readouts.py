"""Answers, probes and collapse by length: whether a count is answered, represented but not read out, or lost."""

import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.answers import LENGTH, cannot_be_judged
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import (
    curve,
    layer_map,
    line,
    name_rows,
    over_seeds,
    with_interval,
)
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import BROWN, COLOURS
from squashlens.records.sentences import plural

# For each panel, the name and colour of its curves from 0 to 1 over length.
PANELS = {
    "Prompts: is the answer right, and can a probe read it?": {
        "accuracy": ("answered", "#009E73"),
        "probe_right_y": ("read by the probe", "#0072B2"),
    },
    "R² of the probe of y, beside baselines": {
        "r2_y": ("this model", "#CC79A7"),
        "r2_random_model_y": ("random weights", BROWN),
        "r2_control_y": ("control task", "#7F7F7F"),
    },
    "Pairs, the last item repeated in one: what is the same?": {
        "same_argmax": ("same next token", "#E69F00"),
        "same_answer": ("same answer", "#D55E00"),
        "same_truth": ("same right answer", "#56B4E9"),
        "bit_identical": ("all bits", "#8a92a0"),
    },
}
HEIGHT, ROW = 110.0, 22.0  # pixels of a panel, and of a row of verdicts
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
    shares = {
        title: [name for name in curves if name in found]
        for title, curves in PANELS.items()
    }
    shares = {title: names for title, names in shares.items() if names}
    verdicts = list(map(str, found["verdict"].values))
    rows = list(dict.fromkeys(verdicts))
    titles = [*shares, "Distance of pairs: median, smallest to largest", "Verdict"]
    heights = [HEIGHT] * (len(shares) + 1) + [ROW * (len(rows) + 1)]
    figure, places = grid(titles, heights=heights, shared_xaxes=True)
    for place, (title, names) in zip(places, shares.items(), strict=False):
        for name in names:
            text, colour = PANELS[title][name]
            figure.add_trace(line(_share(found, name), text, colour=colour), **place)
        figure.update_yaxes(range=[-0.07, 1.07], **place)
    for trace in over_seeds(
        found["distance"], "median", "", colour=COLOURS["distance"]
    ):
        figure.add_trace(trace, **places[-2])
    figure.update_yaxes(type="log", title=distance_of(found), **places[-2])
    levels = [rows.index(verdict) for verdict in verdicts]
    marks = {"mode": "markers", "symbol": "square", "size": 9, "hover": "%{x} items"}
    figure.add_trace(
        curve(found["length"].values, levels, colour=BROWN, **marks), **places[-1]
    )
    name_rows(figure, map(escape, rows), len(titles))
    figure.update_xaxes(title=LENGTH)
    same = int((found["distance"].median("seed") == 0).sum())
    notes = ["no probe at these lengths"] if "r2_y" not in found else []
    notes += (
        [f"median D is 0, and not drawn, at {plural(same, 'length')}"] if same else []
    )
    notes.append(cannot_be_judged({"": found}))
    return finish(figure, "Collapsed, or not read out?", found, *notes)


def _share(found: xr.Dataset, name: str) -> xr.DataArray:
    """Values from 0 to 1 with their intervals, if there are several seeds; what is below 0 is 0."""
    values = found[name].astype(float).clip(min=0)
    if found.sizes["seed"] == 1:
        return values
    ends = with_interval(found, name).coords
    there = [end for end in ("low", "high") if end in ends]
    return values.assign_coords({end: ends[end].clip(min=0) for end in there})


@draws("squashlens.probe", "r2: layer length", "r2_y: length")
def probe(found: xr.Dataset) -> go.Figure:
    """Draw R² of a linear probe for the right answer, as a map of layer × length with y on top.

    R² below 0 has the colour of 0. A panel on the right shows the same probe on models with random weights, if
    measured. Blank cells have no R², because the right answer does not vary or there are too few different prompts. The
    column "all" uses all lengths together, if measured.
    """
    trained = _with_y(found, "r2")
    if "r2_overall" in found and "r2_overall_y" in found:
        overall = _with_y(found, "r2_overall").expand_dims(length=["all"], axis=1)
        trained = xr.concat([trained, overall], dim="length")
    panels = {"": trained}
    random = "r2_random_model"
    if (
        random in found
        and f"{random}_y" in found
        and found[f"{random}_y"].notnull().any()
    ):
        panels = {"this model": trained, "random weights": _with_y(found, random)}
    heights = [260.0] * len(panels)
    figure, places = grid([*panels], len(panels), heights, shared_yaxes=True)
    for place, values in zip(places, panels.values(), strict=True):
        scale = {"zmin": 0, "zmax": 1, "showscale": place is places[-1]}
        figure.add_trace(layer_map(values, "R²", **scale), **place)
    ticks = ["≤ 0", *map(str, TICKS[1:])]
    figure.update_traces(colorbar={"tickvals": TICKS, "ticktext": ticks})
    figure.update_xaxes(type="category", title=LENGTH)
    figure.update_yaxes(type="category", showgrid=False, title="layer ℓ")
    notes = ["y: the last layer's output after the final norm"]
    notes += ["blank: no R²"] if trained.isnull().any() else []
    title = "How well a linear probe predicts the right answer"
    return finish(figure, title, found, *notes)


def _with_y(found: xr.Dataset, name: str) -> xr.DataArray:
    """A variable with y as an additional layer, and with layers and lengths as text."""
    texts = {dim: found[dim].values.astype(str) for dim in found[name].dims}
    found = found.assign_coords(texts)
    y = found[f"{name}_y"].expand_dims(layer=["y"])
    return xr.concat([found[name], y], dim="layer")
