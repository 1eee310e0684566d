"""Where an answer is read: how it stands by layer, and what is repaired or broken without a sublayer."""

from typing import Any

import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import LAYERS, curve, interval
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import FAINT, series


@draws("squashlens.answer_by_layer", "mean_first mean_first_low mean_first_high: scored layer", "chance: ...")
def answer_curve(found: xr.Dataset) -> go.Figure:
    """Draw the share of prompts whose right answer leads in the readout of each layer, with its controls."""
    figure, x = go.Figure(), found["layer"].values
    for number, scored in enumerate(found["scored"].values[:4]):
        colour, dash, symbol = series(number)
        one = found.sel(scored=scored)
        middle, low, high = (one[f"mean_first{end}"].values for end in ("", "_low", "_high"))
        bars: dict[str, Any] = {} if number else {"error_y": interval(middle, low, high, colour)}
        hover = f"{scored}, layer %{{x}}: %{{y:.3f}}"
        figure.add_trace(curve(x, middle, str(scored), colour=colour, dash=dash, symbol=symbol, hover=hover, **bars))
    chance = float(found["chance"])
    figure.add_hline(y=chance, line={"color": FAINT, "width": 2})
    figure.update_xaxes(LAYERS | {"dtick": max(1, len(x) // 10)})
    figure.update_yaxes(title="share of prompts", range=[-0.04, 1.04])
    title = "From which layer on does the right answer lead?"
    return finish(figure, title, 280, found, f"grey line: chance, {chance:.2g}")


@draws("squashlens.sublayer_effect", "repaired broken: half block sublayer", "wrong right: half")
def sublayer_repairs(found: xr.Dataset) -> go.Figure:
    """Draw the shares of wrong answers that are right without a sublayer, and of right ones that are wrong, by block.

    Only prompts of the half that did not select.
    """
    figure, one = go.Figure(), found.sel(half="confirm")
    drawn = [(name, sublayer) for sublayer in one["sublayer"].values for name in ("repaired", "broken")]
    for number, (name, sublayer) in enumerate(drawn):
        colour, dash, symbol = series(number)
        values, text = one[name].sel(sublayer=sublayer).values, f"{name} without {sublayer}"
        hover = f"{text} %{{x}}: %{{y:.3f}}"
        figure.add_trace(curve(one["block"].values, values, text, colour=colour, dash=dash, symbol=symbol, hover=hover))
    figure.update_xaxes(title="block", dtick=max(1, one.sizes["block"] // 10))
    figure.update_yaxes(title="share of answers", range=[-0.04, 1.04])
    counts = f"{one['wrong'].item()} wrong answers, {one['right'].item()} right"
    return finish(figure, "What is repaired or broken without a sublayer?", 280, found, counts)
