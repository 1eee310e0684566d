"""Audit of estimates: how each compares with the exact Jacobian in size, in rank order of tokens, and in time."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.checks.results import require_reference
from squashlens.figures.drawing.inputs.facts import notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.maps import interval
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import COLOURS

KINDS = {
    "printed": ("paper's formula, no bound", COLOURS["null"]),
    "bound": ("certified bound", COLOURS["path_bound"]),
    "proxy": ("proxy", COLOURS["jacobian_frozen"]),
    "attribution": ("attribution method", COLOURS["random_places"]),
    "derivative": ("derivative", COLOURS["jacobian"]),
    "swap": ("token replaced or left out", COLOURS["bound_over_null"]),
}
WAYS = {
    "raw": ("raw", "circle-open"),
    "partial": ("position held fixed", "circle"),
    "over_null": ("÷ null", "x-thin-open"),
}
ROW = 22  # pixels for each estimate


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
    to maximum. Middle: rank correlation with `reference`, with a bootstrap interval if there are several prompts.
    Right: time divided by the time of the exact Jacobian norms.

    Args:
        audit: a result of `squashlens.audit`.
        reference: the estimate that the middle column compares with, one of the audit's ``reference`` coordinate.

    Returns:
        The figure.

    Raises:
        InputError: if the audit was not compared with `reference`.
    """
    names = [str(name) for name in audit["estimate"].values]
    require_reference(audit, reference)
    inner = audit.isel(position=audit["content"].values)
    figure = make_subplots(
        rows=1, cols=3, shared_yaxes=True, column_widths=[0.42, 0.36, 0.22],
        subplot_titles=("value ÷ true Jacobian", f"rank correlation with {reference}", "time ÷ Jacobian"),
    )  # fmt: skip
    over = inner["over_jacobian"]
    low, middle, high = (of(("prompt", "position")).values for of in (over.min, over.median, over.max))
    for kind, (kind_text, colour) in KINDS.items():
        rows = [i for i, k in enumerate(audit["kind"].values) if k == kind]
        if not rows:
            continue
        places, labels = np.array(rows), [names[i] for i in rows]
        shared = {"mode": "markers", "name": kind_text, "legendgroup": kind}
        figure.add_trace(
            go.Scatter(
                x=middle[rows], y=places, marker={"color": colour, "size": 9}, **shared,
                error_x=interval(middle[rows], low[rows], high[rows], colour, 0) | {"thickness": 1},
                customdata=np.stack([labels, low[rows], high[rows]], axis=1, dtype=object, casting="unsafe"),
                hovertemplate="%{customdata[0]}<br>%{x:.4g}, %{customdata[1]:.4g} to "
                "%{customdata[2]:.4g}<extra></extra>",
            ),
            row=1, col=1,
        )  # fmt: skip
        for way, (text, symbol) in WAYS.items():
            found, below, above = (
                audit[name].sel(reference=reference, way=way).values[rows]
                for name in ("agreement", "agreement_low", "agreement_high")
            )
            bars = interval(found, below, above, colour, 0) | {"thickness": 1} if way == "partial" else None
            figure.add_trace(
                go.Scatter(
                    x=found, y=places, error_x=bars, showlegend=False,
                    marker={"color": colour, "size": 7, "symbol": symbol, "line": {"color": colour, "width": 1.5}},
                    customdata=labels, hovertemplate=f"%{{customdata}}<br>{text}: %{{x:.3f}}<extra></extra>", **shared,
                ),
                row=1, col=2,
            )  # fmt: skip
        figure.add_trace(
            go.Scatter(
                x=audit["cost"].values[rows], y=places, showlegend=False, marker={"color": colour, "size": 8},
                customdata=labels, **shared,
                hovertemplate="%{customdata}<br>%{x:.3g} times the exact Jacobian<extra></extra>",
            ),
            row=1, col=3,
        )  # fmt: skip
    _set_axes(figure, audit)
    prompts, places = inner.sizes["prompt"], inner.sizes["position"]
    counted = f"{prompts} prompt{'s' * (prompts > 1)}, {places} content tokens"
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=names, range=[len(names) - 0.4, -0.6])
    marks = ", ".join(f"{sign} {text}" for sign, (text, _) in zip("○●×", WAYS.values(), strict=True))
    title, height = "Estimates against the exact Jacobian", ROW * (len(names) + 1)
    return finish(figure, title=title, height=height, notes=notes_of(audit, counted, f"correlations: {marks}"))


def _set_axes(figure: go.Figure, audit: xr.Dataset) -> None:
    """Set the scales of the three columns, and draw lines at a quotient of 1 and a correlation of 0."""
    for column in (1, 3):
        figure.update_xaxes(type="log", row=1, col=column)
        figure.add_vline(x=1, line={"color": COLOURS["jacobian"], "width": 1, "dash": "dot"}, row=1, col=column)  # pyright: ignore[reportArgumentType]
    figure.add_vline(x=0, line={"color": COLOURS["null"], "width": 1, "dash": "dot"}, row=1, col=2)  # pyright: ignore[reportArgumentType]
    least = float(np.nanmin(audit[["agreement", "agreement_low"]].to_array().values))
    figure.update_xaxes(range=[min(-0.05, least - 0.05), 1.05], dtick=0.5, row=1, col=2)
