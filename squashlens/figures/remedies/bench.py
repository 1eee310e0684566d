"""Interventions on families of prompts: sensitivity, collapse and answers against the unchanged model, and the cost."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.figures.drawing.inputs.facts import distance_of, notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped
from squashlens.figures.drawing.themes import COLOURS, series

ROW = 16  # pixels for each mark


@draws("squashlens.compare", "change: change", "distance_ratio distance_ratio_low: change family length")
def remedies(compared: xr.Dataset) -> go.Figure:
    """Draw what interventions do to each family of prompts at the longest length, and what they cost.

    Rows are interventions, colours families. Panels show D and the norm of the Jacobian at the first and the last
    content token, each divided by that of the unchanged model; the share of right answers; and the divergence of the
    next token on unrelated text. Marks are medians (shares for answers), and bars 95 % intervals, where there are
    enough samples for them.

    Args:
        compared: a result of `squashlens.compare` for families of sequences.

    Returns:
        The figure.
    """
    names, families = ([str(name) for name in compared[dim].values] for dim in ("change", "family"))
    panels = _panels(compared)
    figure = make_subplots(cols=len(panels), shared_yaxes=True, subplot_titles=[title for title, *_ in panels])
    for column, (_, middle, ends, kind) in enumerate(panels, start=1):
        shown = families if "family" in middle.dims else [""]
        for number, family in enumerate(shown):
            parts = [one.sel(family=family) if family else one for one in (middle, *ends)]
            spread = (number - (len(shown) - 1) / 2) * 0.6 / max(len(families), 1)
            style = series(number) if family else (COLOURS["null"], "solid", "circle")
            _marks(figure, column, family, np.arange(len(names)) + spread, [p.values for p in parts], style)
        if kind == "ratio":
            here: Any = {"row": 1, "col": column}
            figure.add_vline(x=1, line={"color": COLOURS["null"], "width": 1, "dash": "dot"}, **here)
        figure.update_xaxes(AXES[kind], col=column)
    ticks = {"tickvals": list(range(len(names))), "ticktext": [escaped(name) for name in names]}
    figure.update_yaxes(range=[len(names) - 0.4, -0.6], showgrid=False, **ticks)
    longest = f"{int(compared['length'].values[-1])} content tokens"
    several = compared.sizes.get("sample", 0)
    notes = notes_of(compared, longest, f"{several} samples of each family", "bars: 95 % intervals")
    title = "What each change does, and what it costs"
    return finish(figure, title=title, height=ROW * (len(families) + 1) * len(names), notes=notes)


AXES: dict[str, dict[str, Any]] = {
    "ratio": {"type": "log"},
    "answers": {"range": [-0.05, 1.05]},
    "cost": {"rangemode": "tozero"},
}
Panel = tuple[str, xr.DataArray, tuple[xr.DataArray, xr.DataArray], str]


def _panels(found: xr.Dataset) -> list[Panel]:
    """Title, middle, ends of the interval and kind of axis of each panel, at the longest length."""
    last = found.isel(length=-1)

    def panel(title: str, name: str, kind: str, middle: str = "", **place: str) -> Panel:
        parts = [last[part].sel(place) for part in (middle or name, f"{name}_low", f"{name}_high")]
        return title, parts[0], (parts[1], parts[2]), kind

    panels = [panel(f"{distance_of(found)}, relative to as it is", "distance_ratio", "ratio")]
    if "jacobian_norm_ratio" in found:
        panels += [
            panel(f"Jacobian at the {place} token, relative", "jacobian_norm_ratio", "ratio", place=place)
            for place in ("first", "last")
        ]
    if "accuracy" in found:
        panels.append(panel("share answered correctly", "accuracy", "answers"))
    if "kl_median" in found:
        panels.append(panel("cost on other text, nats", "kl", "cost", "kl_median"))
    return panels


def _marks(
    figure: go.Figure, column: int, family: str, rows: np.ndarray, parts: list[np.ndarray], style: tuple[str, str, str]
) -> None:
    """Draw a mark for each intervention, with its interval as a bar where there is one."""
    middle, low, high = parts
    colour, _, symbol = style
    figure.add_scatter(
        x=middle, y=rows, mode="markers", name=escaped(family), legendgroup=family, cliponaxis=False,
        showlegend=bool(family) and column == 1, row=1, col=column,
        marker={"color": colour, "symbol": symbol, "size": 8},
        error_x={
            "type": "data", "symmetric": False, "array": np.nan_to_num(high - middle),
            "arrayminus": np.nan_to_num(middle - low), "color": colour, "thickness": 1.5, "width": 0,
        },
        customdata=np.stack([low, high], axis=-1),
        hovertemplate=f"{escaped(family)}<br>%{{x:.4g}} [%{{customdata[0]:.4g}}, %{{customdata[1]:.4g}}]"
        "<extra></extra>",
    )  # fmt: skip
