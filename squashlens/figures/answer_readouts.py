"""Where an answer is read: how it stands by layer, and what is repaired or broken without a sublayer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import labelled
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import LAYERS, curve, guide, interval
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import series
from squashlens.records.sentences import listed, percent, plural

NAMES = {"attention": "attention", "mlp": "MLP"}


@draws("squashlens.answer_by_layer", "mean_first mean_first_low mean_first_high: scored layer", "chance: ...")
def answer_curve(answers: xr.Dataset | Mapping[str, xr.Dataset]) -> go.Figure:
    """Draw the share of prompts whose right answer leads in the readout of each layer, with its controls.

    Of several results by label, it draws the right answers only.
    """
    several: Any = answers  # by label
    results, lines = [*several.values()], {label: one.isel(scored=0) for label, one in several.items()}
    if "" in several:
        lines = {str(kind): results[0].sel(scored=kind) for kind in results[0]["scored"].values}
    figure, tops = go.Figure(), dict.fromkeys(int(one["layer"][-1]) for one in lines.values())
    for number, (label, one) in enumerate(lines.items()):
        middle, low, high = (one[f"mean_first{end}"].values for end in ("", "_low", "_high"))
        style: dict[str, Any] = series(number) | {"hover": f"{label}, layer %{{x}}: %{{y:.3f}}"}
        if number == 0 or len(results) > 1:
            style["error_y"] = interval(middle, low, high, style["colour"])
        figure.add_trace(curve(one["layer"].values, middle, escape(label), **style))
    chances = dict.fromkeys(float(one["chance"]) for one in results)
    guide(figure, *chances)
    figure.update_xaxes(LAYERS)
    figure.update_yaxes(title="share of prompts", range=[-0.04, 1.04])
    title = "From which layer on does the right answer lead?"
    ends = [f"{percent(float(one['mean_first'][-1]))} of prompts ({escape(label)})" for label, one in lines.items()]
    says = f"At layer {listed([*map(str, tops)])}, it leads in {listed(ends)}; "
    says += f"by chance it would in {listed([*map(percent, chances)])}."
    return finish(figure, title, 280, results, "dotted line: chance", "bars: 95 % intervals", says=says)


@draws("squashlens.sublayer_effect", "repaired broken: half block sublayer", "wrong right: half")
def sublayer_repairs(found: xr.Dataset) -> go.Figure:
    """Draw the shares of wrong answers that are right without a sublayer, and of right ones that are wrong, by block.

    Only prompts of the half that did not select, and no single heads.
    """
    figure, one = go.Figure(), labelled(found, half="confirm")
    drawn = [(name, sublayer) for sublayer in NAMES if sublayer in one["sublayer"] for name in ("repaired", "broken")]
    for number, (name, sublayer) in enumerate(drawn):
        values, text = one[name].sel(sublayer=sublayer).values, f"{name} without {NAMES[sublayer]}"
        if not one["wrong" if name == "repaired" else "right"]:
            continue
        hover = f"{text} %{{x}}: %{{y:.3f}}"
        figure.add_trace(curve(one["block"].values, values, text, hover=hover, **series(number)))
    figure.update_xaxes(title="block", dtick=1)
    figure.update_yaxes(title="share of answers", range=[-0.04, 1.04])
    block, sublayer = found["selected_block"].item(), found["selected_sublayer"].item()
    chosen = labelled(one, block=block, sublayer=sublayer)
    told = [f"{verb} {percent(float(chosen[name]))} of {plural(int(one[kind]), f'{kind} answer')}"
            for kind, name, verb in (("wrong", "repaired", "repairs"), ("right", "broken", "breaks"))
            if one[kind] > 0]  # fmt: skip
    part = f"{NAMES[sublayer]} {block}" if sublayer in NAMES else f"{sublayer} of block {block}"
    other = labelled(found, half="select")
    gains = other["repaired"].fillna(0) * other["wrong"] - other["broken"].fillna(0) * other["right"]
    best, alike = float(gains.max()), int(np.isclose(gains, gains.max()).sum())
    others = "" if alike == 1 else f", as do{'es' * (alike == 2)} {plural(alike - 1, 'other')}"
    why = f"it repairs most, less what it breaks{others}" if best > 0 else "none repairs more than it breaks"
    says = f"Leaving out {part} {listed(told or ['changes nothing'])}. On the other half of the prompts, {why}."
    return finish(figure, "What is repaired or broken without a sublayer?", 280, found, says=says)
