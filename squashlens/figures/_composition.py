"""Attention composition: where the paths to the query start, by layer."""

import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import takes
from squashlens.figures._theme import dress, share_map, token_axis


@takes("squashlens.paths.composition", "values: layer position", "token: position")
def composition(shares: xr.DataArray) -> go.Figure:
    """Draw the share of paths that start at each position and layer, as a map with a logarithmic colour scale.

    The top row is the query itself. Lower rows show how attention spreads the paths over the prompt.

    Args:
        shares: a result of `squashlens.paths.composition`.

    Returns:
        The figure.
    """
    tokens = [str(t) for t in shares["token"].values]
    figure = go.Figure(share_map(shares, tokens, "layer {row}"))
    figure.update_xaxes(**token_axis(tokens), title="token")
    figure.update_yaxes(title="layer ℓ", dtick=1)
    return dress(figure, title="Where the paths to the query start, by layer", height=420)
