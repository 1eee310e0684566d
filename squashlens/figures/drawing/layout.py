"""Layout in pixels: text has its space first, and the panels divide what is left.

From top to bottom, a page has a title, a line of notes, a legend, and blocks. A block has a title with notes and rows
of panels, with a title above each panel, and ticks and an axis title below. Lines are named at their right ends. Text
that is too long is broken into lines. Plotly's own margins and domains know nothing of the text between panels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.axes import limits_of, numbers_of, set_axis
from squashlens.figures.drawing.page_blocks import (
    HEAD,
    PANEL_TITLE,
    Axes,
    Block,
    Page,
    Panel,
    above,
    axes_of,
    traces_of,
)
from squashlens.figures.drawing.text import height_of, unbreak, width_of, wrap
from squashlens.figures.drawing.themes import ASSUMED, INCH, SMALL

ORDINARY = 13.0  # pixels: the font size for which heights of panels are given
TITLE, HEADING, NOTES = 1.2, 1.1, 0.9  # sizes of text, in units of the font size
SYMBOL, BETWEEN, ENTRY = 40.0, 5.0, 19.0  # pixels that plotly gives a legend's symbol, the gap after it, and a line
MODE_BAR = 120.0  # pixels at the right of a title, where plotly shows its buttons in a notebook
LEAST = {"width": 40.0, "height": 24.0}  # pixels of the widest and of the highest panel
LABEL = "line"  # name of the annotation at the end of a line
MOST, ROWS = 6, 3  # lines of a panel that are named at their ends, and lines of text of a name
Span = tuple[float, float]


class NoRoomError(InputError):
    """The text of a figure leaves no room for its panels."""


@dataclass
class Track:
    """The panels of a block in one direction: their weights, the text before and after each, and their size."""

    place: int  # of the block on its page
    weights: Sequence[float]
    before: list[float]
    after: list[float]
    size: float = 1.0

    @property
    def text(self) -> float:
        """Pixels of all text."""
        return sum(self.before) + sum(self.after)


def divide(tracks: Sequence[Track], start: float, length: float | None, side: str) -> tuple[list[list[Span]], float]:
    """Start and end of each panel of each block, in pixels, and the end of all with the text after the last.

    Blocks at the same place, with as many panels, have the same edges: they are read across. Panels of a `length` share
    it; otherwise they have their size.
    """
    for name in ("before", "after"):
        kinds = {(one.place, len(one.weights)) for one in tracks}
        for alike in ([one for one in tracks if (one.place, len(one.weights)) == kind] for kind in kinds):
            most = [max(same) for same in zip(*(getattr(one, name) for one in alike), strict=True)]
            for one in alike:
                setattr(one, name, most)
    groups = [[one for one in tracks if one.place == place] for place in sorted({one.place for one in tracks})]
    text, sizes = ([max(getattr(one, of) for one in group) for group in groups] for of in ("text", "size"))
    scale = 1.0 if length is None else (length - start - sum(text)) / sum(sizes)
    spans, missing = dict[int, list[Span]](), 0.0
    for group, words, size in zip(groups, text, sizes, strict=True):
        for one in group:
            free, edge, spans[id(one)] = words + scale * size - one.text, start, []
            for weight, before, after in zip(one.weights, one.before, one.after, strict=True):
                share = weight / sum(one.weights)
                least = LEAST[side] * weight / max(one.weights)
                missing = max(missing, (least - free * share) * sum(sizes) / size / share)
                spans[id(one)].append((edge + before, edge + before + free * share))
                edge = spans[id(one)][-1][1] + after
        start += words + scale * size
    if missing > 0 and length is not None:
        raise NoRoomError(
            f"The text of this figure leaves no room for its panels: {side} is {length / INCH:.3g} inches.",
            f"Use {side}={(length + missing) / INCH + 0.05:.1f} or more, a smaller font_size, or fewer panels.",
        )
    return [spans[id(one)] for one in tracks], start


def lay_out(figure: go.Figure) -> go.Figure:
    """Set all sizes, places and lines of text of a figure whose page is known."""
    page, layout = Page.of(figure), cast(Any, figure.layout)
    blocks, size, pad = page.blocks, page.look.size, 0.6 * page.look.size
    width = page.look.width * INCH if page.look.width else ASSUMED
    limit = max(0.2 * width, 7 * size)  # pixels of a name at the end of a line
    labels = _set_names(figure, page, limit)
    columns = [_columns(figure, block, labels, width, limit, size) for block in blocks]
    across, _ = divide(columns, 0.0, width, "width")
    rows = [_rows(figure, page, number, spans) for number, spans in enumerate(across)]
    start = set_title(figure, page, width)
    left, right = min(spans[0][0] for spans in across), max(spans[-1][1] for spans in across)
    below = start + set_legend(figure, right - left, size)  # plotly fills rows up to the width of the panels
    down, height = divide(rows, below, page.height and page.height * INCH, "height")
    top = min(spans[0][0] for spans in down)
    wide, deep = right - left, max(spans[-1][1] for spans in down) - top
    figure.update_layout(
        height=height, width=page.look.width and width, autosize=page.look.width is None,
        margin={"l": left, "r": width - left - wide, "t": top, "b": height - top - deep, "pad": 0},
        legend={"x": 0.5 * size / width, "y": 1 - start / height},
        title={"y": 1 - 0.5 * size / height} if page.title else None,
    )  # fmt: skip
    for block, x_spans, y_spans in zip(blocks, across, down, strict=True):
        for panel in block.panels:
            (x, end), (y, base) = x_spans[panel.column], y_spans[panel.row]
            places = ((x - left) / wide, (end - left) / wide), (1 - (base - top) / deep, 1 - (y - top) / deep)
            for axis, ends in zip(panel[:2], places, strict=True):
                layout[axis].domain = [min(max(end, 0.0), 1.0) for end in ends]
            set_axis(figure, panel.y, base - y, size, limit=0.4 * width)
            for trace in _bars(figure, panel):
                high = layout[panel.y].domain
                trace.colorbar.update(x=places[0][1] + pad / wide, xanchor="left", y=high[1], yanchor="top")
                trace.colorbar.len = high[1] - high[0]
            _name_ends(figure, panel, labels.get(panel.axes, {}), base - y, limit, SMALL * size)
    return figure


def _columns(
    figure: go.Figure, block: Block, labels: dict[Axes, dict[str, Any]], width: float, limit: float, size: float
) -> Track:
    """The text beside each column of panels: ticks, names of lines and colour bars."""
    pad, small = 0.6 * size, SMALL * size
    track = Track(block.column, block.columns, [pad for _ in block.columns], [pad for _ in block.columns])
    for panel in block.panels:
        tall = block.height * size / ORDINARY / len(block.rows)
        space = set_axis(figure, panel.y, tall, size, limit=0.4 * width)
        beside = [width_of(wrap(name, limit, small), small) for name in labels.get(panel.axes, {})]
        beside += [set_colour_bar(trace, size) for trace in _bars(figure, panel)]
        track.before[panel.column] = max(track.before[panel.column], space + pad)
        track.after[panel.column] = max(track.after[panel.column], *(pad + wide for wide in beside), 0.0)
    return track


def _rows(figure: go.Figure, page: Page, number: int, spans: Sequence[Span]) -> Track:
    """The text above and below each row of panels of a block: its title with notes, titles of panels, and ticks."""
    block, size, pad = page.blocks[number], page.look.size, 0.6 * page.look.size
    notes: Any = figure.select_annotations({"name": PANEL_TITLE})
    titles = {(note.xref.split()[0], note.yref.split()[0]): note for note in notes}
    track = Track(block.row, block.rows, [pad for _ in block.rows], [pad for _ in block.rows])
    track.size = block.height * size / ORDINARY
    for panel in block.panels:
        start, end = spans[panel.column]
        note, tall = titles.get(panel.axes), 0.0
        if note is not None:
            text = wrap(note.text, 0.96 * (end - start), size)
            note.update(text=text, font={"size": size}, yshift=3)
            tall = height_of(text, size)
        space = set_axis(figure, panel.x, end - start, size)
        track.before[panel.row] = max(track.before[panel.row], tall + pad)
        track.after[panel.row] = max(track.after[panel.row], space + pad)
    head, tall = _head(block.title, block.notes, spans[-1][1] - spans[0][0], size, page.look.soft)
    place = above(block.panels[0]) | {"font": {"size": HEADING * size}, "yshift": 3 + track.before[0] - pad}
    figure.update_annotations(place, selector={"name": f"{HEAD} {number}"}, text=head)
    track.before[0] += tall
    return track


def _set_names(figure: go.Figure, page: Page, limit: float) -> dict[Axes, dict[str, Any]]:
    """The lines that are named at their ends, by panel and name; all other names get one place in the legend.

    Of panels side by side, the last that has a line of this name has the name.
    """
    layout = cast(Any, figure.layout)
    layout.annotations = [one for one in layout.annotations if one.name != LABEL]
    named = [one for one in traces_of(figure) if one.name and "showlegend" in one and (one.x is None or len(one.x))]
    lines: dict[Axes, dict[str, Any]] = {}
    for trace in named:
        if trace.type == "scatter" and "lines" in (trace.mode or "lines") and _has_numbers(trace):
            lines.setdefault(axes_of(trace), {}).setdefault(unbreak(trace.name), trace)
    names = {name for own in lines.values() for name in own}
    high = max((wrap(name, limit, SMALL * page.look.size).count("<br>") for name in names), default=0)
    fits = high < ROWS and not any("<su" in name for name in names) and all(len(own) <= MOST for own in lines.values())
    if page.legend != "lines" or not fits or len({unbreak(one.name) for one in named}) < 2:
        lines, names = {}, set[str]()
    order = [(block.row, panel.row, panel) for block in page.blocks for panel in block.panels]
    for at, (*row, panel) in enumerate(order):
        after = [lines.get(other.axes, {}) for *same, other in order[at + 1 :] if same == row]
        lines[panel.axes] = {
            name: line for name, line in lines.get(panel.axes, {}).items() if not any(name in own for own in after)
        }
    for block in page.blocks:  # names stand once in a column of panels
        above_it = set[str]()
        for panel in block.panels:
            lines[panel.axes] = {name: line for name, line in lines[panel.axes].items() if name not in above_it}
            above_it |= {*lines[panel.axes]}
    for trace in traces_of(figure):
        if "showlegend" in trace:  # plotly lists no trace without points, and calls one without a name "trace 1"
            name = unbreak(trace.name or "")
            trace.showlegend = any(trace is one for one in named) and name not in names and page.legend != "none"
            names |= {name} if trace.showlegend else set()
            trace.legendgroup = trace.legendgroup or name or None
    return lines


def _has_numbers(trace: Any) -> bool:
    """Whether a line has a point; all of those of an exponent may be missing."""
    return bool(np.isfinite(np.asarray(numbers_of(trace.y), float)).any())


def _name_ends(
    figure: go.Figure, panel: Panel, lines: dict[str, Any], tall: float, limit: float, size: float
) -> None:  # fmt: skip
    """Write the names of lines at the right of a panel that is `tall`, at the height of their ends, and apart."""
    low, high = limits_of(figure, panel.y)
    logarithmic, ends = cast(Any, figure.layout)[panel.y].type == "log", []
    for name, line in lines.items():
        values = np.asarray(numbers_of(line.y), float)
        values = values[np.isfinite(values) & (values > 0 if logarithmic else True)]
        last = (math.log10(values[-1]) if logarithmic else values[-1]) if len(values) else low
        text = wrap(name, limit, size)
        ends.append([tall * min(max((last - low) / (high - low or 1.0), 0.0), 1.0), height_of(text, size), text, line])
    ends.sort(key=lambda end: end[0])
    for lower, upper in pairwise(ends):
        upper[0] = max(upper[0], lower[0] + (lower[1] + upper[1]) / 2)
    top = max(tall, sum(end[1] for end in ends)) + size
    for end in reversed(ends):
        end[0] = min(end[0], top - end[1] / 2)
        top = end[0] - end[1] / 2
    x, y = panel.axes
    for at, _, text, line in ends:
        figure.add_annotation(
            name=LABEL, text=text, x=1, xref=f"{x} domain", xanchor="left", xshift=4, y=at / tall, yref=f"{y} domain",
            yanchor="middle", align="left", showarrow=False, font={"size": size, "color": line.line.color},
        )  # fmt: skip


def _head(title: str, notes: str, width: float, size: float, soft: str) -> tuple[str, float]:
    """The title of a block with its notes, in lines, and their height."""
    title, notes = wrap(title, width, HEADING * size), wrap(notes, width, NOTES * size)
    lines = [title] * bool(title)
    lines += [f"<span style='font-size:{NOTES * size:.4g}px;color:{soft}'>{notes}</span>"] * bool(notes)
    text = "<br>".join(lines)
    return text, height_of(text, HEADING * size)


def _bars(figure: go.Figure, panel: Panel) -> list[Any]:
    """The traces of a panel that have a colour bar."""
    here = [trace for trace in traces_of(figure) if axes_of(trace) == panel.axes]
    return [trace for trace in here if "colorbar" in trace and trace.showscale is not False]


def set_colour_bar(trace: Any, size: float) -> float:
    """Set the text of the colour bar of a trace; its width."""
    bar = trace.colorbar
    ticks = max(width_of(str(text), SMALL * size) for text in (bar.ticktext or ("−0.25",)))
    bar.update(thickness=size, tickfont={"size": SMALL * size}, outlinewidth=0, xpad=0, ypad=0)
    bar.update(title={"side": "right", "font": {"size": size}})
    return 2 * size + 8 + ticks + height_of(bar.title.text or "", size)


def set_title(figure: go.Figure, page: Page, width: float) -> float:
    """Set the title of the page and the line under it, except for their height on the page; the space they take."""
    size = page.look.size
    if not page.title:
        figure.update_layout(title=None)
        return 0.5 * size
    room = width - size - (MODE_BAR if page.theme == "notebook" else 0.0)
    text, notes = wrap(page.title, room, TITLE * size), wrap(page.notes, width - size, NOTES * size)
    # plotly aligns the top of a title that has one line, but the base line of the first of several.
    lift = 0.8 * TITLE * size if "<br>" in text else 0.0
    figure.update_layout(
        title={
            "text": text, "font": {"size": TITLE * size}, "x": 0, "xref": "container", "xanchor": "left",
            "yref": "container", "yanchor": "top", "pad": {"l": 0.5 * size, "t": lift},
            "subtitle": {"text": notes, "font": {"size": NOTES * size, "color": page.look.soft}},
        }
    )  # fmt: skip
    return 1.4 * size + 1.5 * lift + height_of(text, TITLE * size) + height_of(notes, NOTES * size)


def set_legend(figure: go.Figure, width: float, size: float) -> float:
    """Set the text of the legend, in columns of equal width; its height, which is 0 if it lists nothing."""
    traces = [one for one in traces_of(figure) if "showlegend" in one and one.showlegend and one.name]
    for trace in traces:
        trace.name = wrap(trace.name, 0.95 * width - SYMBOL, SMALL * size)
    names = [str(trace.name) for trace in traces]
    everything = {unbreak(one.name) for one in traces_of(figure) if one.name}
    if not names or len(everything) < 2:
        figure.update_layout(legend={"visible": False})
        return 0.0
    widths = [SYMBOL + 1.05 * width_of(name, SMALL * size) for name in names]
    # plotly puts all entries into one row, or into columns that are as wide as the widest.
    columns, entry, column = len(names), None, BETWEEN + max(widths)
    if sum(widths) + BETWEEN * (1 + len(names)) > width:
        columns = max(1, int((width - BETWEEN) / column))
        # So wide that one more column does not fit: texts narrower than estimated would otherwise get it.
        entry = max(column, (width + 2 * BETWEEN) / (columns + 1)) - BETWEEN - SYMBOL
    heights = [max(ENTRY, 3 + height_of(name, SMALL * size)) for name in names]
    height = sum(max(heights[at : at + columns]) for at in range(0, len(heights), columns)) + 10
    figure.update_layout(
        legend={
            "visible": True, "font": {"size": SMALL * size}, "bgcolor": "rgba(0,0,0,0)", "traceorder": "normal",
            "entrywidth": entry, "maxheight": height + ENTRY,  # else plotly scrolls a part
            "orientation": "h", "xanchor": "left", "yanchor": "top",
            "xref": "container", "yref": "container",
        }
    )  # fmt: skip
    return height
