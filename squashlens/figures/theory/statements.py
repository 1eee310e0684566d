"""Both sides of every statement of the paper, for growing inputs."""

import math
from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped
from squashlens.theory.statements.gallery import Exhibit

COLUMNS, ROW = 3, 130  # panels side by side, and pixels of each
LEFT, RIGHT, BROKEN = "#D55E00", "#0072B2", "#7F7F7F"
LEAST = 1e-17  # zeros are drawn here, below every rounding error of a number near 1


@validated
def statements(exhibits: Sequence[Exhibit]) -> go.Figure:
    """Draw the left and right side of each statement against the quantity that grows, one panel for each statement.

    Both scales are logarithmic; a side that is 0 is drawn at the bottom. The title of a panel is the claim.

    Args:
        exhibits: a result of `squashlens.statements.gallery`.

    Returns:
        The figure.
    """
    if not exhibits:
        raise InputError(
            "exhibits is empty: there is nothing to draw.", "Give the result of squashlens.statements.gallery."
        )
    rows = -(-len(exhibits) // COLUMNS)
    titles = [f"<b>{e.kept[0].name}</b><br>{escaped(e.kept[0].claim)}" for e in exhibits]
    figure = make_subplots(rows=rows, cols=COLUMNS, subplot_titles=titles)
    for place, exhibit in enumerate(exhibits):
        row, column = divmod(place, COLUMNS)
        for name, colour, values in (
            ("right side", RIGHT, [one.right for one in exhibit.rows]),
            ("left side", LEFT, [one.left for one in exhibit.rows]),
        ):
            trace = go.Scatter(
                x=[one.at for one in exhibit.rows], y=[max(value, LEAST) for value in values],
                name=name, mode="lines+markers",
                line={"color": colour, "dash": "dot" if colour == RIGHT else "solid"}, showlegend=place == 0,
                text=[f"{value:.4g}" for value in values], hovertemplate=f"{name} at %{{x}}: %{{text}}<extra></extra>",
            )  # fmt: skip
            figure.add_trace(trace, row=row + 1, col=column + 1)
        figure.update_xaxes(title=exhibit.axis, row=row + 1, col=column + 1)
        figure.update_yaxes(range=_range(exhibit), row=row + 1, col=column + 1)
    figure.update_xaxes(type="log").update_yaxes(type="log")
    notes = "zeros are drawn at the bottom"
    return finish(figure, title="Both sides of each statement", height=ROW * rows, notes=notes)


def _range(exhibit: Exhibit) -> list[float]:
    """The logarithmic range of both sides, at least a decade, so that rounding errors of equal sides do not show."""
    sides = [math.log10(max(value, LEAST)) for one in exhibit.rows for value in (one.left, one.right)]
    middle, half = (max(sides) + min(sides)) / 2, (max(sides) - min(sides)) / 2
    return [middle - max(0.5, 1.1 * half), middle + max(0.5, 1.1 * half)]
