"""Representational collapse: the distance D of v and v* by length, as in figure 5, and by layer."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import chosen, relative_distance
from squashlens.figures.drawing.inputs.facts import distance_of, notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.maps import layer_map
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import COLOURS

NAMES = {
    "distance": "v and v* (last token repeated)",
    "contrast": "contrast: another last token",
    "unrelated": "unrelated: other content",
    "noise_floor": "noise floor",
    "heads": "heads: mean, min to max",
}
DASHES = {"distance": "solid", "contrast": "dash", "unrelated": "dot", "noise_floor": "longdash"}
FAR = 30.0  # a noise floor that is this many times below all distances is not drawn


@draws("squashlens.collapse", "distance: layer length")
def collapse_curve(collapse: xr.Dataset, *, layer: int | None = None, trained: int | None = None) -> go.Figure:
    """Draw the distance D of v and v* by length at one layer, with logarithmic scales (figure 5).

    The figure includes what the result contains of: the range over attention heads, the contrast pair, unrelated
    sequences, and the noise floor. A noise floor far below all distances is left out and named under the title. An
    unrelated sequence is left out at lengths where its distance is within the noise floor at all layers: a short one
    may happen to have the same content.

    Args:
        collapse: a result of `squashlens.collapse`, or several by label for panels with one scale.
        layer: the layer to draw; the last one by default.
        trained: the longest length of the training data, in content tokens; lengths up to it are shaded.

    Returns:
        The figure.
    """
    at = chosen(collapse, "layer", layer)
    shown = _with_other_content(collapse)
    low, high, floor = _heights(shown, at)
    far = floor is not None and floor < low / FAR
    figure = go.Figure([trace for trace in _traces(shown, at) if not (far and trace.name == NAMES["noise_floor"])])
    if trained is not None:
        figure.add_vrect(x0=1, x1=trained, fillcolor="#7F7F7F", opacity=0.12, line_width=0)  # pyright: ignore
        figure.add_annotation(
            x=float(np.log10(max(1, collapse["length"].values[0]))),  # plotly places annotations by their logarithm
            y=0, yref="y domain", text="trained lengths", showarrow=False, xanchor="left", yanchor="bottom",
        )  # fmt: skip
    least = low if floor is None or far else min(low, floor)
    lengths = collapse["length"].values
    ends = [np.log10(lengths[0]), np.log10(max(lengths[-1], lengths[0] + 1))]
    figure.update_xaxes(type="log", title="length (content tokens)", range=ends)
    figure.update_yaxes(type="log", title=distance_of(collapse), range=[np.log10(least / 1.3), np.log10(high * 1.3)])
    notes = [f"noise floor below the axis, at most {_above(floor):.1g}"] if floor is not None and far else []
    title = f"Representational collapse, layer {at}"
    return finish(figure, title=title, height=280, notes=notes_of(collapse, *notes))


def _above(value: float) -> float:
    """A positive number rounded up to one digit."""
    unit = 10.0 ** np.floor(np.log10(value))
    return float(np.ceil(value / unit * (1 - 1e-12)) * unit)


def _with_other_content(collapse: xr.Dataset) -> xr.Dataset:
    """The result without the distances of unrelated sequences that have the same content: NaN in their place."""
    if "unrelated" not in collapse or "noise_floor" not in collapse:
        return collapse
    floor = collapse["noise_floor"]
    same = (collapse["unrelated"] <= floor.max([dim for dim in floor.dims if dim != "layer"])).all("layer")
    return collapse.assign(unrelated=collapse["unrelated"].where(~same))


def _heights(collapse: xr.Dataset, layer: int) -> tuple[float, float, float | None]:
    """The least and the greatest positive value drawn at a layer, and the greatest value of the noise floor."""
    here = collapse.sel(layer=layer)
    heads = _heads(here, layer)
    names = [name for name in ("distance", "contrast", "unrelated") if name in here]
    parts = [here[name].values for name in names] + [heads[n].values for n in ("head_min", "head_max") if n in heads]
    values = np.concatenate([part.ravel().astype(float) for part in parts])
    values = values[values > 0]
    floor = here["noise_floor"].values[here["noise_floor"].values > 0] if "noise_floor" in here else np.zeros(0)
    ends = (float(values.min()), float(values.max())) if len(values) else (1.0, 10.0)
    return *ends, (float(floor.max()) if len(floor) else None)


@draws("squashlens.collapse", "distance rms: layer length", usual=False)
def collapse_heatmap(collapse: xr.Dataset) -> go.Figure:
    """Draw the relative distance of v and v* as a map of layer × length. The colour is log₁₀ D ÷ rms(v).

    Cells where v and v* are identical (as at layer 0 without position embeddings) remain white.

    Args:
        collapse: a result of `squashlens.collapse`, of either scale.

    Returns:
        The figure.
    """
    values = relative_distance(collapse)
    logarithm = values.copy(data=np.log10(values.where(values > 0).values))
    figure = go.Figure(layer_map(logarithm, "log₁₀ D ÷ rms(v)", colorscale="Viridis", hoverongaps=False))
    figure.update_xaxes(title="length (content tokens)")
    figure.update_yaxes(title="layer ℓ", dtick=1)
    notes = notes_of(collapse, "white: identical")
    return finish(figure, title="Distance of v and v* by layer and length", height=240, notes=notes)


def _traces(collapse: xr.Dataset, layer: int) -> list[go.Scatter]:
    """All traces at one layer; the pair itself comes last, on top of the others."""
    here = collapse.sel(layer=layer)
    found = []
    if "head_distance" in here:
        found += _band(_heads(here, layer))
    if "unrelated" in here:
        found += [_line(row, "unrelated") for row in here["unrelated"].transpose("draw", "length")]
    if "contrast" in here:
        found.append(_line(here["contrast"], "contrast"))
    if "noise_floor" in here:
        found.append(_line(here["noise_floor"], "noise_floor"))
    return [*found, _line(here["distance"], "distance")]


def _heads(here: xr.Dataset, layer: int) -> xr.Dataset:
    """The heads of a layer: it is the output of the block before it, so they are those of that block."""
    return here.sel(block=max(layer - 1, 0)) if "block" in here.dims else here


def _line(values: xr.DataArray, name: str) -> go.Scatter:
    data = values.values.astype(np.float64)
    style: dict[str, Any] = {"color": COLOURS[name], "width": 2.5 if name == "distance" else 1.2}
    style["dash"] = DASHES[name]
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
            line={"color": COLOURS["heads"], "width": 2, "dash": "dashdot"},
            name=name,
            legendgroup="heads",
            hovertemplate="length %{x}<br>mean over heads: %{y:.4g}<extra></extra>",
        ),
    ]


def _positive(values: xr.DataArray) -> np.ndarray:
    return values.where(values > 0).values
