"""Token attribution: path bound, null and Jacobian norm for each token of one prompt."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.figures.drawing.inputs.facts import norm_named, notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.inputs.selection import TOKENS, of_one_prompt, tokens_of
from squashlens.figures.drawing.layouts.ticks import token_axis
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import numbered
from squashlens.figures.drawing.themes import COLOURS, INK

NAMES = {
    "path_bound": "path bound (Thm 5.1)",
    "null": "uniform null",
    "jacobian": "true Jacobian",
    "jacobian_frozen": "Jacobian, attention frozen",
    "bound_over_null": "bound ÷ null",
}
DASHES = {"path_bound": "dash", "null": "dot", "jacobian_frozen": "dashdot", "bound_over_null": "longdash"}


@draws("squashlens.sensitivity", "token path_bound null jacobian_frozen jacobian bound_over_null: position")
def attribution(sensitivity: xr.Dataset) -> go.Figure:
    """Draw path bound, null and Jacobian norms of each token (upper panel), and bound ÷ null (lower panel).

    Both scales are logarithmic, so values of exactly zero are missing from the lines. Repeated tokens have separate
    places on the axis. The hover text has position, token and value.

    Args:
        sensitivity: a result of `squashlens.sensitivity` for one prompt. `of` draws a panel for each of several
            prompts; ``result.isel(prompt=0)`` selects one.

    Returns:
        The figure.
    """
    sensitivity = of_one_prompt(sensitivity)
    tokens = tokens_of(sensitivity)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.68, 0.32], vertical_spacing=0.05)
    upper = ["path_bound", "null", "jacobian_frozen", "jacobian"]
    for name in upper:
        figure.add_trace(_line(sensitivity[name], name, tokens), row=1, col=1)
    figure.add_trace(_line(sensitivity["bound_over_null"], "bound_over_null", tokens), row=2, col=1)
    figure.add_hline(y=1, line={"color": INK, "width": 1, "dash": "dot"}, row=2, col=1)  # pyright: ignore
    figure.update_yaxes(type="log")
    figure.update_yaxes(title="norm or bound", row=1, col=1)
    figure.update_yaxes(title="bound ÷ null", row=2, col=1)
    figure.update_xaxes(**token_axis(tokens))
    figure.update_xaxes(title=TOKENS, row=2, col=1)
    title = "Influence of each token on the last representation"
    return finish(figure, title=title, height=370, notes=notes_of(sensitivity, *norm_named(sensitivity)))


def _line(values: xr.DataArray, name: str, tokens: Mapping[int, str]) -> go.Scatter:
    data, positions = values.values.astype(np.float64), values["position"].values
    return go.Scatter(
        x=positions.astype(np.float64),
        y=np.where(data > 0, data, np.nan),
        name=NAMES[name],
        mode="lines+markers",
        line={"color": COLOURS[name], "width": 2, "dash": DASHES.get(name, "solid")},
        marker={"size": 6},
        customdata=np.array([numbered(place, tokens[place]) for place in map(int, positions)], dtype=object),
        hovertemplate=f"%{{customdata}}<br>{NAMES[name]}: %{{y:.6g}}<extra></extra>",
    )
