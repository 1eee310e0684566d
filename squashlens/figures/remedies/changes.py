"""Interventions side by side, and sliding windows by size: their effect on collapse, answers and the path bound."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.figures.drawing.facts import distance_of, notes_of
from squashlens.figures.drawing.given import draws
from squashlens.figures.drawing.maps import shaded
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped
from squashlens.figures.drawing.themes import COLOURS, series

ROW = 34  # pixels


@draws("squashlens.compare", "change: change", "distance: change layer ...", "bound: change content")
def changes(compared: xr.Dataset) -> go.Figure:
    """Draw the effect of several interventions, one row for each: D, the answers, and the path bound.

    Faint dots are single lengths and rings are medians over lengths. The panel of the path bound shows the share of the
    first token. The first row is the model without a change.

    Args:
        compared: a result of `squashlens.compare`.

    Returns:
        The figure.
    """
    names = [str(name) for name in compared["change"].values]
    shown = [escaped(name) for name in names]
    panels = _panels(compared)
    figure = make_subplots(cols=len(panels), shared_yaxes=True, subplot_titles=[title for title, *_ in panels])
    for column, (_, values, kind) in enumerate(panels, start=1):
        for row, name in enumerate(names):
            own = np.atleast_1d(values.sel(change=name).values).astype(float)
            colour = COLOURS["null"] if row == 0 else COLOURS["path_bound"]
            _row(figure, column, row, shown[row], own[own > 0] if kind == "size" else own, colour)
        figure.update_xaxes(AXES[kind], col=column)
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=shown, range=[len(names) - 0.4, -0.6], showgrid=False
    )
    title = "Effect of each change on collapse and on the answers"
    figure.update_traces(showlegend=False)
    notes = notes_of(compared, "dots: lengths", "rings: medians")
    return finish(figure, title=title, height=ROW * len(names), notes=notes)


@draws(
    "squashlens.windows",
    "sink: sink",
    "window: window",
    "distance: sink window layer ...",
    "bound: sink window content",
)
def windows(measured: xr.Dataset) -> go.Figure:
    """Draw the effect of a sliding window by its size, one line for each number of sink tokens.

    Lines are medians over lengths (means for accuracy) and bands span the middle half of the lengths. The longest
    window covers the whole prompt, so it leaves the model unchanged.

    Args:
        measured: a result of `squashlens.windows`.

    Returns:
        The figure.
    """
    panels = _panels(measured)
    figure = make_subplots(rows=len(panels), shared_xaxes=True, subplot_titles=[title for title, *_ in panels])
    for row, (_, values, kind) in enumerate(panels, start=1):
        for number, sink in enumerate(measured["sink"].values):
            name = f"{int(sink)} sinks" if sink != 1 else "1 sink"
            _band(figure, row, values.sel(sink=sink), name, series(number), mean=kind == "answers")
        figure.update_yaxes(AXES[kind], row=row)
    sizes = [int(size) for size in measured["window"].values]
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=[*map(str, sizes[:-1]), f"{sizes[-1]}: all"])
    figure.update_xaxes(title="window in tokens, the query included", row=len(panels))
    title = "Effect of a sliding window in every block"
    notes = notes_of(measured, "bands: middle half of the lengths")
    return finish(figure, title=title, height=170 * len(panels), notes=notes)


AXES: dict[str, dict[str, Any]] = {
    "size": {"type": "log"},
    "answers": {"range": [-0.05, 1.05]},
    "share": {"rangemode": "tozero"},
}


def _panels(found: xr.Dataset) -> list[tuple[str, xr.DataArray, str]]:
    """Title, values and kind of axis of each panel."""
    panels = [(f"{distance_of(found)}, last layer", found["distance"].isel(layer=-1), "size")]
    if "accuracy" in found:
        panels.append(("share answered correctly", found["accuracy"], "answers"))
    share = found["bound"].isel(content=0) / found["bound"].sum("content")
    return [*panels, ("path bound: share of the first token", share, "share")]


def _row(figure: go.Figure, column: int, row: int, name: str, values: np.ndarray, colour: str) -> None:
    """Draw dots for all lengths, and a mark at their median."""
    dots = {"color": colour, "size": 5, "opacity": 0.3}
    height = np.full(len(values), row)
    figure.add_scatter(x=values, y=height, mode="markers", marker=dots, hoverinfo="skip", row=1, col=column)
    if len(values):
        figure.add_scatter(
            x=[np.median(values)], y=[row], mode="markers", cliponaxis=False, row=1, col=column,
            marker={"color": "white", "size": 11, "line": {"color": colour, "width": 3}},
            hovertemplate=f"{name}<br>median %{{x:.4g}}<extra></extra>",
        )  # fmt: skip


def _band(
    figure: go.Figure, row: int, values: xr.DataArray, name: str, style: tuple[str, str, str], *, mean: bool
) -> None:
    """Draw the median or mean over lengths by window size, with a band over the middle half of the lengths."""
    x, (colour, dash, symbol) = values["window"].values, style
    low, middle, high = values, values, values
    if "length" in values.dims:
        low, high = values.quantile(0.25, "length"), values.quantile(0.75, "length")
        middle = values.mean("length") if mean else values.median("length")
    figure.add_scatter(
        x=[*x, *x[::-1]], y=[*high.values, *low.values[::-1]], fill="toself", mode="none", hoverinfo="skip",
        fillcolor=shaded(colour, 0.15), showlegend=False, row=row, col=1,
    )  # fmt: skip
    figure.add_scatter(
        x=x, y=middle.values, mode="lines+markers", name=name, legendgroup=name, showlegend=row == 1, row=row, col=1,
        line={"color": colour, "dash": dash}, marker={"symbol": symbol},
        hovertemplate=f"window %{{x}}, {name}: %{{y:.4g}}<extra></extra>",
    )  # fmt: skip
