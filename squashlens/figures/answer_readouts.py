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
    results, lines = (
        [*several.values()],
        {label: one.isel(scored=0) for label, one in several.items()},
    )
    if "" in several:
        lines = {
            str(kind): results[0].sel(scored=kind)
            for kind in results[0]["scored"].values
        }
    figure, tops = (
        go.Figure(),
        dict.fromkeys(int(one["layer"][-1]) for one in lines.values()),
    )
    for number, (label, one) in enumerate(lines.items()):
        middle, low, high = (
            one[f"mean_first{end}"].values for end in ("", "_low", "_high")
        )
        style: dict[str, Any] = series(number) | {
            "hover": f"{label}, layer %{{x}}: %{{y:.3f}}"
        }
        if number == 0 or len(results) > 1:
            style["error_y"] = interval(middle, low, high, style["colour"])
        figure.add_trace(curve(one["layer"].values, middle, escape(label), **style))
    chances = dict.fromkeys(float(one["chance"]) for one in results)
    guide(figure, *chances)
    figure.update_xaxes(LAYERS)
    figure.update_yaxes(title="share of prompts", range=[-0.04, 1.04])
    title = "From which layer on does the right answer lead?"
    ends = [
        f"{percent(float(one['mean_first'][-1]))} of prompts ({escape(label)})"
        for label, one in lines.items()
    ]
    says = f"At layer {listed([*map(str, tops)])}, it leads in {listed(ends)}; "
    says += f"by chance it would in {listed([*map(percent, chances)])}."
    return finish(
        figure,
        title,
        280,
        results,
        "dotted line: chance",
        "bars: 95 % intervals",
        says=says,
    )


NET = "net net_low net_high net_random repaired broken: half block sublayer"
CHANCE = "selected_net selected_net_low selected_net_high selected_net_random_limit selected_net_shuffled_limit: ..."


@draws("squashlens.sublayer_effect", NET, "wrong right: half", CHANCE)
def sublayer_repairs(found: xr.Dataset) -> go.Figure:
    """Draw the share of prompts that is repaired, less what is broken, without a sublayer, beside random vectors.

    Only prompts of the half that did not select, and no single heads. The dotted line is what the same selection
    reaches by chance.
    """
    figure, confirming = go.Figure(), labelled(found, half="confirm")
    drawn = [sublayer for sublayer in NAMES if sublayer in confirming["sublayer"]]
    for number, sublayer in enumerate(drawn):
        there = confirming.sel(sublayer=sublayer)
        middle, low, high = (there[f"net{end}"].values for end in ("", "_low", "_high"))
        text, style = f"without {NAMES[sublayer]}", series(number)
        bars = interval(middle, low, high, style["colour"])
        hover = f"{text} %{{x}}: %{{y:.3f}}"
        figure.add_trace(
            curve(
                there["block"].values, middle, text, hover=hover, error_y=bars, **style
            )
        )
    for number, sublayer in enumerate(drawn):
        there, text = (
            confirming.sel(sublayer=sublayer),
            f"random vector in {NAMES[sublayer]}",
        )
        if np.isfinite(there["net_random"]).any():
            style: dict[str, Any] = series(number) | {
                "dash": "dot",
                "size": 3,
                "hover": f"{text} %{{x}}: %{{y:.3f}}",
            }
            figure.add_trace(
                curve(there["block"].values, there["net_random"].values, text, **style)
            )
    guide(
        figure,
        0.0,
        float(
            found["selected_net_random_limit"].fillna(
                found["selected_net_shuffled_limit"]
            )
        ),
    )
    figure.update_xaxes(title="block", dtick=1)
    figure.update_yaxes(title="net share of prompts")
    notes = (
        "dotted lines: 0, and what selected random vectors reach",
        "bars: 95 % intervals",
    )
    title = "What is repaired, less what is broken, without a sublayer?"
    return finish(figure, title, 280, found, *notes, says=_repaired(found, confirming))


def _repaired(found: xr.Dataset, confirming: xr.Dataset) -> str:
    """What leaving out the selected part does to answers of the other half, beside what chance does."""
    block, sublayer, above = (
        found[name].item()
        for name in ("selected_block", "selected_sublayer", "above_null")
    )
    part = (
        f"{NAMES[sublayer]} {block}"
        if sublayer in NAMES
        else f"{sublayer} of block {block}"
    )
    gains = labelled(found, half="select")["net"]
    if (alike := int(np.isclose(gains, gains.max()).sum()) - 1) > 0:
        part += f" (or one of {plural(alike, 'other')} that do as much in the half that selects)"
    chosen = labelled(confirming, block=block, sublayer=sublayer)
    told = [
        f"{verb} {percent(float(chosen[name]))} of {plural(int(confirming[kind]), f'{kind} answer')}"
        for kind, name, verb in (
            ("wrong", "repaired", "repairs"),
            ("right", "broken", "breaks"),
        )
        if confirming[kind] > 0
    ]
    net, low, high, random, shuffled = (
        f"{100 * float(found[f'selected_net{end}']):z.0f}".replace("-", "−")
        for end in ("", "_low", "_high", "_random_limit", "_shuffled_limit")
    )
    share = f"a net {net} % [{low}, {high}] of the other half of the prompts"
    by_chance = [
        f"{kind} {limit} %"
        for kind, limit in (
            ("random vectors of the same size", random),
            ("shuffled answers", shuffled),
        )
        if limit != "nan"
    ]
    reached = (
        f"selected likewise, {listed(by_chance)} (95 % limits)"
        if by_chance
        else "nothing was measured beside it"
    )
    if above == "yes":
        return f"Leaving out {part} {listed(told)}: {share}; {reached}."
    if above == "no":
        return (
            f"Leaving out {part} repairs no more than chance does: {share}; {reached}."
        )
    return f"Whether leaving out {part} repairs more than chance does was not measured: {share}; {reached}."
