"""Attention composition: where the paths into the query start, layer by layer."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.theme import dress, label, token_axis

FLOOR = 1e-6  # shares below this share one colour


def composition(shares: xr.DataArray) -> go.Figure:
    """Draw a `squashlens.composition` result: layer × position, colour the share of paths, log scale.

    The top row is the query itself; further down, attention has spread its paths over the prompt.
    """
    tokens = [str(t) for t in shares["token"].values]
    values = shares.values.astype(np.float64)
    hover = [[f"layer {layer}, {i}: {label(t)}" for i, t in enumerate(tokens)] for layer in shares["layer"].values]
    decades = np.arange(np.log10(FLOOR), 1)
    figure = go.Figure(
        go.Heatmap(
            z=np.log10(np.maximum(values, FLOOR)).astype(np.float32),
            x=np.arange(len(tokens), dtype=np.float32),
            y=shares["layer"].values,
            zmin=np.log10(FLOOR),
            zmax=0,
            colorscale="Viridis",
            text=hover,
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
    )
    figure.update_xaxes(**token_axis(tokens), title="token")
    figure.update_yaxes(title="layer ℓ", dtick=1)
    return dress(figure, title="Where the paths into the last token start, by layer", height=420)
