"""All queries and layers of a prompt: influence by distance, its exponent by layer, sinks, and representations."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.checks.results import chosen
from squashlens.figures.drawing.inputs.facts import norm_named, notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.maps import interval
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import COLOURS
from squashlens.records.results import facts_of

NAMES = {
    "path_bound": ("path bound", COLOURS["path_bound"], "dash"),
    "null": ("null", COLOURS["null"], "dashdot"),
    "certified": ("certified bound", COLOURS["bound_over_null"], "longdashdot"),
    "jacobian": ("Jacobian", COLOURS["jacobian"], "solid"),
    "path_bound_random": ("path bound, random weights", COLOURS["path_bound"], "dot"),
    "jacobian_random": ("Jacobian, random weights", COLOURS["jacobian"], "longdash"),
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
        found: a result of `squashlens.profile`.
        layer: the layer from which influence by distance is drawn; the lowest by default.

    Returns:
        The figure.

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
        text, colour, dash = NAMES[name]
        one = found.sel(quantity=name)
        _influence(figure, one.sel(layer=at), text, colour, dash)
        _exponent(figure, one, text, colour, dash)
    rates = found["sink_rate"]
    for head in rates["head"].values:
        figure.add_trace(
            go.Scatter(
                x=rates["block"].values, y=rates.sel(head=head).values, mode="markers", showlegend=False,
                marker={"size": 6, "color": COLOURS["attention"], "opacity": 0.6},
                hovertemplate=f"block %{{x}}, head {head}<br>%{{y:.3f}}<extra></extra>",
            ),
            row=2, col=1,
        )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=found["layer"].values, y=found["effective_rank"].values, mode="lines+markers", showlegend=False,
            line={"color": COLOURS["residual"], "width": 2},
            hovertemplate="layer %{x}<br>%{y:.3g}<extra></extra>",
        ),
        row=2, col=2,
    )  # fmt: skip
    figure.update_xaxes(title="distance r + 1 (tokens)", type="log", row=1, col=1)
    figure.update_yaxes(title="influence ÷ mean", type="log", row=1, col=1)
    figure.update_xaxes(title="layer", dtick=1, row=1, col=2)
    figure.update_xaxes(title="block", dtick=1, row=2, col=1)
    figure.update_yaxes(range=[-0.03, 1.03], row=2, col=1)
    figure.update_xaxes(title="layer", dtick=1, row=2, col=2)
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


def _influence(figure: go.Figure, one: xr.Dataset, text: str, colour: str, dash: str) -> None:
    """Points of influence by distance, and the law as a line."""
    there = one["influence"].values > 0
    if not there.any():
        return
    x, values = one["distance"].values[there] + 1.0, one["influence"].values[there]
    size = values.mean()
    figure.add_trace(
        go.Scatter(
            x=x, y=values / size, mode="markers", name=text, legendgroup=text, showlegend=False,
            marker={"color": colour, "size": 5, "symbol": "circle-open" if "random" in text else "circle"},
            hovertemplate=f"{text}, r + 1 = %{{x}}<br>%{{y:.4g}} of its mean<extra></extra>",
        ),
        row=1, col=1,
    )  # fmt: skip
    law = float(one["floor"]) + float(one["amplitude"]) * x ** -float(one["exponent"])
    figure.add_trace(
        go.Scatter(
            x=x, y=np.where(law > 0, law / size, np.nan), mode="lines", name=text, legendgroup=text, hoverinfo="skip",
            line={"color": colour, "width": 1.5, "dash": dash},
        ),
        row=1, col=1,
    )  # fmt: skip


def _exponent(figure: go.Figure, one: xr.Dataset, text: str, colour: str, dash: str) -> None:
    """The exponent by layer, with its interval; a cross where it is at an end of the range that was tried."""
    middle, low, high = (one[f"exponent{end}"].values for end in ("", "_low", "_high"))
    figure.add_trace(
        go.Scatter(
            x=one["layer"].values, y=middle, mode="lines+markers", name=text, legendgroup=text, showlegend=False,
            line={"color": colour, "width": 1.5, "dash": dash},
            marker={"size": 5, "symbol": np.where(one["exponent_at_end"].values, "x", "circle")},
            error_y=interval(middle, low, high, colour, 2),
            hovertemplate=f"{text}, layer %{{x}}<br>p = %{{y:.3g}}<extra></extra>",
        ),
        row=1, col=2,
    )  # fmt: skip
