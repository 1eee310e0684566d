"""What a figure knows of its own layout, so that it can be laid out again with another width, theme or title.

A figure is a list of blocks, and a block is a column of panels that share their x axis. The facts are kept in
`figure.layout.meta`, so they are still there after a figure was written as JSON and read back.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.themes import INCH, THEMES, Theme, ThemeName

KEY = "squashlens"
Axes = tuple[str, str]  # what traces call the axes of a panel: x2, y2


@dataclass
class Panel:
    """What the layout calls the axes of a panel, such as xaxis2 and yaxis2, its height, and what is said above it."""

    x: str
    y: str
    height: float  # pixels, at the notebook's font size
    title: str = ""
    head: str = ""  # of the result that it begins, among several
    notes: str = ""

    @property
    def axes(self) -> Axes:
        """What traces call its axes."""
        return reference(self.x), reference(self.y)


@dataclass
class Page:
    """Blocks of a figure and how many are side by side at most; its title with a sentence and notes; theme and size."""

    blocks: list[list[Panel]]
    columns: int = 1
    title: str = ""
    says: str = ""  # the message of the figure, a sentence
    notes: str = ""
    theme: ThemeName = "notebook"
    width: float | None = None  # inches, as is the height
    height: float | None = None
    font: str | None = None
    font_size: float | None = None  # points
    fit: float = (
        1.0  # of the font size, so that the text of a slide leaves room for its panels
    )

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
        return cls(
            [[Panel(**panel) for panel in block] for block in facts.pop("blocks")],
            **facts,
        )

    def keep(self, figure: go.Figure) -> None:
        """Write the facts into a figure."""
        figure.update_layout(meta={KEY: asdict(self)})

    @property
    def panels(self) -> list[Panel]:
        """The panels of all blocks."""
        return [panel for block in self.blocks for panel in block]

    @property
    def look(self) -> Theme:
        """The theme, with font and size if they were chosen."""
        theme = THEMES[self.theme]
        size = theme.size if self.font_size is None else self.font_size * INCH / 72
        return replace(
            theme,
            font=self.font or theme.font,
            size=self.fit * size,
            width=self.width or theme.width,
        )


def traces_of(figure: go.Figure) -> list[Any]:
    """The traces of a figure."""
    return list(cast(Any, figure.data))


def axes_of(trace: Any) -> Axes:
    """What a trace calls its axes."""
    return getattr(trace, "xaxis", None) or "x", getattr(trace, "yaxis", None) or "y"


def reference(axis: str) -> str:
    """What traces and annotations call an axis of the layout: x2 for xaxis2."""
    return axis.replace("axis", "")


def group_of(figure: go.Figure, name: str) -> list[str]:
    """The names of the axes that share the range of an axis, itself included."""
    layout, side = cast(Any, figure.layout), name[0]

    def root(axis: str) -> str:
        while layout[axis].matches:
            axis = layout[axis].matches.replace(side, f"{side}axis")
        return axis

    names = [one for one in layout.to_plotly_json() if one.startswith(f"{side}axis")]
    return [one for one in names if root(one) == root(name)] or [name]
