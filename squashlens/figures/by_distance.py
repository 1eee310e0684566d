"""Influence by distance, the sensitivity to one token of many prompts, and what heads attend to."""

from typing import Any

import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import chosen
from squashlens.errors import InputError
from squashlens.figures.drawing.decorator import draws, tokens_of
from squashlens.figures.drawing.shapes import (
    layer_map,
    line,
    log_axis,
    steps,
    token_figure,
    with_interval,
)
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import COLOURS, series

# The panel of each quantity, and its curve. Random weights may lie exactly on uniform attention: they are wider.
RANDOM: dict[str, Any] = {"colour": COLOURS["null"], "width": 4.0, "size": 3}
QUANTITIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "jacobian_random": ("Jacobian", "random weights", RANDOM),
    "jacobian": ("Jacobian", "model", {"colour": COLOURS["jacobian"]}),
    "path_bound_random": ("path bound", "random weights", RANDOM),
    "null": (
        "path bound",
        "uniform attention",
        {"colour": COLOURS["heads"], "dash": "dot"},
    ),
    "path_bound": ("path bound", "model", {"colour": COLOURS["path_bound"]}),
}
PANELS = {
    "jacobian": "Jacobian norm",
    "path_bound": "path bound",
    "bound_over_null": "path bound ÷ that of uniform attention",
    "effect": "change of y when it is replaced, ‖Δy‖₂",
}


@draws(
    "squashlens.influence_by_distance",
    "influence: quantity layer distance",
    "floor amplitude exponent exponent_low exponent_high exponent_at_end: quantity layer",
)
def influence_by_distance(found: xr.Dataset, *, layer: int | None = None) -> go.Figure:
    """Draw influence by distance with the fitted law, and its exponent by layer.

    Influence is divided by its mean, so that different quantities have one scale. The law was fitted by least squares,
    so the scale is linear. Neither it nor its exponent is drawn where no power law fits: where the exponent is at an
    end of the range that was tried.

    Args:
        layer: the layer from which influence by distance is drawn; the lowest by default.

    Raises:
        InputError: if this layer was not measured.
    """
    at = chosen(found, "layer", layer, last=False)
    there = [name for name in QUANTITIES if name in found["quantity"].values]
    kinds = list(dict.fromkeys(QUANTITIES[name][0] for name in there))
    titles = [f"{kind} from layer {at}, ÷ its mean" for kind in kinds]
    titles += [f"{kind}: exponent p by layer" for kind in kinds]
    figure, places = grid(titles, len(kinds))
    fits = (found["exponent_at_end"] == 0) & found["exponent"].notnull()
    for name in there:
        kind, text, style = QUANTITIES[name]
        one = found.where(fits, drop=False).sel(quantity=name)
        values = found["influence"].sel(quantity=name, layer=at)
        for trace in _influence(values, one.sel(layer=at), text, style):
            figure.add_trace(trace, **places[kinds.index(kind)])
        powers = line(with_interval(one, "exponent"), text, **style)
        figure.add_trace(powers, **places[len(kinds) + kinds.index(kind)])
    for above, below in zip(places, places[len(kinds) :], strict=False):
        figure.update_xaxes(type="log", title="distance + 1", **above)
        figure.update_xaxes(steps(found["layer"], "layer ℓ"), **below)
    figure.update_yaxes(rangemode="tozero")
    law = "fitted law: γ + β (r + 1)⁻ᵖ; bars of p: 95 % intervals"
    return finish(
        figure,
        "Influence by distance",
        found,
        law if fits.any() else "no power law fits",
    )


def _influence(
    values: xr.DataArray, law: xr.Dataset, text: str, style: dict[str, Any]
) -> list[go.Scatter]:
    """Influence by distance: of the model as points with the law, if there is one, otherwise as a line."""
    values = (values / values.mean()).assign_coords(distance=values["distance"] + 1.0)
    if text != "model":
        return [line(values.dropna("distance"), text, **style | {"mode": "lines"})]
    points = line(values, text, mode="markers", **style)
    fitted = law["floor"] + law["amplitude"] * values["distance"] ** -law["exponent"]
    fitted = fitted / float(law["influence"].mean())
    return (
        [points, line(fitted, "fitted law", mode="lines", **style)]
        if fitted.notnull().any()
        else [points]
    )


@draws("squashlens.needle", "prompts: group at")
def needle(
    found: xr.Dataset,
    *,
    title: str = "Sensitivity to one token of each prompt",
    xlabel: str = "place",
) -> go.Figure:
    """Draw the sensitivity to the needle token: one panel for each measure, one line for each group of prompts.

    Lines are means over prompts, with intervals; a mean over one prompt has none. Scales are logarithmic and span at
    least a factor of two, so that constant values look constant.

    Args:
        title: title of the figure.
        xlabel: title of the x axis, for the ``at`` coordinate of the result.
    """
    wanted = [name for name in PANELS if f"{name}_mean" in found]
    if not wanted:
        raise InputError(
            "found has no measure to draw.",
            "Give the unchanged result of squashlens.needle.",
        )
    figure, places = grid([PANELS[name] for name in wanted], min(2, len(wanted)))
    for name, place in zip(wanted, places, strict=True):
        means = with_interval(found, f"{name}_mean")
        for at, group in enumerate(map(str, found["group"].values)):
            prompts = found["prompts"].isel(group=at).values
            hover = "%{x}: %{y:.4g}, %{customdata} prompts"
            style = series(at) | {"customdata": prompts, "hover": hover, "size": 7}
            figure.add_trace(line(means.isel(group=at), group, **style), **place)
        ends = [found[f"{name}_{side}"] for side in ("mean", "low", "high")]
        figure.update_yaxes(log_axis(*ends), **place)
    figure.update_xaxes(title=escape(xlabel))
    return finish(figure, title, found, "bars: 95 % intervals", _without_bars(found))


def _without_bars(found: xr.Dataset) -> str:
    """Which means have no interval, because they are of one prompt."""
    single = (found["prompts"] <= 1).all("at").values
    names = ", ".join(map(str, found["group"].values[single]))
    return f"one prompt at each place, so no bars: {names}" if names else ""


@draws(
    "squashlens.attention_sinks",
    "values: block position",
    "sink: position",
    "token: position",
)
def attention_sinks(sinks: xr.DataArray) -> go.Figure:
    """Draw the attention that each token gets from later tokens beyond uniform attention, by block."""
    figure = token_figure(sinks, tokens_of(sinks), "block", "share")
    names = [f"“{token}”" for token in sinks["token"].values[sinks["sink"].values]]
    found = f"sinks: {', '.join(names)}" if names else "no token is a sink"
    blank = "blank: fewer than four later tokens" if sinks.isnull().any() else ""
    title = "Attention from later tokens, beyond uniform"
    return finish(figure, title, sinks, found, blank)


@draws("squashlens.attention_heads", "sink_rate: block head")
def attention_heads(found: xr.Dataset) -> go.Figure:
    """Draw the attention of each head to the first token, as a map of block × head."""
    figure = go.Figure(layer_map(found["sink_rate"], "mean attention", zmin=0, zmax=1))
    figure.update_xaxes(steps(found["head"], "head"))
    figure.update_yaxes(steps(found["block"], "block"))
    return finish(figure, "Attention of each head to the first token", found)
