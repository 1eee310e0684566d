"""What another model loses: leads of right answers in both models, damages by block, and what keeping blocks gives."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import (
    SHARES,
    add_lines,
    add_marks,
    curve,
    guide,
    line,
    name_rows,
    steps,
    with_interval,
)
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape, shortened
from squashlens.figures.drawing.themes import BROWN, COLOURS, series

# The symbol and the colour of each outcome.
OUTCOMES = {
    "kept": ("circle", "#009E73"),
    "lost": ("x", "#D55E00"),
    "gained": ("diamond", "#56B4E9"),
    "wrong in both": ("square", "#7F7F7F"),
    "within noise": ("triangle-up", "#E69F00"),
}
NAMED = 12  # lost answers that are listed
ANSWER = 12  # characters of an answer


@draws("squashlens.compare_models", "lead: model prompt")
def lost_answers(found: xr.Dataset) -> go.Figure:
    """Draw the lead of each right answer in the other model against that in the reference.

    Below the horizontal line through 0 an answer is wrong in the other model, and left of the vertical one it is wrong
    in the reference. On the diagonal nothing has changed. Lost answers are listed below the title, if there are few.

    Args:
        found: a result of `squashlens.compare_models`, or several by label.

    Returns:
        The figure.
    """
    figure = go.Figure()
    before = found["lead"].sel(model="reference").values
    after = found["lead"].sel(model="other").values
    ends = [min(before.min(), after.min()), max(before.max(), after.max())]
    figure.add_trace(curve(ends, ends, "", colour=BROWN, dash="dot", mode="lines"))
    guide(figure, 0)
    figure.add_vline(0, line_width=1, line_dash="dot", line_color=BROWN)
    answers = [shortened(str(answer), ANSWER) for answer in found["answer"].values]
    hovers = np.array([escape(answer) for answer in answers])
    outcomes = found["outcome"].values
    add_marks(
        figure, before, after, kinds=outcomes, looks=OUTCOMES, texts=hovers, size=7
    )
    figure.update_xaxes(title="lead in the reference (nats)")
    figure.update_yaxes(title="lead in the other model (nats)")
    lost = np.array(answers)[outcomes == "lost"].tolist()
    notes = ["dotted lines: 0, and equal leads"]
    if 0 < len(lost) <= NAMED:
        notes.append(f"lost: {', '.join(lost)}")
    return finish(figure, "Leads of right answers in two models", found, *notes)


@draws(
    "squashlens.compare_models",
    "right right_low right_high: model group",
    usual=False,
)
def lost_shares(found: xr.Dataset) -> go.Figure:
    """Draw the share of prompts whose right answer leads in each model, by group.

    Args:
        found: a result of `squashlens.compare_models`, or several by label.

    Returns:
        The figure.
    """
    shares = with_interval(found, "right").transpose("model", "group")
    models = found["model"].values.astype(str).tolist()
    by_model = dict(zip(models, shares, strict=True))
    title = "Share of right answers in both models"
    return _shares(by_model, "share of prompts", title, found)


@draws(
    "squashlens.damage_by_block",
    "mean_damage mean_damage_low mean_damage_high: streams part",
    "mean_gain mean_gain_low mean_gain_high: block",
)
def damages(found: xr.Dataset) -> go.Figure:
    """Draw the lead that is lost in each part of the other model, and what keeping each block alone gives back.

    Args:
        found: a result of `squashlens.damage_by_block`, or several by label.

    Returns:
        The figure.
    """
    figure = go.Figure()
    # Parts are at the numbers of blocks: the embedding is before block 0, and norm and head after the last.
    places = np.arange(found.sizes["part"]) - 1
    lost = with_interval(found, "mean_damage").assign_coords(part=places)
    streams = found["streams"].values
    names = [f"lost, with streams of the {of_model}" for of_model in streams]
    add_lines(figure, dict(zip(names, lost, strict=True)))
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
    """Draw the share of right answers, on prompts that did not select, with each set of kept blocks.

    Args:
        found: a result of `squashlens.blocks_to_keep`, or several by label.

    Returns:
        The figure.
    """
    # The coordinate `kept` says which set it is, and `units_kept` which blocks are in it: "selected: block 3".
    has_no_units = found["kept"].isin(["none", "all blocks"])
    with_units = found["kept"].str.cat(found["units_kept"], sep=": ")
    names = found["kept"].where(has_no_units, with_units)
    shares = with_interval(found, "right").assign_coords(kept=names.values)
    note = f"above chance: {found['above_null'].item()}"
    title = "Share of right answers by what is kept"
    return _shares({"": shares}, "share of right answers", title, found, note)


def _shares(
    by_name: dict[str, xr.DataArray],
    axis: str,
    title: str,
    found: xr.Dataset,
    *notes: str,
) -> go.Figure:
    """A figure of shares with their intervals along the x axis, one row for each of their labels.

    Args:
        by_name: shares over one dimension, by the name that the legend has for their marks; all have the same labels.
        axis: title of the x axis.
        title: title of the figure.
        found: the result, for the line below the title.
        notes: further parts of this line.
    """
    figure = go.Figure()
    labels: list[str] = []
    for order, (name, shares) in enumerate(by_name.items()):
        (dim,) = shares.dims
        labels = shares[dim].values.astype(str).tolist()
        rows = shares.assign_coords({dim: np.arange(len(labels))})
        look = series(order) | {"mode": "markers", "hover": "%{x:.4g}"}
        # `line` draws shares upright: x and y change places, with the bars.
        marks: Any = line(rows, name, **look)
        bars = marks.error_y.to_plotly_json()
        marks.update(x=marks.y, y=marks.x, error_x=bars, error_y={"visible": False})
        figure.add_trace(marks)
    figure.update_xaxes(title=axis, range=SHARES)
    name_rows(figure, [escape(label) for label in labels])
    height = 26 * (len(labels) + 1)
    return finish(figure, title, found, "bars: 95 % intervals", *notes, height=height)
