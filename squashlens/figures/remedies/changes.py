"""Interventions side by side: their effect on collapse, answers and the path bound."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.figures.drawing.inputs.facts import distance_of, notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped
from squashlens.figures.drawing.themes import COLOURS

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
    return [*panels, ("path bound: share of the first content token", share, "share")]


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
