"""Interventions side by side."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.answers import cannot_be_judged
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import MARKS, extremes, grid, name_rows, spread
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import COLOURS
from squashlens.records.labels import AS_IT_IS
from squashlens.records.sentences import percent, plural

AXES: dict[str, dict[str, Any]] = {
    "size": {"type": "log"},
    "answers": {"range": [-0.05, 1.05]},
    "share": {},
}


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
    names = [escape(str(name)) for name in compared["change"].values]
    rows, says, notes = compared["distance"].isel(layer=-1), "", list[str]()
    panels = [(f"{distance_of(compared)}, layer {rows['layer'].item()}", rows, "size")]
    if "accuracy" in compared:
        panels.append(("share answered correctly", compared["accuracy"], "answers"))
    share = compared["bound"].isel(content=0) / compared["bound"].sum("content")
    panels.append(("path bound: share of the first content token", share, "share"))
    figure, _ = grid([title for title, *_ in panels], len(panels), shared_yaxes=True)
    for column, (_, values, kind) in enumerate(panels, start=1):
        for row, name in enumerate(names):
            own = np.atleast_1d(values.isel(change=row).values).astype(float)
            own = own[own > 0] if kind == "size" else own
            spread(
                figure,
                row,
                name,
                own,
                COLOURS["null" if name == AS_IT_IS else "path_bound"],
                col=column,
            )
        figure.update_xaxes(AXES[kind], col=column)
    name_rows(figure, names)
    if "accuracy" in compared and AS_IT_IS in names and len(names) > 1:
        right = (
            compared["accuracy"]
            .mean([dim for dim in compared["accuracy"].dims if dim != "change"])
            .values
        )
        notes = cannot_be_judged({"": compared.sel(change=AS_IT_IS)})
        shares = dict(zip(names, right.tolist(), strict=True))
        before = percent(shares.pop(AS_IT_IS))
        least, most = (
            _with_name(shares, extreme)
            for extreme in (min(shares.values()), max(shares.values()))
        )
        between = least if least == most else f"{least} to {most}"
        what = compared["accuracy"].attrs.get("long_name", "share of right answers")
        says = f"The mean {what} is {before} without a change, and {between} with one. "
    says += extremes(
        rows.median("length") if "length" in rows.dims else rows, "median D"
    )
    title = "Effect of each change on collapse and on the answers"
    return finish(figure, title, 34 * len(names), compared, *MARKS, *notes, says=says)


def _with_name(shares: dict[str, float], extreme: float) -> str:
    """A share, and the change that has it, or how many have it."""
    having = [f"“{name}”" for name, share in shares.items() if share == extreme]
    return f"{percent(extreme)} ({having[0] if len(having) == 1 else plural(len(having), 'change')})"
