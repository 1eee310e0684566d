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
from squashlens.figures.drawing.sinks import is_sink, leave_sink_out, sink_note
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
# Path bounds have other units than norms, and are larger by powers of ten in deep models.
PANELS = {
    "path bound": ("path_bound", "null"),
    "norm": ("jacobian_frozen", "jacobian"),
    "bound ÷ null": ("bound_over_null",),
}
DASHES = {"path_bound": "dash", "null": "dot", "jacobian_frozen": "dashdot", "bound_over_null": "longdash"}


@draws("squashlens.sensitivity", "token path_bound null jacobian_frozen jacobian bound_over_null: position")
def attribution(sensitivity: xr.Dataset) -> go.Figure:
    """Draw path bound and null (upper panel), Jacobian norms (middle) and bound ÷ null (lower) of each token.

    All scales are logarithmic, so values of exactly zero are missing from the lines. A first token with more than 90 %
    of the path bound, an attention sink, is beyond the upper scale; a note has its share. Repeated tokens have separate
    places on the axis. The hover text has position, token and value.

    Args:
        sensitivity: a result of `squashlens.sensitivity` for one prompt. `of` draws a panel for each of several
            prompts; ``result.isel(prompt=0)`` selects one.

    Returns:
        The figure.
    """
    sensitivity = of_one_prompt(sensitivity)
    tokens = tokens_of(sensitivity)
    apart = is_sink(sensitivity["path_bound"])
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, row_heights=[0.36, 0.36, 0.28], vertical_spacing=0.05)
    for row, names in enumerate(PANELS.values(), 1):
        for name in names:
            figure.add_trace(_line(sensitivity[name], name, tokens, apart=apart and row == 1), row=row, col=1)
    figure.add_hline(y=1, line={"color": INK, "width": 1, "dash": "dot"}, row=3, col=1)  # pyright: ignore
    figure.update_yaxes(type="log")
    notes = [*norm_named(sensitivity)]
    if apart:
        lines = [sensitivity[name].values.astype(np.float64) for name in PANELS["path bound"]]
        leave_sink_out(figure, [line[1:] for line in lines], lines[0][0], {"row": 1, "col": 1})
        notes.append(sink_note(sensitivity["path_bound"], "the path bound"))
    for row, title in enumerate(PANELS, 1):
        figure.update_yaxes(title=title, row=row, col=1)
    figure.update_xaxes(**token_axis(tokens))
    figure.update_xaxes(title=TOKENS, row=3, col=1)
    title = "Influence of each token on the last representation"
    return finish(figure, title=title, height=480, notes=notes_of(sensitivity, *notes))


def _line(values: xr.DataArray, name: str, tokens: Mapping[int, str], *, apart: bool) -> go.Scatter:
    data, positions = values.values.astype(np.float64), values["position"].values
    if apart:  # the arrow at the edge has the value of a sink
        data[positions == 0] = np.nan
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
