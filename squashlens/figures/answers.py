"""A model's answers: accuracy, error and frequencies (figures 2 to 4, 6 and 7 of Barbero et al. 2024)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.errors import InputError
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import (
    SHARES,
    curve,
    line,
    text_axis,
    with_interval,
)
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.text import escape, label, shortened
from squashlens.figures.drawing.themes import BROWN, COLOURS, pale, series
from squashlens.records.provenance import facts_of
from squashlens.records.sentences import percent
from squashlens.tasks.reading import WHY
from squashlens.theory.statistics.ranks import wilson

Found = xr.Dataset | Mapping[str, xr.Dataset]
# The name of each mode.
MODES = {
    "answer_only": "answer only",
    "cot": "chain of thought",
    "cot_few_shot": "chain of thought, examples",
}
UNREAD = "unread: mode length why"
LENGTH = "length (items)"
EVALUATE = "squashlens.evaluate_task"
GROUP = 8  # single answers at neighbouring lengths that are drawn as one rate
# Readers whose answers are texts, even if they look like numbers.
TEXTS = ("digits", "words")
WHOLE = re.compile(r"-?(?:0|[1-9]\d*)")
FEW = 9  # numbers that each have a tick
LONG, TICK = 60, 13  # characters of an answer in a hover text, and on an axis


@draws(
    EVALUATE, "accuracy accuracy_low accuracy_high accuracy_strict: mode length", UNREAD
)
def task_accuracy(found: Found) -> go.Figure:
    """Draw the share of right answers by length.

    Error bars are 95 % intervals. If there are single answers at many lengths, eight neighbouring ones are one rate.
    Answers that could not be read count as wrong; the hover text has their share. Marks have no line if the model is
    not shown to do the task at short lengths, because longer lengths cannot be judged then.

    Args:
        found: a result of `squashlens.evaluate_task`, or several by label.

    Returns:
        The figure.
    """
    several: Any = found  # by label
    named = _by_name(several)
    figure = go.Figure()
    notes = [_only_mode(several.values()), "bars: 95 % intervals"]
    for number, (name, answers) in enumerate(named.items()):
        look = series(number) | {"hover": "%{x} items: %{y:.3g}<br>%{customdata}"}
        shares = with_interval(answers, "accuracy")
        hovers = _how_read(answers)
        if answers.sizes.get("seed", 1) == 1:  # a single answer is right or wrong
            shares = shares.drop_vars(["low", "high"])
            if len(shares) >= 2 * GROUP:
                shares = _rates(shares)
                hovers = [""] * len(shares)
                notes.append(f"rates of {GROUP} neighbouring lengths")
        rates = line(shares, name, customdata=hovers, **look)
        figure.add_trace(_without_trend(rates, answers))
    figure.update_xaxes(title=LENGTH)
    figure.update_yaxes(title="share answered correctly", range=SHARES)
    notes.append(cannot_be_judged(named))
    return finish(figure, "How often the answer is right", several.values(), *notes)


def _rates(right: xr.DataArray) -> xr.DataArray:
    """The share of right answers in groups of neighbouring lengths, with Wilson's interval and at their mean length.

    `right` is 0 or 1 over (length). A group has at least eight lengths.
    """
    rates = []
    lengths = []
    intervals = []
    for places in np.array_split(np.arange(len(right)), len(right) // GROUP):
        of_group = right[places]
        rate = float(of_group.mean())
        rates.append(rate)
        lengths.append(float(of_group["length"].mean()))
        intervals.append(wilson(rate, len(of_group)))
    low, high = np.transpose(intervals)
    ends = {"low": ("length", low), "high": ("length", high)}
    return xr.DataArray(rates, {"length": lengths} | ends, ["length"])


@draws(
    EVALUATE,
    "median_error error_q1 error_q3 mean_error: mode length",
    "error value truth reading: mode length seed",
    UNREAD,
    usual=False,
)
def task_error(found: xr.Dataset) -> go.Figure:
    """Draw the median error of numeric answers by length.

    Error bars are quartiles and faint dots are single answers. The hover text has the share of answers that could not
    be read, which have no error. Marks have no line if the model is not shown to do the task at short lengths.

    Args:
        found: a result of `squashlens.evaluate_task`, or several by label.

    Returns:
        The figure.

    Raises:
        InputError: if the answers are not numbers.
    """
    was_read = bool((found["reading"] == "read").any())
    if was_read and found["error"].isnull().all():
        raise InputError(
            "These answers are not numbers and have no error.",
            "Draw task_accuracy.",
        )
    figure = go.Figure()
    named = _by_name({"": found})
    for number, (name, answers) in enumerate(named.items()):
        look = series(number)
        # A dot for each answer that is a number.
        errors = answers["error"].stack(answer=("length", "seed")).dropna("answer")
        faint = look | {"colour": pale(look["colour"]), "size": 5, "opacity": 0.6}
        faint |= {"mode": "markers", "hover": "%{x} items: error %{y:.4g}"}
        figure.add_trace(curve(errors["length"].values, errors.values, **faint))
        medians = answers["median_error"]
        if answers.sizes["seed"] > 1:
            medians = with_interval(answers, "median_error", "error_q1", "error_q3")
        hover = "%{x} items: median error %{y:.4g}<br>%{customdata}"
        middle = line(medians, name, customdata=_how_read(answers), hover=hover, **look)
        figure.add_trace(_without_trend(middle, answers))
    figure.update_traces(cliponaxis=False).update_xaxes(title=LENGTH)
    figure.update_yaxes(title="median error (items)", rangemode="tozero")
    unread = percent(float(found["unread"].sum("why").mean()))
    notes = [_only_mode([found]), "dots: single answers", "bars: quartiles"]
    notes += [f"{unread} not read", cannot_be_judged(named)]
    return finish(figure, "Error of the answers", found, *notes)


@draws(
    "squashlens.results.answer_frequencies", "said truth: mode value", "unread: mode"
)
def answer_frequencies(found: Found) -> go.Figure:
    """Draw how often each answer was given and how often it was right, one panel for each label and mode.

    Filled bars are given answers, and outlined bars are right answers. Numeric answers have a numeric axis; the title
    has the share not read, and that of numbers that are too far from every right answer to be drawn.

    Args:
        found: a result of `squashlens.results.answer_frequencies`, or several by label.

    Returns:
        The figure.
    """
    several: Any = found  # by label
    named = _by_name(several)
    titles = []
    drawn = []
    for name, shares in named.items():
        near = _near_right_answers(shares)
        beyond = float(shares["said"].sum() - near["said"].sum())
        parts = [name] if name else []
        if beyond > 1e-9:
            parts.append(f"{percent(beyond)} of answers are numbers beyond this axis")
        parts.append(f"{percent(float(shares['unread']))} not read")
        titles.append(", ".join(parts))
        drawn.append(near)
    height = 160.0 if len(titles) < 5 else 110.0
    figure, places = grid(titles, heights=[height] * len(titles))
    for place, near in zip(places, drawn, strict=True):
        _add_bars(figure, near, **place)
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(rangemode="tozero", title="share of questions")
    note = _only_mode(several.values())
    return finish(figure, "Given answers and right answers", several.values(), note)


def _near_right_answers(shares: xr.Dataset) -> xr.Dataset:
    """The shares of the answers that are drawn, with their `place` on the axis.

    Texts are side by side, at integers. Numbers are at their value, a floating-point number; those are left out that
    are further from the right answers than these are from each other, or than 10.
    """
    values = shares["value"].values.astype(str)
    task = facts_of(shares).get("task")
    is_number = [WHOLE.fullmatch(value) is not None for value in values]
    if isinstance(task, dict) and task.get("read_as") in TEXTS:
        is_number = [False]
    if not all(is_number):
        return shares.assign_coords(place=("value", np.arange(len(values))))
    numbers = values.astype(float)
    right = numbers[shares["truth"].values > 0]
    reach = max(float(np.ptp(right)), 10)
    is_near = (numbers >= right.min() - reach) & (numbers <= right.max() + reach)
    return shares.assign_coords(place=("value", numbers)).isel(value=is_near)


def _add_bars(figure: go.Figure, shares: xr.Dataset, **place: Any) -> None:
    """Draw bars for given answers, outlines for right answers, and the axis of answers, into the panel at `place`."""
    places = shares["place"].values
    answers = shares["value"].values.astype(str).tolist()
    names = [escape(shortened(answer, LONG)) for answer in answers]
    fills = {"said": COLOURS["unrelated"], "truth": "rgba(0, 0, 0, 0)"}
    edges = {"said": COLOURS["unrelated"], "truth": BROWN}
    for variable, name in {"said": "given answers", "truth": "right answers"}.items():
        edge = {"color": edges[variable], "width": 1}
        figure.add_bar(
            x=places,
            y=shares[variable].values,
            width=max(0.9, float(np.ptp(places)) / 300),  # a bar can be seen
            name=name,
            marker={"color": fills[variable], "line": edge},
            customdata=names,
            hovertemplate=f"%{{customdata}}: %{{y:.3g}} of {name}<extra></extra>",
            **place,
        )
    axis: dict[str, Any] = {"title": "answer"}
    if np.ptp(places) < FEW:  # whole numbers
        axis["dtick"] = 1
    if places.dtype.kind == "i":  # texts
        ticks = {place: _tick(answer) for place, answer in enumerate(answers)}
        axis = text_axis(ticks, "answer")
    figure.update_xaxes(axis, **place)


def _tick(answer: str) -> str:
    """An answer on an axis; a long one by its beginning and its length."""
    if len(answer) > TICK:
        answer = f"{answer[:7]}… ({len(answer)})"
    return label(answer)


def _can_be_judged(answers: xr.Dataset) -> bool:
    """Whether the model can do the task at short lengths; true where a result does not say."""
    if "able" not in answers:
        return True
    return bool((answers["able"] == "yes").all())


def _without_trend(drawn: go.Scatter, answers: xr.Dataset) -> go.Scatter:
    """A curve over length; only its marks where longer lengths cannot be judged."""
    return drawn if _can_be_judged(answers) else drawn.update(mode="markers")


def cannot_be_judged(several: Mapping[str, xr.Dataset]) -> str:
    """The note on results, by name, whose longer lengths cannot be judged, if there are any."""
    names = [name for name, answers in several.items() if not _can_be_judged(answers)]
    if not names:
        return ""
    note = "not shown to do the task at short lengths: longer ones cannot be judged"
    if len(names) < len(several):
        note = f"{', '.join(names)} {note}"
    return note


def _by_name(several: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Each mode of each result, by the label of the result, and the name of the mode if there are several."""
    several_modes = len(modes_of(several.values())) > 1
    named = {}
    for label_of_result, found in several.items():
        for mode in modes_of([found]):
            parts = [label_of_result] if label_of_result else []
            if several_modes:
                parts.append(MODES.get(mode, mode))
            named[", ".join(parts)] = found.sel(mode=mode)
    return named


def modes_of(several: Iterable[xr.Dataset]) -> list[str]:
    """All modes of the results, in order."""
    every = np.concatenate([found["mode"].values.astype(str) for found in several])
    return list(dict.fromkeys(every.tolist()))


def _only_mode(several: Iterable[xr.Dataset]) -> str:
    """The name of the mode for the line below the title, if it is the only one and not the usual one."""
    modes = modes_of(several)
    if modes == ["answer_only"] or len(modes) > 1:
        return ""
    return MODES.get(modes[0], modes[0])


def _how_read(answers: xr.Dataset) -> list[str]:
    """For each length, a hover text with the share of answers that were not read for each reason, such as
    "not read: none"."""
    texts = []
    for length in answers["length"].values:
        unread = answers["unread"].sel(length=length)
        reasons = []
        for why in unread["why"].values[unread.values > 0].tolist():
            share = percent(float(unread.sel(why=why)))
            reasons.append(f"{WHY.get(why, why)} {share}")
        texts.append(escape(f"not read: {', '.join(reasons) or 'none'}"))
    return texts
