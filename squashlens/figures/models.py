"""What another model loses: leads of right answers in both models, damages by block, and what keeping blocks gives."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import (
    curve,
    guide,
    line,
    steps,
    text_axis,
    with_interval,
)
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape, shortened
from squashlens.figures.drawing.themes import BROWN, COLOURS, series

# Symbol and colour.
OUTCOMES = {
    "kept": ("circle", "#009E73"),
    "lost": ("x", "#D55E00"),
    "gained": ("diamond", "#56B4E9"),
    "wrong in both": ("square", "#7F7F7F"),
    "within noise": ("triangle-up", "#E69F00"),
}
NAMED = 12  # lost answers that are written beside their marks
ANSWER = 12  # characters of an answer


@draws("squashlens.compare_models", "lead: model prompt")
def lost_answers(found: xr.Dataset) -> go.Figure:
    """Draw the lead of each right answer in the other model against that in the reference.

    Below the horizontal line through 0 an answer is wrong in the other model, and left of the vertical one it is wrong
    in the reference. On the diagonal nothing has changed. Lost answers are named, if there are few.
    """
    figure = go.Figure()
    before = found["lead"].sel(model="reference").values
    after = found["lead"].sel(model="other").values
    ends = [min(before.min(), after.min()), max(before.max(), after.max())]
    figure.add_trace(curve(ends, ends, "", colour=BROWN, dash="dot", mode="lines"))
    guide(figure, 0)
    figure.add_vline(0, line_width=1, line_dash="dot", line_color=BROWN)
    answers = [escape(shortened(str(a), ANSWER)) for a in found["answer"].values]
    for outcome, (symbol, colour) in OUTCOMES.items():
        has_it = found["outcome"].values == outcome
        if not has_it.any():
            continue
        marks = {"symbol": symbol, "colour": colour, "mode": "markers", "size": 7}
        trace = curve(before[has_it], after[has_it], outcome, hover=outcome, **marks)
        if outcome == "lost" and has_it.sum() <= NAMED:
            names = np.array(answers, dtype=object)[has_it]
            trace.update(mode="markers+text", text=names, textposition="bottom center")
        figure.add_trace(trace)
    figure.update_xaxes(title="lead in the reference (nats)")
    figure.update_yaxes(title="lead in the other model (nats)")
    title = "Leads of right answers in two models"
    return finish(figure, title, found, "dotted lines: 0, and equal leads")


@draws(
    "squashlens.compare_models",
    "right right_low right_high: model group",
    usual=False,
)
def lost_shares(found: xr.Dataset) -> go.Figure:
    """Draw the share of prompts whose right answer leads in each model, by group."""
    figure = go.Figure()
    groups = [shortened(str(group), ANSWER) for group in found["group"].values]
    for order, model in enumerate(found["model"].values):
        shares = with_interval(found, "right").sel(model=model)
        shares = shares.assign_coords(group=np.arange(len(groups)))
        figure.add_trace(line(shares, str(model), **series(order), mode="markers"))
    figure.update_xaxes(text_axis(dict(enumerate(map(escape, groups))), "group"))
    figure.update_yaxes(title="share of prompts", range=[-0.04, 1.04])
    title = "Share of right answers in both models"
    return finish(figure, title, found, "bars: 95 % intervals")


@draws(
    "squashlens.damage_by_block",
    "mean_damage mean_damage_low mean_damage_high: streams part",
    "mean_gain mean_gain_low mean_gain_high: block",
)
def damages(found: xr.Dataset) -> go.Figure:
    """Draw the lead that is lost in each part of the other model, and what keeping each block alone gives back."""
    figure = go.Figure()
    # The embedding is before block 0, and norm and head after the last.
    places = np.arange(found.sizes["part"]) - 1
    for order, streams in enumerate(found["streams"].values):
        lost = with_interval(found, "mean_damage").sel(streams=streams)
        lost = lost.assign_coords(part=places)
        name = f"lost, with streams of the {streams}"
        figure.add_trace(line(lost, name, **series(order)))
    gain = with_interval(found, "mean_gain")
    look = {"colour": COLOURS["null"], "symbol": "diamond"}
    figure.add_trace(line(gain, "given back by this block alone", **look))
    guide(figure, 0)
    figure.update_xaxes(steps(places, "block"))
    figure.update_yaxes(title="lead of right answers (nats)")
    notes = [f"−1: embedding, {places[-1]}: norm and head", "bars: 95 % intervals"]
    title = "Lead of right answers that each part of the other model loses"
    return finish(figure, title, found, *notes)


@draws(
    "squashlens.blocks_to_keep",
    "right right_low right_high: kept",
    "random_limit shuffled_limit: ...",
)
def kept_blocks(found: xr.Dataset) -> go.Figure:
    """Draw the share of right answers, on prompts that did not select, with each set of kept blocks."""
    figure = go.Figure()
    shares = with_interval(found, "right")
    names = []
    for kept, units in zip(
        found["kept"].values, found["units_kept"].values, strict=True
    ):
        is_whole = kept in ("none", "all blocks")
        names.append(str(kept) if is_whole else f"{kept}: {units}")
    shares = shares.assign_coords(kept=np.arange(len(names)))
    look = {"colour": COLOURS["path_bound"], "mode": "markers", "size": 8}
    figure.add_trace(line(shares, "", **look))
    figure.update_xaxes(text_axis(dict(enumerate(map(escape, names))), "kept"))
    figure.update_yaxes(title="share of right answers", range=[-0.04, 1.04])
    notes = [f"above chance: {found['above_null'].item()}", "bars: 95 % intervals"]
    title = "Share of right answers by what is kept"
    return finish(figure, title, found, *notes)
