"""What a figure knows of its own layout, so that it can be laid out again with another width, theme or title.

A page is a list of blocks, and a block a column of panels. They are kept in `figure.layout.meta`, so a figure that was
written as JSON and read back can be styled too.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.themes import POINT, THEMES, Theme, ThemeName

KEY = "squashlens"


@dataclass
class Panel:
    """What the layout calls the axes of a panel, such as xaxis2 and yaxis2, its height, and what is said around it."""

    x: str
    y: str
    height: float = 240.0  # pixels, at the notebook's font size
    title: str = ""
    head: str = ""  # the label of the result that it begins, among several
    across: str = ""  # titles of its axes, as markup: an inner panel does not show them
    up: str = ""
    names: list[str] = field(default_factory=list)  # of its rows, as markup

    @property
    def axes(self) -> tuple[str, str]:
        """What traces call its axes."""
        return reference(self.x), reference(self.y)


@dataclass
class Page:
    """Blocks of panels, how many are side by side, the texts above them, theme and size.

    There are `columns` blocks side by side, or on a narrow page fewer, unless the number is `exact`. `notes` are the
    parts of the line below the title. Theme, width, height and fonts are as in `styled`; None is that of the theme.
    """

    blocks: list[list[Panel]]
    columns: int = 1
    exact: bool = False
    title: str = ""
    notes: list[str] = field(default_factory=list)
    theme: ThemeName = "notebook"
    width: float | None = None  # inches, as is the height
    height: float | None = None
    font: str | None = None
    font_size: float | None = None  # points

    @classmethod
    def of(cls, figure: go.Figure) -> "Page":
        """The page of a figure; an error if another package drew it."""
        meta: Any = cast(Any, figure.layout).meta
        if not isinstance(meta, Mapping) or KEY not in meta:
            raise InputError(
                "This figure was not drawn by squashlens, so its parts are not known.",
                "Give a figure of squashlens.figures, or change the figure with plotly's own functions.",
            )
        facts = dict(meta[KEY])
        blocks = []
        for block in facts.pop("blocks"):
            blocks.append([Panel(**panel) for panel in block])
        return cls(blocks, **facts)

    def keep(self, figure: go.Figure) -> None:
        """Write the page into a figure."""
        cast(Any, figure.layout).meta = {KEY: asdict(self)}

    @property
    def panels(self) -> list[Panel]:
        """The panels of all blocks."""
        return [panel for block in self.blocks for panel in block]

    @property
    def look(self) -> Theme:
        """The theme, with font, size and width if they were chosen."""
        theme = THEMES[self.theme]
        chosen: dict[str, Any] = {"font": self.font, "width": self.width}
        if self.font_size:
            chosen["size"] = self.font_size * POINT
        given = {name: value for name, value in chosen.items() if value is not None}
        return replace(theme, **given)


def reference(axis: str) -> str:
    """What traces and annotations call an axis of the layout: x2 for xaxis2."""
    return axis.replace("axis", "")


def traces_of(figure: go.Figure) -> list[Any]:
    """The traces of a figure."""
    return list(cast(Any, figure.data))


def axis_name(refers: str) -> str:
    """The name in the layout of what traces call x2."""
    return f"{refers[0]}axis{refers[1:]}"
