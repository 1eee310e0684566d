"""The leading singular values of a Jacobian's blocks, token by token."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.inputs.facts import notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.inputs.selection import TOKENS, tokens_of
from squashlens.figures.drawing.layouts.ticks import token_axis
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import label, numbered
from squashlens.figures.drawing.themes import series


@draws("squashlens.jacobian", "singular_value share: position direction", "token: position")
def jacobian(found: xr.Dataset) -> go.Figure:
    """Draw the leading singular values of the block of each token, as one line for each direction.

    The hover text has the share of the squared Frobenius norm, and the tokens whose logits the direction raises and
    lowers most, if there are any in the result.

    Args:
        found: a result of `squashlens.jacobian`.

    Returns:
        The figure.
    """
    tokens, places = tokens_of(found), found["position"].values
    figure = go.Figure()
    for number, direction in enumerate(found["direction"].values):
        one = found.sel(direction=direction)
        colour, dash, symbol = series(number)
        hover = [
            _hover(one.isel(position=at), numbered(int(place), tokens[int(place)])) for at, place in enumerate(places)
        ]
        figure.add_trace(
            go.Scatter(
                x=places.astype(np.float64), y=one["singular_value"].values, mode="lines+markers",
                name=f"direction {direction}", marker={"size": 6, "symbol": symbol}, hovertext=hover,
                line={"color": colour, "width": 2, "dash": dash},
                hovertemplate="%{hovertext}<br>σ = %{y:.5g}<extra></extra>",
            )
        )  # fmt: skip
    figure.update_xaxes(**token_axis(tokens), title=TOKENS)
    figure.update_yaxes(title="singular value", rangemode="tozero")
    return finish(figure, title="Leading singular values of the Jacobian's blocks", height=300, notes=notes_of(found))


def _hover(one: xr.Dataset, token: str) -> str:
    lines = [token, f"{float(one['share']):.1%} of the squared Frobenius norm"]
    for name in ("raised", "lowered"):
        if f"{name}_token" in one:
            lines.append(f"{name}: {', '.join(label(str(text)) for text in one[f'{name}_token'].values)}")
    return "<br>".join(lines)
