"""What a figure knows of its own layout, so that it can be laid out again with another width, theme or title.

A figure has blocks side by side or below each other; a block is the grid of panels of one result. The facts are kept
in `figure.layout.meta`, so they are still there after a figure was written as JSON and read back.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.themes import INCH, THEMES, Theme, ThemeName

KEY = "squashlens"
PANEL_TITLE, BLOCK_TITLE, BLOCK_NOTES = "panel title", "block title", "block notes"


@dataclass
class Block:
    """A grid of panels: their axes with row and column, the weights of rows and columns, its title with a line of
    notes, and its place on the page."""

    panels: list[tuple[str, str, int, int]]  # names of the x and y axis, row, column
    rows: list[float]
    columns: list[float]
    height: float  # pixels of all rows together, at the notebook's font size
    title: str = ""
    notes: str = ""
    row: int = 0
    column: int = 0

    def at(self, *, row: int | None = None, column: int | None = None) -> list[tuple[str, str]]:
        """Axes of the panels in one row or column."""
        return [(x, y) for x, y, r, c in self.panels if row in (None, r) and column in (None, c)]


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
    legend: str = "top"
    marks: dict[str, float] = field(default_factory=dict)  # sizes of marks before they were made smaller

    @classmethod
    def of(cls, figure: go.Figure) -> "Page":
        """The facts of a figure; an error if another package drew it."""
        meta: Any = figure.layout.meta  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(meta, Mapping) or KEY not in meta:
            raise InputError(
                "This figure was not drawn by squashlens, so its parts are not known.",
                "Give a figure of squashlens.figures, or change the figure with plotly's own functions.",
            )
        facts = dict(meta[KEY])
        blocks = [Block(**{**one, "panels": [tuple(panel) for panel in one["panels"]]}) for one in facts.pop("blocks")]
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


def axes_of(trace: Any) -> tuple[str, str]:
    """What a trace calls its axes."""
    return getattr(trace, "xaxis", None) or "x", getattr(trace, "yaxis", None) or "y"


def block_of(figure: go.Figure, height: float) -> Block:
    """The grid of panels of a figure that plotly's `make_subplots` or a single panel gave; titles move to panels."""
    layout = figure.to_plotly_json()["layout"]
    ys = [name for name in layout if name.startswith("yaxis")] or ["yaxis"]
    pairs = [(_axis(layout.get(y, {}).get("anchor", "x")), y) for y in ys]
    spans = {name: tuple(layout.get(name, {}).get("domain", (0.0, 1.0))) for pair in pairs for name in pair}
    columns = sorted({spans[x] for x, _ in pairs})
    rows = sorted({spans[y] for _, y in pairs}, reverse=True)
    panels = [(x, y, rows.index(spans[y]), columns.index(spans[x])) for x, y in pairs]
    for note in figure.layout.annotations:  # pyright: ignore[reportAttributeAccessIssue]
        if note.xref == note.yref == "paper" and not note.name:
            near = min(pairs, key=lambda pair: abs(sum(spans[pair[0]]) / 2 - note.x) + abs(spans[pair[1]][1] - note.y))
            note.update(panel_title(note.text, *near))
    weigh = [[end - start for start, end in spans_of] for spans_of in (rows, columns)]
    return Block(panels, *weigh, height=height)


def panel_title(text: str, x: str, y: str) -> dict[str, Any]:
    """An annotation that is the title of a panel: above its left edge, wherever the panel is."""
    return {
        "text": text, "name": PANEL_TITLE, "showarrow": False, "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom",
        "xref": f"{reference(x)} domain", "yref": f"{reference(y)} domain", "yshift": 3, "align": "left",
    }  # fmt: skip


def _axis(reference: str) -> str:
    """The name in the layout of an axis that traces refer to: xaxis2 for x2."""
    return f"{reference[0]}axis{reference[1:]}"


def reference(axis: str) -> str:
    """What traces and annotations call an axis of the layout: x2 for xaxis2."""
    return axis.replace("axis", "")
