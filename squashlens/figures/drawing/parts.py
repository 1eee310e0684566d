"""Parts of a figure that have text. Each function sets sizes and lines of one part, and returns its space in pixels."""

from typing import Any

import plotly.graph_objects as go

from squashlens.figures.drawing.page import Page, traces_of
from squashlens.figures.drawing.text import height_of, unbroken, width_of, wrapped
from squashlens.figures.drawing.themes import SMALL

TITLE, NOTES = 1.2, 0.9  # sizes of text, in units of the font size
SYMBOL, BETWEEN, LEAST = 40.0, 5.0, 19.0  # pixels that plotly gives a legend's symbol, the gap after it, and a line
MODE_BAR = 120.0  # pixels at the right of a title, where plotly shows its buttons in a notebook


def set_colour_bar(trace: Any, size: float) -> float:
    """Set the text of the colour bar of a trace; its width."""
    bar = trace.colorbar
    ticks = max(width_of(str(text), SMALL * size) for text in (bar.ticktext or ("−0.25",)))
    bar.update(thickness=size, tickfont={"size": SMALL * size}, outlinewidth=0, xpad=0, ypad=0)
    bar.update(title={"side": "right", "font": {"size": size}})
    return 2 * size + 8 + ticks + height_of(bar.title.text or "", size)


def set_title(figure: go.Figure, page: Page, width: float) -> float:
    """Set the title of the page and the line under it, except for their height on the page; the space they take."""
    size = page.look.size
    if not page.title:
        figure.update_layout(title=None)
        return 0.5 * size
    room = width - size - (MODE_BAR if page.theme == "notebook" else 0.0)
    text, notes = wrapped(page.title, room, TITLE * size), wrapped(page.notes, width - size, NOTES * size)
    # plotly aligns the top of a title that has one line, but the base line of the first of several.
    lift = 0.8 * TITLE * size if "<br>" in text else 0.0
    figure.update_layout(
        title={
            "text": text, "font": {"size": TITLE * size}, "x": 0, "xref": "container", "xanchor": "left",
            "yref": "container", "yanchor": "top", "pad": {"l": 0.5 * size, "t": lift},
            "subtitle": {"text": notes, "font": {"size": NOTES * size, "color": page.look.soft}},
        }
    )  # fmt: skip
    return size + 1.5 * lift + height_of(text, TITLE * size) + height_of(notes, NOTES * size)


def set_legend(figure: go.Figure, name: str, place: str, width: float, size: float) -> tuple[float, float]:
    """Set the text of a legend on `width` pixels; its width, and its height, which is 0 if there is no legend."""
    traces, small = _listed(figure, name), SMALL * size
    for trace in traces:
        trace.name = wrapped(trace.name, (0.3 if place == "right" else 0.95) * width - SYMBOL, small)
    texts = list(dict.fromkeys(str(trace.name) for trace in traces))
    if place == "none" or not texts or (len(texts) == 1 and all(trace.showlegend is None for trace in traces)):
        figure.update_layout({name: {"visible": False}})
        return 0.0, 0.0
    widths = [SYMBOL + 1.05 * width_of(text, small) for text in texts]
    heights = [max(LEAST, 3 + height_of(text, small)) for text in texts]
    # plotly puts all entries into one row, or into columns that are as wide as the widest.
    columns, entry, row = len(texts), None, BETWEEN + max(widths)
    if place == "right":
        columns = 1
    elif sum(widths) + BETWEEN * (1 + len(texts)) > width:
        columns = max(1, int((width - BETWEEN) / row))
        # So wide that one more column does not fit. Texts narrower than estimated would otherwise get it, and the rows
        # that this saves would be empty.
        entry = max(row, (width + 2 * BETWEEN) / (columns + 1)) - BETWEEN - SYMBOL
    height = sum(max(heights[at : at + columns]) for at in range(0, len(heights), columns)) + 2 * BETWEEN
    legend: Any = {
        "visible": True, "font": {"size": small}, "bgcolor": "rgba(0,0,0,0)", "entrywidth": entry,
        "traceorder": "normal",  # otherwise plotly has gaps between groups, which are not in the height
        "maxheight": height + LEAST,  # otherwise it is half the page, and the rest is scrolled
        "orientation": "v" if place == "right" else "h",
    }  # fmt: skip
    figure.update_layout({name: legend})
    return max(widths) + size, height


def list_once(figure: go.Figure) -> None:
    """Give each name one place in its legend, which stands for all traces with this name."""
    seen: set[tuple[str, str]] = set()
    for trace in traces_of(figure):
        if "showlegend" not in trace or trace.showlegend is False:
            continue
        key = (trace.legend or "legend", unbroken(trace.name or ""))
        # Plotly lists no trace without points, and calls one without a name "trace 1".
        if not trace.name or key in seen or (trace.x is not None and not len(trace.x)):
            trace.showlegend = False
        else:
            seen.add(key)
        trace.legendgroup = trace.legendgroup or key[1] or None


def _listed(figure: go.Figure, name: str) -> list[Any]:
    """The traces that a legend lists."""
    kinds = [one for one in traces_of(figure) if "showlegend" in one and one.type not in ("heatmap", "table")]
    return [t for t in kinds if t.name and t.showlegend is not False and (t.legend or "legend") == name]
