"""Sensitivity to one token of each prompt: one panel for each measure, one line for each group of prompts."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens._typing import short_repr
from squashlens.checks.results import listed
from squashlens.errors import InputError
from squashlens.figures.drawing.inputs.facts import norm_named, notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.maps import interval
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped
from squashlens.figures.drawing.themes import COLOURS, series

PANELS = {
    "jacobian": ("‖∂y<sub>n</sub>/∂v<sub>i</sub>‖", COLOURS["jacobian"]),
    "path_bound": ("path bound", COLOURS["path_bound"]),
    "bound_over_null": ("bound ÷ null", COLOURS["bound_over_null"]),
    "certified": ("certified bound", COLOURS["path_bound"]),
    "effect": ("substitution effect, ‖Δy<sub>n</sub>‖₂", COLOURS["jacobian_frozen"]),
    "kl": ("substitution effect, KL (nat)", COLOURS["zero_values"]),
}


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
        found: a result of `squashlens.needle`.
        title: title of the figure.
        xlabel: title of the x axis, for the ``at`` coordinate of the result.
        panels: names of the measures to draw, such as ``"jacobian"`` or ``"path_bound"``; all by default.

    Returns:
        The figure.

    Raises:
        InputError: if one of `panels` was not measured.
    """
    measured = [name for name in PANELS if f"{name}_mean" in found]
    wanted = measured if panels is None else list(panels)
    missing = [name for name in wanted if name not in measured]
    if missing or not wanted:
        raise InputError(f"panels={short_repr(panels)} are not measures of this result.", f"It has {listed(measured)}.")
    groups, at = [escaped(str(g)) for g in found["group"].values], found["at"].values
    rows = -(-len(wanted) // 2)
    figure = make_subplots(
        rows=rows, cols=min(2, len(wanted)),
        subplot_titles=[PANELS[name][0] for name in wanted],
    )  # fmt: skip
    for place, name in enumerate(wanted):
        row, column = place // 2 + 1, place % 2 + 1
        cells = {side: found[f"{name}_{side}"].values for side in ("mean", "low", "high")}
        for i, group in enumerate(groups):
            mean, low, high = (values[i] for values in cells.values())
            colour, dash, symbol = series(i)
            colour = PANELS[name][1] if len(groups) == 1 else colour
            figure.add_trace(
                go.Scatter(
                    x=at, y=mean, mode="lines+markers", name=group, legendgroup=group,
                    showlegend=place == 0 and len(groups) > 1,
                    line={"color": colour, "width": 2, "dash": dash},
                    marker={"color": colour, "size": 7, "symbol": symbol},
                    error_y=interval(mean, low, high, colour, 2),
                    customdata=found["prompts"].values[i],
                    hovertemplate=f"{group}, {xlabel} %{{x}}<br>%{{y:.4g}}, %{{customdata}} prompts<extra></extra>",
                ),
                row=row, col=column,
            )  # fmt: skip
        figure.update_yaxes(range=_range(cells), row=row, col=column)
    figure.update_yaxes(type="log")
    figure.update_xaxes(title=escaped(xlabel))
    return finish(figure, title=escaped(title), height=210 * rows, notes=notes_of(found, *norm_named(found)))


def _range(cells: dict[str, np.ndarray]) -> list[float] | None:
    """The logarithmic range of all means and intervals, at least a factor of two; `None` if nothing is positive."""
    values = np.concatenate([c.ravel() for c in cells.values()])
    logs = np.log10(values[np.isfinite(values) & (values > 0)])
    if not len(logs):
        return None
    middle, half = (logs.max() + logs.min()) / 2, max((logs.max() - logs.min()) / 2, np.log10(2) / 2)
    return [middle - 1.1 * half, middle + 1.1 * half]
