"""How repeated text is tokenized, and the distance of two texts compared with that of the true pair of tokens."""

from typing import Any

import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import chosen
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import line, steps
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.themes import COLOURS

TRUE: dict[str, Any] = {"colour": COLOURS["distance"], "width": 4.0}
TEXTS: dict[str, Any] = {"colour": COLOURS["contrast"], "width": 1.6, "dash": "dot"}


@draws(
    "squashlens.repeat_tokenization",
    "naive distance: form layer repeats",
    "token_id piece: form repeats place",
    "pair grows text: form repeats",
)
def repeat_tokenization(measured: xr.Dataset, *, layer: int | None = None) -> go.Figure:
    """Draw the distance of two texts and of the true pair by number of repeats, one panel for each way of joining.

    The scale is logarithmic. Where the two texts are the pair of the theorem, the lines coincide; the title of a panel
    says at how many numbers of repeats.

    Args:
        layer: the layer to draw; the last one by default.
    """
    at = chosen(measured, "layer", layer)
    third = min(2, measured.sizes["repeats"] - 1)
    forms = [measured.sel(form=form, layer=at) for form in measured["form"].values]
    titles = []
    for here in forms:
        text, pairs = here["text"].values[third], int(here["pair"].sum())
        of = f"{pairs} of {here.sizes['repeats']} are the pair"
        titles.append(f"{here['form'].item()}: “{text} …”, {of}")
    heights = [170.0] * len(forms)
    figure, places = grid(titles, min(2, len(forms)), heights, shared_yaxes="all")
    for here, place in zip(forms, places, strict=True):
        figure.add_trace(line(here["distance"], "true pair", log=True, **TRUE), **place)
        figure.add_trace(line(here["naive"], "two texts", log=True, **TEXTS), **place)
    figure.update_yaxes(type="log", title=distance_of(measured))
    figure.update_xaxes(steps(measured["repeats"], "repeats"))
    title = f"Distance of two texts, one repeat apart, and of the true pair: layer {at}"
    return finish(figure, title, measured)
