"""Axes: where their ticks are, how many labels fit, and how much space the labels take."""

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from squashlens.figures.drawing.layouts.page import axes_of, traces_of
from squashlens.figures.drawing.text import LINE, height_of, numbered, width_of, wrapped

STEEP = -60  # degrees, of labels that do not fit side by side
SINE = math.sin(math.radians(-STEEP))
ENLARGED = 1.25  # plotly enlarges the labels of powers of ten by this factor
MOVED = 1.12  # plotly makes an axis without a given range at most this much longer than what is drawn
GAP = 0.5  # between an axis and its labels, in units of their size


def token_axis(tokens: Mapping[int, str]) -> dict[str, Any]:
    """An axis of positions, labelled by position and token."""
    return text_axis({place: numbered(place, token) for place, token in tokens.items()})


def text_axis(texts: Mapping[int, str]) -> dict[str, Any]:
    """A numeric axis labelled by texts, which are markup, so that equal texts have separate places.

    All places have a label. The axis shows as many as fit, and more of them in a part that is zoomed in.
    """
    return {
        "labelalias": {str(place): text for place, text in texts.items()},
        "exponentformat": "none",  # otherwise 10000 would be written as 10k, which has no label
        "tickangle": STEEP,
        "range": [min(texts) - 0.6, max(texts) + 0.6],
    }


def is_visible(axis: Any) -> bool:
    """Whether an axis has labels."""
    return axis.visible is not False and axis.showticklabels is not False


def set_ticks(figure: go.Figure, name: str, length: float, size: float, *, limit: float) -> float:
    """Set the ticks of an axis that is `length` pixels long, with text of `size` pixels; the space its labels take.

    Labels of a vertical axis are broken into lines of at most `limit` pixels.
    """
    space = _set_ticks(figure, name, length, size, limit)
    return space if is_visible(figure.layout[name]) else 0.0  # without labels, grid lines are at the same places


def _set_ticks(figure: go.Figure, name: str, length: float, size: float, limit: float) -> float:
    axis, upright = figure.layout[name], name.startswith("y")
    axis.tickfont = {"size": size}
    if axis.type == "log" and axis.ticktext is None:
        return _logarithmic(axis, _span(figure, name), length, size, upright)
    if axis.labelalias:
        ends = [int(place) for place in axis.labelalias]
        places, fit = 1 + max(ends) - min(ends), max(1, int(length / (LINE * size)))
        # Without a fixed distance plotly labels more tokens in a part that is zoomed in, but also places between them.
        axis.update(tick0=0, **({"dtick": 1} if places <= fit else {"dtick": None, "nticks": fit}))
        return SINE * max(width_of(text, size) for text in axis.labelalias.values()) + size
    texts = _texts(figure, axis, name)
    if not texts:
        return _linear(axis, _span(figure, name), length, size, upright)
    if upright:
        if axis.ticktext is not None:
            axis.ticktext = texts = [wrapped(text, limit, size) for text in texts]
        return max(width_of(text, size) for text in texts) + GAP * size
    wide = max(width_of(text, size) for text in texts)
    axis.tickangle = 0 if wide + GAP * size <= length / len(texts) else STEEP
    return (max(height_of(text, size) for text in texts) if axis.tickangle == 0 else SINE * wide) + GAP * size


def _logarithmic(axis: Any, span: tuple[float, float], length: float, size: float, upright: bool) -> float:
    """Ticks at powers of ten if the axis spans two or more; otherwise more of them, as many as fit."""
    low, high = span if axis.range is None else (10.0 ** min(axis.range), 10.0 ** max(axis.range))
    if low == high:  # plotly shows a decade on either side of a single value
        low, high = low / 10, high * 10
    decades = math.log10(high / low)
    common = low >= 1e-3 and high < 1e6
    powers = "10−12"
    if decades >= 2:
        each = 2.2 * size if upright else 1.6 * width_of(f"{high:.0f}" if common else powers, size)
        axis.update(dtick=max(1, math.ceil(decades * each / length)), tickformat="", tick0=0)
        axis.exponentformat = "none" if common and low >= 1 else "power"
        if axis.exponentformat == "power":
            axis.tickfont.size = size / ENLARGED
        text = f"{10 ** int(math.log10(high))}" if axis.exponentformat == "none" else powers
    else:
        text = "0.005" if common else "5e−10"
        each = 1.3 * size if upright else 1.2 * width_of(text, size)
        axis.update(dtick=_dense(low, high, each / length), tickformat="~r" if common else ".1~e")
    return (width_of(text, size) if upright else LINE * size) + GAP * size


def _dense(low: float, high: float, each: float) -> str | int:
    """Plotly's name for ticks of an axis of less than two decades, if a label takes the share `each` of it."""
    decades = math.log10(high / low)
    if decades > 0.6 and math.log10(2) / decades >= each:
        return "D2"  # 1, 2 and 5 of each power of ten
    if decades > 1:
        return 1
    last = math.floor(math.log10(high))
    for step in (factor * 10.0**power for power in range(last - 6, last + 1) for factor in (1, 2, 5)):
        if step < high and math.log10(high / (high - step)) / decades >= each:
            return f"L{step:.6g}"  # multiples of a number; the labels at the upper end are closest
    return "D2"


def _linear(axis: Any, span: tuple[float, float], length: float, size: float, upright: bool) -> float:
    """At most as many ticks as fit, at round numbers."""
    low, high = span if axis.range is None else (min(axis.range), max(axis.range))
    step = 10.0 ** math.floor(math.log10((high - low) / 5)) if high > low else 1.0
    digits = max(0, -math.floor(math.log10(step)))
    text = max((f"{end:.{min(digits, 6)}f}".replace("-", "−") for end in (low, high)), key=len)
    most = length / (2.0 * size) if upright else length / (1.6 * width_of(text, size) + size)
    if axis.dtick == 1:  # layers, blocks and the like: whole numbers, each if there is room
        axis.update(dtick=None, nticks=max(2, int(min(most, high - low + 1))))
    if axis.tickvals is None:
        axis.nticks = _number_of_ticks(low, high, max(2, min(int(most), 10)), fixed=axis.range is not None)
    axis.tickangle = 0
    return (width_of(text, size) if upright else LINE * size) + GAP * size


def _number_of_ticks(low: float, high: float, most: int, *, fixed: bool) -> int:
    """What plotly calls the number of ticks, for the smallest of its steps that gives at most `most` between two ends.

    Plotly takes 1, 2 or 5 times a power of ten that is above the length of the axis divided by this number. For 4 on an
    axis from 0.3 to 99.7 it would take 50, and draw one tick; for 4 on an axis from 0.5 to 8.5 it would take 5, not 2.
    Unless the ends are fixed, it moves them outwards.

    >>> _number_of_ticks(0.3, 99.7, 4, fixed=True), _number_of_ticks(0.5, 8.5, 6, fixed=True)
    (5, 5)
    """
    if not high > low:
        return most
    start = 10.0 ** math.floor(math.log10((high - low) / 100))
    steps = (digit * start * 10**power for power in range(4) for digit in (1, 2, 5))
    step = next(step for step in steps if math.floor(high / step) - math.ceil(low / step) < most)
    return 1 + math.floor((1.0 if fixed else MOVED) * (high - low) / step + 1e-9)


def overhang(figure: go.Figure, name: str, size: float) -> float:
    """How far the last label of a logarithmic axis may extend beyond the panel: half of its width."""
    axis: Any = figure.layout[name]
    if axis.type != "log" or not is_visible(axis):
        return 0.0
    high = _span(figure, name)[1] if axis.range is None else 10.0 ** max(axis.range)
    return 0.5 * width_of(f"{high:,.0f}" if 1 <= high < 1e6 else "10−12", size)


def _texts(figure: go.Figure, axis: Any, name: str) -> list[str]:
    """The labels of an axis that has texts instead of numbers."""
    if axis.ticktext is not None:
        return [str(text) for text in axis.ticktext]
    if axis.categoryarray is not None:
        return [str(text) for text in axis.categoryarray]
    texts = [str(one) for values in values_along(figure, name) for one in values if isinstance(one, str)]
    return list(dict.fromkeys(texts))


def _span(figure: go.Figure, name: str) -> tuple[float, float]:
    """The least and the greatest number drawn along an axis; only positive ones for a logarithmic axis."""
    numbers = [
        np.asarray([one for one in values if not isinstance(one, str)], float) for values in values_along(figure, name)
    ]
    together = np.concatenate(numbers) if numbers else np.zeros(0)
    together = together[np.isfinite(together)]
    if figure.layout[name].type == "log":
        together = together[together > 0]
    return (float(together.min()), float(together.max())) if len(together) else (1.0, 10.0)


def values_along(figure: go.Figure, name: str) -> Iterator[Any]:
    """What traces and lines across a panel have along an axis, and along the axes that share its range."""
    side, reference = name[0], name.replace("axis", "")
    same = {reference, figure.layout[name].matches or reference}
    others: Any = figure.select_xaxes() if side == "x" else figure.select_yaxes()
    same |= {other.plotly_name.replace("axis", "") for other in others if other.matches in same}
    for trace in traces_of(figure):
        if axes_of(trace)[side == "y"] not in same or trace[side] is None:
            continue
        values = numbers_of(trace[side])
        yield values
        bars = getattr(trace, f"error_{side}", None)
        if bars is not None and bars.array is not None:
            yield np.asarray(values, float) + np.asarray(numbers_of(bars.array), float)
            below = bars.array if bars.arrayminus is None else bars.arrayminus
            yield np.asarray(values, float) - np.asarray(numbers_of(below), float)
    for shape in cast(Any, figure.layout).shapes:
        if shape[f"{side}ref"] in same:
            yield [shape[f"{side}0"], shape[f"{side}1"]]


def numbers_of(values: Any) -> Any:
    """The values of a trace; plotly keeps those of a figure that was read from JSON as bytes in base 64."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"])
    return values
