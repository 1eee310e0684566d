"""All queries and layers of a prompt, and the sensitivity to one token of many prompts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens._typing import short_repr
from squashlens.checks.results import chosen, listed
from squashlens.errors import InputError
from squashlens.figures.drawing.facts import norm_named, notes_of
from squashlens.figures.drawing.given import draws
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped
from squashlens.figures.drawing.themes import COLOURS, series
from squashlens.figures.drawing.traces import curve, grid, interval
from squashlens.records.results import facts_of

NAMES = {
    "path_bound": ("path bound", COLOURS["path_bound"], "dash"),
    "null": ("null", COLOURS["null"], "dashdot"),
    "certified": ("certified bound", COLOURS["bound_over_null"], "longdashdot"),
    "jacobian": ("Jacobian", COLOURS["jacobian"], "solid"),
    "path_bound_random": ("path bound, random weights", COLOURS["path_bound"], "dot"),
    "jacobian_random": ("Jacobian, random weights", COLOURS["jacobian"], "longdash"),
}
PANELS = {
    "jacobian": ("‖∂y<sub>n</sub>/∂v<sub>i</sub>‖", COLOURS["jacobian"]),
    "path_bound": ("path bound", COLOURS["path_bound"]),
    "bound_over_null": ("bound ÷ null", COLOURS["bound_over_null"]),
    "certified": ("certified bound", COLOURS["path_bound"]),
    "effect": ("substitution effect, ‖Δy<sub>n</sub>‖₂", COLOURS["jacobian_frozen"]),
    "kl": ("substitution effect, KL (nat)", COLOURS["zero_values"]),
}


@draws(
    "squashlens.profile",
    "influence: quantity layer distance",
    "floor amplitude exponent exponent_low exponent_high exponent_at_end: quantity layer",
    "sink_rate: block head",
    "effective_rank: layer",
)
def profile(found: xr.Dataset, *, layer: int | None = None) -> go.Figure:
    """Draw influence by distance with the fitted law, its exponent by layer, sinks by block, and effective rank.

    Influence is divided by its mean, so that different quantities have one scale.

    Args:
        layer: the layer from which influence by distance is drawn; the lowest by default.

    Raises:
        InputError: if this layer was not measured.
    """
    at = chosen(found, "layer", int(found["layer"].values[0]) if layer is None else layer)
    titles = [
        f"influence by distance, from layer {at}", "exponent p by layer", "attention to the first token",
        "effective rank of the representations",
    ]  # fmt: skip
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles)
    for name in map(str, found["quantity"].values):
        one = found.sel(quantity=name)
        for trace in _influence(one.sel(layer=at), *NAMES[name]):
            figure.add_trace(trace, row=1, col=1)
        figure.add_trace(_exponent(one, *NAMES[name]), row=1, col=2)
    rates = found["sink_rate"]
    for head in rates["head"].values:
        figure.add_scatter(
            x=rates["block"].values, y=rates.sel(head=head).values, mode="markers", showlegend=False,
            marker={"size": 6, "color": COLOURS["attention"], "opacity": 0.6},
            hovertemplate=f"block %{{x}}, head {head}<br>%{{y:.3f}}<extra></extra>", row=2, col=1,
        )  # fmt: skip
    rank = curve(
        found["layer"].values,
        found["effective_rank"].values,
        colour=COLOURS["residual"],
        hover="layer %{x}<br>%{y:.3g}",
    )
    figure.add_trace(rank, row=2, col=2)
    figure.update_xaxes(title="distance r + 1 (tokens)", type="log", row=1, col=1)
    figure.update_yaxes(title="influence ÷ mean", type="log", row=1, col=1)
    for row, column, title in ((1, 2, "layer"), (2, 1, "block"), (2, 2, "layer")):
        figure.update_xaxes(title=title, dtick=1, row=row, col=column)
    figure.update_yaxes(range=[-0.03, 1.03], row=2, col=1)
    marks = ["dots: measured; lines: fitted law"]
    if np.isfinite(found["exponent_low"].values).any():
        marks.append("bars: 95 % interval")
    if found["exponent_at_end"].values.any():
        marks.append("×: at an end of the exponents tried, no power law")
    notes = notes_of(found, *(norm_named(found) if "jacobian" in found["quantity"].values else ()), *marks)
    call = facts_of(found).get("call")
    asked = call.get("queries") if isinstance(call, dict) else None
    which = "Query" if isinstance(asked, list) and len(asked) == 1 else "Queries"
    said = f"{which} {', '.join(map(str, asked))}" if isinstance(asked, list) else "All queries"
    return finish(figure, title=f"{said} of a prompt, by layer", height=440, notes=notes)


def _influence(one: xr.Dataset, text: str, colour: str, dash: str) -> list[go.Scatter]:
    """Points of influence by distance, and the law as a line."""
    there = one["influence"].values > 0
    if not there.any():
        return []
    x, values = one["distance"].values[there] + 1.0, one["influence"].values[there]
    points = go.Scatter(
        x=x, y=values / values.mean(), mode="markers", name=text, legendgroup=text, showlegend=False,
        marker={"color": colour, "size": 5, "symbol": "circle-open" if "random" in text else "circle"},
        hovertemplate=f"{text}, r + 1 = %{{x}}<br>%{{y:.4g}} of its mean<extra></extra>",
    )  # fmt: skip
    law = float(one["floor"]) + float(one["amplitude"]) * x ** -float(one["exponent"])
    return [points, curve(x, law / values.mean(), text, colour=colour, dash=dash, width=1.5, mode="lines", log=True)]


def _exponent(one: xr.Dataset, text: str, colour: str, dash: str) -> go.Scatter:
    """The exponent by layer, with its interval; a cross where it is at an end of the range that was tried."""
    middle, low, high = (one[f"exponent{end}"].values for end in ("", "_low", "_high"))
    return curve(
        one["layer"].values, middle, text, colour=colour, dash=dash, width=1.5, size=5, showlegend=False,
        symbol=np.where(one["exponent_at_end"].values, "x", "circle"), error_y=interval(middle, low, high, colour),
        hover=f"{text}, layer %{{x}}<br>p = %{{y:.3g}}",
    )  # fmt: skip


@draws("squashlens.needle", "prompts: group at")
def needle(
    found: xr.Dataset,
    *,
    title: str = "Sensitivity to one token of each prompt",
    xlabel: str = "at",
    panels: Sequence[str] | None = None,
) -> go.Figure:
    """Draw the sensitivity to the needle token: one panel for each measure, one line for each group of prompts.

    Lines are means over prompts, with intervals. Scales are logarithmic and span at least a factor of two, so that
    constant values look constant.

    Args:
        title: title of the figure.
        xlabel: title of the x axis, for the ``at`` coordinate of the result.
        panels: names of the measures to draw, such as ``"jacobian"`` or ``"path_bound"``; all by default.

    Raises:
        InputError: if one of `panels` was not measured.
    """
    measured = [name for name in PANELS if f"{name}_mean" in found]
    wanted = measured if panels is None else list(panels)
    if not wanted or not {*wanted} <= {*measured}:
        raise InputError(f"panels={short_repr(panels)} are not measures of this result.", f"It has {listed(measured)}.")
    groups = [escaped(str(g)) for g in found["group"].values]
    figure, rows = grid([PANELS[name][0] for name in wanted], min(2, len(wanted)))
    for place, name in enumerate(wanted):
        here: Any = {"row": place // 2 + 1, "col": place % 2 + 1}
        cells = [found[f"{name}_{side}"].values for side in ("mean", "low", "high")]
        for i, (group, mean, low, high) in enumerate(zip(groups, *cells, strict=True)):
            colour, dash, symbol = series(i)
            colour = PANELS[name][1] if len(groups) == 1 else colour
            line = curve(
                found["at"].values, mean, group, colour=colour, dash=dash, symbol=symbol, size=7,
                error_y=interval(mean, low, high, colour), customdata=found["prompts"].values[i],
                hover=f"{group}, {xlabel} %{{x}}<br>%{{y:.4g}}, %{{customdata}} prompts",
            )  # fmt: skip
            figure.add_trace(line, **here)
        figure.update_yaxes(range=_range(np.stack(cells)), **here)
    figure.update_yaxes(type="log")
    figure.update_xaxes(title=escaped(xlabel))
    return finish(figure, title=escaped(title), height=210 * rows, notes=notes_of(found, *norm_named(found)))


def _range(values: np.ndarray) -> list[float] | None:
    """The logarithmic range of all values, at least a factor of two; `None` if none is positive."""
    logs = np.log10(values[np.isfinite(values) & (values > 0)])
    if not len(logs):
        return None
    middle, half = (logs.max() + logs.min()) / 2, max((logs.max() - logs.min()) / 2, np.log10(2) / 2)
    return [middle - 1.1 * half, middle + 1.1 * half]
