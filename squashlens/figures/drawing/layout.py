"""What plotly leaves open on a page: its title, where panels stand, and what a narrow or low page changes.

Plotly lays out margins, ticks, axis titles, colour bars and the legend. It breaks no lines, and it knows nothing of the
text between panels; both are set here, for the width and the theme that a page has.

A page has blocks, which are side by side in rows, and a block has panels, one below the other. Sizes are in pixels.
"""

import html
import math
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.page import Page, Panel, axis_name, traces_of
from squashlens.figures.drawing.text import EM, lines_of, wrap
from squashlens.figures.drawing.themes import ASSUMED, INCH, ORDINARY, SMALL, template

# In units of the font size:
LINE = 1.3  # height of a line of text
TITLE, NOTES = 1.2, 0.9  # font sizes of the title, and of the line below it
WIDE = 14.0  # the least width of a panel beside another
BESIDE = 5.0  # width of the numbers and the title of a y axis
BAR = 6.5  # width of a colour bar
PAD = 0.6  # space around texts and panels
LOWEST = 24.0  # pixels of the lowest panel of a page of a given height
LOW = 120.0  # pixels of the lowest panel of a slide, which is higher than usual if it must be
MODE_BAR = 120.0  # pixels at the right of a title, where plotly shows its buttons in a notebook
TALL = 1.1  # height of a narrow panel, in units of its width
NAMES = 0.36  # of the width of a page, for the names of rows
ENTRY = 19.0  # pixels of a line of the legend, at least
STEEP = -60  # degrees of labels that do not fit side by side
OURS = "panel"  # the name of the annotations that are written anew
FROM_LEFT = {"x": 0, "xref": "container", "xanchor": "left"}
FROM_TOP = {"y": 1, "yref": "container", "yanchor": "top"}


def name_once(figure: go.Figure) -> None:
    """List each name once in the legend, by a trace that is seen there, and nothing if there is only one name."""
    listed: set[str] = set()
    for trace in traces_of(figure):
        trace.showlegend = False
        trace.legendgroup = trace.name  # a click hides all traces of the name
        is_edge = trace.type == "scatter" and trace.line.width == 0  # of a band
        if trace.name and not is_edge and trace.name not in listed:
            trace.showlegend = True
            listed.add(trace.name)
    cast(Any, figure.layout).showlegend = len(listed) > 1


def scale_marks(figure: go.Figure, scale: float) -> None:
    """Make lines, dots and error bars so many times as large as they are."""
    layout: Any = figure.layout
    parts = [(shape.line, "width") for shape in layout.shapes]
    for trace in traces_of(figure):
        if trace.type in ("scatter", "bar"):
            parts += [(trace.marker.line, "width"), (trace.error_x, "thickness")]
            parts.append((trace.error_y, "thickness"))
        if trace.type == "scatter":
            parts += [(trace.line, "width"), (trace.marker, "size")]
    for part, name in parts:
        if part[name] is not None:
            part[name] = np.multiply(part[name], scale).tolist()


def lay_out(figure: go.Figure) -> go.Figure:
    """Set the theme of a figure, its title, and the places of its panels, and give it back.

    It can be laid out again, since its page is kept in it.
    """
    sheet = Sheet(figure)
    sheet.set_columns()
    heading, top = sheet.heading()
    height = sheet.set_rows(top)
    sheet.page.keep(figure)
    margin = PAD * sheet.size
    width = None if sheet.look.width is None else sheet.width
    layout: Any = figure.layout
    layout.template = template(sheet.look)
    layout.annotations = sheet.annotations()
    layout.update(
        sheet.axes,
        title=heading,
        height=round(height, 3),
        width=width,
        autosize=width is None,
        margin={"l": margin, "r": margin, "t": top, "b": margin},
    )
    sheet.set_colour_bars()
    return figure


class Sheet:
    """The places of the panels of a figure on its page, in pixels, but for `domain`, which is in shares of the page
    between the margins.

    `axes` has what changes of each axis in the layout, and `rows` the blocks of panels side by side, row by row.
    Widths have to be set before heights, since texts are broken into lines that fit.
    """

    def __init__(self, figure: go.Figure) -> None:
        self.figure = figure
        self.page = Page.of(figure)
        self.look = self.page.look
        self.layout = cast(Any, figure.layout).to_plotly_json()
        self.size = self.look.size
        self.small = SMALL * self.size  # of tick labels and the legend
        self.width = self.look.width * INCH if self.look.width else ASSUMED
        self.axes: dict[str, Any] = {}
        self.wide = 0.0  # width of a panel; `set_columns` sets it
        for panel in self.page.panels:
            self._remember_texts(panel)
        columns = self.page.columns
        if not self.page.exact:  # a narrow page has fewer
            of_names = max(self._names_wide(panel) for panel in self.page.panels)
            fit = int((self.width - of_names) / (WIDE * self.size))
            columns = max(1, min(columns, fit))
        blocks = self.page.blocks
        starts = range(0, len(blocks), columns)
        self.rows = [blocks[start : start + columns] for start in starts]
        self.labelled = self._labelled()
        # The x axis of the last map of each colour axis, whose bar is beside it.
        self.barred: dict[str, str] = {}
        for trace in traces_of(figure):
            if trace.type == "heatmap" and trace.coloraxis:
                self.barred[trace.coloraxis] = trace.xaxis or "x"

    def _remember_texts(self, panel: Panel) -> None:
        """Keep titles of axes and names of rows with the panel: a layout removes those that inner panels do not show,
        and another layout may need them."""
        across = self._shown_title(panel.x)
        if across:
            panel.across = across
        up = self._shown_title(panel.y)
        if up:
            panel.up = up
        names = self._axis(panel.y).get("ticktext")
        if names is not None and not panel.names:
            panel.names = list(names)

    def _axis(self, name: str) -> dict[str, Any]:
        """An axis of the layout, such as xaxis2; empty if nothing of it is set."""
        return self.layout.get(name, {})

    def _shown_title(self, axis: str) -> str:
        """The title of an axis in the layout, on one line; empty if it has none."""
        title = self._axis(axis).get("title", {})
        return (title.get("text") or "").replace("<br>", " ")

    def _scale(self, axis: str) -> str:
        """The first of the axes that share the range of an axis, which `matches` may name by others."""
        matches = self._axis(axis).get("matches")
        return self._scale(axis_name(matches)) if matches else axis

    def _labelled(self) -> set[str]:
        """The names of the axes with labels and titles: of x axes with one scale the lowest in a block, and of y axes
        with one scale those of the first block in a row."""
        labelled: set[str] = set()
        for row in self.rows:
            scales_before: set[str] = set()  # y scales of the blocks to the left
            for block in row:
                lowest = {self._scale(panel.x): panel.x for panel in block}
                labelled.update(lowest.values())
                for panel in block:
                    if self._scale(panel.y) not in scales_before:
                        labelled.add(panel.y)
                scales_before.update(self._scale(panel.y) for panel in block)
        return labelled

    def set_columns(self) -> None:
        """Divide the width, with room for labels and colour bars between panels."""
        columns: list[list[Panel]] = []
        before = []  # space for labels to the left of each column
        after = []  # space for a colour bar to the right of it
        # Blocks of one column; the last row may have fewer.
        for blocks in zip_longest(*self.rows, fillvalue=[]):
            panels = list(chain.from_iterable(blocks))
            columns.append(panels)
            before.append(max(map(self._space_before, panels)))
            after.append(max(map(self._space_after, panels)))
        # The space between columns up to each of them: after one and before the next.
        gaps = np.cumsum(np.append(0.0, np.add(before[1:], after[:-1])))
        whole = self.width - before[0] - after[-1]  # plotly adds the outer spaces
        self.wide = max(whole - gaps[-1], LOWEST) / len(columns)
        for number, panels in enumerate(columns):
            start = number * self.wide + gaps[number]
            domain = [start / whole, min(1.0, (start + self.wide) / whole)]
            for panel in panels:
                self.axes[panel.x] = {"domain": domain} | self._x_axis(panel)

    def _names_wide(self, panel: Panel) -> float:
        """The width of the names of a panel's rows, which are broken into lines if they are long."""
        return min(EM * self.small * _longest(panel.names), NAMES * self.width)

    def _space_before(self, panel: Panel) -> float:
        """The width to the left of a panel: of the labels and title of its y axis, if it shows them."""
        if panel.y not in self.labelled:
            return PAD * self.size
        return max(BESIDE * self.size, self._names_wide(panel) + 2 * self.size)

    def _space_after(self, panel: Panel) -> float:
        """The width to the right of a panel: of its colour bar, if it has one."""
        x, _ = panel.axes
        return self.size * (BAR if x in self.barred.values() else PAD)

    def _titled(self, axis: str, title: str, pixels: float) -> dict[str, Any]:
        """Title and tick labels of an axis, which only one of several with its scale has; the title is broken into
        lines of at most so many pixels."""
        if axis not in self.labelled:
            return {"title": {"text": ""}, "showticklabels": False}
        text = wrap(title, pixels, self.size)
        return {"title": {"text": text}, "showticklabels": True}

    def _x_axis(self, panel: Panel) -> dict[str, Any]:
        """Ticks and title of an x axis, as far as they depend on its length."""
        axis = self._titled(panel.x, panel.across, self.wide)
        aliases = self._axis(panel.x).get("labelalias")  # of `text_axis`: text by place
        if not aliases:
            # A number takes about five characters of room.
            return axis | self._ticks(panel.x, self.wide / (5 * self.small))
        places = [int(place) for place in aliases]
        # Labels are steep, so that each takes the height of a line.
        fit = max(1, int(self.wide / (LINE * self.small)))
        if max(places) - min(places) < fit:
            return axis | {"tick0": 0, "dtick": 1, "nticks": 0}
        # Without a fixed distance plotly labels more tokens in a part that is zoomed in, but also places between.
        return axis | {"dtick": None, "nticks": fit}

    def _y_axis(self, panel: Panel, tall: float) -> dict[str, Any]:
        """Labels and title of a y axis that is so many pixels `tall`; names of rows are broken into lines that fit."""
        axis = self._titled(panel.y, panel.up, tall)
        if not panel.names:
            lines = tall / (LINE * self.small)
            # Plotly may show fewer than half of them: a low panel has no room left between.
            return axis | self._ticks(panel.y, max(lines / 2, min(lines, 5)))
        most = max(1, int(tall / len(panel.names) / (LINE * self.small)))  # lines
        limit = max(NAMES * self.width, 9 * self.size)
        names = [wrap(name, limit, self.small, most) for name in panel.names]
        return axis | {"ticktext": names}

    def _ticks(self, name: str, fit: float) -> dict[str, Any]:
        """The ticks of an axis of numbers, of which `fit` have room; those of a figure that sets them stay."""
        axis = self._axis(name)
        if axis.get("dtick"):
            return {}
        if axis.get("type") == "log":  # plotly shows more of these
            return {"nticks": 3}
        return {"nticks": max(3, int(fit))}

    def _above(self, panel: Panel) -> float:
        """The pixels of the texts above a panel."""
        return self.size * (LINE * len(self._texts_above(panel)) + PAD)

    def _texts_above(self, panel: Panel) -> list[str]:
        """The lines above a panel, as markup: the label of its result, in bold, and its title."""
        heads = lines_of(panel.head, 0.9 * self.wide, NOTES * self.size)
        titles = lines_of(panel.title, self.wide + self.size, NOTES * self.size)
        return [f"<b>{line}</b>" for line in heads] + titles

    def _below(self, panel: Panel) -> float:
        """The pixels of the tick labels and title under a panel, about; under the last one, plotly finds them."""
        if panel.x not in self.labelled:
            return PAD * self.size
        labels = self._axis(panel.x).get("labelalias", {}).values()
        steep = EM * self.small * _longest(labels) * math.sin(math.radians(-STEEP))
        title = self.axes[panel.x]["title"]["text"]
        lines = 1 + title.count("<br>") if title else 0
        return max(steep, LINE * self.small) + self.size * (LINE * lines + 2 * PAD)

    def _height(self, panel: Panel) -> float:
        """The usual height of a panel; a narrow one is lower, unless its rows have names."""
        usual = panel.height * self.size / ORDINARY
        return usual if panel.names else min(usual, TALL * self.wide)

    def _edges(self, scale: float) -> dict[str, tuple[float, float]]:
        """Where each panel begins and ends, by its y axis: pixels below the top of the first panels, if heights of
        panels are `scale` times the usual. Texts between panels keep their height."""
        edges = {}
        end = 0.0
        for number, row in enumerate(self.rows):
            start = end
            if number:
                start += self._below_row(number - 1) + self._above_row(number)
            for block in row:
                down = start
                for panel in block:
                    if panel is not block[0]:
                        down += self._above(panel)
                    bottom = down + scale * self._height(panel)
                    edges[panel.y] = (down, bottom)
                    end = max(end, bottom)
                    down = bottom + self._below(panel)
            for block in row:  # the last panel of a shorter block is as low as others
                last = block[-1].y
                begin, _ = edges[last]
                edges[last] = (begin, end)
        return edges

    def _above_row(self, number: int) -> float:
        """The pixels of the texts above a row of blocks."""
        return max(self._above(block[0]) for block in self.rows[number])

    def _below_row(self, number: int) -> float:
        """The pixels of labels and titles under a row of blocks."""
        return max(self._below(block[-1]) for block in self.rows[number])

    def set_rows(self, top: float) -> float:
        """Divide the height below the title, which takes `top` pixels, and give the height of the page."""
        bottom = self._below_row(-1) + self._legend_height()
        lowest = self.rows[-1][0][-1].y
        # With panels of no height, the last one ends after all texts between them.
        _, between = self._edges(0.0)[lowest]
        _, end = self._edges(1.0)[lowest]
        texts = top + between + bottom
        scale = self._scale_of_heights(texts, end - between)
        edges = self._edges(scale)
        _, end = edges[lowest]
        for panel in self.page.panels:
            start, stop = edges[panel.y]
            domain = [max(0.0, 1 - stop / end), 1 - start / end]
            self.axes[panel.y] = {"domain": domain} | self._y_axis(panel, stop - start)
        return top + end + bottom

    def _scale_of_heights(self, texts: float, panels: float) -> float:
        """The heights of panels in units of the usual ones: 1, unless the page has a given height, or is a slide.

        Usually all texts of the page take `texts` pixels below each other, and all panels `panels` pixels.
        """
        least = min(map(self._height, self.page.panels))
        if self.page.height:
            scale = (self.page.height * INCH - texts) / panels
            if scale * least < LOWEST:
                enough = (texts + panels * LOWEST / least) / INCH + 0.05
                raise InputError(
                    f"The text of this figure leaves no room for its panels: height is {self.page.height:.3g} inches.",
                    f"Use height={enough:.1f} or more, or a smaller font_size.",
                )
            return scale
        if not self.look.shape:
            return 1.0
        # A slide is filled; it is higher if the lowest panel or the names of rows need it.
        scale = max((self.look.shape * self.width - texts) / panels, LOW / least)
        for panel in self.page.panels:
            height_of_names = LINE * self.small * len(panel.names)
            scale = max(scale, height_of_names / self._height(panel))
        return scale

    def _legend_height(self) -> float:
        """The pixels that plotly's legend takes, about; its names are broken into lines that fit."""
        if not cast(Any, self.figure.layout).showlegend:
            return 0.0
        listed = []
        for trace in traces_of(self.figure):
            if trace.name:
                trace.name = wrap(trace.name, self.width - 60, self.small)
            if trace.showlegend:
                listed.append(trace.name)
        entry = 45 + EM * self.small * _longest(listed)  # with its line and marks
        across = max(1, int(self.width / entry))
        rows = math.ceil(len(listed) / across)
        return max(ENTRY, LINE * self.small + 3) * rows + PAD * self.size

    def annotations(self) -> list[dict[str, Any]]:
        """The annotations of the figure, with the texts above its panels."""
        # Those of the figure itself, without the texts of an earlier layout.
        earlier = self.layout.get("annotations", ())
        notes = [note for note in earlier if note.get("name") != OURS]
        look = {"name": OURS, "font": {"size": NOTES * self.size}, "showarrow": False}
        look |= {"xanchor": "left", "yanchor": "bottom", "align": "left", "yshift": 3}
        for panel in self.page.panels:
            x, y = panel.axes
            place = {"x": 0, "xref": f"{x} domain", "y": 1, "yref": f"{y} domain"}
            text = "<br>".join(self._texts_above(panel))
            if text:
                notes.append(look | place | {"text": text})
        return notes

    def heading(self) -> tuple[dict[str, Any], float]:
        """The title with the line below it, as plotly's layout has them, and the pixels from the top to the first
        panels."""
        heads = self._above_row(0)
        if not self.page.title:
            return {"text": None, "subtitle": {"text": None}}, 0.5 * self.size + heads
        room = self.width - (MODE_BAR if self.page.theme == "notebook" else 0.0)
        large = TITLE * self.size
        small = NOTES * self.size
        lines = lines_of(self.page.title, room, large)
        notes = lines_of(" · ".join(self.page.notes), self.width - self.size, small)
        # plotly aligns the top of a title that has one line, but the base line of the first of several.
        lift = 0.8 * large if len(lines) > 1 else 0.0
        subtitle = {"size": small, "color": self.look.soft}
        title: dict[str, Any] = FROM_LEFT | FROM_TOP
        title |= {
            "text": "<br>".join(lines),
            "font": {"size": large},
            "pad": {"l": 0.5 * self.size, "t": 0.5 * self.size + lift},
            "subtitle": {"text": "<br>".join(notes), "font": subtitle},
        }
        text = LINE * (large * len(lines) + small * len(notes))
        return title, 1.3 * self.size + text + 0.5 * lift + heads

    def set_colour_bars(self) -> None:
        """Put each colour bar beside its panel."""
        panels = {panel.axes[0]: panel for panel in self.page.panels}
        for name, x in self.barred.items():
            panel = panels[x]
            low, high = self.axes[panel.y]["domain"]
            right = self.axes[panel.x]["domain"][1]
            bar = cast(Any, self.figure.layout)[name].colorbar
            bar.update(x=right, xanchor="left", xpad=PAD * self.size)
            bar.update(y=low, yanchor="bottom", ypad=0, len=high - low)


def _longest(texts: Iterable[str]) -> int:
    """The characters of the longest of some texts, which are markup."""
    return max((len(html.unescape(text)) for text in texts), default=0)
