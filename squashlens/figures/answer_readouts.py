"""Where an answer is read: how it stands by layer, and what is repaired or broken without a sublayer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import labelled
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import guide, line, steps, with_interval
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import series

NAMES = {"attention": "attention", "mlp": "MLP"}
NET = "net net_low net_high net_random repaired broken: half block sublayer"
CHANCE = "selected_net selected_net_low selected_net_high selected_net_random_limit selected_net_shuffled_limit: ..."


@draws(
    "squashlens.answer_by_layer",
    "mean_first mean_first_low mean_first_high: scored layer",
    "chance: ...",
)
def answer_curve(answers: xr.Dataset | Mapping[str, xr.Dataset]) -> go.Figure:
    """Draw the share of prompts whose right answer leads in the readout of each layer, with its controls.

    Of several results by label, it draws the right answers only.
    """
    several: Any = answers  # by label
    lines = {
        label: with_interval(one, "mean_first").isel(scored=0)
        for label, one in several.items()
    }
    if "" in several:
        shares = with_interval(several[""], "mean_first")
        lines = {str(kind): shares.sel(scored=kind) for kind in shares["scored"].values}
    figure = go.Figure()
    for number, (label, shares) in enumerate(lines.items()):
        figure.add_trace(line(shares, label, **series(number)))
    guide(figure, *dict.fromkeys(float(one["chance"]) for one in several.values()))
    layers = np.concatenate([shares["layer"] for shares in lines.values()])
    figure.update_xaxes(steps(layers, "layer ℓ"))
    figure.update_yaxes(title="share of prompts", range=[-0.04, 1.04])
    title = "From which layer on does the right answer lead?"
    notes = ["dotted line: chance", "bars: 95 % intervals"]
    return finish(figure, title, several.values(), *notes)


@draws("squashlens.sublayer_effect", NET, "wrong right: half", CHANCE)
def sublayer_repairs(found: xr.Dataset) -> go.Figure:
    """Draw the share of prompts that is repaired, less what is broken, without a sublayer, beside random vectors.

    Only prompts of the half that did not select, and no single heads. The dotted line is what the same selection
    reaches by chance.
    """
    figure = go.Figure()
    confirming = labelled(found, half="confirm")
    drawn = [sublayer for sublayer in NAMES if sublayer in confirming["sublayer"]]
    for number, sublayer in enumerate(drawn):
        there = confirming.sel(sublayer=sublayer)
        look, name = series(number), NAMES[sublayer]
        figure.add_trace(line(with_interval(there, "net"), f"without {name}", **look))
        random = there["net_random"]
        if random.notnull().any():
            dotted = look | {"dash": "dot", "size": 4}
            figure.add_trace(line(random, f"random vector in {name}", **dotted))
    random, shuffled = (
        found[f"selected_net_{by}_limit"] for by in ("random", "shuffled")
    )
    guide(figure, 0.0, float(random.fillna(shuffled)))
    figure.update_xaxes(steps(found["block"], "block"))
    figure.update_yaxes(title="net share of prompts")
    sublayer, block = (
        found[f"selected_{what}"].item() for what in ("sublayer", "block")
    )
    notes = [f"selected: {sublayer} of block {block}", "bars: 95 % intervals"]
    notes += ["dotted lines: 0, and what selected random vectors reach"]
    title = "What is repaired, less what is broken, without a sublayer?"
    return finish(figure, title, found, *notes)
