"""Representational collapse: the distance D of v and v* by length and layer, and its mechanism."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import chosen, relative_distance
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import (
    band,
    layer_map,
    line,
    log_axis,
    shade_range,
    steps,
)
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.themes import COLOURS, series
from squashlens.figures.path_weights import DRAWN, spaced
from squashlens.records.sentences import number

LENGTH = "length (content tokens)"
NAMES = {
    "heads": "attention heads: mean, smallest to largest",
    "unrelated": "unrelated: other content",
    "contrast": "contrast: another last token",
    "noise_floor": "noise floor",
    "distance": "v and v*",
}
EDGE = "a token leaves a window for v* alone"
MANY, BINS = (
    64,
    60,
)  # lengths of which neighbours are drawn together, and groups of them
PARTS = {
    "residual": "residual stream before it",
    "attention": "attention",
    "mlp": "MLP",
}
STEPS = {
    "attention_tv_mean": "δ: total variation of the last token's attention",
    "self_weight_mean": "α*: attention of the new token to itself",
}


@draws("squashlens.collapse", "distance: layer length", "noise_floor unrelated: ? ...")
def collapse_curve(
    collapse: xr.Dataset, *, layer: int | None = None, trained: int | None = None
) -> go.Figure:
    """Draw the distance D of v and v* by length at one layer, with logarithmic scales (figure 5).

    The figure includes what the result contains of: the contrast pair, unrelated sequences, the noise floor, and the
    attention heads. A noise floor below all distances is named under the title. An unrelated
    sequence is left out at lengths where its distance is within the noise floor at all layers: a short one may happen
    to have the same content. Crosses: a token has left the sliding window of a block for v* and not for v, so that D
    may jump. Of more than 64 lengths, curves are medians of neighbours, with a band from the smallest to the largest D.

    Args:
        layer: the layer to draw; the last one by default.
        trained: the longest length of the training data, in content tokens; lengths up to it are shaded.
    """
    at = chosen(collapse, "layer", layer)
    here = _with_other_content(collapse).sel(layer=at)
    lengths = here["length"].values
    drawn = [
        name
        for name in ("unrelated", "contrast", "noise_floor", "distance")
        if name in here
    ]
    least = min(
        float(here[name].where(here[name] > 0).min())
        for name in drawn
        if name != "noise_floor"
    )
    notes = []
    if "noise_floor" in here and float(here["noise_floor"].max()) < least:
        drawn.remove("noise_floor")
        notes.append(
            f"noise floor, at most {number(here['noise_floor'].max())}, below the axis"
        )
    figure = go.Figure(_heads(collapse, at))
    for name in drawn:
        rows = (
            here[name] if "draw" in here[name].dims else here[name].expand_dims("draw")
        )
        for row in rows.transpose("draw", ...):
            figure.add_traces(_by_length(row, name))
    if "window_edge" in here.coords and (here["window_edge"] >= 0).any():
        edges = here["distance"][here["window_edge"].values >= 0]
        marks = {"mode": "markers", "symbol": "x-thin-open", "size": 9}
        figure.add_trace(line(edges, EDGE, colour=COLOURS["distance"], **marks))
    if trained is not None:
        shade_range(figure, max(1, lengths[0]), trained, "trained lengths")
    figure.update_xaxes(log_axis(lengths, room=0), title=LENGTH)
    figure.update_yaxes(type="log", title=distance_of(collapse))
    if len(lengths) > MANY:
        notes.append(
            "lines: medians of neighbouring lengths, band: smallest to largest D"
        )
    return finish(figure, f"Representational collapse, layer {at}", collapse, *notes)


def _heads(collapse: xr.Dataset, at: int) -> list[go.Scatter]:
    """The mean over attention heads with its band: of the block that writes a layer, if it was not left out."""
    labels = {"block": max(at - 1, 0), "layer": at}
    dims = collapse["head_mean"].dims if "head_mean" in collapse else ()
    label = {str(dim): labels[str(dim)] for dim in dims if dim in labels}
    there = [place in collapse[dim].values for dim, place in label.items()]
    if not label or not all(there):
        return []
    here = collapse[["head_mean", "head_min", "head_max"]].sel(label)
    return _by_length(here["head_mean"], "heads", here["head_min"], here["head_max"])


def _with_other_content(collapse: xr.Dataset) -> xr.Dataset:
    """The result without the distances of unrelated sequences that have the same content: NaN in their place."""
    if "unrelated" not in collapse or "noise_floor" not in collapse:
        return collapse
    floor = collapse["noise_floor"]
    highest = floor.max([dim for dim in floor.dims if dim != "layer"])
    same = (collapse["unrelated"] <= highest).all("layer")
    return collapse.assign(unrelated=collapse["unrelated"].where(~same))


def _by_length(
    middle: xr.DataArray,
    kind: str,
    low: xr.DataArray | None = None,
    high: xr.DataArray | None = None,
) -> list[go.Scatter]:
    """A curve by length, with a band; the noise floor, which was measured at some lengths, has marks."""
    name, colour = NAMES[kind], COLOURS[kind]
    many = middle.size > MANY
    banded = low is not None or (many and kind == "distance")
    low = middle if low is None else low
    high = middle if high is None else high
    if many:
        # Neighbours may alternate, as with separators after every third token: all of them would be one filled block.
        low, high = _of_neighbours(low, "min"), _of_neighbours(high, "max")
        middle = _of_neighbours(middle, "median")
    look = {"width": 2.5 if kind == "distance" else 1.5, "colour": colour}
    drawn = line(middle, name, log=True, connectgaps=kind == "noise_floor", **look)
    marked = kind == "noise_floor" or middle.size == 1
    drawn.update(mode="lines+markers" if marked else "lines")
    if not banded:
        return [drawn]
    bottom, top = low.where(low > 0).values, high.where(high > 0).values
    x = middle[str(middle.dims[0])].values
    return [*band(x, bottom, top, colour, name), drawn]


def _of_neighbours(values: xr.DataArray, how: str) -> xr.DataArray:
    """Values by length, of which neighbours on a logarithmic scale are one."""
    (dim,) = values.dims
    x = values[dim].values
    place = np.round(np.log(x / x[0]) / np.log(x[-1] / x[0]) * BINS)
    groups = values.assign_coords(place=(dim, place)).groupby("place")
    lengths = values[dim].assign_coords(place=(dim, place)).groupby("place")
    return getattr(groups, how)().assign_coords(place=lengths.median().values)


@draws("squashlens.collapse", "distance rms: layer length", usual=False)
def collapse_heatmap(collapse: xr.Dataset) -> go.Figure:
    """Draw the relative distance of v and v* as a map of layer × length. The colour is log₁₀ D ÷ rms(v).

    Cells where v and v* are identical (as at layer 0 without position embeddings) remain white.
    """
    values = relative_distance(collapse)
    logarithm = values.copy(data=np.log10(values.where(values > 0).values))
    figure = go.Figure(layer_map(logarithm, "log₁₀ D ÷ rms(v)"))
    figure.update_xaxes(title=LENGTH).update_yaxes(steps(values["layer"], "layer ℓ"))
    blank = "blank: identical" if (values == 0).any() else ""
    return finish(figure, "Distance of v and v* by layer and length", collapse, blank)


@draws(
    "squashlens.collapse_mechanism",
    "attention_tv_mean self_weight_mean: block length",
    "observed bound: length",
    "share: part block length",
)
def collapse_mechanism(
    mechanism: xr.Dataset, *, length: int | None = None
) -> go.Figure:
    """Draw the quantities in the proof of Theorem B.3: δ and α*, for four blocks; the bound of block 0; shares of D.

    Args:
        length: the length for the shares, in content tokens; the longest by default.
    """
    at = chosen(mechanism, "length", length)
    titles = [
        *STEPS.values(),
        "block 0: ‖o − o*‖₁",
        f"share of D after each block, length {at}",
    ]
    figure, places = grid(titles, 2)

    def draw(place: Any, values: xr.DataArray, name: str, **look: Any) -> None:
        figure.add_trace(line(values, name, size=5, **look), **place)

    blocks = spaced(mechanism["self_weight_mean"].isel(length=-1).values)
    for name, place in zip(STEPS, places, strict=False):
        for order, block in enumerate(blocks):
            values = mechanism[name].isel(block=block)
            draw(
                place,
                values,
                f"block {values['block'].item()}",
                log=True,
                **series(order),
            )
    for order, name in enumerate(("observed", "bound"), start=DRAWN):
        draw(places[2], mechanism[name], name, log=True, **series(order))
    for part in map(str, mechanism["part"].values):
        share = mechanism["share"].sel(part=part, length=at)
        draw(
            places[3],
            share,
            f"from {PARTS.get(part, part)}",
            dash="dash",
            colour=COLOURS[part],
        )
    for place in places[:3]:
        figure.update_xaxes(
            log_axis(mechanism["length"], room=0), title=LENGTH, **place
        )
        figure.update_yaxes(type="log", **place)
    figure.update_xaxes(steps(mechanism["block"], "block"), **places[3])
    many = mechanism.sizes["block"] > DRAWN
    some = "blocks: largest, smallest and two other α*" if many else ""
    return finish(figure, "The quantities in the proof of Theorem B.3", mechanism, some)
