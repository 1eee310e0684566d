"""What plotly leaves open on a page: its title, where panels stand, and what a narrow or low page changes.

Plotly lays out margins, ticks, axis titles, colour bars and the legend. It breaks no lines, and it knows nothing of the
text between panels; both are set here, for the width and the theme that a page has.
"""

import html
import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.page import (
    Page,
    Panel,
    axis_name,
    numbers_of,
    traces_of,
)
from squashlens.figures.drawing.text import EM, lines_of, wrap
from squashlens.figures.drawing.themes import ASSUMED, INCH, SMALL, template

ORDINARY = 13.0  # pixels: the font size for which heights of panels are given
LINE = 1.3  # height of a line of text, in font sizes, as are these:
TITLE, NOTES = 1.2, 0.9  # sizes of the title, and of the line below it
WIDE = 14.0  # the least width of a panel beside another
BESIDE = 5.0  # what numbers and title of a y axis take, and what a colour bar takes
PAD = 0.6
LOWEST = 24.0  # pixels of the lowest panel
CROWDED = 120.0  # pixels: lower panels of a slide ask for a smaller font
SMALLEST = 0.6  # share of its font size that text of a slide keeps
MODE_BAR = 120.0  # pixels at the right of a title, where plotly shows its buttons in a notebook
TALL = 1.1  # height of a narrow panel, in units of its width
NAMES = 0.3  # of the width of a page, for the names of rows
ENTRY = 19.0  # pixels of a line of the legend, at least
STEEP = -60  # degrees of labels that do not fit side by side
OURS = "panel"  # the name of the annotations that are written anew


def name_once(figure: go.Figure) -> None:
    """List each name once in the legend, by a trace that is seen there, and nothing if there is only one name."""
    names: set[str] = set()
    for trace in traces_of(figure):
        edge = trace.type == "scatter" and trace.line.width == 0
        trace.showlegend = bool(trace.name) and not edge and trace.name not in names
        trace.legendgroup = trace.name
        names |= {trace.name} if trace.showlegend else set()
    cast(Any, figure.layout).showlegend = len(names) > 1


def lay_out(figure: go.Figure) -> go.Figure:
    """Set the theme of a figure, its title, and the places of its panels."""
    sheet = Sheet(figure)
    page, size = sheet.page, sheet.size
    sheet.set_columns()
    heading, top = sheet.heading()
    height = sheet.set_rows(top, sheet.below(sheet.rows[-1]) + sheet.legend_height())
    if sheet.is_crowded:
        replace(page, fit=0.9 * page.fit).keep(figure)
        return lay_out(figure)
    page.keep(figure)
    layout: Any = figure.layout
    layout.template = template(page.look)
    layout.annotations = sheet.annotations()
    margin = PAD * size
    layout.update(
        sheet.changes,
        title=heading,
        height=round(height, 3),
        width=page.look.width and sheet.width,
        autosize=page.look.width is None,
        margin={"l": margin, "r": margin, "t": top, "b": margin},
    )
    sheet.set_colour_bars()
    return figure


class Sheet:
    """The places of the panels of a figure on its page; `changes` are those of the axes in the layout."""

    def __init__(self, figure: go.Figure) -> None:
        self.figure = figure
        self.page = Page.of(figure)
        self.layout = cast(Any, figure.layout).to_plotly_json()
        look = self.page.look
        self.size = look.size
        self.small = SMALL * look.size  # of tick labels and the legend
        self.width = look.width * INCH if look.width else ASSUMED
        for panel in self.page.panels:
            panel.across = self._shown_title(panel.x) or panel.across
            panel.up = self._shown_title(panel.y) or panel.up
            panel.names = panel.names or list(self._axis(panel.y).get("ticktext") or ())
        named = max(map(self._names_wide, self.page.panels))
        fit = max(1, int((self.width - named) / (WIDE * self.size)))
        across = self.page.columns if self.page.exact else min(self.page.columns, fit)
        starts = range(0, len(self.page.blocks), across)
        self.rows = [self.page.blocks[start : start + across] for start in starts]
        self.changes: dict[str, Any] = {}
        self.wide = 0.0  # pixels of a panel
        self.scale = 1.0
        self.lowest = math.inf
        maps = [trace for trace in traces_of(figure) if trace.type == "heatmap"]
        self.barred = [trace for trace in maps if trace.showscale is not False]
        self.places: dict[str, tuple[int, int]] = {}  # row and column by x axis
        for down, row in enumerate(self.rows):
            for column, block in enumerate(row):
                self.places |= {panel.x: (down, column) for panel in block}

    def _axis(self, name: str) -> dict[str, Any]:
        return self.layout.get(name, {})

    def _shown_title(self, axis: str) -> str:
        text = self._axis(axis).get("title", {}).get("text") or ""
        return text.replace("<br>", " ")

    def _scale(self, axis: str) -> str:
        """The first of the axes that share the range of an axis."""
        matches = self._axis(axis).get("matches")
        return self._scale(axis_name(matches)) if matches else axis

    def set_columns(self) -> None:
        """Divide the width, with room for labels and colour bars between panels."""
        columns = [self._column(at) for at in range(len(self.rows[0]))]
        before = [max(map(self._space_before, panels)) for panels in columns]
        after = [max(map(self._space_after, panels)) for panels in columns]
        whole = self.width - before[0] - after[-1]
        between = sum(before[1:]) + sum(after[:-1])
        self.wide = max(whole - between, LOWEST) / len(columns)
        for at, panels in enumerate(columns):
            start = at * self.wide + sum(before[1 : at + 1]) + sum(after[:at])
            domain = [start / whole, min(1.0, (start + self.wide) / whole)]
            for panel in panels:
                self.changes[panel.x] = {"domain": domain} | self._x_axis(panel)

    def _column(self, at: int) -> list[Panel]:
        return [panel for panel in self.page.panels if self.places[panel.x][1] == at]

    def _names_wide(self, panel: Panel) -> float:
        longest = max((len(html.unescape(name)) for name in panel.names), default=0)
        return min(EM * self.small * longest, NAMES * self.width)

    def _space_before(self, panel: Panel) -> float:
        if self._has_labels_left(panel):
            return PAD * self.size
        return max(BESIDE * self.size, self._names_wide(panel) + 2 * self.size)

    def _space_after(self, panel: Panel) -> float:
        barred = any((trace.xaxis or "x") == panel.axes[0] for trace in self.barred)
        return self.size * (BESIDE + 1.5 if barred else PAD)

    def _has_labels_left(self, panel: Panel) -> bool:
        """Whether a panel further left has the labels of its y axis."""
        down, column = self.places[panel.x]
        left = [(down, before) for before in range(column)]
        others = [other for other in self.page.panels if self.places[other.x] in left]
        return self._scale(panel.y) in [self._scale(other.y) for other in others]

    def _has_labels_below(self, panel: Panel) -> bool:
        """Whether a panel below it in its block has the labels of its x axis."""
        block = next(block for block in self.page.blocks if panel in block)
        below = [self._scale(other.x) for other in block[block.index(panel) + 1 :]]
        return self._scale(panel.x) in below

    def _x_axis(self, panel: Panel) -> dict[str, Any]:
        """Ticks and title of an x axis, as far as they depend on its length."""
        inner = self._has_labels_below(panel)
        title = "" if inner else wrap(panel.across, self.wide, self.size)
        axis: dict[str, Any] = {"title": {"text": title}, "showticklabels": not inner}
        places = list(map(int, self._axis(panel.x).get("labelalias") or ()))
        if not places:
            log = self._axis(panel.x).get("type") == "log"
            return axis | (
                self._ticks(panel.x, self.wide / (3 * self.small)) if log else {}
            )
        fit = max(1, int(self.wide / (LINE * self.small)))
        if max(places) - min(places) < fit:
            return axis | {"tick0": 0, "dtick": 1, "nticks": 0}
        # Without a fixed distance plotly labels more tokens in a part that is zoomed in, but also places between.
        return axis | {"dtick": None, "nticks": fit}

    def _y_axis(self, panel: Panel, tall: float) -> dict[str, Any]:
        """Labels and title of a y axis, which the first of panels side by side with one scale has."""
        inner = self._has_labels_left(panel)
        title = "" if inner else wrap(panel.up, tall, self.size)
        axis: dict[str, Any] = {"title": {"text": title}, "showticklabels": not inner}
        if not panel.names:
            return axis | self._ticks(panel.y, tall / (2 * LINE * self.small))
        most = max(1, int(tall / len(panel.names) / (LINE * self.small)))
        limit = max(NAMES * self.width, 9 * self.size)
        names = [wrap(name, limit, self.small, most) for name in panel.names]
        return axis | {"ticktext": names}

    def _ticks(self, name: str, fit: float) -> dict[str, Any]:
        """The ticks of an axis of numbers, of which so many have room; plotly crowds those of a logarithmic one."""
        fit = max(3.0, fit)
        log = self._axis(name).get("type") == "log"
        decades = self._decades(name) if log else 0.0
        if decades < 1:
            return {"nticks": int(fit)}
        return {"dtick": "D2" if 3 * decades < fit else math.ceil(decades / fit)}

    def _decades(self, name: str) -> float:
        """How many powers of ten a logarithmic axis spans, by its range or by the values along it."""
        ends = self._axis(name).get("range")
        if ends:
            return abs(ends[1] - ends[0])
        side, values = name[0], [np.zeros(0)]
        for trace in traces_of(self.figure):
            axis = axis_name(trace[f"{side}axis"] or side)
            if trace[side] is not None and self._scale(axis) == self._scale(name):
                values.append(numbers_of(trace[side]))
        numbers = np.concatenate(values)
        logs = np.log10(numbers[numbers > 0])
        return float(np.ptp(logs)) if len(logs) else 0.0

    def below(self, row: list[list[Panel]]) -> float:
        """The pixels of the tick labels and titles under a row, about; under the last one, plotly finds them."""
        return max(self._below(block[-1]) for block in row)

    def _below(self, panel: Panel) -> float:
        if self._has_labels_below(panel):
            return PAD * self.size
        texts = (self._axis(panel.x).get("labelalias") or {"": ""}).values()
        longest = max(len(html.unescape(text)) for text in texts)
        steep = EM * self.small * longest * math.sin(math.radians(-STEEP))
        title = self.changes[panel.x]["title"]["text"]
        lines = 1 + title.count("<br>") if title else 0
        labels = max(steep, LINE * self.small)
        return labels + self.size * (LINE * lines + 2 * PAD)

    def legend_height(self) -> float:
        """The pixels that plotly's legend takes, about; its names are broken into lines that fit."""
        if not cast(Any, self.figure.layout).showlegend:
            return 0.0
        for trace in traces_of(self.figure):
            trace.name = trace.name and wrap(trace.name, self.width - 60, self.small)
        listed = [trace.name for trace in traces_of(self.figure) if trace.showlegend]
        longest = max(len(html.unescape(name)) for name in listed)
        across = max(1, int(self.width / (45 + EM * self.small * longest)))
        rows = math.ceil(len(listed) / across)
        return max(ENTRY, LINE * self.small + 3) * rows + PAD * self.size

    @property
    def is_crowded(self) -> bool:
        """Whether the text of a slide leaves too little room for its panels."""
        page = self.page
        if page.look.shape is None or page.height or page.fit <= SMALLEST:
            return False
        rows = {panel.y: LINE * self.small * len(panel.names) for panel in page.panels}
        named = any(
            self.scale * self._height(panel) < rows[panel.y] for panel in page.panels
        )
        return named or self.lowest < CROWDED

    def set_rows(self, top: float, bottom: float) -> float:
        """Divide the height; that of the page."""
        texts = self._stack(0.0)
        panels = self._stack(1.0) - texts
        fixed = (self.page.look.shape or 0.0) * self.width
        if self.page.height:
            fixed = self.page.height * INCH
        scale = (fixed - top - bottom - texts) / panels if fixed else 1.0
        least = min(map(self._height, self.page.panels))
        self.scale = scale
        self.lowest = scale * least
        if self.page.height and self.lowest < LOWEST:
            enough = (top + bottom + texts + panels * LOWEST / least) / INCH + 0.05
            raise InputError(
                f"The text of this figure leaves no room for its panels: height is {self.page.height:.3g} inches.",
                f"Use height={enough:.1f} or more, or a smaller font_size.",
            )
        return top + self._stack(max(scale, LOWEST / least)) + bottom

    def _stack(self, scale: float) -> float:
        """Put panels of these heights below each other; the height of all with what stands between them."""
        edges: dict[str, tuple[float, float]] = {}
        down, end, below = 0.0, 0.0, 0.0
        for row in self.rows:
            if row is not self.rows[0]:
                down = end + below + self.above(row)
            for block in row:
                edges |= self._stack_block(block, down, scale)
            end = max(edges[block[-1].y][1] for block in row)
            below = self.below(row)
            for block in row:  # the last panel of a shorter block is as low as others
                edges[block[-1].y] = (edges[block[-1].y][0], end)
        for panel in self.page.panels:
            first, last = (1 - edge / end if end else 1.0 for edge in edges[panel.y])
            axis = self._y_axis(panel, (first - last) * end)
            self.changes[panel.y] = {"domain": [max(0.0, last), first]} | axis
        return end

    def above(self, row: list[list[Panel]]) -> float:
        """The pixels of the texts above a row."""
        return max(self._above(block[0]) for block in row)

    def _stack_block(
        self, block: list[Panel], down: float, scale: float
    ) -> dict[str, tuple[float, float]]:
        """Put the panels of a block below each other; where each begins and ends."""
        edges = {}
        for panel in block:
            down += 0.0 if panel is block[0] else self._above(panel)
            edges[panel.y] = (down, down + scale * self._height(panel))
            down = edges[panel.y][1] + self._below(panel)
        return edges

    def _height(self, panel: Panel) -> float:
        """The usual height of a panel; a narrow one is lower, unless its rows have names."""
        usual = panel.height * self.size / ORDINARY
        return usual if panel.names else min(usual, TALL * self.wide)

    def _texts_above(self, panel: Panel) -> list[str]:
        heads = lines_of(panel.head, 0.9 * self.wide, NOTES * self.size)
        titles = lines_of(panel.title, self.wide + self.size, NOTES * self.size)
        return [*(f"<b>{line}</b>" for line in heads), *titles]

    def _above(self, panel: Panel) -> float:
        return self.size * (LINE * len(self._texts_above(panel)) + PAD)

    def annotations(self) -> list[dict[str, Any]]:
        """The annotations of the figure, with the texts above its panels."""
        old = self.layout.get("annotations", ())
        notes = [note for note in old if note.get("name") != OURS]
        look = {"name": OURS, "font": {"size": NOTES * self.size}, "showarrow": False}
        look |= {"xanchor": "left", "yanchor": "bottom", "align": "left", "yshift": 3}
        for panel in self.page.panels:
            x, y = panel.axes
            place = {"x": 0, "xref": f"{x} domain", "y": 1, "yref": f"{y} domain"}
            text = "<br>".join(self._texts_above(panel))
            notes += [look | place | {"text": text}] if text else []
        return notes

    def heading(self) -> tuple[dict[str, Any], float]:
        """The title with the line below it, and the pixels from the top to the first panels."""
        heads = self.above(self.rows[0])
        if not self.page.title:
            return {"text": None, "subtitle": {"text": None}}, 0.5 * self.size + heads
        buttons = MODE_BAR if self.page.theme == "notebook" else 0.0
        lines = lines_of(self.page.title, self.width - buttons, TITLE * self.size)
        small = NOTES * self.size
        notes = lines_of(" · ".join(self.page.notes), self.width - self.size, small)
        # plotly aligns the top of a title that has one line, but the base line of the first of several.
        lift = 0.8 * TITLE * self.size if len(lines) > 1 else 0.0
        place = {
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
        }
        font = {"size": small, "color": self.page.look.soft}
        title = place | {
            "text": "<br>".join(lines),
            "font": {"size": TITLE * self.size},
            "yanchor": "top",
            "pad": {"l": 0.5 * self.size, "t": 0.5 * self.size + lift},
            "subtitle": {"text": "<br>".join(notes), "font": font},
        }
        text = LINE * self.size * (TITLE * len(lines) + NOTES * len(notes))
        return title, 1.3 * self.size + text + 0.5 * lift + heads

    def set_colour_bars(self) -> None:
        """Put each colour bar beside its panel."""
        panels = {panel.axes[0]: panel for panel in self.page.panels}
        for trace in self.barred:
            panel = panels[trace.xaxis or "x"]
            low, high = self.changes[panel.y]["domain"]
            across = {
                "x": self.changes[panel.x]["domain"][1],
                "xanchor": "left",
                "xpad": PAD * self.size,
            }
            trace.colorbar.update(
                across, y=low, yanchor="bottom", ypad=0, len=high - low
            )
