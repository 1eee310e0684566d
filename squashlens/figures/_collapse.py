"""Representational collapse: the distance D of v and v* by length, as in figure 5, and by layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.checks.results import chosen, is_relative, takes
from squashlens.errors import InputError
from squashlens.figures._theme import COLOURS, dress, layer_map

NAMES = {
    "distance": "v and v* (last token repeated)",
    "contrast": "contrast: another last token",
    "unrelated": "unrelated: other content",
    "noise_floor": "noise floor",
    "heads": "heads: mean, min to max",
}
LEGEND = 90  # pixels above the plot


@takes("squashlens.collapse", "distance: layer length")
def collapse_curve(collapse: xr.Dataset, *, layer: int | None = None, trained: int | None = None) -> go.Figure:
    """Draw the distance D of v and v* by length at one layer, with logarithmic scales.

    The figure includes what the result contains of: the range over attention heads, the contrast pair, unrelated
    sequences, and the noise floor.

    Args:
        collapse: a result of `squashlens.collapse`.
        layer: the layer to draw; the last one by default.
        trained: the longest length of the training data, in content tokens; lengths up to it are shaded.

    Returns:
        The figure.
    """
    return collapse_panels({"": collapse}, layer=layer, trained=trained)


@takes("squashlens.collapse", "distance: layer length")
def collapse_panels(
    panels: Mapping[str, xr.Dataset], *, layer: int | None = None, trained: int | None = None
) -> go.Figure:
    """Draw the distance D by length for several sequences, two panels in a row, on a common scale (figure 5).

    Args:
        panels: results of `squashlens.collapse`, by panel title.
        layer: the layer to draw; the last one by default.
        trained: the longest length of the training data, in content tokens; lengths up to it are shaded.

    Returns:
        The figure.
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = make_subplots(
        rows=rows, cols=columns, shared_yaxes="all", subplot_titles=list(panels) if len(panels) > 1 else None,  # pyright: ignore
        horizontal_spacing=0.04, vertical_spacing=0.17 if rows > 1 else 0,
    )  # fmt: skip
    seen: set[str] = set()
    for number, collapse in enumerate(panels.values()):
        row, column = number // columns + 1, number % columns + 1
        for trace in _traces(collapse, layer):
            trace.showlegend = trace.name not in seen and trace.showlegend is not False
            seen.add(str(trace.name))
            figure.add_trace(trace, row=row, col=column)
        if trained is not None:
            figure.add_vrect(
                x0=1, x1=trained, fillcolor="#000", opacity=0.05, line_width=0, row=row, col=column,  # pyright: ignore
                annotation={"text": "trained lengths", "font": {"size": 11}}, annotation_position="bottom left",
            )  # fmt: skip
    first = next(iter(panels.values()))
    relative = is_relative(first["distance"])
    figure.update_xaxes(type="log", title="length (content tokens)", exponentformat="none", dtick="D2")
    figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    figure.update_yaxes(title="D ÷ rms(v)" if relative else "D", col=1)
    lift = 24 if len(panels) > 1 else 0
    where = f"layer {_layer(first, layer)}"
    return dress(
        figure, title=f"Representational collapse, {where}", height=140 + 300 * rows, top=LEGEND + lift, lift=lift
    )


@takes("squashlens.collapse", "distance: layer length")
def collapse_heatmap(collapse: xr.Dataset) -> go.Figure:
    """Draw the relative distance of v and v* as a map of layer × length. The colour is log₁₀ D ÷ rms(v).

    Cells where v and v* are identical (as at layer 0 without position embeddings) remain white.

    Args:
        collapse: a result of `squashlens.collapse` with ``scale="relative"``.

    Returns:
        The figure.

    Raises:
        InputError: if the distances are absolute.
    """
    if not is_relative(collapse["distance"]):
        raise InputError(
            "These distances are absolute: they grow from layer to layer with the norm of the residual stream.",
            "Measure with collapse(…, scale='relative').",
        )
    values = collapse["distance"]
    logarithm = values.copy(data=np.log10(values.where(values > 0).values))
    figure = go.Figure(layer_map(logarithm, "log₁₀ D ÷ rms(v)", colorscale="Viridis", hoverongaps=False))
    figure.update_xaxes(title="length (content tokens)")
    figure.update_yaxes(title="layer ℓ", dtick=1)
    return dress(figure, title="Distance of v and v* by layer and length", height=380)


def _layer(collapse: xr.Dataset, layer: int | None) -> int:
    return chosen(collapse, "layer", layer)


def _traces(collapse: xr.Dataset, layer: int | None) -> list[go.Scatter]:
    """All traces at one layer; the pair itself comes last, on top of the others."""
    chosen = _layer(collapse, layer)
    here = collapse.sel(layer=chosen)
    found = []
    if "head_distance" in here:
        # A layer is the output of the block before it, so its heads are those of that block.
        heads = here.sel(block=max(chosen - 1, 0)) if "block" in here.dims else here
        found += _band(heads)
    if "unrelated" in here:
        found += [_line(row, "unrelated") for row in here["unrelated"].transpose("draw", "length")]
    if "contrast" in here:
        found.append(_line(here["contrast"], "contrast"))
    if "noise_floor" in here:
        found.append(_line(here["noise_floor"], "noise_floor"))
    return [*found, _line(here["distance"], "distance")]


def _line(values: xr.DataArray, name: str) -> go.Scatter:
    data = values.values.astype(np.float64)
    style: dict[str, Any] = {"color": COLOURS[name], "width": 2.5 if name == "distance" else 1.2}
    if name == "noise_floor":
        style["dash"] = "dash"
    return go.Scatter(
        x=values[str(values.dims[0])].values,
        y=np.where(data > 0, data, np.nan),  # a logarithmic scale cannot show zero
        name=NAMES[name],
        legendgroup=name,
        mode="lines+markers" if name == "noise_floor" or data.size == 1 else "lines",
        line=style,
        connectgaps=name == "noise_floor",
        hovertemplate=f"length %{{x}}<br>{NAMES[name]}: %{{y:.4g}}<extra></extra>",
    )


def _band(heads: xr.Dataset) -> list[go.Scatter]:
    """A band from the minimum to the maximum over heads, and a line for their mean."""
    lengths, name = heads["length"].values, NAMES["heads"]
    low, high, mean = (_positive(heads[f"head_{edge}"]) for edge in ("min", "max", "mean"))
    edge: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    shade = {"fill": "tonexty", "fillcolor": "rgba(230,159,0,0.22)"}
    return [
        go.Scatter(x=lengths, y=high, legendgroup="heads", **edge),
        go.Scatter(x=lengths, y=low, legendgroup="heads", **edge, **shade),
        go.Scatter(
            x=lengths,
            y=mean,
            mode="lines",
            line={"color": COLOURS["heads"], "width": 2},
            name=name,
            legendgroup="heads",
            hovertemplate="length %{x}<br>mean over heads: %{y:.4g}<extra></extra>",
        ),
    ]


def _positive(values: xr.DataArray) -> np.ndarray:
    return values.where(values > 0).values
