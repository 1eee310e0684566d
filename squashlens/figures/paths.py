"""Where the weight of attention paths is: by start, by hops, along single paths, and after repeated attention."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale

from squashlens.figures.drawing.decorator import draws, tokens_of
from squashlens.figures.drawing.shapes import (
    curve,
    line,
    log_axis,
    steps,
    token_axis,
    token_figure,
)
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import number_token
from squashlens.figures.drawing.themes import series
from squashlens.records.joining import without_padding
from squashlens.records.sentences import percent, plural

FLOOR = 1e-6  # all shares below this have the same colour
LOWEST = 1e-10  # the y axis of path weights ends there at the latest
DRAWN = 4  # of many blocks, how many are drawn


@draws(
    "squashlens.attention_paths.composition",
    "composition: layer position",
    "token: position",
)
def composition(shares: xr.DataArray) -> go.Figure:
    """Draw the share of paths that start at each position and layer, as a map with a logarithmic colour scale.

    Args:
        shares: a result of `squashlens.attention_paths.composition`, or several by label.

    Returns:
        The figure.
    """
    return _starts(shares, "layer")


@draws("squashlens.attention_paths.hops", "hops: hop position", "token: position")
def hops(shares: xr.DataArray) -> go.Figure:
    """Draw the share of paths by number of hops and by start position, as a map with a logarithmic colour scale.

    Args:
        shares: a result of `squashlens.attention_paths.hops`, or several by label.

    Returns:
        The figure.
    """
    return _starts(shares, "hops through attention")


def _starts(shares: xr.DataArray, row: str) -> go.Figure:
    """A map of the share of paths that start at each position, over (row, position); `row` names the y axis."""
    shares = without_padding(shares)
    tokens = tokens_of(shares)
    figure = token_figure(shares, tokens, row, "share of paths", log=True, floor=FLOOR)
    return finish(figure, f"Where the paths to the query start, by {row}", shares)


@draws(
    "squashlens.attention_paths.strongest_paths",
    "token: position",
    "position_at: path layer",
    "share: path",
)
def strongest_paths(paths: xr.Dataset) -> go.Figure:
    """Draw the strongest paths on the grid of layers and tokens (figure 1b). Stronger paths are wider and darker.

    Where other paths are in the result, those that start at the first token are left out: it is an attention sink of
    most models, and they hide what else is read. ``strongest_paths(…, avoid=[0])`` gives such paths.

    Args:
        paths: a result of `squashlens.attention_paths.strongest_paths`, or several by label.

    Returns:
        The figure.
    """
    paths = without_padding(paths).dropna("path", subset=["share"])
    tokens = tokens_of(paths)
    first = f"start at “{tokens[min(tokens)]}”"
    is_from_first = paths["position_at"].isel(layer=0).values == min(tokens)
    drawn = paths
    if not is_from_first.all():
        drawn = paths.isel(path=~is_from_first)
    strength = drawn["share"].values / drawn["share"].values.max()
    # From 0 to 1 on the colour scale, without its ends: they are not seen on a dark or on a light ground.
    on_scale = np.linspace(0.25, 0.85, len(strength)).tolist()
    colours: Any = sample_colorscale("Viridis", on_scale)
    figure = go.Figure()
    # Paths are in decreasing order of their shares: the strongest is drawn last, above the others.
    for rank in reversed(range(len(strength))):
        walk = drawn["position_at"].values[rank]
        names = [number_token(place, tokens.get(place, "")) for place in walk.tolist()]
        share = f"{float(drawn['share'][rank]):.4g} of all paths"
        path = curve(
            walk,
            paths["layer"].values,
            colour=str(colours[rank]),
            width=1.5 + 6 * strength[rank],
            customdata=names,
            hover=f"layer %{{y}}, %{{customdata}}<br>{share}",
        )
        figure.add_trace(path)
    figure.update_xaxes(token_axis(tokens))
    figure.update_yaxes(steps(paths["layer"], "layer ℓ"))
    weight = percent(float(drawn["share"].sum()))
    notes = [f"{plural(len(strength), 'path')} with {weight} of the weight of all"]
    if is_from_first.all():
        notes.append(f"all {first}: avoid=[0] measures others")
    elif is_from_first.any():
        notes.append(f"without {is_from_first.sum()} that {first}")
    return finish(figure, "The strongest paths to the query", paths, *notes, height=320)


@draws(
    "squashlens.attention_paths.depth_limit",
    "rest: block depth",
    "predicted_rate observed_rate: block",
)
def depth_limit(limit: xr.Dataset) -> go.Figure:
    """Draw the path weight that is not at the first token, by depth, with a logarithmic scale.

    Depth is the number of times that a block's attention is applied. Of many blocks, four are drawn, with the slowest
    and the fastest. A dotted line shows the predicted rate, from the value at depth 1, or at the first that is drawn.

    Args:
        limit: a result of `squashlens.attention_paths.depth_limit`, or several by label.

    Returns:
        The figure.
    """
    figure = go.Figure()
    # The path weight falls by the predicted rate with each application, from the first one on.
    depths = limit["depth"].where(limit["depth"] >= 1, drop=True)
    heights = []
    for number, block in enumerate(spaced(limit["rest"].isel(depth=-1).values)):
        of_block = limit.isel(block=block)
        name = f"block {int(of_block['block'])}"
        look = series(number) | {"size": 5}
        figure.add_trace(line(of_block["rest"], name, log=True, **look))
        heights.append(of_block["rest"].clip(min=LOWEST))
        if depths.size:
            dotted = look | {"dash": "dot", "mode": "lines", "width": 1.5}
            start = of_block["rest"].sel(depth=depths[0])
            predicted = start * of_block["predicted_rate"] ** (depths - depths[0])
            figure.add_trace(line(predicted, name, **dotted))
            heights.append(predicted.clip(min=LOWEST))
    title = "number of times the block's attention is applied"
    figure.update_xaxes(steps(limit["depth"], title))
    figure.update_yaxes(log_axis(*heights), title="path weight not at the first token")
    notes = ["dotted: predicted rate"] if depths.size else []
    if limit.sizes["block"] > DRAWN:
        notes.append(f"slowest, fastest and two more of {limit.sizes['block']} blocks")
    title = "Depth limit: path weight by number of repetitions"
    return finish(figure, title, limit, *notes, height=320)


def spaced(ends: np.ndarray) -> list[int]:
    """Of curves that end at these values, the numbers of those to draw: the highest, the lowest, and two between them
    that are evenly spaced by rank; all of up to four, from the highest to the lowest."""
    ranks = np.linspace(0, len(ends) - 1, min(len(ends), DRAWN)).round().astype(int)
    from_highest = np.argsort(ends)[::-1]
    return from_highest[ranks].tolist()
