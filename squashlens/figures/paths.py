"""Attention paths: where they start, by layer or by number of hops, the strongest ones, and their limit with depth."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale

from squashlens.errors import InputError
from squashlens.figures.drawing.facts import notes_of
from squashlens.figures.drawing.given import TOKENS, draws, of_one_prompt, tokens_of
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import label, numbered
from squashlens.figures.drawing.themes import COLOURS, evenly
from squashlens.figures.drawing.ticks import token_axis
from squashlens.figures.drawing.traces import curve, is_sink, sink_note, token_heatmap
from squashlens.records.results import facts_of

MANY = 60  # tokens whose grid points would merge into lines
FLOOR = 1e-6  # all shares below this have the same colour


@draws("squashlens.paths.composition", "values: layer position", "token: position")
def composition(shares: xr.DataArray) -> go.Figure:
    """Draw the share of paths that start at each position and layer, as a map with a logarithmic colour scale.

    The top row is the query itself. Lower rows show how attention spreads the paths over the prompt.
    """
    return _starts(shares, row="layer {}", axis="layer ℓ", by="layer")


@draws("squashlens.paths.hops", "values: hop position", "token: position")
def hops(shares: xr.DataArray) -> go.Figure:
    """Draw the share of paths by number of hops and by start position, as a map with a logarithmic colour scale."""
    return _starts(shares, row="{} hops", axis="hops through attention", by="number of hops")


def _starts(shares: xr.DataArray, *, row: str, axis: str, by: str) -> go.Figure:
    """A map of where the paths start; `row` labels a row in hovers, `axis` and `by` name what the rows are."""
    if "query" in shares.coords:  # values of a profile have the same dimensions
        raise InputError(
            "shares is the result of another measurement: it has values for queries.",
            "Give the unchanged result of squashlens.paths.composition, or draw it with squashlens.figures.of.",
        )
    shares = of_one_prompt(shares)
    tokens = tokens_of(shares)
    starts = shares.isel(layer=0) if "layer" in shares.dims else shares.sum("hop")
    most = 1.0  # the power of ten at which the scale ends: that above the other tokens if the first one is a sink
    if is_sink(starts):
        others = shares.isel(position=slice(1, None)).values
        largest = float(others[others < 1].max(initial=0.0))  # the query has all paths at its own layer
        most = 10.0 ** np.ceil(np.log10(max(largest, 10 * FLOOR)))
    figure = go.Figure(token_heatmap(shares, tokens, row, "share of paths", ends=(FLOOR, most)))
    figure.update_xaxes(**token_axis(tokens), title=TOKENS)
    figure.update_yaxes(title=axis, dtick=1)
    notes = [sink_note(starts, "the paths")] if most < 1 else []
    title = f"Where the paths to the query start, by {by}"
    return finish(figure, title=title, height=280, notes=notes_of(shares, *notes))


@draws("squashlens.paths.strongest_paths", "token: position", "position_at: path layer", "share: path")
def strongest_paths(paths: xr.Dataset) -> go.Figure:
    """Draw the strongest paths on the grid of layers and tokens (figure 1b). Stronger paths have wider lines.

    Every line is one path. Paths overlap where they share a segment.
    """
    paths = of_one_prompt(paths)
    tokens, layers, shares = tokens_of(paths), paths["layer"].values, paths["share"].values
    figure = go.Figure()
    grid_x, grid_y = np.meshgrid(list(tokens), layers)
    dots = {"size": 3 if len(tokens) <= MANY else 1, "color": "#c4c9d2"}
    figure.add_scatter(x=grid_x.ravel(), y=grid_y.ravel(), mode="markers", hoverinfo="skip", marker=dots)
    for rank in reversed(range(len(shares))):
        walk = paths["position_at"].values[rank]
        route = " → ".join(label(tokens.get(p, "")) for p in walk)
        places = [f"{layer}, {numbered(p, tokens.get(p, ''))}" for layer, p in zip(layers, walk, strict=True)]
        told = f"layer %{{customdata}}<br>path {rank + 1}: {shares[rank]:.4g} of all<br>{route}"
        width = 1.5 + 6 * float(shares[rank] / shares[0])
        line = curve(walk, layers, colour=COLOURS["path_bound"], width=width, hover=told, customdata=places)
        figure.add_trace(line.update(opacity=0.35))
    figure.update_xaxes(**token_axis(tokens), title=TOKENS)
    figure.update_yaxes(title="layer ℓ", dtick=1)
    title = (
        f"The {len(shares)} strongest paths to the query carry {100 * shares.sum():.3g} % of the weight of all paths"
    )
    avoided = ", ".join(label(tokens.get(int(p), "")) for p in np.atleast_1d(facts_of(paths)["call"].get("avoid", [])))
    notes = [f"without paths through {avoided}"] if avoided else []
    return finish(figure, title=title, height=320, notes=notes_of(paths, *notes, "stronger paths have wider lines"))


@draws("squashlens.paths.depth_limit", "rest: block depth", "predicted_rate observed_rate: block")
def depth_limit(limit: xr.Dataset) -> go.Figure:
    """Draw the path weight that is not at the first token, by depth, with a logarithmic scale.

    Depth is the number of times that a block's attention is applied. A dotted line shows the predicted rate, starting
    from the value at depth 1.
    """
    blocks, depth = limit["block"].values, limit["depth"].values
    colours = [str(c) for c in sample_colorscale("Viridis", list(np.linspace(0, 0.9, len(blocks))))]
    figure = go.Figure()
    for at, (block, colour) in enumerate(zip(blocks, colours, strict=True)):
        here = limit.sel(block=block)
        rest, name = here["rest"].values, f"block {block}: {_rates(here)}"
        hover = f"{name}<br>depth %{{x}}, not at first token: %{{y:.4g}}"
        listed = at in evenly(len(blocks))
        figure.add_trace(
            curve(depth, rest, name, colour=colour, mode="lines", hover=hover, log=True, showlegend=listed)
        )
        law = rest[1] * float(here["predicted_rate"]) ** (depth[1:] - 1)
        figure.add_trace(curve(depth[1:], law, colour=colour, dash="dot", width=1, mode="lines", showlegend=False))
    figure.update_xaxes(title="number of times the block's attention is applied")
    figure.update_yaxes(
        title="path weight not at the first token", type="log", exponentformat="power", range=[-10, 0.1]
    )
    title = "Depth limit: repeated attention moves all path weight to the first token"
    return finish(figure, title=title, height=320, notes=notes_of(limit, "dotted: the predicted rate"))


def _rates(here: xr.Dataset) -> str:
    """The rates of one block, or why it has none."""
    if not here["rest"].values.any():
        return "no token after the first one"
    predicted, observed = (float(here[f"{name}_rate"]) for name in ("predicted", "observed"))
    told = (
        "no predicted rate, later tokens attend only to themselves"
        if np.isnan(predicted)
        else f"predicted {predicted:.3f}"
    )
    return f"{told}, " + ("observed at too few depths" if np.isnan(observed) else f"observed {observed:.3f}")
