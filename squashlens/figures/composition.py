"""Attention composition: where the paths into the query start, layer by layer."""

import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.theme import dress, share_map, token_axis
from squashlens.given import takes


@takes("squashlens.composition", "values: layer position", "token: position")
def composition(shares: xr.DataArray) -> go.Figure:
    """Draw a `squashlens.composition` result: layer × position, colour the share of paths, log scale.

    The top row is the query itself; further down, attention has spread its paths over the prompt.
    """
    tokens = [str(t) for t in shares["token"].values]
    figure = go.Figure(share_map(shares, tokens, "layer {row}"))
    figure.update_xaxes(**token_axis(tokens), title="token")
    figure.update_yaxes(title="layer ℓ", dtick=1)
    return dress(figure, title="Where the paths into the last token start, by layer", height=420)
