"""Traces that several figures have: maps of layers, maps of shares, and intervals."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.sinks import is_sink
from squashlens.figures.drawing.text import numbered

FLOOR = 1e-6  # all shares below this have the same colour


def interval(middle: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, width: int) -> dict[str, Any]:
    """Error bars from `low` to `high` around `middle`, with caps of `width` pixels."""
    return {"type": "data", "array": high - middle, "arrayminus": middle - low, "color": colour, "width": width}


def layer_map(values: xr.DataArray, colourbar: str, **heatmap: Any) -> go.Heatmap:
    """A heatmap over two numbered dimensions, rows first, with the exact values in the hover text."""
    rows, columns = map(str, values.dims)
    names = {"layer": "layer", "length": "length", "from_block": "from block", "block": "block"}
    place = f"{names[rows]} %{{y}}, {names[columns]} %{{x}}"
    return go.Heatmap(
        z=values.values.astype(np.float32),
        x=values[columns].values,
        y=values[rows].values,
        hovertemplate=f"{place}<br>{colourbar}: %{{customdata:.4g}}<extra></extra>",
        customdata=values.values,
        colorbar={"title": {"text": colourbar}},
        **heatmap,
    )


def share_map(shares: xr.DataArray, tokens: Mapping[int, str], row: str) -> go.Heatmap:
    """A heatmap of shares of paths over rows × tokens, with a logarithmic colour scale; `row` labels rows in hovers.

    Positions between the first and the last that the shares do not have stay white.
    """
    places = np.arange(min(tokens), max(tokens) + 1)
    values = np.full((len(shares), len(places)), np.nan)
    values[:, shares["position"].values.astype(int) - places[0]] = shares.values
    rows = shares[str(shares.dims[0])].values
    decades = np.arange(np.log10(FLOOR), np.log10(_largest_share(shares)) + 1)
    texts = [f"10<sup>{int(d)}</sup>" if d > np.log10(FLOOR) else f"≤ 10<sup>{int(d)}</sup>" for d in decades]
    return go.Heatmap(
        z=np.log10(np.maximum(values, FLOOR)).astype(np.float32),
        x=places.astype(np.float32),
        y=rows,
        zmin=np.log10(FLOOR),
        zmax=decades[-1],
        colorscale="Viridis",
        text=[[f"{row.format(row=r)}, {numbered(p, tokens.get(p, ''))}" for p in map(int, places)] for r in rows],
        hoverongaps=False,
        customdata=values,
        hovertemplate="%{text}<br>share of paths: %{customdata:.6g}<extra></extra>",
        colorbar={"title": {"text": "share of paths"}, "tickvals": decades, "ticktext": texts},
    )


def all_starts(shares: xr.DataArray) -> xr.DataArray:
    """Where the paths start: at layer 0, or with any number of hops."""
    return shares.isel(layer=0) if "layer" in shares.dims else shares.sum("hop")


def _largest_share(shares: xr.DataArray) -> float:
    """The power of ten at which the scale ends: that above the other tokens if the first one is a sink, else 1."""
    if not is_sink(all_starts(shares)):
        return 1.0
    others = shares.isel(position=slice(1, None)).values
    largest = float(others[others < 1].max(initial=0.0))  # the query has all paths at its own layer
    return 10.0 ** np.ceil(np.log10(max(largest, 10 * FLOOR)))


def token_heatmap(
    values: xr.DataArray, tokens: Mapping[int, str], row: str, colourbar: str, *, logarithmic: bool
) -> go.Heatmap:
    """A heatmap of values over rows × tokens. Zeros and positions between the tokens stay white on a logarithmic scale.

    Rows whose numbers have gaps between them are placed by their order.
    """
    places = np.arange(min(tokens), max(tokens) + 1)
    exact = np.full((len(values), len(places)), np.nan)
    exact[:, values["position"].values.astype(int) - places[0]] = values.values
    numbers = values[row].values.astype(int)
    shown, bar = exact, {}
    if logarithmic:
        shown = np.log10(np.where(exact > 0, exact, np.nan))
        decades = np.arange(np.floor(np.nanmin(shown)), np.ceil(np.nanmax(shown)) + 1)
        decades = decades[:: 1 + len(decades) // 8]
        bar = {"tickvals": decades, "ticktext": [f"10<sup>{int(each)}</sup>".replace("-", "−") for each in decades]}
    return go.Heatmap(
        z=shown.astype(np.float32),
        x=places.astype(np.float32),
        y=numbers if np.ptp(numbers) == len(numbers) - 1 else np.arange(len(numbers)),
        colorscale="Viridis",
        text=[[f"{row} {each}, {numbered(p, tokens.get(p, ''))}" for p in map(int, places)] for each in numbers],
        hoverongaps=False,
        customdata=exact,
        hovertemplate="%{text}<br>%{customdata:.6g}<extra></extra>",
        colorbar={"title": {"text": colourbar}, **bar},
    )


def shaded(colour: str, opacity: float) -> str:
    """A palette colour as a transparent fill."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"
