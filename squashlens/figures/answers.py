"""A model's answers: accuracy, error and frequencies (figures 2 to 4, 6 and 7 of Barbero et al. 2024)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.errors import InputError
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import curve, line, text_axis, with_interval
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.text import escape, label, shortened
from squashlens.figures.drawing.themes import BROWN, COLOURS, pale, series
from squashlens.records.provenance import facts_of
from squashlens.records.sentences import percent
from squashlens.tasks.reading import WHY
from squashlens.theory.statistics.ranks import wilson

Found = xr.Dataset | Mapping[str, xr.Dataset]
# Name and look of each mode.
MODES = {
    "answer_only": ("answer only", series(0)),
    "cot": ("chain of thought", series(1)),
    "cot_few_shot": ("chain of thought, examples", series(2)),
}
UNREAD = "unread: mode length why"
LENGTH = "length (items)"
EVALUATE = "squashlens.evaluate"
GROUP = (
    8  # neighbouring lengths that are drawn as one rate, if each has a single answer
)
TEXTS = (
    "digits",
    "words",
)  # readers whose answers are texts, even if they look like numbers
WHOLE = re.compile(r"-?(?:0|[1-9]\d*)")
LONG, TICK = 60, 13  # characters of an answer in a hover text, and on an axis


@draws(
    EVALUATE, "accuracy accuracy_low accuracy_high accuracy_strict: mode length", UNREAD
)
def accuracy_by_length(found: Found) -> go.Figure:
    """Draw the share of right answers by length.

    Error bars are 95 % intervals. If there are single answers at many lengths, eight neighbouring ones are one rate.
    Answers that could not be read count as wrong; the hover text has their share, and that of answers in the requested
    form. Marks have no line if the model is not shown to do the task at short lengths, because longer lengths cannot be
    judged then.
    """
    several: Any = found  # by label
    modes = modes_of(several.values())
    named: dict[str, xr.Dataset] = {}
    for text, mode in _pairs(several):
        parts = (text, style_of_mode(mode)[0] if len(modes) > 1 else "")
        named[", ".join(filter(None, parts))] = several[text].sel(mode=mode)
    figure, notes = go.Figure(), [only(modes), "bars: 95 % intervals"]
    for at, (name, here) in enumerate(named.items()):
        look = (
            style_of_mode(here["mode"].item())[1] if len(several) == 1 else series(at)
        )
        hover = "%{x} items: %{y:.3g}<br>%{customdata}"
        shares, read = with_interval(here, "accuracy"), _read(here)
        if here.sizes.get("seed", 1) == 1:
            shares = shares.drop_vars(["low", "high"])
            if len(shares) >= 2 * GROUP:
                shares, read = _rates(shares), None
                notes.append(f"rates of {GROUP} neighbouring lengths")
        look = look | {"customdata": read, "hover": hover}
        figure.add_trace(without_trend(line(shares, name, size=7, **look), here))
    figure.update_xaxes(title=LENGTH)
    figure.update_yaxes(title="share answered correctly", range=[-0.04, 1.04])
    notes = [*dict.fromkeys(notes), cannot_be_judged(named)]
    return finish(figure, "How often the answer is right", several.values(), *notes)


def _rates(right: xr.DataArray) -> xr.DataArray:
    """Of groups of neighbouring lengths: the mean length, and the share of right answers with Wilson's interval."""
    parts = np.array_split(np.arange(len(right)), len(right) // GROUP)
    lengths = [float(right["length"][part].mean()) for part in parts]
    rates = [float(right[part].mean()) for part in parts]
    sizes = map(len, parts)
    low, high = np.transpose([*map(wilson, rates, sizes)])
    ends = {"low": ("length", low), "high": ("length", high)}
    return xr.DataArray(rates, {"length": lengths} | ends, ["length"])


@draws(
    EVALUATE,
    "median_error error_q1 error_q3 mean_error: mode length",
    "error value truth reading: mode length seed",
    UNREAD,
    usual=False,
)
def error_by_length(found: xr.Dataset) -> go.Figure:
    """Draw the median error of numeric answers by length.

    Error bars are quartiles and faint dots are single answers. The hover text has the share of answers that could not
    be read, which have no error. Marks have no line if the model is not shown to do the task at short lengths.

    Raises:
        InputError: if the answers are not numbers.
    """
    there = bool(np.isfinite(found["error"]).any())
    if bool((found["reading"] == "read").any()) and not there:
        raise InputError(
            "These answers are not numbers and have no error.",
            "Draw accuracy_by_length.",
        )
    modes = modes_of([found])
    figure = go.Figure()
    named = {style_of_mode(mode)[0]: found.sel(mode=mode) for mode in modes}
    for mode, (name, here) in zip(modes, named.items(), strict=True):
        look = style_of_mode(mode)[1]
        answers = here["error"].stack(answer=("length", "seed")).dropna("answer")
        faint: Any = look | {"colour": pale(look["colour"]), "size": 5, "opacity": 0.6}
        hover = "%{x} items: error %{y:.4g}"
        dots = curve(
            answers["length"].values,
            answers.values,
            hover=hover,
            mode="markers",
            **faint,
        )
        medians = here["median_error"]
        if here.sizes["seed"] > 1:
            medians = with_interval(here, "median_error", "error_q1", "error_q3")
        hover = "%{x} items: median error %{y:.4g}<br>%{customdata}"
        middle = line(
            medians, name, customdata=_read(here), hover=hover, size=8, **look
        )
        figure.add_traces([dots, without_trend(middle, here)])
    figure.update_traces(cliponaxis=False).update_xaxes(title=LENGTH)
    figure.update_yaxes(title="median error (items)", rangemode="tozero")
    unread = percent(float(found["unread"].sum("why").mean()))
    notes = ["dots: single answers", "bars: quartiles", f"{unread} not read"]
    judged = cannot_be_judged(named)
    return finish(figure, "Error of the answers", found, only(modes), *notes, judged)


@draws(
    "squashlens.results.answer_frequencies", "said truth: mode value", "unread: mode"
)
def answer_frequencies(found: Found) -> go.Figure:
    """Draw how often each answer was given and how often it was right, one panel for each label and mode.

    Filled bars are given answers, and outlined bars are right answers. Numeric answers have a numeric axis; the title
    has the share not read, and that of numbers that are too far from every right answer to be drawn.
    """
    several: Any = found  # by label
    modes = modes_of(several.values())
    panels = []
    for text, mode in _pairs(several):
        shares = several[text].sel(mode=mode)
        drawn, axis = _near_right_answers(shares)
        beyond = float(shares["said"].sum() - drawn["said"].sum())
        parts = [text, style_of_mode(mode)[0] if len(modes) > 1 else ""]
        if beyond > 1e-9:
            parts.append(f"{percent(beyond)} of answers are numbers beyond this axis")
        parts.append(f"{percent(float(shares['unread']))} not read")
        panels.append((", ".join(filter(None, parts)), drawn, axis))
    heights = [160.0 if len(panels) < 5 else 110.0] * len(panels)
    figure, places = grid([title for title, _, _ in panels], heights=heights)
    for place, (_, drawn, axis) in zip(places, panels, strict=True):
        figure.update_xaxes(axis, **place)
        _add_bars(figure, drawn, **place)
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(rangemode="tozero", title="share of questions")
    return finish(
        figure, "Given answers and right answers", several.values(), only(modes)
    )


def _near_right_answers(shares: xr.Dataset) -> tuple[xr.Dataset, dict[str, Any]]:
    """The shares at the places of answers that are drawn, and the axis: numbers at their value, texts side by side."""
    values = [str(value) for value in shares["value"].values]
    task = facts_of(shares).get("task")
    texts = isinstance(task, dict) and task.get("read_as") in TEXTS
    if texts or not all(map(WHOLE.fullmatch, values)):
        names = [
            value if len(value) <= TICK else f"{value[:7]}… ({len(value)})"
            for value in values
        ]
        axis = text_axis(dict(enumerate(map(label, names))), "answer")
        return shares.assign_coords(
            place=("value", np.arange(len(values), dtype=float))
        ), axis
    numbers = np.array(values, dtype=float)
    right = numbers[shares["truth"].values > 0]
    reach = max(float(np.ptp(right)), 10)
    near = (numbers >= right.min() - reach) & (numbers <= right.max() + reach)
    return shares.assign_coords(place=("value", numbers)).isel(value=near), {
        "title": "answer"
    }


def _add_bars(figure: go.Figure, shares: xr.Dataset, **place: Any) -> None:
    """Draw bars for given answers, and outlines for right answers."""
    names = [escape(shortened(str(value), LONG)) for value in shares["value"].values]
    blue = COLOURS["unrelated"]
    looks = {
        "said": ("given answers", blue, blue),
        "truth": ("right answers", "rgba(0, 0, 0, 0)", BROWN),
    }
    for variable, (name, fill, edge) in looks.items():
        figure.add_bar(
            x=shares["place"].values,
            y=shares[variable].values,
            width=max(0.9, float(np.ptp(shares["place"].values)) / 300),
            name=name,
            marker={"color": fill, "line": {"color": edge, "width": 1}},
            customdata=names,
            hovertemplate=f"%{{customdata}}: %{{y:.3g}} of {name}<extra></extra>",
            **place,
        )


def _can_be_judged(here: xr.Dataset) -> bool:
    """Whether the model can do the task at short lengths; true where a result does not say."""
    return "able" not in here or bool((here["able"] == "yes").all())


def without_trend(drawn: go.Scatter, here: xr.Dataset) -> go.Scatter:
    """A curve over length; only its marks where longer lengths cannot be judged."""
    return drawn if _can_be_judged(here) else drawn.update(mode="markers")


def cannot_be_judged(several: Mapping[str, xr.Dataset]) -> str:
    """The note on results, by name, whose longer lengths cannot be judged, if there are any."""
    names = [name for name, here in several.items() if not _can_be_judged(here)]
    whose = f"{', '.join(names)} " if 0 < len(names) < len(several) else ""
    said = f"{whose}not shown to do the task at short lengths: longer ones cannot be judged"
    return said if names else ""


def _pairs(several: Mapping[str, xr.Dataset]) -> list[tuple[str, str]]:
    """The label and the mode of each line or panel."""
    return [(text, mode) for text, one in several.items() for mode in modes_of([one])]


def modes_of(several: Iterable[xr.Dataset]) -> list[str]:
    """All modes of the results, in order."""
    return list(
        dict.fromkeys(str(mode) for one in several for mode in one["mode"].values)
    )


def style_of_mode(mode: str) -> tuple[str, dict[str, str]]:
    """Name and look of a mode."""
    return MODES.get(mode, (mode, series(5)))


def only(modes: list[str]) -> str:
    """The name of the mode for the line below the title, if it is the only one and not the usual one."""
    return (
        style_of_mode(modes[0])[0]
        if len(modes) == 1 and modes != ["answer_only"]
        else ""
    )


def _read(here: xr.Dataset) -> list[str]:
    """For each length: the share of answers in the requested form that are right, and what was not read and why."""
    texts = []
    for length in here["length"].values:
        at = here.sel(length=length)
        shares = {
            str(why): float(at["unread"].sel(why=why)) for why in at["why"].values
        }
        reasons = [
            f"{WHY.get(why, label(why))} {percent(share)}"
            for why, share in shares.items()
            if share
        ]
        strict = (
            percent(float(at["accuracy_strict"]))
            if "accuracy_strict" in at
            else "no share"
        )
        unread = ": ".join(
            filter(
                None, [f"{percent(sum(shares.values()))} not read", ", ".join(reasons)]
            )
        )
        texts.append(f"{strict} right in the requested form<br>{unread}")
    return texts
