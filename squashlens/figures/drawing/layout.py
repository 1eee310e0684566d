"""Layout in pixels: space is kept for every text first, and the panels divide what is left.

From top to bottom, a page has a title, a line of notes, the legend, and blocks. A block has a title, a line of notes
and rows of panels, with a title above each panel, and ticks and an axis title below. Text that is too long is broken
into lines.
"""

from typing import Any

import plotly.graph_objects as go

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
from squashlens.figures.drawing.parts import NOTES, set_colour_bar, set_legend, set_title
from squashlens.figures.drawing.space import Spans, Track, divided, least_sizes
from squashlens.figures.drawing.text import height_of, unbroken, width_of, wrapped
from squashlens.figures.drawing.themes import ASSUMED, INCH
from squashlens.figures.drawing.ticks import set_axis

BLOCK_TITLE = 1.1  # size of the title of a block, in units of the font size
ORDINARY = 13.0  # pixels: the font size for which heights of panels are given
WORD = 7.0  # the most that a word keeps a panel from being narrower, in units of the font size


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
