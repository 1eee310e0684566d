"""Attention paths: where they start, by layer or by number of hops, the strongest ones, and their limit with depth."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale

from squashlens.errors import InputError
from squashlens.figures.drawing.inputs.facts import notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.inputs.selection import TOKENS, of_one_prompt, tokens_of
from squashlens.figures.drawing.layouts.ticks import token_axis
from squashlens.figures.drawing.maps import all_starts, share_map
from squashlens.figures.drawing.sinks import sink_note
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import label, numbered
from squashlens.figures.drawing.themes import COLOURS, evenly
from squashlens.records.results import facts_of

MANY = 60  # tokens whose grid points would merge into lines


@draws("squashlens.paths.composition", "values: layer position", "token: position")
def composition(shares: xr.DataArray) -> go.Figure:
    """Draw the share of paths that start at each position and layer, as a map with a logarithmic colour scale.

    The top row is the query itself. Lower rows show how attention spreads the paths over the prompt.

    Args:
        shares: a result of `squashlens.paths.composition`.

    Returns:
        The figure.
    """
    return _starts(shares, row="layer {row}", axis="layer ℓ", by="layer")


@draws("squashlens.paths.hops", "values: hop position", "token: position")
def hops(shares: xr.DataArray) -> go.Figure:
    """Draw the share of paths by number of hops and by start position, as a map with a logarithmic colour scale.

    Args:
        shares: a result of `squashlens.paths.hops`.

    Returns:
        The figure.
    """
    return _starts(shares, row="{row} hops", axis="hops through attention", by="number of hops")


def _starts(shares: xr.DataArray, *, row: str, axis: str, by: str) -> go.Figure:
    """A map of where the paths start; `row` labels a row in hovers, `axis` and `by` name what the rows are."""
    if "query" in shares.coords:  # values of a profile have the same dimensions
        raise InputError(
            "shares is the result of another measurement: it has values for queries.",
            "Give the unchanged result of squashlens.paths.composition, or draw it with squashlens.figures.of.",
        )
    shares = of_one_prompt(shares)
    tokens = tokens_of(shares)
    drawn: Any = share_map(shares, tokens, row)
    figure = go.Figure(drawn)
    figure.update_xaxes(**token_axis(tokens), title=TOKENS)
    figure.update_yaxes(title=axis, dtick=1)
    starts = all_starts(shares)
    notes = [sink_note(starts, "the paths")] if drawn.zmax < 0 else []  # the scale ends below 1
    title = f"Where the paths to the query start, by {by}"
    return finish(figure, title=title, height=280, notes=notes_of(shares, *notes))


@draws("squashlens.paths.strongest_paths", "token: position", "position_at: path layer", "share: path")
def strongest_paths(paths: xr.Dataset) -> go.Figure:
    """Draw the strongest paths on the grid of layers and tokens (figure 1b). Stronger paths have wider lines.

    Every line is one path. Paths overlap where they share a segment.

    Args:
        paths: a result of `squashlens.paths.strongest_paths`.

    Returns:
        The figure.
    """
    paths = of_one_prompt(paths)
    tokens, layers = tokens_of(paths), paths["layer"].values
    shares = paths["share"].values
    figure = go.Figure()
    grid_x, grid_y = np.meshgrid(list(tokens), layers)
    figure.add_trace(
        go.Scatter(
            x=grid_x.ravel(), y=grid_y.ravel(), mode="markers", hoverinfo="skip", showlegend=False,
            marker={"size": 3 if len(tokens) <= MANY else 1, "color": "#c4c9d2"},
        )
    )  # fmt: skip
    for rank in reversed(range(len(shares))):
        walk = paths["position_at"].values[rank]
        name = f"path {rank + 1}: {shares[rank]:.4g} of all"
        route = " → ".join(label(tokens.get(p, "")) for p in walk)
        figure.add_trace(
            go.Scatter(
                x=walk,
                y=layers,
                mode="lines+markers",
                line={"color": COLOURS["path_bound"], "width": 1.5 + 6 * float(shares[rank] / shares[0])},
                opacity=0.35,
                marker={"size": 6},
                showlegend=False,
                customdata=[
                    f"{layer}, {numbered(p, tokens.get(p, ''))}" for layer, p in zip(layers, walk, strict=True)
                ],
                hovertemplate=f"layer %{{customdata}}<br>{name}<br>{route}<extra></extra>",
            )
        )
    figure.update_xaxes(**token_axis(tokens), title=TOKENS)
    figure.update_yaxes(title="layer ℓ", dtick=1)
    total = 100 * float(shares.sum())
    title = f"The {len(shares)} strongest paths to the query carry {total:.3g} % of the weight of all paths"
    avoided = ", ".join(label(tokens.get(int(p), "")) for p in np.atleast_1d(facts_of(paths)["call"].get("avoid", [])))
    notes = [f"without paths through {avoided}"] if avoided else []
    return finish(figure, title=title, height=320, notes=notes_of(paths, *notes, "stronger paths have wider lines"))


@draws("squashlens.paths.depth_limit", "rest: block depth", "predicted_rate observed_rate: block")
def depth_limit(limit: xr.Dataset) -> go.Figure:
    """Draw the path weight that is not at the first token, by depth, with a logarithmic scale.

    Depth is the number of times that a block's attention is applied. A dotted line shows the predicted rate, starting
    from the value at depth 1.

    Args:
        limit: a result of `squashlens.paths.depth_limit`.

    Returns:
        The figure.
    """
    blocks, depth = limit["block"].values, limit["depth"].values
    colours = [str(c) for c in sample_colorscale("Viridis", list(np.linspace(0, 0.9, len(blocks))))]
    figure = go.Figure()
    for at, (block, colour) in enumerate(zip(blocks, colours, strict=True)):
        here = limit.sel(block=block)
        rest = here["rest"].values
        rates = _rates(here)
        figure.add_trace(
            go.Scatter(
                x=depth,
                y=np.where(rest > 0, rest, np.nan),
                mode="lines",
                line={"color": colour, "width": 2},
                name=f"block {block}: {rates}",
                showlegend=at in evenly(len(blocks)),
                hovertemplate=f"block {block}: {rates}<br>depth %{{x}}, not at first token: %{{y:.4g}}<extra></extra>",
            )
        )
        line = rest[1] * float(here["predicted_rate"]) ** (depth[1:] - 1)
        figure.add_trace(
            go.Scatter(
                x=depth[1:], y=line, mode="lines", line={"color": colour, "width": 1, "dash": "dot"},
                showlegend=False, hoverinfo="skip",
            )
        )  # fmt: skip
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
