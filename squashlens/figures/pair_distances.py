"""Representational collapse: the distance D of v and v* by length and layer, and its mechanism."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import chosen, relative_distance
from squashlens.figures.collapse_sentences import against_contrast, by_length
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of, norm_note
from squashlens.figures.drawing.shapes import (
    LAYERS,
    band,
    curve,
    extremes,
    grid,
    layer_map,
    shade_range,
    tint,
)
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import COLOURS, DRAWN, shades_of
from squashlens.records.sentences import number, percent, plural

LENGTH = "length (content tokens)"
NAMES = {
    "distance": "v and v*",
    "contrast": "contrast: another last token",
    "unrelated": "unrelated: other content",
    "noise_floor": "noise floor",
    "heads": "mean over heads",
}
CURVES = ("distance", "contrast", "unrelated")
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

    The figure includes what the result contains of: the contrast pair, unrelated sequences, and the noise floor.
    Attention heads have a panel of their own. A noise floor below all distances is named under the title. An unrelated
    sequence is left out at lengths where its distance is within the noise floor at all layers: a short one may happen
    to have the same content. Crosses: a token has left the sliding window of a block for v* and not for v, so that D
    may jump. Of more than 64 lengths, curves are medians of neighbours, with a band from the smallest to the largest D.

    Args:
        layer: the layer to draw; the last one by default.
        trained: the longest length of the training data, in content tokens; lengths up to it are shaded.
    """
    at = chosen(collapse, "layer", layer)
    here = _with_other_content(collapse).sel(layer=at)
    # A layer is the output of the block before it, so its heads are those of that block, if no block was left out.
    sizes = collapse["head_mean"].sizes if "head_mean" in collapse else {}
    by_head = "layer" in sizes or sizes.get("block", -1) >= collapse["layer"].values[-1]
    heads = here.sel(block=max(at - 1, 0)) if by_head and "block" in sizes else here
    least = min(
        float(here[name].where(here[name] > 0).min()) for name in CURVES if name in here
    )
    hidden = "noise_floor" in here and float(here["noise_floor"].max()) < least
    if by_head:
        titles = ["residual stream", "attention heads: mean, smallest to largest"]
        figure, (first, second) = grid(titles, shared_xaxes=True)
        for trace in _lines(
            heads["head_mean"], "heads", ends=(heads["head_min"], heads["head_max"])
        ):
            figure.add_trace(trace.update(name=None), **second)
        figure.update_yaxes(type="log", title=distance_of(collapse), **second)
    else:
        figure, (first,) = grid([""])
    if "unrelated" in here:
        unrelated = (
            here["unrelated"]
            if "draw" in here.dims
            else here["unrelated"].expand_dims("draw")
        )
        for row in unrelated.transpose("draw", "length"):
            figure.add_traces(_lines(row, "unrelated"), 1, 1)
    for name in (
        "contrast",
        *(() if hidden else ("noise_floor",)),
        "distance",
    ):  # the pair itself on top of the others
        if name in here:
            figure.add_traces(
                _lines(here[name], name, width=2.5 if name == "distance" else 1.2), 1, 1
            )
    lengths = collapse["length"].values
    at_edge = (
        here["window_edge"].values >= 0
        if "window_edge" in here.coords
        else np.zeros(len(lengths), dtype=bool)
    )
    if at_edge.any():
        marks = curve(
            lengths[at_edge],
            here["distance"].values[at_edge],
            EDGE,
            colour=COLOURS["distance"],
            mode="markers",
            symbol="x-thin-open",
            size=9,
            hover=f"length %{{x}}: {EDGE}",
        )
        figure.add_trace(marks, **first)
    if trained is not None:
        shade_range(figure, max(1, lengths[0]), trained, "trained lengths")
    ends = [np.log10(lengths[0]), np.log10(max(lengths[-1], lengths[0] + 1))]
    figure.update_xaxes(type="log", title=LENGTH, range=ends)
    figure.update_yaxes(type="log", title=distance_of(collapse), **first)
    notes = (
        [
            f"The noise floor, at most {number(here['noise_floor'].max())}, is below the axis"
        ]
        if hidden
        else []
    )
    notes += [
        "lines: medians of neighbouring lengths",
        "band: smallest to largest D",
    ] * (len(lengths) > MANY)
    says = against_contrast(collapse, at) or by_length(collapse, at)
    title = f"Representational collapse, layer {at}"
    return finish(figure, title, 360 if by_head else 260, collapse, *notes, says=says)


def _with_other_content(collapse: xr.Dataset) -> xr.Dataset:
    """The result without the distances of unrelated sequences that have the same content: NaN in their place."""
    if "unrelated" not in collapse or "noise_floor" not in collapse:
        return collapse
    floor = collapse["noise_floor"]
    same = (
        collapse["unrelated"]
        <= floor.max([dim for dim in floor.dims if dim != "layer"])
    ).all("layer")
    return collapse.assign(unrelated=collapse["unrelated"].where(~same))


def _lines(
    values: xr.DataArray,
    kind: str,
    width: float = 1.2,
    ends: tuple[xr.DataArray, xr.DataArray] | None = None,
) -> list[go.Scatter]:
    """A curve by length, with a band between `ends`; the noise floor, which was measured at some lengths, has marks."""
    name, colour = NAMES[kind], COLOURS[kind]
    x, middle = values[str(values.dims[0])].values, values.values
    low, high = (end.values for end in ends) if ends else (middle, middle)
    if len(x) > MANY:
        # Neighbours may alternate, as with separators after every third token: all of them would be one filled block.
        _, group = np.unique(
            np.round(np.log(x / x[0]) / np.log(x[-1] / x[0]) * BINS),
            return_inverse=True,
        )
        parts = [group == number for number in range(group.max() + 1)]
        x, middle = (
            np.array([np.nanmedian(of[part]) for part in parts]) for of in (x, middle)
        )
        low, high = (
            np.array([low[part].min() for part in parts]),
            np.array([high[part].max() for part in parts]),
        )
    marked = kind == "noise_floor" or values.size == 1
    line = curve(
        x,
        middle,
        name,
        colour=colour,
        width=width,
        log=True,
        mode="lines+markers" if marked else "lines",
        connectgaps=kind == "noise_floor",
        hover=f"length %{{x}}<br>{name}: %{{y:.4g}}",
    )
    banded = ends is not None or (len(values) > MANY and kind == "distance")
    edges = (np.where(end > 0, end, np.nan) for end in (low, high))
    return [
        *(band(x, *edges, fill=tint(colour, 0.22), group=name) if banded else ()),
        line,
    ]


@draws("squashlens.collapse", "distance rms: layer length", usual=False)
def collapse_heatmap(collapse: xr.Dataset) -> go.Figure:
    """Draw the relative distance of v and v* as a map of layer × length. The colour is log₁₀ D ÷ rms(v).

    Cells where v and v* are identical (as at layer 0 without position embeddings) remain white.
    """
    values = relative_distance(collapse)
    logarithm = values.copy(data=np.log10(values.where(values > 0).values))
    figure = go.Figure(layer_map(logarithm, "log₁₀ D ÷ rms(v)"))
    figure.update_xaxes(title=LENGTH).update_yaxes(LAYERS)
    says = extremes(values.where(values > 0), "D ÷ rms(v)")
    notes = ["blank: identical"] * bool((values == 0).any())
    return finish(
        figure,
        "Distance of v and v* by layer and length",
        240,
        collapse,
        *notes,
        says=says,
    )


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
        "block 0: ‖o − o*‖₁, observed and bound",
        f"share of D after each block, by where it comes from, length {at}",
    ]
    figure, places = grid(titles, 2)
    lengths, blocks = mechanism["length"].values, mechanism["block"].values

    def draw(place: Any, values: xr.DataArray, name: str, colour: str) -> None:
        hover = f"length %{{x}}<br>{name}: %{{y:.4g}}"
        style: Any = {
            "colour": colour,
            "width": 1.8,
            "mode": "lines",
            "hover": hover,
            "log": True,
        }
        figure.add_trace(curve(lengths, values.values, name, **style), **place)

    for name, place in zip(STEPS, places, strict=False):
        for at_block, colour in shades_of(
            mechanism["self_weight_mean"].isel(length=-1).values
        ).items():
            draw(
                place,
                mechanism[name].isel(block=at_block),
                f"block {blocks[at_block]}",
                colour,
            )
    for name, kind in (("observed", "distance"), ("bound", "contrast")):
        draw(places[2], mechanism[name], name, COLOURS[kind])
    for part in map(str, mechanism["part"].values):
        shares, name = (
            mechanism["share"].sel(part=part, length=at),
            PARTS.get(part, part),
        )
        hover = f"block %{{x}}<br>{name}: %{{y:.3f}}"
        figure.add_trace(
            curve(blocks, shares.values, name, colour=COLOURS[part], hover=hover),
            **places[3],
        )
    for place in places[:3]:
        figure.update_xaxes(
            type="log",
            title=LENGTH,
            range=[np.log10(lengths[0]), np.log10(lengths[-1])],
            **place,
        )
        figure.update_yaxes(type="log", **place)
    figure.update_xaxes(title="block", dtick=1, **places[3])
    last = mechanism["share"].sel(length=at).isel(block=-1)
    most = last.isel(part=last.values.argmax())
    held, part = (
        int((mechanism["observed"] <= mechanism["bound"]).sum()),
        PARTS[most["part"].item()],
    )
    says = f"At length {at}, {percent(float(most))} of D after block {blocks[-1]} comes from the {part}. "
    says += f"In block 0, what is observed is within its bound at {held} of {plural(len(lengths), 'length')}."
    title = "The quantities in the proof of Theorem B.3"
    notes = [
        *norm_note(mechanism),
        *["blocks: largest, smallest and two other α*"] * (len(blocks) > DRAWN),
    ]
    return finish(figure, title, 440, mechanism, *notes, says=says)
