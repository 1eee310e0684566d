"""A model's answers: accuracy, error and frequencies (figures 2 to 4, 6 and 7 of Barbero et al. 2024)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.errors import InputError
from squashlens.figures.drawing.axes import text_axis
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import curve, grid, interval
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape, label
from squashlens.figures.drawing.themes import BROWN, COLOURS, pale, series
from squashlens.records.provenance import facts_of
from squashlens.records.sentences import listed, number, percent, plural
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
SAID = 4  # lines that the sentence tells one by one
GROUP = (
    8  # neighbouring lengths that are drawn as one rate, if each has a single answer
)
QUARTILES = ("median_error", "error_q1", "error_q3")
TEXTS = (
    "digits",
    "words",
)  # readers whose answers are texts, even if they look like numbers
WHOLE = re.compile(r"-?(?:0|[1-9]\d*)")
LONG = 60  # characters of an answer in the hover text


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
    together = _modes_of(several.values())
    pairs = [(text, mode) for text in several for mode in _modes_of([several[text]])]
    figure, grouped, ends_of, drawn = (
        go.Figure(),
        False,
        dict[str, list[str]](),
        dict[str, xr.Dataset](),
    )
    first_shares: list[float] = []
    last_shares: list[float] = []
    for at, (text, mode) in enumerate(pairs):
        mode_text, style = _style_of_mode(mode)
        name = ", ".join([text] * bool(text) + [mode_text] * (len(together) > 1))
        style: Any = series(at) if len(several) > 1 else style
        here, many = (
            several[text].sel(mode=mode),
            several[text].sizes.get("seed", 1),
        )
        lengths, ends = here["length"].values, ("", "_low", "_high")
        share, low, high = (here[f"accuracy{end}"].values for end in ends)
        texts = _rights(name, here, many)
        if many == 1 and len(lengths) >= 2 * GROUP:
            grouped, (lengths, share, low, high) = True, _rates(lengths, share)
            texts = [
                f"{name}, about {n:g} items<br>{percent(of)} right"
                for n, of in zip(lengths, share, strict=True)
            ]
        bars = interval(share, low, high, style["colour"], 4) | {"thickness": 1.2}
        shown = bars if many > 1 or grouped else None
        line = curve(
            lengths,
            share,
            name,
            **style,
            size=7,
            error_y=shown,
            text=texts,
            hover="%{text}",
        )
        figure.add_trace(_without_trend(line, here))
        drawn[name] = here
        ends_of.setdefault(_course([*map(percent, share)]), []).append(name)
        first_shares.append(share[0])
        last_shares.append(share[-1])
    figure.update_xaxes(title=LENGTH).update_yaxes(
        title="share answered correctly", range=[-0.04, 1.04]
    )
    notes = [
        *_only(together),
        *[f"rates of {GROUP} neighbouring lengths", "bars: 95 % intervals"] * grouped,
    ]
    notes += cannot_be_judged(drawn)
    ends = (
        _of_each(ends_of)
        if len(pairs) <= SAID
        else (
            f"is {_span(first_shares)} at the shortest and {_span(last_shares)} at the longest "
            f"length of {len(pairs)} lines"
        )
    )
    says = f"The share of right answers {ends}."
    return finish(
        figure,
        "How often the answer is right",
        280,
        several.values(),
        *notes,
        says=says,
    )


def _course(values: list[str]) -> str:
    """What values by length, as text, are at both ends."""
    if values[0] == values[-1]:
        return f"is {values[0]}{' at the shortest and the longest length' * (len(values) > 1)}"
    return f"is {values[0]} at the shortest and {values[-1]} at the longest length"


def _span(shares: list[float]) -> str:
    """The smallest and the largest of shares, or the one that all have."""
    return " to ".join(dict.fromkeys((percent(min(shares)), percent(max(shares)))))


def _rates(lengths: np.ndarray, right: np.ndarray) -> list[np.ndarray]:
    """Of groups of neighbouring lengths: the mean length, and the share of right answers with Wilson's interval."""
    parts = np.array_split(np.arange(len(lengths)), len(lengths) // GROUP)
    rates = [
        (
            lengths[part].mean(),
            right[part].mean(),
            *wilson(right[part].mean(), len(part)),
        )
        for part in parts
    ]
    return list(np.array(rates).T)


@draws(
    EVALUATE,
    "median_error error_q1 error_q3 mean_error: mode length",
    "error value truth reading: mode length seed",
    UNREAD,
    usual=False,
)
def error_by_length(found: xr.Dataset) -> go.Figure:
    """Draw the median error of numeric answers by length.

    Error bars are quartiles and faint dots are single answers. The hover text has the mean, which a single answer may
    dominate, and the share of answers that could not be read, which have no error. Marks have no line if the model is
    not shown to do the task at short lengths.

    Raises:
        InputError: if the answers are not numbers.
    """
    there, modes = bool(np.isfinite(found["error"]).any()), _modes_of([found])
    if bool((found["reading"] == "read").any()) and not there:
        raise InputError(
            "These answers are not numbers and have no error.",
            "Draw accuracy_by_length.",
        )
    figure = go.Figure()
    for mode in modes:
        name, style = _style_of_mode(mode)
        figure.add_traces(
            _errors(found.sel(mode=mode), name if len(modes) > 1 else "", style)
        )
    figure.update_xaxes(title=LENGTH)
    figure.update_yaxes(title="median error (items)", rangemode="tozero")
    if not there:
        figure.update_yaxes(range=[0, 1], showticklabels=False)
    drawn = {_style_of_mode(mode)[0]: found.sel(mode=mode) for mode in modes}
    notes = (
        *_only(modes),
        "dots: single answers",
        "bars: quartiles",
        *cannot_be_judged(drawn),
    )
    errors = {
        name: [*map(number, here["median_error"].dropna("length"))]
        for name, here in drawn.items()
    }
    ends = [
        f"{_course(error)}{f' ({name})' * (len(modes) > 1)}"
        for name, error in errors.items()
        if error
    ]
    goes = (
        f"The median error in items {listed(ends)}"
        if ends
        else "There is no error to draw"
    )
    says = f"{goes}; {_unread(found[['unread']].mean(['mode', 'length']))}."
    return finish(figure, "Error of the answers", 260, found, *notes, says=says)


@draws(
    "squashlens.results.answer_frequencies", "said truth: mode value", "unread: mode"
)
def answer_frequencies(found: Found) -> go.Figure:
    """Draw how often each answer was given and how often it was right, one panel for each label and mode.

    Filled bars are given answers, and outlined bars are right answers. Numeric answers have a numeric axis; the title
    has the share not read, and that of numbers that are too far from every right answer to be drawn.
    """
    several: Any = found  # by label
    together = _modes_of(several.values())
    panels = [
        (text, one, mode) for text, one in several.items() for mode in _modes_of([one])
    ]
    values = {text: _Values.of(one) for text, one in several.items()}
    titles, most = [], dict[str, list[str]]()
    for text, one, mode in panels:
        beyond = float(one["said"].sel(mode=mode).values[~values[text].near].sum())
        parts = [text] * bool(text) + [_style_of_mode(mode)[0]] * (len(together) > 1)
        parts += [f"{percent(beyond)} of answers are numbers beyond this axis"] * bool(
            beyond
        )
        parts += [f"{percent(float(one['unread'].sel(mode=mode)))} not read"]
        titles.append(", ".join(parts))
        said = one["said"].sel(mode=mode).values
        ties = int((said == said.max()).sum())
        first = (
            f"“{label(str(one['value'].values[said.argmax()]))}”"
            if ties == 1
            else f"shared by {ties} answers"
        )
        often = (
            f"{first} at {percent(said.max())} of questions"
            if said.any()
            else "none, since none was read"
        )
        most.setdefault(often, []).append(text)
    each = 160 if len(panels) < 5 else 110
    figure, _ = grid(titles)
    for row, (text, one, mode) in enumerate(panels, start=1):
        _add_bars(figure, row, one.sel(mode=mode), values[text])
        figure.update_xaxes({"title": "answer"} | values[text].axis, row=row, col=1)
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(rangemode="tozero", title="share of questions")
    height = each * len(panels)
    says = f"The answer given most often is {_of_each(most)}."
    return finish(
        figure,
        "Given answers and right answers",
        height,
        several.values(),
        *_only(together),
        says=says,
    )


def _of_each(said: Mapping[str, list[str]]) -> str:
    """What is said of results, each with their names, if they have some."""
    return listed(
        [
            f"{what} ({listed(names)})" if names[0] else what
            for what, names in said.items()
        ]
    )


def _can_be_judged(here: xr.Dataset) -> bool:
    """Whether the model can do the task at short lengths; true for results of earlier versions, which do not say."""
    return "able" not in here or bool((here["able"] == "yes").all())


def _without_trend(line: go.Scatter, here: xr.Dataset) -> go.Scatter:
    """A curve over length; only its marks where longer lengths cannot be judged."""
    return line if _can_be_judged(here) else line.update(mode="markers")


def cannot_be_judged(several: Mapping[str, xr.Dataset]) -> list[str]:
    """The note on results, by name, whose longer lengths cannot be judged, if there are any."""
    names = [name for name, here in several.items() if not _can_be_judged(here)]
    whose = f"{listed(names)} " if 0 < len(names) < len(several) else ""
    return [
        f"{whose}not shown to do the task at short lengths: longer ones cannot be judged"
    ] * bool(names)


def _modes_of(several: Iterable[xr.Dataset]) -> list[str]:
    """All modes of the results, in order."""
    return list(
        dict.fromkeys(str(mode) for one in several for mode in one["mode"].values)
    )


def _style_of_mode(mode: str) -> tuple[str, dict[str, str]]:
    """Name and look of a mode."""
    return MODES.get(mode, (escape(mode), series(5)))


def _only(modes: list[str]) -> list[str]:
    """The name of the mode for the line under the title, if it is the only one and not the usual one."""
    return (
        [_style_of_mode(mode)[0] for mode in modes]
        if len(modes) == 1 and modes != ["answer_only"]
        else []
    )


def _rights(name: str, here: xr.Dataset, many: int) -> list[str]:
    """Hover text for each length: share of right answers, numbers of answers and prompts, share not read."""
    texts = []
    for length in here["length"].values:
        at = here.sel(length=length)
        share, low, high, strict = (
            percent(float(at[f"accuracy{end}"]))
            for end in ("", "_low", "_high", "_strict")
        )
        prompts = int(at["prompts"]) if "prompts" in at else many
        to = f" to {plural(prompts, 'prompt')}" if prompts < many else ""
        of = (
            f"{many} answers{to} (95 % interval {low} to {high})"
            if many > 1
            else "1 answer"
        )
        if "seed" not in here.dims:
            of = f"the answers of all seeds (95 % interval {low} to {high})"
        lines = (
            f"{name}, {plural(length, 'item')}",
            f"{share} right of {of}",
            f"{strict} in the requested form",
        )
        texts.append("<br>".join((*lines, _unread(at))))
    return texts


def _unread(at: xr.Dataset) -> str:
    """The share of answers that was not read, with the reasons, as text."""
    shares = {str(why): float(at["unread"].sel(why=why)) for why in at["why"].values}
    reasons = ", ".join(
        f"{WHY.get(why, label(why))} {percent(share)}"
        for why, share in shares.items()
        if share
    )
    return f"{percent(sum(shares.values()))} not read" + (
        f": {reasons}" if reasons else ""
    )


def _errors(here: xr.Dataset, name: str, look: dict[str, str]) -> list[go.Scatter]:
    """Traces of single errors, and of their median with quartiles."""
    error = here["error"].stack(answer=("length", "seed"))
    error = error[np.isfinite(error.values)]
    single = []
    for length, seed in error["answer"].values:
        at = here.sel(length=length, seed=seed)
        said, right = (label(str(at[part].item())) for part in ("value", "truth"))
        single.append(
            f"{name}, {plural(length, 'item')}, seed {seed}<br>answer {said}, right answer {right}"
        )
    lengths = here["length"].values
    median, low, high = (here[name].values for name in QUARTILES)
    bars = interval(median, low, high, look["colour"], 4) | {"thickness": 1.2}
    over = [
        f"{plural(length, 'item')}<br>median error {half:.4g}, mean {mean:.4g}<br>{_unread(here.sel(length=length))}"
        for length, half, mean in zip(
            lengths, median, here["mean_error"].values, strict=True
        )
    ]
    style: Any = look | {"hover": "%{text}", "cliponaxis": False}
    dots = {
        "mode": "markers",
        "size": 5,
        "opacity": 0.6,
        "colour": pale(look["colour"]),
        "text": single,
    }
    return [
        curve(error["length"].values, error.values, **style | dots),
        _without_trend(
            curve(
                lengths,
                median,
                name,
                text=over,
                size=8,
                error_y=bars if here.sizes["seed"] > 1 else None,
                **style,
            ),
            here,
        ),
    ]


@dataclass(frozen=True)
class _Values:
    """The place of each value on the axis, the width of its bar, the axis, and which values are on it."""

    places: np.ndarray
    wide: float
    axis: dict[str, Any]
    near: np.ndarray

    @classmethod
    def of(cls, one: xr.Dataset) -> "_Values":
        """Places of the values: numbers at their value, other texts side by side."""
        values = [str(value) for value in one["value"].values]
        texts = facts_of(one).get("task", {}).get("read_as") in TEXTS
        if texts or not all(map(WHOLE.fullmatch, values)):
            shown = [
                label(value if len(value) <= 14 else f"{value[:7]}… ({len(value)})")
                for value in values
            ]
            places = np.arange(len(values), dtype=float)
            return cls(
                places,
                0.9,
                text_axis(dict(enumerate(shown))),
                np.full(len(values), True),
            )
        places = np.array(values, dtype=float)
        right = places[(one["truth"].values > 0).any(axis=0)]
        reach = max(float(np.ptp(right)), 10)
        near = (places >= right.min() - reach) & (places <= right.max() + reach)
        ends = [float(places[near].min()) - 1, float(places[near].max()) + 1]
        return cls(places, max(0.9, (ends[1] - ends[0]) / 300), {"range": ends}, near)


def _add_bars(figure: go.Figure, row: int, here: xr.Dataset, values: _Values) -> None:
    """Draw bars for given answers, and outlines for right answers."""
    said, truth = here["said"].values, here["truth"].values
    shown = [
        escape(v if len(v) <= LONG else f"{v[: LONG - 1]}…")
        for v in map(str, here["value"].values)
    ]
    text = np.array(
        [
            f"{value}: given to {percent(often)} of questions, right for {percent(due)}"
            for value, often, due in zip(shown, said, truth, strict=True)
        ]
    )
    blue = COLOURS["unrelated"]
    for name, shares, fill, edge in (
        ("given answers", said, blue, blue),
        ("right answers", truth, "rgba(0, 0, 0, 0)", BROWN),
    ):
        figure.add_bar(
            x=values.places[shares > 0],
            y=shares[shares > 0],
            width=values.wide,
            name=name,
            row=row,
            col=1,
            marker={"color": fill, "line": {"color": edge, "width": 1}},
            hovertext=text[shares > 0],
            hovertemplate="%{hovertext}<extra></extra>",
        )
