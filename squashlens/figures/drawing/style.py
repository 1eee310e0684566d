"""The look of a figure: theme, size, fonts and title, set on one figure and nowhere else."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, cast

import plotly.graph_objects as go

from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.figures.drawing.layout import lay_out
from squashlens.figures.drawing.notes import Result, notes_of
from squashlens.figures.drawing.page_blocks import Page, Panel, traces_of
from squashlens.figures.drawing.text import escape, unbreak
from squashlens.figures.drawing.themes import IN_BROWSER, WIDTHS, ThemeName

Width = Literal["column", "page"] | float
# The least and the largest value of each size, and its unit.
LIMITS = {
    "width": (2, 100, "inches"),
    "height": (1, 100, "inches"),
    "font_size": (4, 72, "points"),
}
SMALL = 60.0  # pixels: no figure has panels that are lower
MANY = 70  # marks of a line of usual size


@validated
def styled(
    figure: go.Figure,
    *,
    theme: ThemeName | None = None,
    width: Width | None = None,
    height: float | None = None,
    font: str | None = None,
    font_size: float | None = None,
    title: str | None = None,
) -> go.Figure:
    """A copy of a figure with another theme, size or title. What is not given stays as it was.

    Everything is laid out again for the new size: text is broken into lines, ticks are thinned, and a narrow page has
    fewer panels side by side. The figure that was given is not changed, and no setting of plotly is. What was changed
    with plotly's own functions stays, except sizes, margins, ticks and places.

    Args:
        figure: a figure of `squashlens.figures`.
        theme: ``"notebook"`` (13 pixels, as wide as the page), ``"paper"`` (serif, 8 points, 6.75 inches wide, black
            on white), ``"slides"`` (at most 18 points, 13 by 7.3 inches) or ``"dark"`` (light on dark).
        width: ``"column"`` (3.25 inches), ``"page"`` (6.75 inches), or a number of inches.
        height: height of the whole figure in inches; by default as much as its panels need.
        font: font family, such as ``"Palatino, serif"``.
        font_size: size of ordinary text in points; titles are larger, and tick labels and legends smaller.
        title: title of the figure; ``""`` removes it with all sentences and notes, which a caption then has.

    Returns:
        The new figure.

    Raises:
        InputError: if squashlens did not draw the figure; if the text leaves no room for the panels.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> figure = sl.figures.attribution(sl.sensitivity(model, "110 ="))
    >>> sl.figures.styled(figure, theme="paper", width="column").layout.width
    312.0
    """
    page = Page.of(figure)
    changed: Any = figure.layout
    page.title = unbreak(
        changed.title.text or ""
    )  # may have been changed by plotly's own functions
    inches = WIDTHS[width] if isinstance(width, str) else width
    given: dict[str, Any] = {
        "theme": theme,
        "width": inches,
        "height": height,
        "font": font,
        "font_size": font_size,
        "title": None if title is None else escape(title),
    }
    given = {name: value for name, value in given.items() if value is not None}
    for name, (least, most, unit) in LIMITS.items():
        if not least <= given.get(name, least) <= most:
            raise InputError(
                f"{name}={given[name]:g} {unit} is not usable.",
                f"Use {least} to {most} {unit}.",
            )
    for panel in page.panels if title == "" else ():
        panel.notes = ""
    new = go.Figure(figure)
    replace(page, fit=1.0, **given).keep(new)
    return dress(new)


def finish(
    figure: go.Figure,
    title: str,
    height: float,
    found: Result | Iterable[Result] = (),
    *notes: str,
    says: str = "",
) -> go.Figure:
    """Give a new figure its page, and lay it out.

    `height` has the pixels of all rows of panels together, and `says` the message in a sentence. The line below it has
    what is to say of the results that were `found`, and `notes`.
    """
    page = (
        Page.of(figure)
        if cast(Any, figure.layout).meta
        else Page([[Panel("xaxis", "yaxis", 1.0)]])
    )
    rows = sum(panel.height for panel in page.panels) / page.columns
    for panel in page.panels:
        panel.height *= max(height, SMALL) / rows
    replace(page, title=title, says=says, notes=notes_of(found, *notes)).keep(figure)
    for trace in traces_of(figure):
        many = (
            len(trace.x) > MANY
            if trace.type == "scatter" and trace.mode == "lines+markers"
            else False
        )
        if many and trace.marker.size in (
            None,
            6,
        ):  # so that marks do not touch; other sizes mean something
            trace.marker.size = max(6 * MANY / len(trace.x), trace.line.width or 2)
    return dress(figure)


class ShownFigure(go.Figure):
    """A figure whose output in a notebook has HTML beside plotly's own format, so that an exported notebook keeps it.

    The HTML loads plotly.js from a CDN when the exported page is opened.
    """

    def _ipython_display_(self) -> None:
        bundle: dict[str, Any] = cast(Any, self)._repr_mimebundle_()
        if not bundle:  # a renderer that opens a window
            cast(Any, super())._ipython_display_()
            return
        from IPython.display import display

        page = self.to_html(
            full_html=False, include_plotlyjs="cdn", default_width=IN_BROWSER
        )
        display({"text/html": page} | bundle, raw=True)


def dress(figure: go.Figure) -> go.Figure:
    """Set theme and layout of a figure whose page is known."""
    figure.__class__ = ShownFigure  # in place, since others hold the figure
    return lay_out(figure)
