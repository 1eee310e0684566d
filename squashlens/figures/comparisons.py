"""Rows of methods side by side: interventions, and the estimates of an audit."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.checks.results import require_reference
from squashlens.errors import InputError
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import interval, name_rows, spread
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import COLOURS

AXES: dict[str, dict[str, Any]] = {
    "size": {"type": "log"},
    "ratio": {"type": "log"},
    "answers": {"range": [-0.05, 1.05]},
    "share": {"rangemode": "tozero"},
}
KINDS = {
    "printed": ("paper's formula, no bound", COLOURS["null"]),
    "bound": ("certified bound", COLOURS["path_bound"]),
    "proxy": ("proxy", COLOURS["jacobian_frozen"]),
    "attribution": ("attribution method", COLOURS["random_places"]),
    "derivative": ("derivative", COLOURS["jacobian"]),
    "swap": ("token replaced or left out", COLOURS["bound_over_null"]),
}
ENDS = ("low", "high")
WAYS = {
    "raw": ("○ raw", "circle-open"),
    "partial": ("● position held fixed", "circle"),
    "over_null": ("× ÷ null", "x-thin-open"),
}


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


@draws(
    "squashlens.audit",
    "value over_jacobian: estimate prompt position",
    "content: position",
    "kind cost: estimate",
    "agreement agreement_low agreement_high: estimate reference way",
)
def audit(audit: xr.Dataset, reference: str = "Jacobian") -> go.Figure:
    """Draw the estimates of an audit as rows, with columns for size, rank correlation and time.

    Left: the value divided by the exact Jacobian norm at the content positions, as the median with a bar from minimum
    to maximum. Middle: rank correlation with `reference`, with a 95 % interval if there are several prompts.
    Right: time divided by the time of the exact Jacobian norms.

    Args:
        reference: the estimate that the middle column compares with, one of the audit's ``reference`` coordinate.

    Raises:
        InputError: if the audit was not compared with `reference`.
    """
    names = np.array([str(name) for name in audit["estimate"].values])
    require_reference(audit, reference)
    inner = audit.isel(position=audit["content"].values)
    if not inner.sizes["position"]:
        raise InputError("audit has no content position.", "Give the unchanged result of squashlens.audit.")
    figure = make_subplots(
        cols=3, shared_yaxes=True, column_widths=[0.42, 0.36, 0.22],
        subplot_titles=("value ÷ true Jacobian", f"rank correlation with {reference}", "time ÷ Jacobian"),
    )  # fmt: skip
    over = inner["over_jacobian"]
    sizes = [of(("prompt", "position")).values for of in (over.median, over.min, over.max)]
    # Column, values with the ends of their intervals, text, whether the ends are drawn, and marks.
    columns: list[tuple[int, list[np.ndarray], str, bool, dict[str, Any]]] = [
        (1, sizes, "%{x:.4g}, %{customdata[1]:.4g} to %{customdata[2]:.4g}", True, {"size": 9})
    ]
    ways = {way: shown for way, shown in WAYS.items() if way in audit["way"].values}
    for way, (text, symbol) in ways.items():
        found = [audit[f"agreement{end}"].sel(reference=reference, way=way).values for end in ("", "_low", "_high")]
        columns.append((2, found, f"{text[2:]}: %{{x:.3f}}", way == "partial", {"size": 7, "symbol": symbol}))
    columns.append((3, [audit["cost"].values], "%{x:.3g} times the exact Jacobian", False, {"size": 8}))
    for kind, (kind_text, colour) in KINDS.items():
        rows = np.flatnonzero(audit["kind"].values == kind)
        for column, parts, told, bars, marker in columns if len(rows) else ():
            own = [part[rows] for part in parts]
            line = {"color": colour, "width": 1.5} if column == 2 else None
            figure.add_scatter(
                x=own[0], y=rows, mode="markers", name=kind_text, row=1, col=column,
                marker={"color": colour, "line": line} | marker,
                error_x=interval(own[0], own[1], own[2], colour, 0) | {"thickness": 1} if bars else None,
                customdata=np.stack([names[rows], *own[1:]], axis=1, dtype=object, casting="unsafe"),
                hovertemplate=f"%{{customdata[0]}}<br>{told}<extra></extra>",
            )  # fmt: skip
    for column, edge, colour in ((1, 1, "jacobian"), (2, 0, "null"), (3, 1, "jacobian")):
        figure.add_vline(x=edge, line={"color": COLOURS[colour], "width": 1, "dash": "dot"}, row=1, col=column)  # pyright: ignore
        figure.update_xaxes(type="log" if edge else None, row=1, col=column)
    least = float(np.nanmin(audit[["agreement", "agreement_low"]].to_array().values))
    figure.update_xaxes(range=[min(-0.05, least - 0.05), 1.05], dtick=0.5, row=1, col=2)
    name_rows(figure, names.tolist(), showgrid=True)
    prompts, places = inner.sizes["prompt"], inner.sizes["position"]
    counted = f"{prompts} prompt{'s' * (prompts > 1)}, {places} content tokens"
    told = f"correlations: {', '.join(text for text, _ in ways.values())}"
    return finish(figure, "Estimates against the exact Jacobian", 22 * (len(names) + 1), audit, counted, told)
