"""A section of the page: a heading, a figure, what it says, and what the reader needs to know of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Section:
    """Without a figure, the sentences say why there is none; a figure of several panels wants `width` pixels."""

    title: str
    figure: "go.Figure | None"
    says: tuple[str, ...]
    note: str = ""
    width: int = 0
