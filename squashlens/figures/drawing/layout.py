"""Layout in pixels: space is kept for every text first, and the panels divide what is left.

From top to bottom, a page has a title, a line of notes, a legend for all panels, and blocks. A block has a title, a
line of notes and rows of panels, with a title and perhaps a legend above each panel, and ticks and an axis title below.
Text that is too long is broken into lines. Plotly's own margins and domains know nothing of the text between panels.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.axes import set_axis
from squashlens.figures.drawing.page_blocks import (
    HEAD,
    HEAD_NOTES,
    PANEL_TITLE,
    Block,
    Page,
    Panel,
    above,
    axes_of,
    legends_of,
    traces_of,
)
from squashlens.figures.drawing.text import height_of, unbreak, width_of, wrap
from squashlens.figures.drawing.themes import ASSUMED, INCH, SMALL

ORDINARY = 13.0  # pixels: the font size for which heights of panels are given
TITLE, HEADING, NOTES = 1.2, 1.1, 0.9  # sizes of text, in units of the font size
WORD = 7.0  # the most that a word keeps a panel from being narrower, in units of the font size
SYMBOL, BETWEEN, ENTRY = 40.0, 5.0, 19.0  # pixels that plotly gives a legend's symbol, the gap after it, and a line
MODE_BAR = 120.0  # pixels at the right of a title, where plotly shows its buttons in a notebook
LEAST, STRIP = 36.0, 24.0  # pixels of a panel, and of one that is meant to be thin: a quarter of the widest, or less
Span = tuple[float, float]


class NoRoomError(InputError):
    """The text of a figure leaves no room for its panels."""


@dataclass
class Track:
    """The panels of a block in one direction: weights, least sizes, the space for text around each, and all sizes."""

    place: int  # of the block on its page
    weights: Sequence[float]
    least: list[float]
    before: list[float]
    after: list[float]
    wanted: float = 1.0

    @property
    def gaps(self) -> list[float]:
        """The space between neighbours, and none after the last."""
        return [*(a + b for a, b in zip(self.after, self.before[1:], strict=False)), 0.0]


def divide(tracks: Sequence[Track], start: float, length: float | None, side: str) -> tuple[list[list[Span]], float]:
    """Start and end of each panel of each block, in pixels, and the end of all, with what is after the last.

    Blocks at the same place have the same edges, and panels too if there are as many: they are read across. Panels of
    a `length` share it; otherwise they have the size wanted.
    """
    groups = [[one for one in tracks if one.place == place] for place in sorted({one.place for one in tracks})]
    for group in groups:
        _align(group)
    before = [max(one.before[0] for one in group) for group in groups]
    after = [max(one.after[-1] for one in group) for group in groups]
    inner = [max(sum(one.gaps) for one in group) for group in groups]
    sizes = [max(one.wanted for one in group) for group in groups]
    if length is not None:
        scale = (length - start - sum(before) - sum(after) - sum(inner)) / sum(sizes)
        sizes = [scale * size for size in sizes]
    spans: dict[int, list[Span]] = {}
    missing = 0.0
    for at, group in enumerate(groups):
        start += before[at]
        for one in group:
            free, edge, spans[id(one)] = sizes[at] + inner[at] - sum(one.gaps), start, []
            missing = max(missing, (sum(one.least) - free) * sum(sizes) / sizes[at])
            for panel, gap in zip(_share(free, one.weights, one.least), one.gaps, strict=True):
                spans[id(one)].append((edge, edge + panel))
                edge += panel + gap
        start += sizes[at] + inner[at] + after[at]
    if missing > 1e-6 and length is not None:
        raise NoRoomError(
            f"The text of this figure leaves no room for its panels: {side} is {length / INCH:.3g} inches.",
            f"Use {side}={(length + missing) / INCH + 0.05:.1f} or more, a smaller font_size, or fewer panels.",
        )
    return [spans[id(one)] for one in tracks], start


def _share(free: float, weights: Sequence[float], least: Sequence[float]) -> list[float]:
    """`free` pixels by weight; panels that would be too small have their least size, and the others share the rest."""
    sizes = [free * weight / sum(weights) for weight in weights]
    small = {at: least[at] for at, size in enumerate(sizes) if size < least[at]}
    if not small or len(small) == len(sizes):
        return sizes
    others = [at for at in range(len(sizes)) if at not in small]
    rest = _share(free - sum(small.values()), [weights[at] for at in others], [least[at] for at in others])
    return [size for _, size in sorted([*small.items(), *zip(others, rest, strict=True)])]


def _least(weights: Sequence[float]) -> list[float]:
    """The least size of each panel, in pixels."""
    return [STRIP if weight <= max(weights) / 4 else LEAST for weight in weights]


def _align(group: Sequence[Track]) -> None:
    """Give blocks with as many panels the same space around each."""
    for count in {len(one.weights) for one in group}:
        alike = [one for one in group if len(one.weights) == count]
        for side in ("before", "after"):
            most = [max(same) for same in zip(*(getattr(one, side) for one in alike), strict=True)]
            for one in alike:
                setattr(one, side, most)


def lay_out(figure: go.Figure) -> go.Figure:
    """Set all sizes, places and lines of text of a figure whose page is known."""
    _Layout(figure).set()
    return figure


class _Layout:
    """The layout of one figure: columns of panels first, then title and legends, then rows."""

    def __init__(self, figure: go.Figure) -> None:
        self.figure, self.page = figure, Page.of(figure)
        self.size = self.page.look.size
        self.pad = 0.6 * self.size
        self.width = self.page.look.width * INCH if self.page.look.width else ASSUMED
        notes: Any = figure.select_annotations({"name": PANEL_TITLE})
        self.titles = {(note.xref.split()[0], note.yref.split()[0]): note for note in notes}
        self.shared, self.legends = legends_of(figure, self.page)
        self.above = defaultdict[tuple[int, int], float](float)  # height of legends, by row of blocks and of panels

    def set(self) -> None:
        """Set everything."""
        page, blocks, shared = self.page, self.page.blocks, self.shared
        if page.legend == "none":
            self.figure.update_layout({name: {"visible": False} for name in (*self.legends.values(), shared) if name})
            self.legends, shared = {}, ""
        columns = [self._columns(block) for block in blocks]
        if shared and page.legend == "right":
            last = max(track.place for track in columns)
            width = set_legend(self.figure, shared, 0.3 * self.width, self.size, "v")[0]
            for track in (track for track in columns if track.place == last):
                track.after[-1] += width
        across, _ = divide(columns, 0.0, self.width, "width")
        left = min(spans[0][0] for spans in across)
        wide = max(spans[-1][1] for spans in across) - left
        title, over = set_title(self.figure, page, self.width), 0.0
        if shared and page.legend == "top":
            over = set_legend(self.figure, shared, wide, self.size)[1]
        for block, spans in zip(blocks, across, strict=True):
            self._set_legends(block, spans, wide)
        rows = [self._rows(at, block, spans) for at, (block, spans) in enumerate(zip(blocks, across, strict=True))]
        down, height = divide(rows, title + over, page.height and page.height * INCH, "height")
        top = down[0][0][0]
        deep = max(spans[-1][1] for spans in down) - top
        self.figure.update_layout(
            height=height, width=page.look.width and self.width, autosize=page.look.width is None,
            margin={"l": left, "r": self.width - left - wide, "t": top, "b": height - top - deep, "pad": 0},
        )  # fmt: skip
        if shared and page.legend == "top":
            place = {"x": 0.5 * self.size / self.width, "xref": "container", "y": 1 - title / height}
            self.figure.update_layout({shared: place | {"yref": "container", "yanchor": "top"}})
        elif shared and page.legend == "right":
            self.figure.update_layout({shared: {"x": 1 + self.pad / wide, "xref": "paper", "y": 1.0, "yref": "paper"}})
        if page.title:
            self.figure.update_layout(title_y=1 - 0.5 * self.size / height)
        for at, block in enumerate(blocks):
            domains = [(_within((x - left) / wide), _within((end - left) / wide)) for x, end in across[at]]
            heights = [(_within(1 - (end - top) / deep), _within(1 - (y - top) / deep)) for y, end in down[at]]
            self._place(block, domains, heights, wide, deep)

    def _columns(self, block: Block) -> Track:
        """The space to the left and to the right of each column of panels, for labels and colour bars."""
        least = _least(block.columns)
        before, after = [self.pad for _ in least], [self.pad for _ in least]
        tall = block.height * self.size / ORDINARY / len(block.rows)
        for panel in block.panels:
            at = panel.column
            labels = set_axis(self.figure, panel.y, tall, self.size, limit=0.4 * self.width)
            before[at] = max(before[at], labels + self.pad)
            beside = [set_colour_bar(trace, self.size) for trace in self._bars(panel)]
            if panel.axes in self.legends and self.page.legend == "right":
                beside += set_legend(self.figure, self.legends[panel.axes], 0.3 * self.width, self.size, "v")[:1]
            after[at] = max(after[at], *(wide + self.pad for wide in beside), 0.0)
            note = self.titles.get(panel.axes)
            words = unbreak(note.text).split(" ") if note else []  # of which none should be divided
            least[at] = max(least[at], *(min(width_of(w, self.size), WORD * self.size) for w in words), 0.0)
        return Track(block.column, block.columns, least, before, after)

    def _set_legends(self, block: Block, across: Sequence[Span], wide: float) -> None:
        """Set the legends above panels of a block. One that explains all panels of its row is as wide as these."""
        for panel in block.panels if self.page.legend == "top" else ():
            name = self.legends.get(panel.axes)
            if name is None:
                continue
            axes = {axes_of(trace) for trace in traces_of(self.figure) if getattr(trace, "legend", None) == name}
            ends = [across[one.column][1] for one in block.panels if one.row == panel.row and one.axes in axes]
            width = max(ends) - across[panel.column][0]
            # Plotly fills rows up to the width of the page, and not of a panel.
            kind = "h" if width > 0.99 * wide else "row"
            height = set_legend(self.figure, name, width, self.size, kind)[1]
            self.above[block.row, panel.row] = max(height, self.above[block.row, panel.row])

    def _rows(self, number: int, block: Block, across: Sequence[Span]) -> Track:
        """The space above and below each row of panels, for titles and labels; the title and notes of the block."""
        least = _least(block.rows)
        before, after = [self.pad for _ in least], [self.pad for _ in least]
        for panel in block.panels:
            at, (start, end) = panel.row, across[panel.column]
            tall, note = self.above[block.row, at], self.titles.get(panel.axes)
            if note is not None:
                text = wrap(note.text, 0.93 * (end - start), self.size)
                note.update(text=text, font={"size": self.size}, yshift=3 + tall)
                tall += height_of(text, self.size)
            before[at] = max(before[at], tall + self.pad)
            after[at] = max(after[at], set_axis(self.figure, panel.x, end - start, self.size) + self.pad)
        heads = ((HEAD_NOTES, block.notes, NOTES, {"color": self.page.look.soft}), (HEAD, block.title, HEADING, {}))
        for name, text, factor, colour in heads if block.title or block.notes else ():
            size = factor * self.size
            lines = wrap(text, across[-1][1] - across[0][0], size)
            self.figure.update_annotations(
                above(block.panels[0]), selector={"name": f"{name} {number}"}, text=lines, font={"size": size} | colour,
                yshift=3 + before[0] - self.pad,
            )  # fmt: skip
            before[0] += height_of(lines, size)
        return Track(block.row, block.rows, least, before, after, max(block.height * self.size / ORDINARY, sum(least)))

    def _bars(self, panel: Panel) -> list[Any]:
        """The traces of a panel that have a colour bar."""
        here = [trace for trace in traces_of(self.figure) if axes_of(trace) == panel.axes]
        return [trace for trace in here if "colorbar" in trace and trace.showscale is not False]

    def _place(self, block: Block, domains: Sequence[Span], heights: Sequence[Span], wide: float, deep: float) -> None:
        """Write the places of panels and colour bars, which are shares of the page, into the figure."""
        layout: Any = self.figure.layout
        for panel in block.panels:
            low, high = layout[panel.y].domain = heights[panel.row]
            start, end = layout[panel.x].domain = domains[panel.column]
            set_axis(self.figure, panel.y, (high - low) * deep, self.size, limit=0.4 * self.width)
            place = {"x": end + self.pad / wide, "xanchor": "left", "y": high, "yanchor": "top"}
            for trace in self._bars(panel):
                trace.colorbar.update(place, len=high - low)
            if self.page.legend == "top":
                place |= {"x": start, "yanchor": "bottom"}
            if panel.axes in self.legends:
                layout[self.legends[panel.axes]].update(place, xref="paper", yref="paper")


def _within(share: float) -> float:
    """A share of the page that rounding errors have not moved out of it."""
    return min(max(share, 0.0), 1.0)


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
    return size + 1.5 * lift + height_of(text, TITLE * size) + height_of(notes, NOTES * size)


def set_legend(figure: go.Figure, name: str, width: float, size: float, kind: str = "h") -> tuple[float, float]:
    """Set the text of a legend on `width` pixels; its width, and its height, which is 0 if there is no legend.

    Its entries are side by side (`kind` "h"), below each other ("v"), or below each other unless one row fits ("row").
    """
    kinds = [one for one in traces_of(figure) if "showlegend" in one and one.type not in ("heatmap", "table")]
    traces = [t for t in kinds if t.name and t.showlegend is not False and (t.legend or "legend") == name]
    small = SMALL * size
    for trace in traces:
        trace.name = wrap(trace.name, max(0.95 * width - SYMBOL, WORD * size), small)
    texts = list(dict.fromkeys(str(trace.name) for trace in traces))
    if not texts or (len(texts) == 1 and all(trace.showlegend is None for trace in traces)):
        figure.update_layout({name: {"visible": False}})
        return 0.0, 0.0
    widths = [SYMBOL + 1.05 * width_of(text, small) for text in texts]
    heights = [max(ENTRY, 3 + height_of(text, small)) for text in texts]
    # plotly puts all entries into one row, or into columns that are as wide as the widest.
    columns, entry, column = len(texts), None, BETWEEN + max(widths)
    fits = sum(widths) + BETWEEN * (1 + len(texts)) <= width
    if kind == "v" or (kind == "row" and not fits):
        columns = 1
    elif not fits:
        columns = max(1, int((width - BETWEEN) / column))
        # So wide that one more column does not fit. Texts narrower than estimated would otherwise get it, and the rows
        # that this saves would be empty.
        entry = max(column, (width + 2 * BETWEEN) / (columns + 1)) - BETWEEN - SYMBOL
    height = sum(max(heights[at : at + columns]) for at in range(0, len(heights), columns)) + 2 * BETWEEN
    legend: Any = {
        "visible": True, "font": {"size": small}, "bgcolor": "rgba(0,0,0,0)", "entrywidth": entry,
        "traceorder": "normal",  # otherwise plotly has gaps between groups, which are not in the height
        "maxheight": height + ENTRY,  # otherwise it is half the page, and the rest is scrolled
        "orientation": "v" if columns == 1 and kind != "h" else "h", "xanchor": "left", "yanchor": "top",
    }  # fmt: skip
    figure.update_layout({name: legend})
    return max(widths) + size, height
