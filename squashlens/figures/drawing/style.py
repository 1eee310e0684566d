"""The look of a figure: its panels, title and theme, set on one figure and nowhere else."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.figures.drawing.layout import lay_out, name_once, scale_marks
from squashlens.figures.drawing.notes import Result, notes_of
from squashlens.figures.drawing.page import Page, Panel
from squashlens.figures.drawing.themes import IN_BROWSER, WIDTHS, ThemeName

Width = Literal["column", "page"] | float
# The least and the largest value of each size, and its unit.
LIMITS = {
    "width": (2, 100, "inches"),
    "height": (1, 100, "inches"),
    "font_size": (4, 72, "points"),
}


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
    with plotly's own functions stays, except sizes, margins and places.

    Args:
        figure: a figure of `squashlens.figures`.
        theme: ``"notebook"`` (13 pixels, as wide as the page), ``"paper"`` (serif, 8 points, 6.75 inches wide, black
            on white), ``"slides"`` (18 points, 13 inches wide and at least 7.3 high) or ``"dark"`` (light on dark).
        width: ``"column"`` (3.25 inches), ``"page"`` (6.75 inches), or a number of inches.
        height: height of the whole figure in inches; by default as much as its panels need.
        font: font family, such as ``"Palatino, serif"``.
        font_size: size of ordinary text in points; titles are larger, and tick labels and legends smaller. Lines and
            dots grow with text that is larger than a notebook's.
        title: title of the figure; ``""`` removes it with the line below it, which a caption then has.

    Returns:
        The new figure.

    Raises:
        InputError: if squashlens did not draw the figure; if the text leaves no room for the panels.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> figure = sl.figures.attribution(sl.bound_vs_jacobian(model, "110 ="))
    >>> sl.figures.styled(figure, theme="paper", width="column").layout.width
    312.0
    """
    page = Page.of(figure)
    if isinstance(width, str):
        width = WIDTHS[width]
    if (
        title is None
    ):  # the one that is shown, perhaps changed by plotly's own functions
        markup = cast(Any, figure.layout).title.text or ""
        title = html.unescape(markup.replace("<br>", " "))
    options: dict[str, Any] = {
        "theme": theme,
        "width": width,
        "height": height,
        "font": font,
        "font_size": font_size,
        "title": title,
    }
    given = {name: value for name, value in options.items() if value is not None}
    for name, (least, most, unit) in LIMITS.items():
        if not least <= given.get(name, least) <= most:
            raise InputError(
                f"{name}={given[name]:g} {unit} is not usable.",
                f"Use {least} to {most} {unit}.",
            )
    new = go.Figure(figure)
    new_page = replace(page, **given)
    new_page.keep(new)
    scale_marks(new, new_page.look.thickness / page.look.thickness)
    return dress(new)


def grid(
    titles: Sequence[str],
    columns: int = 1,
    heights: Sequence[float] = (),
    **axes: Any,
) -> tuple[go.Figure, list[Any]]:
    """A figure with a panel for each title, row by row, and the place of each panel, such as ``{"row": 1, "col": 2}``.

    Panels of one column stay below each other; of several columns a narrow page has fewer. `heights` of panels, 200
    each by default, are in pixels at the font size of a notebook, and `axes` are further arguments of plotly's
    `make_subplots`.
    """
    rows = math.ceil(len(titles) / columns)
    figure = make_subplots(rows=rows, cols=columns, **axes)
    places: list[Any] = []
    panels = []
    for number, title in enumerate(titles):
        row, column = divmod(number, columns)
        places.append({"row": 1 + row, "col": 1 + column})
        shown: Any = figure.get_subplot(**places[-1])
        x = shown.xaxis.plotly_name
        y = shown.yaxis.plotly_name
        height = heights[number] if heights else 200.0
        panels.append(Panel(x, y, height, title))
    # A block stays together, and blocks may be arranged in fewer columns.
    blocks = [panels] if columns == 1 else [[panel] for panel in panels]
    Page(blocks, columns).keep(figure)
    return figure, places


def finish(
    figure: go.Figure,
    title: str,
    found: Result | Iterable[Result] = (),
    *notes: str,
    height: float = 260.0,
) -> go.Figure:
    """Give a new figure its page and lay it out; `height` is that of the panel of a figure without `grid`.

    The line below the title says what was measured, from the results that were `found`, and `notes`. All texts are
    plain.
    """
    if not cast(Any, figure.layout).meta:  # `grid` gives a figure its page
        Page([[Panel("xaxis", "yaxis", height)]]).keep(figure)
    page = Page.of(figure)
    layout: Any = figure.layout
    logarithmic = [panel for panel in page.panels if layout[panel.y].type == "log"]
    if len(logarithmic) < len(page.panels):
        # Their titles say so, since the other scales are linear.
        for panel in logarithmic:
            panel.title += ", log scale"
    name_once(figure)
    texts = dict.fromkeys(notes_of(found) + list(notes))  # each only once
    texts.pop("", None)
    replace(page, title=title, notes=list(texts)).keep(figure)
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
