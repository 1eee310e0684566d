"""Frequencies of the answers that models give, and of the right answers (figures 4 and 7 of Barbero et al. 2024)."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.figures.answers.modes import Found, labelled, mode_named, modes_of, only, percent
from squashlens.figures.drawing.inputs.facts import notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.layouts.ticks import text_axis
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped, label
from squashlens.figures.drawing.themes import COLOURS, INK
from squashlens.records.results import facts_of

OVER = ("mode", "value")
TEXTS = ("digits", "words")  # readers whose answers are texts, even if they look like numbers
WHOLE = re.compile(r"-?(?:0|[1-9]\d*)")
LONG = 60  # characters of an answer in the hover text
NAMES = ("given answers", "right answers")


@draws("squashlens.results.answer_frequencies", "said truth: value ...", "unread: ...")
def answer_frequencies(found: Found) -> go.Figure:
    """Draw how often each answer was given and how often it was right, one panel for each label and mode.

    Filled bars are given answers, outlined bars are right answers, and a separate bar on the right shows the share not
    read. Numeric answers have a numeric axis; the title has the share of numbers that are too far from every right
    answer to be drawn.

    Args:
        found: a result of `squashlens.results.answer_frequencies`, or several by label.

    Returns:
        The figure.
    """
    several = labelled(
        found, {"said": OVER, "truth": OVER, "unread": ("mode",)}, "squashlens.results.answer_frequencies"
    )
    together = modes_of(several.values())
    panels = [(text, one, mode) for text, one in several.items() for mode in modes_of([one])]
    values = {text: _Values.of(one) for text, one in several.items()}
    titles = [_title(text, one, mode, values[text], len(together) > 1) for text, one, mode in panels]
    each = 160 if len(panels) < 5 else 110
    figure = make_subplots(
        rows=len(panels), cols=2, column_widths=[0.93, 0.07],
        subplot_titles=[text for title in titles for text in (title, "")],
    )  # fmt: skip
    seen: set[str] = set()
    for row, (text, one, mode) in enumerate(panels, start=1):
        _bars(figure, row, one.sel(mode=mode), values[text], seen)
        figure.update_xaxes(values[text].axis, row=row, col=1)
        figure.update_xaxes(title="answer", row=row, col=1)
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(rangemode="tozero", col=1)
    figure.update_yaxes(title="share of questions", col=1)
    figure.update_yaxes(range=[0, 1.3], visible=False, col=2)
    notes = notes_of(several.values(), *only(together))
    return finish(figure, title="Given answers and right answers", height=each * len(panels), notes=notes)


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
            axis, numbers = text_axis(dict(enumerate(map(_short, values)))), np.arange(len(values), dtype=float)
            return cls(numbers, 0.9, axis, np.full(len(values), True))
        places = np.array(values, dtype=float)
        right = places[(one["truth"].values > 0).any(axis=0)]
        reach = max(float(np.ptp(right)), 10)
        near = (places >= right.min() - reach) & (places <= right.max() + reach)
        ends = [float(places[near].min()) - 1, float(places[near].max()) + 1]
        return cls(places, max(0.9, (ends[1] - ends[0]) / 300), {"range": ends}, near)


def _title(text: str, one: xr.Dataset, mode: str, values: _Values, several: bool) -> str:
    beyond = float(one["said"].sel(mode=mode).values[~values.near].sum())
    parts = [text] * bool(text) + [mode_named(mode)[0]] * several
    return ", ".join([*parts, f"{percent(beyond)} of answers are numbers beyond this axis"] if beyond else parts)


def _bars(figure: go.Figure, row: int, here: xr.Dataset, values: _Values, seen: set[str]) -> None:
    """Draw bars for given answers, outlines for right answers, and a bar for the share not read.

    `seen` are the names that the legend already has.
    """
    said, truth, unread = here["said"].values, here["truth"].values, float(here["unread"])
    text = np.array(
        [
            f"{_shown(str(value))}: given to {percent(often)} of questions, right for {percent(due)}"
            for value, often, due in zip(here["value"].values, said, truth, strict=True)
        ]
    )
    blue = COLOURS["unrelated"]
    for name, shares, fill, edge in zip(NAMES, (said, truth), (blue, "rgba(0, 0, 0, 0)"), (blue, INK), strict=True):
        drawn = shares > 0
        first = bool(drawn.any()) and name not in seen
        seen |= {name} if first else set()
        figure.add_bar(
            x=values.places[drawn], y=shares[drawn], width=values.wide, name=name, legendgroup=name, showlegend=first,
            marker={"color": fill, "line": {"color": edge, "width": 1}}, row=row, col=1,
            hovertext=text[drawn], hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
    figure.add_bar(
        x=["not read"], y=[unread], name="not read", showlegend=False, row=row, col=2,
        marker={"color": COLOURS["null"]}, text=[percent(unread)], textposition="outside", constraintext="none",
        cliponaxis=False, hovertemplate=f"not read: {percent(unread)}<extra></extra>",
    )  # fmt: skip


def _shown(value: str) -> str:
    return escaped(value if len(value) <= LONG else f"{value[: LONG - 1]}…")


def _short(value: str) -> str:
    """The text if it fits under an axis; otherwise its first characters and its length."""
    return label(value if len(value) <= 14 else f"{value[:7]}… ({len(value)})")
