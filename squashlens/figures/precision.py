"""Precision: the bits it takes to tell a pair apart, and the same pair in runs of several precisions."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.theme import COLOURS, dress, layer_map
from squashlens.given import chosen, is_relative, takes


@takes("squashlens.precision", "bits_needed: layer length")
def bits_needed(measured: xr.Dataset) -> go.Figure:
    """Draw what `squashlens.precision` found: the mantissa bits that tell v from v*, by layer and length.

    0: their magnitudes differ by so much that the nearest powers of two do. White: they are the same in the run's own
    dtype, and no number of bits tells them apart.
    """
    bits = measured["bits_needed"]
    last, best = int(bits["length"].values[-1]), float(np.nanmax(bits.values, initial=1))
    figure = go.Figure(layer_map(bits, "bits", colorscale="Viridis", zmin=0, zmax=max(best, 7)))
    figure.update_xaxes(title="length (content tokens)", range=[float(bits["length"].values[0]) - 0.5, last + 0.5])
    figure.update_yaxes(title="layer ℓ", dtick=1)
    return dress(figure, title="Mantissa bits needed to tell v from v*", height=380)


@takes("squashlens.precision_by_run", "distance: run layer length")
def runs(measured: xr.Dataset, *, layer: int | None = None) -> go.Figure:
    """Draw what `squashlens.precision_by_run` found at one layer, the last if not given: D by length in every run.

    Crosses are the run's noise floor at the lengths that were run again; D at or below it says nothing.
    """
    at = chosen(measured, "layer", layer)
    here = measured.sel(layer=at)
    figure = go.Figure()
    for run in map(str, measured["run"].values):
        colour, own = COLOURS[run], here["distance"].sel(run=run)
        values = np.where(own.values > 0, own.values, np.nan)
        figure.add_scatter(
            x=own["length"].values, y=values, name=run, mode="lines+markers", line={"color": colour},
            hovertemplate=f"{run}, %{{x}} content tokens: %{{y:.4g}}<extra></extra>",
        )  # fmt: skip
        if "noise_floor" in here:
            floor = here["noise_floor"].sel(run=run)
            figure.add_scatter(
                x=floor["replayed"].values, y=np.where(floor.values > 0, floor.values, np.nan), name=f"{run}, noise",
                mode="markers", marker={"color": colour, "symbol": "x", "size": 8},
                hovertemplate=f"{run}, noise floor at %{{x}}: %{{y:.3g}}<extra></extra>",
            )  # fmt: skip
    relative = is_relative(measured["distance"])
    figure.update_xaxes(type="log", title="length (content tokens)")
    figure.update_yaxes(type="log", title="D ÷ rms(v)" if relative else "D", exponentformat="power")
    return dress(figure, title=f"The same pair in runs of other precisions, layer {at}", height=480, top=110)
