"""Layout in pixels: space is kept for every text first, and the panels divide what is left.

From top to bottom, a page has a title, a line of notes, the legend, and blocks. A block has a title, a line of notes
and rows of panels, with a title above each panel, and ticks and an axis title below. Text that is too long is broken
into lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.page import (
    HEAD,
    HEAD_NOTES,
    PANEL_TITLE,
    Block,
    Page,
    axes_of,
    reference,
    traces_of,
)
from squashlens.figures.drawing.text import height_of, unbroken, width_of, wrapped
from squashlens.figures.drawing.themes import ASSUMED, INCH, SMALL
from squashlens.figures.drawing.ticks import set_axis

BLOCK_TITLE = 1.1  # size of the title of a block, in units of the font size
ORDINARY = 13.0  # pixels: the font size for which heights of panels are given
WORD = 7.0  # the most that a word keeps a panel from being narrower, in units of the font size
TITLE, NOTES = 1.2, 0.9  # sizes of text, in units of the font size
SYMBOL, BETWEEN, ENTRY = 40.0, 5.0, 19.0  # pixels that plotly gives a legend's symbol, the gap after it, and a line
MODE_BAR = 120.0  # pixels at the right of a title, where plotly shows its buttons in a notebook
LEAST, STRIP = 36.0, 24.0  # pixels of a panel, and of one that is meant to be thin: a quarter of the widest, or less
Spans = list[tuple[float, float]]


class NoRoomError(InputError):
    """The text of a figure leaves no room for its panels."""


@dataclass
class Track:
    """The panels of a block in one direction: weights, least sizes, the space for text around each, and all sizes."""

    place: int  # of the block on its page
    weights: Sequence[float]
    least: Sequence[float]
    before: Sequence[float]
    after: Sequence[float]
    wanted: float = 1.0


def least_sizes(weights: Sequence[float]) -> list[float]:
    """The least size of each panel, in pixels."""
    return [STRIP if weight <= max(weights) / 4 else LEAST for weight in weights]


def divided(tracks: Sequence[Track], start: float, length: float | None, side: str) -> tuple[list[Spans], float]:
    """Start and end of each panel of each block, in pixels, and the end of all, with what is after the last.

    Blocks at the same place have the same edges. Panels of a `length` share it; otherwise they have the size wanted.
    """
    groups = [[at for at, one in enumerate(tracks) if one.place == place] for place in {one.place for one in tracks}]
    gaps = [[a + b for a, b in zip(one.after[:-1], one.before[1:], strict=True)] for one in tracks]
    for group in groups:
        if len({len(gaps[at]) for at in group}) == 1:  # as many panels, which are read across: they are aligned
            widest = [max(same) for same in zip(*(gaps[at] for at in group), strict=True)]
            gaps = [widest if at in group else own for at, own in enumerate(gaps)]
    before = [max(tracks[at].before[0] for at in group) for group in groups]
    after = [max(tracks[at].after[-1] for at in group) for group in groups]
    between = [max(sum(gaps[at]) for at in group) for group in groups]
    sizes = [max(tracks[at].wanted for at in group) for group in groups]
    if length is not None:
        scale = (length - start - sum(before) - sum(after) - sum(between)) / sum(sizes)
        places = [next(n for n, group in enumerate(groups) if at in group) for at in range(len(tracks))]
        missing = max(sum(one.least) - scale * sizes[n] for one, n in zip(tracks, places, strict=True))
        if missing > 1e-6:
            needed = (length + missing * sum(sizes) / min(sizes)) / INCH
            raise NoRoomError(
                f"The text of this figure leaves no room for its panels: {side} is {length / INCH:.3g} inches.",
                f"Use {side}={needed + 0.05:.1f} or more, a smaller font_size, or fewer panels.",
            )
        sizes = [scale * one for one in sizes]
    spans: list[Spans] = [[] for _ in tracks]
    for group, first, size, inner, last in zip(groups, before, sizes, between, after, strict=True):
        start += first
        for at in group:
            edge = start
            panels = _shared(size + inner - sum(gaps[at]), tracks[at].weights, tracks[at].least)
            for panel, gap in zip(panels, [*gaps[at], 0.0], strict=True):
                spans[at].append((edge, edge + panel))
                edge += panel + gap
        start += size + inner + last
    return spans, start


def _shared(free: float, weights: Sequence[float], least: Sequence[float]) -> list[float]:
    """`free` pixels by weight; panels that would be too small have their least size, and the others share the rest."""
    fixed: set[int] = set()
    while True:
        rest = free - sum(least[at] for at in fixed)
        total = sum(weight for at, weight in enumerate(weights) if at not in fixed)
        sizes = [least[at] if at in fixed else rest * weight / total for at, weight in enumerate(weights)]
        small = {at for at, size in enumerate(sizes) if size < least[at]} - fixed
        if not small or len(small) + len(fixed) == len(weights):
            return sizes
        fixed |= small


def laid_out(figure: go.Figure) -> go.Figure:
    """Set all sizes, places and lines of text of a figure whose page is known."""
    Layout(figure).set()
    return figure


class Layout:
    """The layout of one figure: columns of panels first, then title and legends, then rows."""

    def __init__(self, figure: go.Figure) -> None:
        self.figure, self.page = figure, Page.of(figure)
        self.size = self.page.look.size
        self.pad = 0.6 * self.size
        self.width = self.page.look.width * INCH if self.page.look.width else ASSUMED
        notes: Any = figure.select_annotations({"name": PANEL_TITLE})
        self.titles = {(note.xref.split()[0], note.yref.split()[0]): note for note in notes}

    def set(self) -> None:
        """Set everything."""
        page, blocks, size = self.page, self.page.blocks, self.size
        columns = [self._columns(block) for block in blocks]
        if page.legend == "right":
            beside, _ = set_legend(self.figure, "legend", "right", self.width, size)
            _extend(columns, beside)
        across, _ = divided(columns, 0.0, self.width, "width")
        left = min(spans[0][0] for spans in across)
        right = self.width - max(spans[-1][1] for spans in across)
        title = set_title(self.figure, page, self.width)
        legends = {"legend": page.legend, "legend2": "bottom"}
        tall = {
            name: set_legend(self.figure, name, place, self.width - left - right, size)[1]
            for name, place in legends.items()
            if place != "right"
        }
        rows = [self._rows(block, spans) for block, spans in zip(blocks, across, strict=True)]
        _extend(rows, sum(height for name, height in tall.items() if legends[name] == "bottom"))
        start = title + sum(height for name, height in tall.items() if legends[name] == "top")
        down, height = divided(rows, start, page.height and page.height * INCH, "height")
        top, bottom = down[0][0][0], height - max(spans[-1][1] for spans in down)
        edge, low = 0.5 * size / self.width, 0.3 * self.pad / height
        places: dict[str, Any] = {
            "right": {"x": 1 + self.pad / (self.width - left - right), "xref": "paper", "y": 1.0, "yanchor": "top"},
            "top": {"x": edge, "xref": "container", "y": 1 - title / height, "yref": "container", "yanchor": "top"},
            "bottom": {"x": edge, "xref": "container", "y": low, "yref": "container", "yanchor": "bottom"},
            "none": {},
        }
        self.figure.update_layout(
            height=height, width=page.look.width and self.width, autosize=page.look.width is None,
            margin={"l": left, "r": right, "t": top, "b": bottom, "pad": 0},
            **{name: {"yref": "paper"} | places[place] for name, place in legends.items()},
        )  # fmt: skip
        if page.title:
            self.figure.update_layout(title_y=1 - 0.5 * size / height)
        scale = (left, self.width - left - right, top, height - top - bottom)
        for at, block in enumerate(blocks):
            self._place(at, block, across[at], down[at], scale)

    def _columns(self, block: Block) -> Track:
        """The space to the left and to the right of each column of panels, for labels and colour bars."""
        least = least_sizes(block.columns)
        before, after = [self.pad for _ in least], [self.pad for _ in least]
        tall = block.height * self.size / ORDINARY / len(block.rows)
        for x, y, _, column in block.panels:
            labels = set_axis(self.figure, y, tall, self.size, limit=0.4 * self.width)
            before[column] = max(before[column], labels + self.pad)
            for trace in self._bars(x, y):
                after[column] = max(after[column], set_colour_bar(trace, self.size) + self.pad)
            note = self.titles.get((reference(x), reference(y)))
            words = unbroken(note.text).split(" ") if note else []  # of which none should be divided
            least[column] = max(least[column], *(min(width_of(w, self.size), WORD * self.size) for w in words), 0.0)
        return Track(block.column, block.columns, least, before, after)

    def _rows(self, block: Block, across: Spans) -> Track:
        """The space above and below each row of panels, for titles and labels."""
        least = least_sizes(block.rows)
        before, after = [self.pad for _ in least], [self.pad for _ in least]
        for x, y, row, column in block.panels:
            start, end = across[column]
            note = self.titles.get((reference(x), reference(y)))
            if note is not None:
                note.update(text=wrapped(note.text, 0.93 * (end - start), self.size), font={"size": self.size})
                before[row] = max(before[row], height_of(note.text, self.size) + self.pad)
            after[row] = max(after[row], set_axis(self.figure, x, end - start, self.size) + self.pad)
        before[0] += sum(height_of(text, size) for _, text, size in self._head(block, across))
        wanted = max(block.height * self.size / ORDINARY, sum(least))
        return Track(block.row, block.rows, least, before, after, wanted)

    def _bars(self, x: str, y: str) -> list[Any]:
        """The traces of a panel that have a colour bar."""
        here = [trace for trace in traces_of(self.figure) if axes_of(trace) == (reference(x), reference(y))]
        return [trace for trace in here if "colorbar" in trace and trace.showscale is not False]

    def _head(self, block: Block, across: Spans) -> list[tuple[str, str, float]]:
        """Title and notes of a block: the annotation, lines as wide as the block, and their size."""
        texts = ((HEAD, block.title, BLOCK_TITLE * self.size), (HEAD_NOTES, block.notes, NOTES * self.size))
        wide = across[-1][1] - across[0][0]
        return [(name, wrapped(text, wide, size), size) for name, text, size in texts if text]

    def _place(
        self, at: int, block: Block, across: Spans, down: Spans, scale: tuple[float, float, float, float]
    ) -> None:
        """Write the places of panels, colour bars and the head of a block into the figure."""
        left, wide, top, tall = scale
        domains = [[_within((edge - left) / wide) for edge in span] for span in across]
        heights = [[_within(1 - (edge - top) / tall) for edge in span[::-1]] for span in down]
        layout: Any = self.figure.layout
        for x, y, row, column in block.panels:
            layout[x].domain, layout[y].domain = domains[column], heights[row]
            set_axis(self.figure, y, down[row][1] - down[row][0], self.size, limit=0.4 * self.width)
            for trace in self._bars(x, y):
                low, high = heights[row]
                trace.colorbar.update(
                    x=domains[column][1] + self.pad / wide, xanchor="left", y=high, yanchor="top", len=high - low
                )
        notes = [self.titles.get((reference(x), reference(y))) for x, y, row, _ in block.panels if row == 0]
        shift = 3 + max(height_of(one.text, self.size) if one else 0.0 for one in notes)
        for name, text, size in self._head(block, across)[::-1]:
            font = {"size": size} | ({"color": self.page.look.soft} if name == HEAD_NOTES else {})
            next(one for one in layout.annotations if one.name == f"{name} {at}").update(
                text=text, font=font, x=domains[0][0], y=heights[0][1], xref="paper", yref="paper", xanchor="left",
                yanchor="bottom", align="left", showarrow=False, yshift=shift,
            )  # fmt: skip
            shift += height_of(text, size)


def _extend(tracks: list[Track], space: float) -> None:
    """Keep space for a legend after the last blocks."""
    last = max(track.place for track in tracks)
    for track in tracks:
        if track.place == last:
            track.after = [*track.after[:-1], track.after[-1] + space]


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


def set_legend(figure: go.Figure, name: str, place: str, width: float, size: float) -> tuple[float, float]:
    """Set the text of a legend on `width` pixels; its width, and its height, which is 0 if there is no legend."""
    traces, small = _listed(figure, name), SMALL * size
    for trace in traces:
        trace.name = wrapped(trace.name, (0.3 if place == "right" else 0.95) * width - SYMBOL, small)
    texts = list(dict.fromkeys(str(trace.name) for trace in traces))
    if place == "none" or not texts or (len(texts) == 1 and all(trace.showlegend is None for trace in traces)):
        figure.update_layout({name: {"visible": False}})
        return 0.0, 0.0
    widths = [SYMBOL + 1.05 * width_of(text, small) for text in texts]
    heights = [max(ENTRY, 3 + height_of(text, small)) for text in texts]
    # plotly puts all entries into one row, or into columns that are as wide as the widest.
    columns, entry, row = len(texts), None, BETWEEN + max(widths)
    if place == "right":
        columns = 1
    elif sum(widths) + BETWEEN * (1 + len(texts)) > width:
        columns = max(1, int((width - BETWEEN) / row))
        # So wide that one more column does not fit. Texts narrower than estimated would otherwise get it, and the rows
        # that this saves would be empty.
        entry = max(row, (width + 2 * BETWEEN) / (columns + 1)) - BETWEEN - SYMBOL
    height = sum(max(heights[at : at + columns]) for at in range(0, len(heights), columns)) + 2 * BETWEEN
    legend: Any = {
        "visible": True, "font": {"size": small}, "bgcolor": "rgba(0,0,0,0)", "entrywidth": entry,
        "traceorder": "normal",  # otherwise plotly has gaps between groups, which are not in the height
        "maxheight": height + ENTRY,  # otherwise it is half the page, and the rest is scrolled
        "orientation": "v" if place == "right" else "h",
    }  # fmt: skip
    figure.update_layout({name: legend})
    return max(widths) + size, height


def list_once(figure: go.Figure) -> None:
    """Give each name one place in its legend, which stands for all traces with this name."""
    seen: set[tuple[str, str]] = set()
    for trace in traces_of(figure):
        if "showlegend" not in trace or trace.showlegend is False:
            continue
        key = (trace.legend or "legend", unbroken(trace.name or ""))
        # Plotly lists no trace without points, and calls one without a name "trace 1".
        if not trace.name or key in seen or (trace.x is not None and not len(trace.x)):
            trace.showlegend = False
        else:
            seen.add(key)
        trace.legendgroup = trace.legendgroup or key[1] or None


def _listed(figure: go.Figure, name: str) -> list[Any]:
    """The traces that a legend lists."""
    kinds = [one for one in traces_of(figure) if "showlegend" in one and one.type not in ("heatmap", "table")]
    return [t for t in kinds if t.name and t.showlegend is not False and (t.legend or "legend") == name]
