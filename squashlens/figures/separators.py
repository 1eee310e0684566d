"""What separators do, layer by layer: a trace for every ablation, and from which block it still matters."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens._typing import Ablation
from squashlens.errors import InputError
from squashlens.figures.theme import COLOURS, dress, layer_map

NAMES = {
    "none": "no separators",
    "separators": "separators",
    "delete_keep_positions": "deleted, positions kept",
    "substitute": "another token in their place",
    "extra_digits": "a digit in their place",
    "random_places": "at random places",
    "mask": "masked from block {k} on",
    "zero_value": "values zeroed from block {k} on",
}
WIDE = ("none", "separators")


def layer_trace(ablation: xr.Dataset, *, length: int | None = None, from_block: int | None = None) -> go.Figure:
    """Draw a `separator_ablation` Dataset by layer at one length (the longest if not given), log scale.

    Hooks are drawn as they act from `from_block` on, the first measured if not given.
    """
    chosen = int(ablation["length"].values[-1]) if length is None else length
    here = ablation.sel(length=chosen)
    shown = [str(name) for name in here["edit"].values if name != "delete"]  # which is `none` by another road
    figure = go.Figure([_trace(here["distance"].sel(edit=name), name, NAMES[name]) for name in shown])
    if "distance_from" in here:
        first = int(here["from_block"].values[0]) if from_block is None else from_block
        for hook in here["hook"].values:
            values = here["distance_from"].sel(hook=hook, from_block=first)
            figure.add_trace(_trace(values, str(hook), NAMES[str(hook)].format(k=first)))
    figure.update_xaxes(title="layer ℓ", dtick=1)
    relative = ablation["distance"].attrs["units"] == "1"
    figure.update_yaxes(title="D ÷ rms(v)" if relative else "D", type="log", exponentformat="power")
    title = f"How far v and v* stay apart at {chosen} content tokens, by layer"
    return dress(figure, title=title, height=500, top=150)


def from_block_map(ablation: xr.Dataset, *, hook: Ablation = "mask", length: int | None = None) -> go.Figure:
    """From-block × layer: what is left of the separators' effect when a hook acts from that block on.

    1 (orange): the ablation did nothing; 0 (grey): it did what deleting the separators does. The scale stops at −1
    and 2, the hover does not; white: the effect is too small to be divided by.
    """
    if "retained_from" not in ablation or hook not in ablation["hook"].values:
        raise InputError(f"{hook!r} was not measured.", f"Call separator_ablation(…, kinds=[{hook!r}]).")
    chosen = int(ablation["length"].values[-1]) if length is None else length
    values = ablation["retained_from"].sel(hook=hook, length=chosen)
    scale = [[0, "#0072B2"], [1 / 3, "#d9dce1"], [2 / 3, COLOURS["separators"]], [1, "#5c2600"]]
    figure = go.Figure(layer_map(values, "retained", colorscale=scale, zmin=-1, zmax=2, hoverongaps=False))
    figure.update_xaxes(title="layer ℓ", dtick=1)
    figure.update_yaxes(title="hook acts from block", dtick=1)
    name = {"mask": "masking separators", "zero_value": "zeroing their values"}[hook]
    return dress(figure, title=f"Effect left after {name}, at {chosen} content tokens", height=380)


def _trace(values: xr.DataArray, name: str, shown: str) -> go.Scatter:
    data = values.values.astype(np.float64)
    dash = {"mask": "dash", "zero_value": "dot"}.get(name, "solid")
    return go.Scatter(
        x=values["layer"].values,
        y=np.where(data > 0, data, np.nan),
        name=shown,
        mode="lines+markers",
        line={"color": COLOURS[name], "width": 3 if name in WIDE else 1.8, "dash": dash},
        hovertemplate=f"layer %{{x}}<br>{shown}: %{{y:.4g}}<extra></extra>",
    )
