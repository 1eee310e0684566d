"""What a figure knows of its own layout, so that it can be laid out again with another width, theme or title.

A figure has blocks side by side or below each other; a block is the grid of panels of one result. The facts are kept
in `figure.layout.meta`, so they are still there after a figure was written as JSON and read back.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, cast

import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.themes import INCH, THEMES, Theme, ThemeName

KEY = "squashlens"
PANEL_TITLE = "panel title"  # name of an annotation; those of a block have its number too
HEAD = "block title"
Axes = tuple[str, str]  # what traces call the axes of a panel: x2, y2


class Panel(NamedTuple):
    """What the layout calls the axes of a panel, such as xaxis2 and yaxis2, and its place in its block."""

    x: str
    y: str
    row: int
    column: int

    @property
    def axes(self) -> Axes:
        """What traces call its axes."""
        return reference(self.x), reference(self.y)


@dataclass
class Block:
    """A grid of panels with the weights of rows and columns, its title with a line of notes, and its place."""

    panels: list[Panel]
    rows: list[float]
    columns: list[float]
    height: float  # pixels of all rows together, at the notebook's font size
    title: str = ""
    notes: str = ""
    row: int = 0
    column: int = 0


@dataclass
class Page:
    """Theme, size, title and blocks of a figure; lengths in inches, sizes of text in points."""

    blocks: list[Block]
    title: str = ""
    notes: str = ""
    theme: ThemeName = "notebook"
    width: float | None = None
    height: float | None = None
    font: str | None = None
    font_size: float | None = None
    legend: str = "lines"

    @classmethod
    def of(cls, figure: go.Figure) -> "Page":
        """The facts of a figure; an error if another package drew it."""
        meta: Any = cast(Any, figure.layout).meta
        if not isinstance(meta, Mapping) or KEY not in meta:
            raise InputError(
                "This figure was not drawn by squashlens, so its parts are not known.",
                "Give a figure of squashlens.figures, or change the figure with plotly's own functions.",
            )
        facts = dict(meta[KEY])
        blocks = [Block(**{**one, "panels": [Panel(*panel) for panel in one["panels"]]}) for one in facts.pop("blocks")]
        return cls(blocks, **facts)

    def keep(self, figure: go.Figure) -> None:
        """Write the facts into a figure."""
        figure.update_layout(meta={KEY: asdict(self)})

    @property
    def look(self) -> Theme:
        """The theme, with font and size if they were chosen."""
        theme = THEMES[self.theme]
        size = theme.size if self.font_size is None else self.font_size * INCH / 72
        return replace(theme, font=self.font or theme.font, size=size, width=self.width or theme.width)


def traces_of(figure: go.Figure) -> list[Any]:
    """The traces of a figure."""
    return list(cast(Any, figure.data))


def axes_of(trace: Any) -> Axes:
    """What a trace calls its axes."""
    return getattr(trace, "xaxis", None) or "x", getattr(trace, "yaxis", None) or "y"


def block_of(figure: go.Figure, height: float) -> Block:
    """The grid of panels of a figure that plotly's `make_subplots` or a single panel gave; titles move to panels."""
    layout = figure.to_plotly_json()["layout"]
    ys = [name for name in layout if name.startswith("yaxis")] or ["yaxis"]
    pairs = [(layout.get(y, {}).get("anchor", "x").replace("x", "xaxis"), y) for y in ys]
    spans = {name: tuple(layout.get(name, {}).get("domain", (0.0, 1.0))) for pair in pairs for name in pair}
    columns = sorted({spans[x] for x, _ in pairs})
    rows = sorted({spans[y] for _, y in pairs}, reverse=True)
    for note in cast(Any, figure.layout).annotations:
        if note.xref == note.yref == "paper" and not note.name:
            x, y = min(pairs, key=lambda pair: abs(sum(spans[pair[0]]) / 2 - note.x) + abs(spans[pair[1]][1] - note.y))
            note.update(above(Panel(x, y, 0, 0)), name=PANEL_TITLE, yshift=3)
    weights = [[end - start for start, end in spans_of] for spans_of in (rows, columns)]
    panels = [Panel(x, y, rows.index(spans[y]), columns.index(spans[x])) for x, y in pairs]
    return Block(panels, *weights, height=height)


def above(panel: Panel) -> dict[str, Any]:
    """Where an annotation is that stands above a panel, at its left edge."""
    x, y = panel.axes
    return {
        "x": 0, "xref": f"{x} domain", "xanchor": "left", "y": 1, "yref": f"{y} domain", "yanchor": "bottom",
        "align": "left", "showarrow": False,
    }  # fmt: skip


def reference(axis: str) -> str:
    """What traces and annotations call an axis of the layout: x2 for xaxis2."""
    return axis.replace("axis", "")
