"""The common theme of all figures. It is set on each figure, never as a global default of plotly."""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

# Okabe and Ito's palette: its colours can be told apart with every common colour blindness.
COLOURS = {
    "jacobian": "#D55E00",
    "jacobian_frozen": "#E69F00",
    "path_bound": "#0072B2",
    "null": "#7F7F7F",
    "bound_over_null": "#009E73",
    "distance": "#D55E00",
    "heads": "#E69F00",
    "contrast": "#0072B2",
    "unrelated": "#56B4E9",
    "noise_floor": "#7F7F7F",
    "none": "#7F7F7F",
    "separators": "#D55E00",
    "delete_keep_positions": "#56B4E9",
    "substitute": "#009E73",
    "extra_digits": "#E69F00",
    "random_places": "#CC79A7",
    "mask": "#0072B2",
    "zero_value": "#1d2330",
    "zero_pattern": "#56B4E9",
    "zero_resid": "#009E73",
    "mean_resid": "#E69F00",
    "resample_resid": "#CC79A7",
    "float32": "#1d2330",
    "bfloat16": "#0072B2",
    "float16": "#D55E00",
    "int8": "#009E73",
    "residual": "#7F7F7F",
    "attention": "#0072B2",
    "mlp": "#E69F00",
}
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
INK, FAINT = "#1d2330", "#e3e6ec"
MANY_TOKENS = 48  # with more tokens the axis labels only some of them; the hover text has the others


BOTTOM = 72  # pixels under the plot, for its axis


def dress(figure: go.Figure, *, title: str, height: int, top: int = 48, lift: int = 0) -> go.Figure:
    """Set the theme on one figure: white background, light grid, `top` pixels for title and legend.

    `lift` raises the legend by that many pixels, above the titles of subplots.
    """
    figure.update_layout(
        template="none",
        title={"text": title, "x": 0, "xref": "paper", "y": 0.99, "yanchor": "top", "font": {"size": 16}},
        font={"family": FONT, "size": 13, "color": INK},
        paper_bgcolor="white",
        plot_bgcolor="white",
        height=height,
        margin={"l": 64, "r": 16, "t": top, "b": BOTTOM},
        hoverlabel={"font": {"family": FONT, "size": 13}},
        legend={
            "orientation": "h",
            "y": 1.0 + lift / (height - top - BOTTOM),
            "yanchor": "bottom",
            "x": 0,
            "font": {"size": 12},
        },
    )
    figure.update_xaxes(showgrid=False, zeroline=False, linecolor=INK, automargin=True)
    figure.update_yaxes(gridcolor=FAINT, zeroline=False, automargin=True)
    return figure


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
        colorbar={"title": {"text": colourbar, "side": "right"}, "thickness": 12},
        **heatmap,
    )


FLOOR = 1e-6  # all shares below this have the same colour


def share_map(shares: xr.DataArray, tokens: Sequence[str], row: str) -> go.Heatmap:
    """A heatmap of shares of paths over rows × tokens, with a logarithmic colour scale; `row` labels rows in hovers."""
    values = shares.values.astype(np.float64)
    rows = shares[str(shares.dims[0])].values
    decades = np.arange(np.log10(FLOOR), 1)
    return go.Heatmap(
        z=np.log10(np.maximum(values, FLOOR)).astype(np.float32),
        x=np.arange(len(tokens), dtype=np.float32),
        y=rows,
        zmin=np.log10(FLOOR),
        zmax=0,
        colorscale="Viridis",
        text=[[f"{row.format(row=r)}, {i}: {label(t)}" for i, t in enumerate(tokens)] for r in rows],
        customdata=values,
        hovertemplate="%{text}<br>share of paths: %{customdata:.6g}<extra></extra>",
        colorbar={
            "title": {"text": "share of paths", "side": "right"},
            "tickvals": decades,
            "ticktext": [
                f"10<sup>{int(d)}</sup>" if d > np.log10(FLOOR) else f"≤ 10<sup>{int(d)}</sup>" for d in decades
            ],
            "thickness": 12,
        },
    )


def token_axis(tokens: Sequence[str]) -> dict[str, Any]:
    """A numeric axis labelled by tokens, so that repeated tokens have separate places; the text is escaped."""
    step = max(1, -(-len(tokens) // MANY_TOKENS))
    places = list(range(0, len(tokens), step))
    return {
        "tickmode": "array",
        "tickvals": places,
        "ticktext": [label(tokens[i]) for i in places],
        "tickangle": -60,
        "range": [-0.6, len(tokens) - 0.4],
    }


def label(token: str) -> str:
    """A token as figure text: HTML escaped, outer spaces made visible, long text shortened."""
    shown = token.replace(" ", "␣") if token.strip(" ") == "" or token != token.strip(" ") else token
    return html.escape(shown if len(shown) <= 14 else shown[:13] + "…")
