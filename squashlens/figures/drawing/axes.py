"""Axes: their ticks, as many as have room, their titles, and the space that both take, which is estimated."""

import base64
import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from squashlens.figures.drawing.page_blocks import (
    axes_of,
    group_of,
    reference,
    traces_of,
)
from squashlens.figures.drawing.text import (
    LINE,
    height_of,
    number_token,
    width_of,
    wrap,
)
from squashlens.figures.drawing.themes import SMALL

STEEP = -60  # degrees, of labels that do not fit side by side
SINE = math.sin(math.radians(-STEEP))
NUMBER = 3.0  # width of a number, in units of its size
GAP = 0.5  # between an axis and its labels, in units of their size
STANDOFF = 5.0  # pixels between tick labels and the title of an axis
ROOM = 0.05  # beyond the values of an axis, as a share of their range


def token_axis(tokens: Mapping[int, str]) -> dict[str, Any]:
    """An axis of positions, labelled by position and token."""
    texts = {place: number_token(place, token) for place, token in tokens.items()}
    return {"title": "position: token"} | text_axis(texts)


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


def set_axis(
    figure: go.Figure, name: str, length: float, size: float, *, limit: float = 0.0
) -> float:
    """Set ticks and title of an axis that is `length` pixels long; how far they extend from the panel.

    Labels of a vertical axis are broken into lines of at most `limit` pixels.
    """
    axis: Any = cast(Any, figure.layout)[name]
    if axis.visible is False:
        return 0.0
    axis.tickfont = {"size": SMALL * size}
    space = _set_ticks(figure, name, length, SMALL * size, limit) + GAP * SMALL * size
    if axis.showticklabels is False:  # grid lines are at the same places
        space = 0.0
    if not axis.title.text:
        return space
    text = wrap(axis.title.text, length, size)
    axis.title = {"text": text, "font": {"size": size}, "standoff": STANDOFF}
    return space + STANDOFF + height_of(text, size)


def _set_ticks(
    figure: go.Figure, name: str, length: float, size: float, limit: float
) -> float:
    """Set the ticks of an axis with text of `size` pixels; the space its labels take."""
    axis, upright = cast(Any, figure.layout)[name], name.startswith("y")
    if axis.labelalias:
        ends = [int(place) for place in axis.labelalias]
        places, fit = 1 + max(ends) - min(ends), max(1, int(length / (LINE * size)))
        # Without a fixed distance plotly labels more tokens in a part that is zoomed in, but also places between them.
        axis.update(
            tick0=0,
            **({"dtick": 1} if places <= fit else {"dtick": None, "nticks": fit}),
        )
        return (
            SINE * max(width_of(text, size) for text in axis.labelalias.values())
            + GAP * size
        )
    along = values_along(figure, name)
    texts = list(
        map(
            str,
            axis.ticktext
            or axis.categoryarray
            or [one for one in along if isinstance(one, str)],
        )
    )
    if not texts:
        _number_ticks(
            axis,
            *limits_of(figure, name),
            length / ((2.2 if upright else NUMBER + GAP) * size),
        )
        return (LINE if not upright else NUMBER + (axis.exponentformat == "e")) * size
    if upright:
        if axis.ticktext is not None:
            axis.ticktext = texts = [wrap(text, limit, size) for text in texts]
        return max(width_of(text, size) for text in texts)
    wide = max(width_of(text, size) for text in texts)
    axis.tickangle = 0 if wide + GAP * size <= length / len({*texts}) else STEEP
    return (
        SINE * wide if axis.tickangle else max(height_of(text, size) for text in texts)
    )


def _number_ticks(axis: Any, low: float, high: float, fit: float) -> None:
    """Set the ticks of an axis of numbers, of which `fit` have room."""
    axis.update(
        tickangle=0, nticks=int(max(3, min(fit, 6 if axis.type == "log" else 10)))
    )
    decades = high - low
    if axis.type != "log":
        axis.exponentformat = (
            "e" if max(-low, high) < 0.01 else None
        )  # as in sentences, and not with µ
        if axis.dtick is not None:  # layers, blocks and the like
            axis.dtick = max(1, math.ceil((high - low) / max(3, min(fit, 10))))
        return
    short = decades <= 2 and low >= -3 and high < 6
    axis.update(dtick=None, exponentformat="power", tickformat="~r" if short else "")
    axis.tickfont.size /= (
        1.0 if short else 1.25
    )  # plotly writes powers larger, by this factor
    if decades >= 0.6:  # 1, 2 and 5 of each of at most two powers of ten, or powers
        axis.dtick = (
            "D2"
            if decades < 1 or (decades <= 2 and 2 * decades < fit < 12)
            else math.ceil(decades / fit)
        )


def limits_of(figure: go.Figure, name: str) -> tuple[float, float]:
    """The ends of an axis of numbers, in powers of ten if it is logarithmic."""
    axis = cast(Any, figure.layout)[name]
    if axis.range is not None:
        return min(axis.range), max(axis.range)
    values = np.array(
        [one for one in values_along(figure, name) if not isinstance(one, str)],
        dtype=float,
    )
    values = values[np.isfinite(values) & (values > 0 if axis.type == "log" else True)]
    values = np.log10(values) if axis.type == "log" else values
    values = (
        np.append(values, 0.0)
        if axis.rangemode == "tozero" or not len(values)
        else values
    )
    room = ROOM * (values.max() - values.min())
    return float(values.min() - room), float(values.max() + room)


def values_along(figure: go.Figure, name: str) -> list[Any]:
    """What traces, error bars and lines across a panel have along an axis, and along the axes that share its range."""
    side, layout = name[0], cast(Any, figure.layout)
    same = {*map(reference, group_of(figure, name))}
    found = [
        end
        for shape in layout.shapes
        if shape[f"{side}ref"] in same
        for end in (shape[f"{side}0"], shape[f"{side}1"])
    ]
    for trace in traces_of(figure):
        if axes_of(trace)[side == "y"] not in same or trace[side] is None:
            continue
        values, bars = numbers_of(trace[side]), getattr(trace, f"error_{side}", None)
        found += list(values)
        for sign, ends in (
            ((1, bars.array), (-1, bars.arrayminus)) if bars is not None else ()
        ):
            if ends is not None:
                found += list(
                    np.asarray(values, float)
                    + sign * np.asarray(numbers_of(ends), float)
                )
    return found


def numbers_of(values: Any) -> Any:
    """The values of a trace; plotly keeps those of a figure that was read from JSON as bytes in base 64."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"])
    return values
