"""Values of the tokens of one prompt, and the most likely next tokens."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.facts import notes_of
from squashlens.figures.drawing.given import draws
from squashlens.figures.drawing.selection import TOKENS, of_one_prompt, tokens_of
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped, label, numbered
from squashlens.figures.drawing.themes import COLOURS
from squashlens.figures.drawing.ticks import token_axis

WIDE = 10.0  # values that span more than this factor have a logarithmic scale


@draws("squashlens.path_bound or squashlens.jacobian_norms", "values: position", "token: position")
def by_token(values: xr.DataArray) -> go.Figure:
    """Draw one value for each token of a prompt: a path bound, Jacobian norms, or one variable of a larger result.

    The scale is logarithmic if all values are positive and span more than a factor of 10.

    Args:
        values: a DataArray over the tokens of one prompt, such as ``sl.path_bound(…)`` or
            ``sl.substitution_effect(…)["effect"]``; or several of one kind by label. `of` draws a panel for each of
            several prompts.

    Returns:
        The figure.
    """
    values = of_one_prompt(values)
    tokens, positions = tokens_of(values), values["position"].values
    name, unit = (str(values.attrs.get(key, "")) for key in ("long_name", "units"))
    data = values.values.astype(np.float64)
    figure = go.Figure(
        go.Scatter(
            x=positions.astype(np.float64),
            y=data,
            mode="lines+markers",
            line={"color": COLOURS["path_bound"], "width": 2},
            marker={"size": 6},
            showlegend=False,
            customdata=np.array([numbered(place, tokens[place]) for place in map(int, positions)], dtype=object),
            hovertemplate="%{customdata}<br>%{y:.6g}<extra></extra>",
        )
    )
    there = data[np.isfinite(data)]
    if len(there) and there.min() > 0 and there.max() > WIDE * there.min():
        figure.update_yaxes(type="log")
    figure.update_xaxes(**token_axis(tokens), title=TOKENS)
    figure.update_yaxes(title=escaped(f"{name or 'value'} ({unit})" if unit not in ("", "1") else name or "value"))
    return finish(figure, title=escaped(f"{name[:1].upper()}{name[1:]}"), height=260, notes=notes_of(values))


@draws("squashlens.next_token", "values: rank", "token: rank")
def next_token(probabilities: xr.DataArray) -> go.Figure:
    """Draw the probabilities of the most likely next tokens as bars.

    Args:
        probabilities: a result of `squashlens.next_token`, or several by label.

    Returns:
        The figure.
    """
    tokens = [label(str(token)) for token in probabilities["token"].values]
    places = list(range(len(tokens)))
    figure = go.Figure(
        go.Bar(
            x=probabilities.values, y=places, orientation="h", marker={"color": COLOURS["path_bound"]},
            showlegend=False, hovertext=tokens, hovertemplate="%{hovertext}: %{x:.4g}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_xaxes(title="probability", range=[0, 1.02])
    figure.update_yaxes(tickvals=places, ticktext=tokens, range=[len(tokens) - 0.4, -0.6])
    return finish(figure, title="Most likely next tokens", height=28 * (len(tokens) + 1), notes=notes_of(probabilities))
