"""Precision: the mantissa bits needed to tell a pair apart, and the pair's distance in runs of several precisions."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import chosen
from squashlens.figures.drawing.inputs.facts import distance_of, notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.maps import layer_map
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import COLOURS, series


@draws("squashlens.precision without runs=", "bits_needed: layer length")
def bits_needed(measured: xr.Dataset) -> go.Figure:
    """Draw the number of mantissa bits needed to tell v from v*, as a map of layer × length.

    0 means that the values differ even when they are rounded to powers of two. White means that v and v* are identical
    in the model's own dtype, or differ by no more than rounding can cause, so that no number of bits tells them apart.

    Args:
        measured: a result of `squashlens.precision` without `runs`.

    Returns:
        The figure.
    """
    bits = measured["bits_needed"]
    last, best = int(bits["length"].values[-1]), float(np.nanmax(bits.values, initial=1))
    figure = go.Figure(layer_map(bits, "bits", colorscale="Viridis", zmin=0, zmax=max(best, 7)))
    figure.update_xaxes(title="length (content tokens)", range=[float(bits["length"].values[0]) - 0.5, last + 0.5])
    figure.update_yaxes(title="layer ℓ", dtick=1)
    notes = notes_of(measured, "white: identical, or different by rounding alone")
    return finish(figure, title="Mantissa bits needed to tell v from v*", height=240, notes=notes)


@draws("squashlens.precision with runs=", "distance: run layer length")
def runs(measured: xr.Dataset, *, layer: int | None = None) -> go.Figure:
    """Draw the distance D by length in runs of several precisions, at one layer.

    Open marks are the noise floor of a run, at the lengths where it was measured. A distance at or below the noise
    floor is not meaningful.

    Args:
        measured: a result of `squashlens.precision` with `runs`.
        layer: the layer to draw; the last one by default.

    Returns:
        The figure.
    """
    at = chosen(measured, "layer", layer)
    here = measured.sel(layer=at)
    figure = go.Figure()
    for number, run in enumerate(map(str, measured["run"].values)):
        _, dash, symbol = series(number)
        colour, own = COLOURS[run], here["distance"].sel(run=run)
        values = np.where(own.values > 0, own.values, np.nan)
        figure.add_scatter(
            x=own["length"].values, y=values, name=run, mode="lines+markers", line={"color": colour, "dash": dash},
            marker={"symbol": symbol, "size": 6},
            hovertemplate=f"{run}, %{{x}} content tokens: %{{y:.4g}}<extra></extra>",
        )  # fmt: skip
        if "noise_floor" in here:
            floor = here["noise_floor"].sel(run=run)
            figure.add_scatter(
                x=floor["replayed"].values, y=np.where(floor.values > 0, floor.values, np.nan),
                name=f"{run}, noise floor", mode="markers",
                marker={"color": colour, "symbol": f"{symbol}-open", "size": 10},
                hovertemplate=f"{run}, noise floor at %{{x}}: %{{y:.3g}}<extra></extra>",
            )  # fmt: skip
    figure.update_xaxes(type="log", title="length (content tokens)")
    figure.update_yaxes(type="log", title=distance_of(measured))
    title = f"Distance of v and v* by precision, layer {at}"
    return finish(figure, title=title, height=300, notes=notes_of(measured))
