"""Layout in pixels: space is kept for every text first, and the panels divide what is left.

From top to bottom, a page has a title, a line of notes, the legend, and blocks. A block has a title, a line of notes
and rows of panels, with a title above each panel, and ticks and an axis title below. Text that is too long is broken
into lines.
"""

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.layouts import parts
from squashlens.figures.drawing.layouts.page import BLOCK_NOTES, BLOCK_TITLE, Block, Page
from squashlens.figures.drawing.layouts.space import groups_of, least_sizes, shared, within
from squashlens.figures.drawing.layouts.ticks import overhang
from squashlens.figures.drawing.text import height_of, wrapped
from squashlens.figures.drawing.themes import ASSUMED, INCH

HEAD = 1.1  # size of the title of a block, in units of the font size
ORDINARY = 13.0  # pixels: the font size for which heights of panels are given
Spans = list[tuple[float, float]]


class NoRoomError(InputError):
    """The text of a figure leaves no room for its panels."""


class Layout:
    """The layout of one figure. Each step needs the ones before it: columns, then title and legends, then rows."""

    def __init__(self, figure: go.Figure) -> None:
        self.figure, self.page = figure, Page.of(figure)
        self.size = self.page.look.size
        self.pad = 0.6 * self.size
        self.width = self.page.look.width * INCH if self.page.look.width else ASSUMED
        self.blocks = self.page.blocks

    def set(self) -> go.Figure:
        """Set all sizes, places and lines of text of the figure."""
        self._columns()
        for at, block in enumerate(self.blocks):
            for x, y, _, column in block.panels:
                start, end = self.across[at][column]
                parts.set_marks(self.figure, self.page.marks, x, y, end - start)
        room = self.width - self.left - self.right  # plotly breaks a legend into rows at the width of the panels
        legends = [
            parts.set_legend(self.figure, name, place, room, self.size)
            for name, place in (("legend", self.page.legend), ("legend2", "bottom"))
        ]
        title = parts.set_title(self.figure, self.page, self.width)
        top = title + sum(one.height for one in legends if one.place == "top")
        self._rows(top, sum(one.height for one in legends if one.place == "bottom"))
        self._place(title, legends)
        self.page.keep(self.figure)
        return self.figure

    def _columns(self) -> None:
        """Left and right edges of all panels in pixels. Blocks of one column have the same edges."""
        sides = [self._sides(block) for block in self.blocks]
        groups = groups_of(block.column for block in self.blocks)
        left = [max(sides[at][0][0] for at in group) for group in groups]
        right = [max(sides[at][1][-1] for at in group) for group in groups]
        if self.page.legend == "right":
            right[-1] += parts.set_legend(self.figure, "legend", "right", self.width, self.size).width
        free = (self.width - sum(left) - sum(right)) / len(groups)
        self.across: dict[int, Spans] = {}
        start = 0.0
        for group, before, after in zip(groups, left, right, strict=True):
            for at in group:
                lefts, rights = sides[at]
                gaps = [a + b for a, b in zip(rights[:-1], lefts[1:], strict=True)]
                block = self.blocks[at]
                least = least_sizes(block.columns)
                for x, y, _, column in block.panels:
                    least[column] = max(least[column], parts.longest_word(self.figure, x, y, self.size))
                self.across[at] = self._divided(start + before, free, block.columns, least, gaps, "width")
            start += before + free + after
        self.left, self.right = left[0], right[-1]

    def _sides(self, block: Block) -> tuple[list[float], list[float]]:
        """Space to the left and to the right of each column of panels."""
        tall = block.height * self.size / ORDINARY / len(block.rows)
        left, right = [], []
        for column in range(len(block.columns)):
            here = block.at(column=column)
            labels = [parts.set_axis(self.figure, y, tall, self.size, limit=0.4 * self.width) for _, y in here]
            left.append(max(labels) + self.pad)
            bars = max(parts.set_colour_bars(self.figure, x, y, self.size) for x, y in here)
            beyond = max(overhang(self.figure, x, parts.SMALL * self.size) for x, _ in here)
            right.append(max(bars, beyond) + self.pad)
        return left, right

    def _rows(self, top: float, bottom: float) -> None:
        """Upper and lower edges of all panels in pixels, and the height of the page."""
        self.titles: dict[int, float] = {}  # the height of the titles of each block's first row
        ends = [self._ends(at) for at in range(len(self.blocks))]
        groups = groups_of(block.row for block in self.blocks)
        above = [max(ends[at][0][0] for at in group) for group in groups]
        below = [max(ends[at][1][-1] for at in group) for group in groups]
        gaps = [[a + b for a, b in zip(lower[:-1], upper[1:], strict=True)] for upper, lower in ends]
        for group in groups:
            if len({len(gaps[at]) for at in group}) == 1:  # blocks beside each other with as many rows: rows align
                shared_gaps = [max(same) for same in zip(*(gaps[at] for at in group), strict=True)]
                gaps = [shared_gaps if at in group else own for at, own in enumerate(gaps)]
        between = [max(sum(gaps[at]) for at in group) for group in groups]
        tall = [max(self.blocks[at].height for at in group) for group in groups]
        fixed = top + bottom + sum(above) + sum(below) + sum(between)
        needed = [max(sum(least_sizes(self.blocks[at].rows)) for at in group) for group in groups]
        own = [max(self.size / ORDINARY * one, least) for one, least in zip(tall, needed, strict=True)]
        if self.page.height is not None:
            own = [(self.page.height * INCH - fixed) * one / sum(tall) for one in tall]
        self.down: dict[int, Spans] = {}
        start = top
        for group, before, panels, inner, after in zip(groups, above, own, between, below, strict=True):
            for at in group:
                rows = self.blocks[at].rows
                space = panels + inner
                self.down[at] = self._divided(start + before, space, rows, least_sizes(rows), gaps[at], "height")
            start += before + panels + inner + after
        self.height = start + bottom
        self.top, self.bottom = top + above[0], bottom + below[-1]

    def _ends(self, at: int) -> tuple[list[float], list[float]]:
        """Space above and below each row of panels."""
        block, above, below = self.blocks[at], [], []
        for row in range(len(block.rows)):
            titles, labels = [], []
            for x, y, column in [(x, y, c) for x, y, r, c in block.panels if r == row]:
                start, end = self.across[at][column]
                titles.append(parts.set_panel_title(self.figure, x, y, end - start, self.size))
                labels.append(parts.set_axis(self.figure, x, end - start, self.size))
            self.titles.setdefault(at, max(titles))
            above.append(max(titles) + self.pad)
            below.append(max(labels) + self.pad)
        above[0] += sum(height_of(text, size) for _, text, size in self._head(at))
        return above, below

    def _divided(
        self,
        start: float,
        length: float,
        weights: Sequence[float],
        least: Sequence[float],
        gaps: Sequence[float],
        side: str,
    ) -> Spans:
        """Start and end of each panel in pixels, for panels of given weights with gaps between them."""
        free = length - sum(gaps)
        if free < sum(least) - 1e-6:
            now = self.width / INCH if side == "width" else (self.page.height or 0.0)
            blocks = len(groups_of(block.column if side == "width" else block.row for block in self.blocks))
            needed = now + blocks * (sum(least) - free) / INCH
            raise NoRoomError(
                f"The text of this figure leaves no room for its panels: {side} is {now:.3g} inches.",
                f"Use {side}={needed + 0.05:.1f} or more, a smaller font_size, or fewer panels.",
            )
        spans, at = [], start
        for size, gap in zip(shared(free, weights, least), [*gaps, 0.0], strict=True):
            spans.append((at, at + size))
            at += size + gap
        return spans

    def _place(self, title: float, legends: Sequence[parts.Legend]) -> None:
        """Write the places of everything into the figure; panels as shares of the space between the margins."""
        wide, tall = self.width - self.left - self.right, self.height - self.top - self.bottom
        across: Callable[[float], float] = lambda pixels: (pixels - self.left) / wide  # noqa: E731
        down: Callable[[float], float] = lambda pixels: 1 - (pixels - self.top) / tall  # noqa: E731
        # An update takes plotly as long for one entry as for many, so there is only one.
        new: dict[str, Any] = {
            "height": self.height, "width": self.page.look.width and self.width,
            "autosize": self.page.look.width is None,
            "margin": {"l": self.left, "r": self.right, "t": self.top, "b": self.bottom, "pad": 0},
        }  # fmt: skip
        if self.page.title:
            new["title_y"] = 1 - 0.5 * self.size / self.height
        for at, block in enumerate(self.blocks):
            for x, y, row, column in block.panels:
                (left, right), (upper, lower) = self.across[at][column], self.down[at][row]
                parts.set_axis(self.figure, y, lower - upper, self.size, limit=0.4 * self.width)
                new[x] = {"domain": within(across(left), across(right))}
                new[y] = {"domain": within(down(lower), down(upper))}
                for trace in parts.colour_bars(self.figure, x, y):
                    trace.colorbar.update(
                        x=across(right + self.pad), xanchor="left", y=down(upper), yanchor="top",
                        len=(lower - upper) / tall, lenmode="fraction",
                    )  # fmt: skip
            self._place_head(at, across(self.across[at][0][0]), down(self.down[at][0][0]))
        edge, low = 0.5 * self.size / self.width, 0.3 * self.pad / self.height
        for legend in legends:
            top = 1 - title / self.height
            place = {
                "right": {"x": 1 + self.pad / wide, "xref": "paper", "y": 1.0, "yref": "paper", "yanchor": "top"},
                "top": {"x": edge, "xref": "container", "y": top, "yref": "container", "yanchor": "top"},
                "bottom": {"x": edge, "xref": "container", "y": low, "yref": "container", "yanchor": "bottom"},
            }
            if legend.place != "none":
                new[legend.name] = place[legend.place] | {"orientation": "v" if legend.place == "right" else "h"}
        self.figure.update_layout(new)

    def _head(self, at: int) -> list[tuple[str, str, float]]:
        """Notes and title of a block, from the bottom up: name, lines of text, and size."""
        block = self.blocks[at]
        (start, _), (_, end) = self.across[at][0], self.across[at][-1]
        texts = ((BLOCK_NOTES, block.notes, parts.NOTES), (BLOCK_TITLE, block.title, HEAD))
        return [(name, wrapped(text, end - start, of * self.size), of * self.size) for name, text, of in texts if text]

    def _place_head(self, at: int, x: float, y: float) -> None:
        """Place the title of a block, with its notes, above its first panel and the titles of the first row."""
        head = self._head(at)
        if not head:
            return
        shift = 3 + self.titles[at]
        figure: Any = self.figure
        for name, text, size in head:
            note = next(one for one in figure.layout.annotations if one.name == f"{name} {at}")
            font = {"size": size} | ({"color": self.page.look.soft} if name == BLOCK_NOTES else {})
            note.update(
                text=text, font=font, x=x, y=y, xref="paper", yref="paper", xanchor="left", yanchor="bottom",
                align="left", showarrow=False, yshift=shift,
            )  # fmt: skip
            shift += height_of(text, size)
