"""How repeated text is tokenized, and the distance of two texts compared with that of the true pair of tokens."""

import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import chosen
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import curve, grid
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape, label
from squashlens.figures.drawing.themes import COLOURS
from squashlens.records.sentences import listed, plural


@draws(
    "squashlens.repeat_tokenization",
    "naive distance: form layer repeats",
    "token_id piece: form repeats place",
    "pair grows text: form repeats",
)
def repeat_tokenization(measured: xr.Dataset, *, layer: int | None = None) -> go.Figure:
    """Draw the distance of two texts and of the true pair by number of repeats, one panel for each way of joining.

    The scale is logarithmic. Where the two texts are the pair of the theorem, the lines coincide; the sentence says at
    how many numbers of repeats.

    Args:
        layer: the layer to draw; the last one by default.
    """
    at = chosen(measured, "layer", layer)
    texts = (
        measured["text"]
        .isel(repeats=min(2, measured.sizes["repeats"] - 1))
        .transpose("form")
        .values
    )
    titles = [
        f"{form}: “{label(str(text))} …”"
        for form, text in zip(measured["form"].values, texts, strict=True)
    ]
    figure, places = grid(titles, min(2, measured.sizes["form"]), shared_yaxes="all")
    lines = (
        ("distance", "true pair", "distance", 4.0, "solid"),
        ("naive", "two texts", "contrast", 1.6, "dot"),
    )
    for form, place in zip(measured["form"].values, places, strict=True):
        here = measured.sel(form=form, layer=at)
        repeats = here["repeats"].values
        for variable, name, colour, width, dash in lines:
            hover, style = (
                f"%{{x}} repeats<br>{name}: %{{y:.4g}}",
                {"width": width, "dash": dash, "mode": "lines"},
            )
            line = curve(
                repeats,
                here[variable].values,
                name,
                colour=COLOURS[colour],
                hover=hover,
                log=True,
                **style,
            )
            figure.add_trace(line, **place)
    figure.update_yaxes(type="log", title=distance_of(measured)).update_xaxes(
        title="repeats"
    )
    title = f"Distance of two texts, one repeat apart, and of the true pair: layer {at}"
    counts = [
        f"{int(many)} ({escape(str(many['form'].values))})"
        for many in measured["pair"].sum("repeats")
    ]
    numbers = plural(measured.sizes["repeats"], "number")
    says = f"Of {numbers} of repeats, one more repeat gives the true pair at {listed(counts)}."
    return finish(figure, title, 190 * places[-1]["row"], measured, says=says)
