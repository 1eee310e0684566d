"""A section of the report: a heading, an explanation, a figure, and sentences about the results."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Section:
    """One section of the report. Without a figure, the sentences say why; `width` is the figure's minimum in pixels."""

    title: str
    figure: "go.Figure | None"
    says: tuple[str, ...]
    note: str = ""
    width: int = 0
