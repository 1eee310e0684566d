"""Layout in pixels: text has its space first, and the panels divide what is left.

A page has a title with a sentence and notes, a legend of what is not named at the ends of lines, and panels in a grid,
with fewer side by side on a narrow page. Plotly knows nothing of the text between panels, and breaks no lines.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.axes import limits_of, numbers_of, set_axis
from squashlens.figures.drawing.page_blocks import (
    Axes,
    Page,
    Panel,
    axes_of,
    group_of,
    traces_of,
)
from squashlens.figures.drawing.text import height_of, unbreak, width_of, wrap
from squashlens.figures.drawing.themes import ASSUMED, INCH, SMALL, Theme

ORDINARY = 13.0  # pixels: the font size for which heights of panels are given
TITLE, NOTES = 1.2, 0.9  # sizes of text, in units of the font size
SYMBOL, ENTRY = (
    45.0,
    19.0,
)  # pixels that plotly gives a legend's symbol with its gap, and a line of the legend
MODE_BAR = 120.0  # pixels at the right of a title, where plotly shows its buttons in a notebook
WIDE = (
    17.0  # the width that a column of panels with its text should have, in font sizes
)
LOW = 24.0  # pixels of the lowest panel
SHEET = 9.0  # inches of a journal's page, which are the height of a figure at most where its panels allow it
SLIDE = 0.6  # of the height of a slide, for its panels
CROWDED, SMALLEST = (
    0.55,
    0.5,
)  # share of their height that panels keep on paper and slides, and of the font size
MOST, ROWS = (
    6,
    3,
)  # lines of a panel that are named at their ends, and lines of text of a name
OWN = ("line", "panel title")  # names of annotations that are written anew
Ends = dict[
    Axes, dict[str, Any]
]  # lines that are named at their ends, by panel and name


@dataclass
class Cell:
    """A panel at its place in the grid; the last of a short block has several rows."""

    panel: Panel
    column: int
    row: int
    last: int


def lay_out(figure: go.Figure) -> go.Figure:
    """Set all sizes, places and lines of text of a figure whose page is known."""
    page, layout = Page.of(figure), cast(Any, figure.layout)
    look, size, pad = page.look, page.look.size, 0.6 * page.look.size
    width = look.width * INCH if look.width else ASSUMED
    figure.update_layout(template=look.template, paper_bgcolor=look.paper)
    layout.annotations = [note for note in layout.annotations if note.name not in OWN]
    cells = _grid(page, width)
    limit = max(0.2 * width, 7 * size)  # pixels of a name at the end of a line
    ends = _set_names(figure, cells, limit, size)
    _label_outer_axes(figure, cells)
    before, after = ([pad] * (1 + max(cell.column for cell in cells)) for _ in range(2))
    for cell in cells:
        tall = cell.panel.height * size / ORDINARY
        beside = [
            width_of(wrap(name, limit, SMALL * size), SMALL * size)
            for name in ends.get(cell.panel.axes, ())
        ]
        beside += [
            _set_colour_bar(trace, tall, size) for trace in _bars(figure, cell.panel)
        ]
        space = set_axis(figure, cell.panel.y, tall, size, limit=0.4 * width)
        before[cell.column] = max(before[cell.column], space + pad)
        after[cell.column] = max(
            after[cell.column], *(pad + wide for wide in beside), 0.0
        )
    wide = max(width - sum(before) - sum(after), LOW) / len(before)
    start = _set_title(figure, page, width)
    start += _set_legend(
        figure, width - before[0] - after[-1], size, start
    )  # plotly's own limit
    edges = [
        before[at] + at * wide + sum(before[:at]) + sum(after[:at])
        for at in range(len(before))
    ]
    tops, bases, height = _rows(figure, page, cells, wide, after, start)
    if (
        page.height is None
        and look.shape
        and height > width * look.shape + 1
        and page.fit > SMALLEST
    ):
        replace(page, fit=0.9 * page.fit).keep(figure)
        return lay_out(figure)
    right, top, deep = edges[-1] + wide, min(tops), max(bases) - min(tops)
    figure.update_layout(
        height=round(height, 3),
        width=look.width and width,
        autosize=look.width is None,
        margin={
            "l": edges[0],
            "r": width - right,
            "t": top,
            "b": height - top - deep,
            "pad": 0,
        },
        title={"y": 1 - 0.5 * size / height} if page.title else None,
    )
    layout.legend.y = 1 - (layout.legend.y or 0.0) / height
    for cell in cells:
        x, y, base = edges[cell.column], tops[cell.row], bases[cell.last]
        across = (
            (x - edges[0]) / (right - edges[0]),
            (x + wide - edges[0]) / (right - edges[0]),
        )
        down = (1 - (base - top) / deep, 1 - (y - top) / deep)
        for axis, domain in ((cell.panel.x, across), (cell.panel.y, down)):
            layout[axis].domain = [min(max(end, 0.0), 1.0) for end in domain]
        set_axis(figure, cell.panel.y, base - y, size, limit=0.4 * width)
        for trace in _bars(figure, cell.panel):
            place = {
                "x": across[1] + pad / (right - edges[0]),
                "y": down[1],
                "len": down[1] - down[0],
            }
            trace.colorbar.update(place, xanchor="left", yanchor="top")
        _name_ends(
            figure, cell.panel, ends.get(cell.panel.axes, {}), base - y, limit, look
        )
    return figure


def _grid(page: Page, width: float) -> list[Cell]:
    """The place of each panel, with as many blocks side by side as the width allows, or the height of a slide asks."""
    size = page.look.size
    fit = max(1, int(width // (WIDE * size)))
    across, slide = min(page.columns, fit), page.look.shape
    if slide and page.columns > 1:
        tall = sum(panel.height for panel in page.panels) * size / ORDINARY
        across = min(
            fit,
            len(page.blocks),
            max(across, math.ceil(tall / (SLIDE * slide * width))),
        )
    if 1 < across != page.columns and len(page.blocks) == across + 1:
        across -= 1  # so that no panel is alone in the last row
    cells, first = list[Cell](), 0
    for start in range(0, len(page.blocks), across):
        row = page.blocks[start : start + across]
        deep = max(map(len, row))
        for column, block in enumerate(row):
            ends = [*range(first, first + len(block) - 1), first + deep - 1]
            cells += [
                Cell(panel, column, first + at, ends[at])
                for at, panel in enumerate(block)
            ]
        first += deep
    return cells


def _label_outer_axes(figure: go.Figure, cells: Sequence[Cell]) -> None:
    """Of axes with one range, label those at the left or at the bottom."""
    layout = cast(Any, figure.layout)
    for side in ("x", "y"):
        here = {getattr(cell.panel, side): cell for cell in cells}
        for group in {tuple(group_of(figure, name)) for name in here}:
            text = next(
                (layout[name].title.text for name in group if layout[name].title.text),
                None,
            )
            for name in group if len(group) > 1 else ():
                own, others = here[name], [here[other] for other in group]
                below = any(
                    other.column == own.column and other.row > own.row
                    for other in others
                )
                left = any(
                    other.row == own.row and other.column < own.column
                    for other in others
                )
                inner = below if side == "x" else left
                layout[name].update(
                    showticklabels=not inner, title={"text": "" if inner else text}
                )


def _rows(
    figure: go.Figure,
    page: Page,
    cells: Sequence[Cell],
    wide: float,
    after: Sequence[float],
    start: float,
) -> tuple[list[float], list[float], float]:
    """Where the panels of each row start and end, in pixels from the top, and the height of all with their text."""
    size, pad = page.look.size, 0.6 * page.look.size
    count = 1 + max(cell.last for cell in cells)
    above, below, tall = [pad] * count, [pad] * count, [0.0] * count
    for cell in cells:
        text, space = _head(cell.panel, wide + 0.7 * after[cell.column], page.look)
        if text:
            x, y = cell.panel.axes
            figure.add_annotation(
                name=OWN[1],
                text=text,
                x=0,
                xref=f"{x} domain",
                xanchor="left",
                y=1,
                yref=f"{y} domain",
                yshift=3,
                yanchor="bottom",
                align="left",
                showarrow=False,
            )
        above[cell.row] = max(above[cell.row], space + pad)
        below[cell.last] = max(
            below[cell.last], set_axis(figure, cell.panel.x, wide, size) + pad
        )
        share = cell.panel.height * size / ORDINARY / (1 + cell.last - cell.row)
        tall[cell.row : cell.last + 1] = [
            max(own, share) for own in tall[cell.row : cell.last + 1]
        ]
    text = start + sum(above) + sum(below)
    rows = any(
        cast(Any, figure.layout)[cell.panel.y].ticktext for cell in cells
    )  # of text, which need their height
    sheet = SHEET if page.theme == "paper" and not rows else 0.0
    if (
        high := page.height
        or sheet
        or (page.look.width or 0.0) * (page.look.shape or 0.0)
    ):
        factor = (high * INCH - text) / sum(tall)
        factor = (
            factor
            if page.height
            else max(min(factor, 1.0) if sheet else factor, CROWDED)
        )
        if factor * min(tall) < LOW and page.height:
            enough = (text + sum(tall) * LOW / min(tall)) / INCH + 0.05
            raise InputError(
                f"The text of this figure leaves no room for its panels: height is {page.height:.3g} inches.",
                f"Use height={enough:.1f} or more, or a smaller font_size.",
            )
        tall = [factor * own for own in tall]
    tops, bases = list[float](), list[float]()
    for up, own, down in zip(above, tall, below, strict=True):
        tops.append(start + up)
        bases.append(tops[-1] + own)
        start = bases[-1] + down
    return tops, bases, start


def _head(panel: Panel, width: float, look: Theme) -> tuple[str, float]:
    """What stands above a panel, in lines, and its height."""
    head = f"<b>{wrap(panel.head, 0.95 * width, look.size)}</b>" if panel.head else ""
    notes = wrap(panel.notes, width, NOTES * look.size)
    notes = (
        f"<span style='font-size:{NOTES * look.size:.4g}px;color:{look.soft}'>{notes}</span>"
        if notes
        else ""
    )
    text = "<br>".join(filter(None, [head, notes, wrap(panel.title, width, look.size)]))
    return text, height_of(text, look.size)


def _set_names(
    figure: go.Figure, cells: Sequence[Cell], limit: float, size: float
) -> Ends:
    """The lines that are named at their ends, each name once; all other names are for the legend.

    Of panels side by side, the last that has a line of this name has the name.
    """
    named = [
        one
        for one in traces_of(figure)
        if one.name and "showlegend" in one and (one.x is None or len(one.x))
    ]
    lines: Ends = {}
    for trace in named:
        if (
            trace.type == "scatter"
            and "lines" in (trace.mode or "lines")
            and _end(trace, False) is not None
        ):
            lines.setdefault(axes_of(trace), {}).setdefault(unbreak(trace.name), trace)
    names = {name for own in lines.values() for name in own}
    high = max(
        (wrap(name, limit, SMALL * size).count("<br>") for name in names), default=0
    )
    if (
        high >= ROWS
        or any(len(own) > MOST for own in lines.values())
        or len({unbreak(t.name) for t in named}) < 2
    ):
        names = set[str]()
    found: Ends = {}
    for cell in sorted(cells, key=lambda cell: (cell.row, -cell.column)):
        own = lines.get(cell.panel.axes, {})
        told = {name for others in found.values() for name in others}
        found[cell.panel.axes] = {
            name: own[name] for name in own if name in names - told
        }
    for trace in traces_of(figure):
        if (
            "showlegend" in trace
        ):  # plotly lists no trace without points, and calls one without a name "trace 1"
            name = unbreak(trace.name or "")
            trace.showlegend = any(trace is one for one in named) and name not in names
            names |= {name} if trace.showlegend else set()
            trace.legendgroup = trace.legendgroup or name or None
    return found


def _end(line: Any, logarithmic: bool) -> float | None:
    """The last value of a line on its scale, if it has one; all of those of an exponent may be missing."""
    values = np.asarray(numbers_of(line.y), float)
    values = values[np.isfinite(values) & (values > 0 if logarithmic else True)]
    return (
        float(np.log10(values[-1]) if logarithmic else values[-1])
        if len(values)
        else None
    )


def _name_ends(
    figure: go.Figure,
    panel: Panel,
    lines: dict[str, Any],
    tall: float,
    limit: float,
    look: Theme,
) -> None:
    """Write the names of lines at the right of a panel that is `tall`, at the height of their ends, and apart."""
    size = SMALL * look.size
    low, high = limits_of(figure, panel.y)
    logarithmic, ends = cast(Any, figure.layout)[panel.y].type == "log", []
    for name, line in lines.items():
        last = _end(line, logarithmic)
        text = wrap(name, limit, size)
        share = ((low if last is None else last) - low) / (high - low or 1.0)
        ends.append(
            [tall * min(max(share, 0.0), 1.0), height_of(text, size), text, line]
        )
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
            name=OWN[0],
            text=text,
            x=1,
            xref=f"{x} domain",
            xanchor="left",
            xshift=4,
            y=at / tall,
            yref=f"{y} domain",
            yanchor="middle",
            align="left",
            showarrow=False,
            font={"size": size, "color": look.legible(line.line.color)},
        )


def _bars(figure: go.Figure, panel: Panel) -> list[Any]:
    """The traces of a panel that have a colour bar."""
    here = [trace for trace in traces_of(figure) if axes_of(trace) == panel.axes]
    return [
        trace for trace in here if "colorbar" in trace and trace.showscale is not False
    ]


def _set_colour_bar(trace: Any, tall: float, size: float) -> float:
    """Set the text of the colour bar of a trace, which is `tall` pixels long; its width."""
    bar = trace.colorbar
    ticks = max(
        width_of(str(text), SMALL * size) for text in (bar.ticktext or ("−0.25",))
    )
    bar.update(
        thickness=size, tickfont={"size": SMALL * size}, outlinewidth=0, xpad=0, ypad=0
    )
    bar.update(
        title={
            "side": "right",
            "font": {"size": size},
            "text": wrap(bar.title.text or "", tall, size),
        }
    )
    return 2 * size + 8 + ticks + height_of(bar.title.text, size)


def _set_title(figure: go.Figure, page: Page, width: float) -> float:
    """Set the title of the page with its sentence and notes, except for their height; the space they take."""
    size = page.look.size
    if not page.title:
        figure.update_layout(title=None)
        return 0.5 * size
    text = wrap(
        page.title,
        width - size - (MODE_BAR if page.theme == "notebook" else 0.0),
        TITLE * size,
    )
    says, notes = (
        wrap(page.says, width - size, size),
        wrap(page.notes, width - size, NOTES * size),
    )
    small = (
        f"<span style='font-size:{NOTES * size:.4g}px;color:{page.look.soft}'>{notes}</span>"
        if notes
        else ""
    )
    under = "<br>".join(filter(None, [says, small]))
    # plotly aligns the top of a title that has one line, but the base line of the first of several.
    lift = 0.8 * TITLE * size if "<br>" in text else 0.0
    figure.update_layout(
        title={
            "text": text,
            "font": {"size": TITLE * size},
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "yref": "container",
            "yanchor": "top",
            "pad": {"l": 0.5 * size, "t": lift},
            "subtitle": {"text": under, "font": {"size": size}},
        }
    )
    return (
        1.4 * size + 1.5 * lift + height_of(text, TITLE * size) + height_of(under, size)
    )


def _set_legend(figure: go.Figure, width: float, size: float, start: float) -> float:
    """Set the legend, in one row or with a row for each name; its height, which is 0 if it lists nothing."""
    traces = [
        one
        for one in traces_of(figure)
        if "showlegend" in one and one.showlegend and one.name
    ]
    for trace in traces:
        trace.name = wrap(trace.name, 0.95 * width - SYMBOL, SMALL * size)
    names = [str(trace.name) for trace in traces]
    if (
        not names
        or len({unbreak(one.name) for one in traces_of(figure) if one.name}) < 2
    ):
        figure.update_layout(legend={"visible": False, "y": None})
        return 0.0
    across = (
        sum(SYMBOL + 1.1 * width_of(name, SMALL * size) for name in names)
        < 0.95 * width
    )
    heights = [max(ENTRY, 3 + height_of(name, SMALL * size)) for name in names]
    height = max(heights) if across else sum(heights)
    figure.update_layout(
        legend={
            "visible": True,
            "font": {"size": SMALL * size},
            "orientation": "h",
            "x": 0,
            "y": start,
            "entrywidth": None if across else width - SYMBOL,
            "xref": "container",
            "yref": "container",
            "xanchor": "left",
            "yanchor": "top",
            "traceorder": "normal",
            "bgcolor": "rgba(0,0,0,0)",
            "maxheight": height + ENTRY,  # else plotly scrolls a part
        }
    )
    return height + 0.5 * size
