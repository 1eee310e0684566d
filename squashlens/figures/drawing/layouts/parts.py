"""Parts of a figure that have text. Each function sets sizes and lines of one part, and returns its space in pixels."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from squashlens.figures.drawing.layouts.page import PANEL_TITLE, Page, axes_of, reference, traces_of
from squashlens.figures.drawing.layouts.ticks import numbers_of, set_ticks
from squashlens.figures.drawing.text import height_of, unbroken, width_of, wrapped
from squashlens.figures.drawing.themes import SMALL

TITLE, NOTES = 1.2, 0.9  # sizes of text, in units of the font size
WORD = 7.0  # the most that a word keeps a panel from being narrower, in units of the font size
STANDOFF = 5.0  # pixels between tick labels and the title of an axis
SYMBOL, BETWEEN, LEAST = 40.0, 5.0, 19.0  # pixels that plotly gives a legend's symbol, the gap after it, and a line
MODE_BAR = 120.0  # pixels at the right of a title, where plotly shows its buttons in a notebook


def set_axis(figure: go.Figure, name: str, length: float, size: float, *, limit: float = 0.0) -> float:
    """Set ticks and title of an axis that is `length` pixels long; how far they extend from the panel."""
    axis: Any = figure.layout[name]
    if axis.visible is False:
        return 0.0
    space = set_ticks(figure, name, length, SMALL * size, limit=limit)
    if not axis.title.text:
        return space
    text = wrapped(axis.title.text, length, size)
    axis.title = {"text": text, "font": {"size": size}, "standoff": STANDOFF}
    return space + STANDOFF + height_of(text, size)


def set_panel_title(figure: go.Figure, x: str, y: str, length: float, size: float) -> float:
    """Break the title of a panel that is `length` pixels wide into lines; its height."""
    here = (f"{reference(x)} domain", f"{reference(y)} domain")
    notes: Any = figure.select_annotations({"name": PANEL_TITLE})
    for note in notes:
        if (note.xref, note.yref) == here:
            note.update(text=wrapped(note.text, length, size), font={"size": size})
            return height_of(note.text, size)
    return 0.0


def longest_word(figure: go.Figure, x: str, y: str, size: float) -> float:
    """The width of the longest word of a panel's title, so that it is not divided; of a very long one, a part."""
    here = (f"{reference(x)} domain", f"{reference(y)} domain")
    notes: Any = figure.select_annotations({"name": PANEL_TITLE})
    words = [w for note in notes if (note.xref, note.yref) == here for w in unbroken(note.text).split(" ")]
    return max((min(width_of(word, size), WORD * size) for word in words), default=0.0)


def colour_bars(figure: go.Figure, x: str, y: str) -> Iterator[Any]:
    """The traces of a panel that have a colour bar."""
    for trace in traces_of(figure):
        if axes_of(trace) == (reference(x), reference(y)) and "colorbar" in trace and trace.showscale is not False:
            yield trace


def set_colour_bars(figure: go.Figure, x: str, y: str, size: float) -> float:
    """Set the text of the colour bars of a panel; their width."""
    space = 0.0
    for trace in colour_bars(figure, x, y):
        bar = trace.colorbar
        ticks = max(width_of(str(text), SMALL * size) for text in (bar.ticktext or ("−0.25",)))
        bar.update(thickness=size, tickfont={"size": SMALL * size}, outlinewidth=0, xpad=0, ypad=0)
        bar.update(title={"side": "right", "font": {"size": size}})
        space = max(space, 2 * size + 8 + ticks + height_of(bar.title.text or "", size))
    return space


def set_marks(figure: go.Figure, sizes: dict[str, float], x: str, y: str, width: float) -> None:
    """Make the marks on the lines of a panel so small that they do not touch. `sizes` keeps what they were at first."""
    for number, trace in enumerate(traces_of(figure)):
        if (
            axes_of(trace) != (reference(x), reference(y))
            or getattr(trace, "mode", None) != "lines+markers"
            or trace.x is None
        ):
            continue
        size = sizes.get(str(number), 6 if trace.marker.size is None else trace.marker.size)
        if isinstance(size, int | float):  # sizes of single marks mean something, so they stay
            sizes[str(number)] = size
            trace.marker.size = max(min(size, 0.7 * width / max(len(numbers_of(trace.x)), 1)), trace.line.width or 2)


def set_title(figure: go.Figure, page: Page, width: float) -> float:
    """Set the title of the page and the line under it, except for their height on the page; the space they take."""
    size = page.look.size
    if not page.title:
        figure.update_layout(title=None)
        return 0.5 * size
    room = width - size - (MODE_BAR if page.theme == "notebook" else 0.0)
    text, notes = wrapped(page.title, room, TITLE * size), wrapped(page.notes, width - size, NOTES * size)
    # plotly aligns the top of a title that has one line, but the base line of the first of several.
    lift = 0.8 * TITLE * size if "<br>" in text else 0.0
    figure.update_layout(
        title={
            "text": text, "font": {"size": TITLE * size}, "x": 0, "xref": "container", "xanchor": "left",
            "yref": "container", "yanchor": "top", "pad": {"l": 0.5 * size, "t": lift},
            "subtitle": {"text": notes, "font": {"size": NOTES * size, "color": page.look.soft}},
        }
    )  # fmt: skip
    return size + 1.5 * lift + height_of(text, TITLE * size) + height_of(notes, NOTES * size)


@dataclass
class Legend:
    """A legend: its name in the layout, where it is, and the space it takes in pixels."""

    name: str
    place: str
    width: float = 0.0
    height: float = 0.0


def set_legend(figure: go.Figure, name: str, place: str, width: float, size: float) -> Legend:
    """Set the text of a legend in a page with `width` pixels between its margins; what space it takes, and where."""
    texts = list(dict.fromkeys(str(trace.name) for trace in _listed(figure, name)))
    single = len(texts) == 1 and all(trace.showlegend is None for trace in _listed(figure, name))
    if place == "none" or not texts or single:
        figure.update_layout({name: {"visible": False}})
        return Legend(name, "none")
    small = SMALL * size
    for trace in _listed(figure, name):
        trace.name = wrapped(trace.name, (0.3 if place == "right" else 0.95) * width - SYMBOL, small)
    texts = list(dict.fromkeys(str(trace.name) for trace in _listed(figure, name)))
    widths = [SYMBOL + 1.05 * width_of(text, small) for text in texts]
    heights = [max(LEAST, 3 + height_of(text, small)) for text in texts]
    # In the normal order plotly has no gaps between groups, which would make the legend higher than it is taken to be.
    style = {"font": {"size": small}, "bgcolor": "rgba(0,0,0,0)", "traceorder": "normal"}
    figure.update_layout({name: {"visible": True, "entrywidth": None, **style}})
    if place == "right":
        return Legend(name, place, max(widths) + size, sum(heights))
    # plotly puts all entries into one row, or into columns that are as wide as the widest.
    row = [BETWEEN + one for one in widths]
    if sum(row) + BETWEEN < width:
        columns, entry = len(texts), None
    else:
        columns = max(1, int((width - BETWEEN) / max(row)))
        # So wide that one more column does not fit. Texts narrower than estimated would otherwise get it, and the rows
        # that this saves would be empty.
        entry = max(max(row), (width + 2 * BETWEEN) / (columns + 1)) - BETWEEN - SYMBOL
    height = sum(max(heights[at : at + columns]) for at in range(0, len(heights), columns)) + 2 * BETWEEN
    # Without a greatest height it is half the page, and the rest is scrolled.
    figure.update_layout({name: {"maxheight": height + LEAST, "entrywidth": entry}})
    return Legend(name, place, width, height)


def list_once(figure: go.Figure) -> None:
    """Give each name one place in its legend, which stands for all traces with this name."""
    seen: set[tuple[str, str]] = set()
    for name in ("legend", "legend2"):
        for trace in _listed(figure, name):
            key = (name, unbroken(trace.name))
            trace.legendgroup = trace.legendgroup or key[1]
            if key in seen:
                trace.showlegend = False
            seen.add(key)


def _listed(figure: go.Figure, name: str) -> list[Any]:
    """The traces that a legend lists."""
    kinds = [one for one in traces_of(figure) if "showlegend" in one and one.type not in ("heatmap", "table")]
    return [t for t in kinds if t.name and t.showlegend is not False and (t.legend or "legend") == name]
