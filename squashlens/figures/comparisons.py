"""Interventions side by side, on one sequence or on families."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import interval, name_rows, spread
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import COLOURS, series

AXES: dict[str, dict[str, Any]] = {
    "size": {"type": "log"},
    "ratio": {"type": "log"},
    "answers": {"range": [-0.05, 1.05]},
    "share": {"rangemode": "tozero"},
}
ENDS = ("low", "high")


@draws("squashlens.compare", "change: change", "distance: change layer ...", "bound: change content")
def changes(compared: xr.Dataset) -> go.Figure:
    """Draw the effect of several interventions, one row for each: D, the answers, and the path bound.

    Faint dots are single lengths and rings are medians over lengths. The panel of the path bound shows the share of the
    first token. The first row is the model without a change.
    """
    names = [escape(str(name)) for name in compared["change"].values]
    panels = [(f"{distance_of(compared)}, last layer", compared["distance"].isel(layer=-1), "size")]
    if "accuracy" in compared:
        panels.append(("share answered correctly", compared["accuracy"], "answers"))
    share = compared["bound"].isel(content=0) / compared["bound"].sum("content")
    panels.append(("path bound: share of the first content token", share, "share"))
    figure = make_subplots(cols=len(panels), shared_yaxes=True, subplot_titles=[title for title, *_ in panels])
    for column, (_, values, kind) in enumerate(panels, start=1):
        for row, name in enumerate(names):
            own = np.atleast_1d(values.isel(change=row).values).astype(float)
            own = own[own > 0] if kind == "size" else own
            spread(figure, row, name, own, COLOURS["path_bound" if row else "null"], col=column)
        figure.update_xaxes(AXES[kind], col=column)
    name_rows(figure, names)
    title = "Effect of each change on collapse and on the answers"
    return finish(figure, title, 34 * len(names), compared, "dots: lengths", "rings: medians")


@draws("squashlens.compare", "change: change", "distance_ratio distance_ratio_low: change family length")
def remedies(compared: xr.Dataset) -> go.Figure:
    """Draw what interventions do to each family of prompts at the longest length, and what they cost.

    Rows are interventions, colours families. Panels show D and the norm of the Jacobian at the first and the last
    content token, each divided by that of the unchanged model; the share of right answers; and the divergence of the
    next token on unrelated text. Marks are medians (shares for answers), and bars 95 % intervals, where there are
    enough samples for them.

    Args:
        compared: a result of `squashlens.compare` for families of sequences.
    """
    names, families = ([escape(str(name)) for name in compared[dim].values] for dim in ("change", "family"))
    panels = _panels(compared)
    figure = make_subplots(cols=len(panels), shared_yaxes=True, subplot_titles=[title for title, *_ in panels])
    for column, (_, kind, parts) in enumerate(panels, start=1):
        shown = families if "family" in parts[0].dims else [""]
        for number, family in enumerate(shown):
            middle, low, high = (one.isel(family=number).values if family else one.values for one in parts)
            colour, _, symbol = series(number) if family else (COLOURS["null"], "", "circle")
            figure.add_scatter(
                x=middle, y=np.arange(len(names)) + (number - (len(shown) - 1) / 2) * 0.6 / max(len(families), 1),
                mode="markers", name=family or None, cliponaxis=False, row=1, col=column,
                marker={"color": colour, "symbol": symbol, "size": 8}, customdata=np.stack([low, high], axis=-1),
                error_x=interval(middle, low, high, colour, 0) | {"thickness": 1.5},
                hovertemplate=f"{family}<br>%{{x:.4g}} [%{{customdata[0]:.4g}}, %{{customdata[1]:.4g}}]<extra></extra>",
            )  # fmt: skip
        if kind == "ratio":
            figure.add_vline(x=1, line={"color": COLOURS["null"], "width": 1, "dash": "dot"}, row=1, col=column)  # pyright: ignore
        figure.update_xaxes(AXES[kind], col=column)
    name_rows(figure, names)
    longest = f"{int(compared['length'].values[-1])} content tokens"
    several = f"{compared.sizes.get('sample', 0)} samples of {families[0] if len(families) == 1 else 'each family'}"
    height = 16 * (len(families) + 1) * len(names)
    notes = (longest, several, "bars: 95 % intervals")
    return finish(figure, "What each change does, and what it costs", height, compared, *notes)


def _panels(found: xr.Dataset) -> list[tuple[str, str, list[xr.DataArray]]]:
    """Title, kind of axis, and values with the ends of their intervals of each panel, at the longest length."""
    last = found.isel(length=-1)
    asked = [
        (f"{distance_of(found)}, relative to as it is", "ratio", "distance_ratio", {}),
        ("Jacobian at the first token, relative", "ratio", "jacobian_norm_ratio", {"place": "first"}),
        ("Jacobian at the last token, relative", "ratio", "jacobian_norm_ratio", {"place": "last"}),
        ("share answered correctly", "answers", "accuracy", {}),
        ("cost on other text, nats", "share", "kl_median", {}),
    ]
    return [
        (
            title,
            kind,
            [last[part].sel(place) for part in (name, *(f"{name.removesuffix('_median')}_{end}" for end in ENDS))],
        )
        for title, kind, name, place in asked
        if name in found
    ]
