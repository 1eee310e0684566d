"""Influence by distance, and the sensitivity to one token of many prompts."""

from typing import Any

import plotly.graph_objects as go
import xarray as xr

from squashlens.errors import InputError
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import line, log_axis, steps, with_interval
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import COLOURS, series

# Of each quantity the panel, and the name and look of its curve. Random weights may lie exactly on uniform attention:
# they are wider, and drawn first.
RANDOM: dict[str, Any] = {"colour": COLOURS["null"], "width": 4.0, "size": 3}
UNIFORM: dict[str, Any] = {"colour": COLOURS["heads"], "dash": "dot"}
QUANTITIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "jacobian_random": ("Jacobian", "random weights", RANDOM),
    "jacobian": ("Jacobian", "model", {"colour": COLOURS["jacobian"]}),
    "path_bound_random": ("path bound", "random weights", RANDOM),
    "null": ("path bound", "uniform attention", UNIFORM),
    "path_bound": ("path bound", "model", {"colour": COLOURS["path_bound"]}),
}
PANELS = {
    "jacobian": "Jacobian norm",
    "path_bound": "path bound",
    "bound_over_null": "path bound ÷ that of uniform attention",
    "output_change": "change of y when it is replaced, ‖Δy‖₂",
}


@draws(
    "squashlens.influence_by_distance",
    "influence: quantity layer distance",
    "floor amplitude exponent exponent_low exponent_high exponent_at_end: quantity layer",
)
def influence_by_distance(found: xr.Dataset) -> go.Figure:
    """Draw influence by distance from the lowest layer, with the fitted law, and its exponent by layer.

    Influence is divided by its mean, so that different quantities have one scale. The law was fitted by least squares,
    so the scale is linear. Neither it nor its exponent is drawn where no power law fits: where the exponent is at an
    end of the range that was tried.

    Args:
        found: a result of `squashlens.influence_by_distance`, or several by label.

    Returns:
        The figure.
    """
    layer = int(found["layer"][0])
    measured = [name for name in QUANTITIES if name in found["quantity"].values]
    kinds: list[str] = []
    for name in measured:
        kind, _, _ = QUANTITIES[name]
        if kind not in kinds:
            kinds.append(kind)
    titles = [f"{kind} from layer {layer}, ÷ its mean" for kind in kinds]
    fits = (found["exponent_at_end"] == 0) & found["exponent"].notnull()
    note = "no power law fits"
    if fits.any():
        titles += [f"{kind}: exponent p by layer" for kind in kinds]
        note = "fitted law: γ + β (r + 1)⁻ᵖ; bars of p: 95 % intervals"
    figure, places = grid(titles, len(kinds))
    # The first row of panels has influence; the second, if a law fits, its exponent.
    influence_panels = dict(zip(kinds, places, strict=False))
    exponent_panels = dict(zip(kinds, places[len(kinds) :], strict=False))
    for name in measured:
        kind, text, style = QUANTITIES[name]
        law = found.where(fits).sel(quantity=name)
        values = found["influence"].sel(quantity=name, layer=layer)
        for trace in _influence(values, law.sel(layer=layer), text, style):
            figure.add_trace(trace, **influence_panels[kind])
        if kind in exponent_panels:
            exponents = line(with_interval(law, "exponent"), text, **style)
            figure.add_trace(exponents, **exponent_panels[kind])
    for place in influence_panels.values():
        figure.update_xaxes(type="log", title="distance + 1", **place)
    for place in exponent_panels.values():
        figure.update_xaxes(steps(found["layer"], "layer ℓ"), **place)
    figure.update_yaxes(rangemode="tozero")
    return finish(figure, "Influence by distance", found, note)


def _influence(
    values: xr.DataArray, law: xr.Dataset, text: str, style: dict[str, Any]
) -> list[go.Scatter]:
    """Influence by distance, of the model as points with the fitted law, and of a baseline as a line.

    Args:
        values: influence over (distance).
        law: the fitted `floor`, `amplitude` and `exponent`, NaN where no law fits.
        text: name of the curve, "model" for the model.
        style: colour, dash, width and size of the curve, as arguments of `line`.
    """
    mean = float(values.mean())
    distance = values["distance"] + 1.0  # on a logarithmic axis, which has no 0
    relative = (values / mean).assign_coords(distance=distance)
    if text != "model":
        return [line(relative.dropna("distance"), text, **style | {"mode": "lines"})]
    traces = [line(relative, text, mode="markers", **style)]
    if law["exponent"].notnull():
        fitted = law["floor"] + law["amplitude"] * distance ** -law["exponent"]
        fitted = (fitted / mean).assign_coords(distance=distance)
        traces.append(line(fitted, "fitted law", mode="lines", **style))
    return traces


@draws("squashlens.needle_sensitivity", "prompts: group number")
def needle_sensitivity(
    found: xr.Dataset,
    *,
    title: str = "Sensitivity to one token of each prompt",
    xlabel: str = "place",
) -> go.Figure:
    """Draw the sensitivity to the needle token: one panel for each measure, one line for each group of prompts.

    Lines are means over prompts, with intervals; a mean over one prompt has none. Scales are logarithmic and span at
    least a factor of two, so that constant values look constant.

    Args:
        found: a result of `squashlens.needle_sensitivity`, or several by label.
        title: title of the figure.
        xlabel: title of the x axis, for the ``number`` coordinate of the result.

    Returns:
        The figure.
    """
    measures = [name for name in PANELS if f"{name}_mean" in found]
    if not measures:
        raise InputError(
            "found has no measure to draw.",
            "Give the unchanged result of squashlens.needle_sensitivity.",
        )
    titles = [PANELS[name] for name in measures]
    figure, places = grid(titles, min(2, len(measures)))
    groups = found["group"].values.astype(str)
    for name, place in zip(measures, places, strict=True):
        means = with_interval(found, f"{name}_mean")
        for order, group in enumerate(groups):
            n_prompts = found["prompts"][order].values
            style = series(order) | {"customdata": n_prompts}
            style |= {"hover": "%{x}: %{y:.4g}, %{customdata} prompts"}
            figure.add_trace(line(means.isel(group=order), group, **style), **place)
        ends = [found[f"{name}_{side}"] for side in ("mean", "low", "high")]
        figure.update_yaxes(log_axis(*ends), **place)
    figure.update_xaxes(title=escape(xlabel))
    notes = ["bars: 95 % intervals"]
    has_no_bars = (found["prompts"] <= 1).all("number").values
    if has_no_bars.any():
        names = ", ".join(groups[has_no_bars])
        notes.append(f"one prompt at each place, so no bars: {names}")
    return finish(figure, title, found, *notes)
