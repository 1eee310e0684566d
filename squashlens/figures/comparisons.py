"""Interventions side by side."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.answers import cannot_be_judged
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import MARKS, name_rows, spread
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import COLOURS
from squashlens.records.labels import AS_IT_IS

ACCURACY: dict[str, Any] = {"range": [-0.05, 1.05]}


@draws(
    "squashlens.compare",
    "change: change",
    "distance: change layer ...",
    "bound: change content",
)
def changes(compared: xr.Dataset) -> go.Figure:
    """Draw the effect of several interventions, one row for each: D, the answers, and the path bound.

    Faint dots are single lengths, rings are medians over lengths, and bars span their middle half. The panel of the
    path bound shows the share of the first token. The row "as it is" is the model without a change.
    """
    names = [str(name) for name in compared["change"].values]
    distance = compared["distance"].isel(layer=-1)
    title = f"{distance_of(compared)}, layer {distance['layer'].item()}"
    panels = [(title, distance.where(distance > 0), {"type": "log"})]
    if "accuracy" in compared:
        panels.append(("share answered correctly", compared["accuracy"], ACCURACY))
    share = compared["bound"].isel(content=0) / compared["bound"].sum("content")
    panels.append(
        ("path bound: share of the first content token", share, {"rangemode": "tozero"})
    )
    heights = [34.0 * len(names) + 20] * len(panels)
    titles = [title for title, _, _ in panels]
    figure, places = grid(titles, len(panels), heights, shared_yaxes=True)
    for place, (_, values, axis) in zip(places, panels, strict=True):
        for row, name in enumerate(names):
            colour = COLOURS["null" if name == AS_IT_IS else "path_bound"]
            here = np.atleast_1d(values.isel(change=row).values).astype(float)
            spread(figure, row, name, here, colour, **place)
        figure.update_xaxes(axis, **place)
    name_rows(figure, map(escape, names))
    usual = compared.sel(change=[name for name in names if name == AS_IT_IS])
    title = "Effect of each change on collapse and on the answers"
    return finish(figure, title, compared, MARKS, cannot_be_judged({"": usual}))
