"""Lines of any values over one or two dimensions, for what is derived from a result and fits no other figure."""

import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.facts import notes_of
from squashlens.figures.drawing.given import noted
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped, label
from squashlens.figures.drawing.themes import series

MOST = 12  # lines that can be told apart


def are_lines(values: xr.DataArray) -> bool:
    """Whether these are numbers over one dimension, or over two of which one has few labels."""
    shaped = values.ndim == 1 or (values.ndim == 2 and min(values.shape) <= MOST)
    return shaped and values.dtype.kind in "biuf" and values.size > 0


def lines(values: xr.DataArray) -> go.Figure | None:
    """Numbers over the last dimension, with a line for each label of the other; None for any other array."""
    if not are_lines(values):
        return None
    if values.ndim == 2 and len(values) > MOST:
        values = values.transpose()
    over, *others = map(str, values.dims[::-1])
    ends = [label(str(one)) if values[over].dtype.kind in "OUT" else one for one in values[over].values]
    parts = (
        {f"{others[0]} {one}": values.isel({others[0]: k}) for k, one in enumerate(values[others[0]].values)}
        if others
        else {"": values}
    )
    figure = go.Figure()
    for number, (name, part) in enumerate(parts.items()):
        colour, dash, symbol = series(number)
        figure.add_scatter(
            x=ends, y=part.values.astype(float), name=escaped(name), mode="lines+markers", showlegend=bool(others),
            line={"color": colour, "dash": dash}, marker={"symbol": symbol},
        )  # fmt: skip
    name, unit = (str(values.attrs.get(key, "")) for key in ("long_name", "units"))
    figure.update_xaxes(title=escaped(over))
    figure.update_yaxes(title=escaped(unit if unit not in ("", "1") else name or str(values.name or "value")))
    return noted(
        finish(figure, title=escaped(name[:1].upper() + name[1:]), height=260, notes=notes_of(values)), [values]
    )
