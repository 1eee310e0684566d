"""What several figures have: curves with intervals, rows with their median, maps of tokens and layers.

Names of curves are plain text, and hover texts and names of rows are markup.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.layout import STEEP
from squashlens.figures.drawing.text import escape, number_token
from squashlens.figures.drawing.themes import GUIDE, LINES, pale, series, tint

MARKS = "dots: lengths, ring: median, bar: middle half"  # what `spread` draws
MANY = 70  # marks of a line of usual size
LEAST = 3.0  # size of a mark that is seen
TICKS = 8  # of an axis of whole numbers, or of powers of ten, at most
SHARES = (-0.04, 1.04)  # range of an axis of shares, so that no mark is cut


def curve(
    x: Any,
    y: Any,
    name: str = "",
    *,
    colour: str,
    dash: str = "solid",
    symbol: Any = "circle",
    width: float = 2.0,
    size: float = 6,
    hover: str = "%{x}: %{y:.4g}",
    log: bool = False,
    **trace: Any,
) -> go.Scatter:
    """A line with marks.

    Args:
        x, y: its points.
        name: its name in the legend, plain text; it also begins the hover text.
        colour: colour of line and marks.
        dash, width: those of the line, as of plotly, in pixels.
        symbol, size: those of the marks, as of plotly, in pixels; many marks are smaller.
        hover: plotly's template of the hover text after the name.
        log: whether the y axis is logarithmic: values of 0 or below are left out.
        trace: further properties of plotly's trace, such as `mode`.
    """
    values = np.asarray(y, dtype=np.float64)
    if log:
        values = np.where(values > 0, values, np.nan)
    if len(values) > MANY:  # so that marks do not touch
        size = max(size * MANY / len(values), width, LEAST)
    title = escape(name)
    return go.Scatter(
        x=x,
        y=values,
        name=title or None,
        line={"color": colour, "dash": dash, "width": width},
        marker={"symbol": symbol, "size": size, "color": colour},
        hovertemplate=f"{title}<br>{hover}<extra></extra>".removeprefix("<br>"),
        **{"mode": "lines+markers"} | trace,
    )


def line(values: xr.DataArray, name: str = "", **style: Any) -> go.Scatter:
    """A curve over the only dimension of an array, with error bars where it has intervals, `low` to `high`.

    `style` are further arguments of `curve`.
    """
    (dim,) = values.dims
    drawn = curve(values[dim].values, values.values, name, **style)
    if interval_note(values):
        # Without caps, which cover each other; an infinite value has no bar.
        low, high = ends_of(values)
        middle = np.where(np.isfinite(values), values, np.nan)
        drawn.error_y = {
            "array": np.nan_to_num(high - middle),
            "arrayminus": np.nan_to_num(middle - low),
            "color": style["colour"],
            "width": 0,
            "thickness": 1.4,
        }
    return drawn


def add_lines(
    figure: go.Figure,
    by_name: Mapping[str, xr.DataArray],
    place: Mapping[str, Any] | None = None,
    **style: Any,
) -> None:
    """Add a curve for each array, by its name; neighbours differ in colour, symbol and width.

    `place` has the row and the column of a panel. `style` are arguments of `curve` for all curves.
    """
    for order, (name, values) in enumerate(by_name.items()):
        look = series(order) if len(by_name) > 1 else {"colour": LINES[0]}
        drawn = line(values, name, **look | style)
        figure.add_trace(drawn, **(place or {}))


def add_marks(
    figure: go.Figure,
    x: np.ndarray,
    y: np.ndarray,
    kinds: np.ndarray,
    looks: Mapping[str, tuple[str, str]],
    texts: np.ndarray,
    size: float,
) -> None:
    """Add marks whose symbol and colour say their kind; `looks` has both for each kind. Hovering shows `texts`."""
    for kind, (symbol, colour) in looks.items():
        is_of_kind = kinds == kind
        if is_of_kind.any():
            look: Any = {"symbol": symbol, "colour": colour, "size": size}
            look |= {"mode": "markers", "hover": "%{customdata}"}
            hovers = texts[is_of_kind]
            marks = curve(x[is_of_kind], y[is_of_kind], kind, customdata=hovers, **look)
            figure.add_trace(marks)


def with_interval(found: xr.Dataset, name: str, *ends: str) -> xr.DataArray:
    """A variable with the ends of its intervals, if there are any, as the coordinates `low` and `high`.

    Without `ends`, their names are those of the variable: `exponent_low` and `exponent_high` of `exponent` or
    `exponent_mean`, and `r2_low_y` and `r2_high_y` of `r2_y`.
    """
    if not ends:
        stem = name.removesuffix("_mean")
        ends = (f"{stem}_low", f"{stem}_high")
        if name.endswith("_y"):
            stem = name.removesuffix("_y")
            ends = (f"{stem}_low_y", f"{stem}_high_y")
    values = found[name]
    for coordinate, end in zip(("low", "high"), ends, strict=True):
        if end in found:
            values = values.assign_coords({coordinate: found[end].variable})
    return values


def clipped(values: xr.DataArray, least: float, most: float) -> xr.DataArray:
    """Values between two limits, as are the ends of their intervals."""
    within = values.clip(least, most)
    for end in ("low", "high"):
        if end in values.coords:
            within = within.assign_coords({end: values[end].clip(least, most)})
    return within


def ends_of(values: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """The ends `low` and `high` of the intervals of values; the values themselves where there are none."""
    data = values.values.astype(np.float64)
    low = values.coords.get("low", values).values
    high = values.coords.get("high", values).values
    return np.where(np.isnan(low), data, low), np.where(np.isnan(high), data, high)


def with_its_intervals(values: xr.DataArray) -> xr.DataArray:
    """The array; without intervals that do not contain its values: arithmetic changes values, and not coordinates."""
    low, high = ends_of(values)
    data = values.values
    finite = np.where(np.isfinite(data), data, 0.0)  # ∞ − ∞ is no number
    slack = 1e-6 * np.abs(finite)  # for rounding
    is_outside = (low > data + slack) | (high < data - slack)
    if is_outside.any():
        return values.drop_vars(["low", "high"], errors="ignore")
    return values


def interval_note(values: xr.DataArray) -> str:
    """What the bars of a curve are, for the line below the title; empty without bars."""
    if np.array_equal(*ends_of(values), equal_nan=True):
        return ""
    if "high" in values.coords:
        return "bars: 95 % intervals"
    return "bars: from a lower bound"


def banded(
    middle: xr.DataArray, low: xr.DataArray, high: xr.DataArray, name: str, **style: Any
) -> list[go.Scatter]:
    """A curve in a filled band from `low` to `high`, on a logarithmic scale, as three traces that a click on the
    legend hides together. `style` are further arguments of `curve`."""
    centre = line(middle, name, log=True, **style)
    edge: Any = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    edge |= {"x": centre.x, "name": centre.name}
    filled = {"fill": "tonexty", "fillcolor": tint(style["colour"])}
    upper = go.Scatter(y=high.where(high > 0), **edge)
    lower = go.Scatter(y=low.where(low > 0), **edge, **filled)  # up to the trace before
    return [upper, lower, centre]


def over_seeds(
    values: xr.DataArray, middle: str, name: str, **style: Any
) -> list[go.Scatter]:
    """A curve of values over (seed, other), as `banded` draws it: the mean or median over seeds, in a band.

    The band goes from the smallest positive value to the largest, since the axis is logarithmic; zeros count in the
    curve. `middle` is "mean" or "median".
    """
    positive = values.where(values > 0)
    low = positive.min("seed")
    high = positive.max("seed")
    centre = getattr(values, middle)("seed")
    return banded(centre, low, high, name, **style)


def steps(values: Any, title: str) -> dict[str, Any]:
    """An axis of layers, blocks or other whole numbers."""
    distance = max(1, math.ceil(np.ptp(np.asarray(values, dtype=float)) / TICKS))
    return {"title": title, "dtick": distance, "tickangle": 0}


def log_axis(*values: Any, least: float = 2.0, room: float = 0.05) -> dict[str, Any]:
    """A logarithmic axis for all positive values, which spans at least the factor `least`.

    `room` is the space at each end, in shares of what the values span.
    """
    numbers = np.concatenate([np.ravel(part).astype(float) for part in values])
    logs = np.log10(numbers[np.isfinite(numbers) & (numbers > 0)])
    if not len(logs):
        return {"type": "log"}
    middle = (logs.max() + logs.min()) / 2
    half = max((1 + 2 * room) * np.ptp(logs), np.log10(least)) / 2
    return {"type": "log", "range": [middle - half, middle + half]}


def text_axis(texts: Mapping[int, str], title: str) -> dict[str, Any]:
    """A numeric axis labelled by texts, which are markup, so that equal texts have separate places.

    All places have a label. The axis shows as many as fit, and more of them in a part that is zoomed in.
    """
    return {
        "title": title,
        "labelalias": {str(place): text for place, text in texts.items()},
        "exponentformat": "none",  # otherwise 10000 would be written as 10k, which has no label
        "tickangle": STEEP,
        "range": [min(texts) - 0.6, max(texts) + 0.6],
    }


def token_axis(tokens: Mapping[int, str]) -> dict[str, Any]:
    """An axis of positions, labelled by position and token."""
    texts = {place: number_token(place, token) for place, token in tokens.items()}
    return text_axis(texts, "position: token")


def shade_range(figure: go.Figure, start: float, end: float, text: str) -> None:
    """Shade a part of a logarithmic x axis, with a text at its left edge."""
    figure.add_vrect(x0=start, x1=end, fillcolor="#7F7F7F", opacity=0.12, line_width=0)  # pyright: ignore
    place = {"x": float(np.log10(start)), "xanchor": "left", "y": 0, "yref": "y domain"}
    figure.add_annotation(place, text=text, showarrow=False, yanchor="bottom")


def name_rows(figure: go.Figure, names: Iterable[str], row: int | None = None) -> None:
    """Give the rows 0, 1, … of a figure, or of one of its panels, names from top to bottom."""
    texts = list(names)
    ticks = {"tickvals": list(range(len(texts))), "ticktext": texts}
    ticks["ticklabelstandoff"] = 6  # a mark at the edge is half outside
    figure.update_yaxes(ticks, range=[len(texts) - 0.4, -0.6], showgrid=False, row=row)


def spread(
    figure: go.Figure,
    level: int,
    name: str,
    values: Any,
    colour: str,
    *,
    are_shares: bool = False,
    **place: Any,
) -> None:
    """Draw one row: faint dots for all values, a ring at their median, and a bar over their middle half.

    Of shares of right answers, which are mostly 0 or 1, the ring is at the mean, the share of all, and there is no bar.
    `level` is the number of the row, on the y axis, and `name` its name, plain text, for the hover text. Values that
    are NaN or infinite are left out. `place` has the row and the column of a panel.
    """
    known = values[np.isfinite(values)]
    faint: Any = {"mode": "markers", "opacity": 0.6, "size": 5, "colour": pale(colour)}
    figure.add_trace(curve(known, np.full(len(known), level), **faint), **place)
    if not len(known):
        return
    low, middle, high = np.quantile(known, [0.25, 0.5, 0.75])
    hover = (
        f"{escape(name)}<br>median {middle:.4g}, middle half {low:.4g} to {high:.4g}"
    )
    if are_shares:
        middle = known.mean()
        hover = f"{escape(name)}<br>mean {middle:.4g}"
    ring = {"color": "white", "size": 11, "line": {"color": colour, "width": 3}}
    centre = curve([middle], [level], colour=colour, hover=hover, mode="markers")
    centre.update(marker=ring, cliponaxis=False)
    if not are_shares:
        bar = curve([low, high], [level] * 2, colour=colour, width=4, mode="lines")
        figure.add_trace(bar, **place)
    figure.add_trace(centre, **place)


def add_map(
    figure: go.Figure,
    values: xr.DataArray,
    title: str,
    *,
    log: bool = False,
    floor: float | None = None,
    place: Mapping[str, Any] | None = None,
    **scale: Any,
) -> None:
    """Add a map over two dimensions, rows first, with the exact values in the hover text and a titled colour bar.

    A logarithmic scale leaves zeros blank. With a `floor`, it ends at 1, and all values below the floor have its
    colour. `title` is that of the colour bar, `place` has the row and the column of a panel, and `scale` are
    properties of plotly's colour axis.
    """
    rows, columns = (escape(str(dim).replace("_", " ")) for dim in values.dims)
    hover = f"{rows} %{{y}}, {columns} %{{x}}<br>{escape(title)}: %{{customdata:.4g}}"
    bar: dict[str, Any] = {"title": {"text": escape(title)}}
    cells: Any = values
    if log:
        # Plotly has no logarithmic colours: it gets exponents, and ticks say "10 to the power of".
        cells = np.log10(values.where(values > 0))
        if floor:
            lowest = round(np.log10(floor))
            cells = np.log10(values.clip(min=floor))
            tick = f"10<sup>{lowest}</sup>".replace("-", "−")
            bar |= {"labelalias": {tick: f"≤ {tick}"}}
            scale |= {"cmin": lowest, "cmax": 0}
        bar |= {"tickprefix": "10<sup>", "ticksuffix": "</sup>"}
        powers = np.nan_to_num(float(cells.max() - cells.min()))
        if powers > 2:
            bar |= {"dtick": math.ceil(powers / TICKS)}
    figure.add_heatmap(
        z=cells.values.astype(np.float32),
        x=values[values.dims[1]].values,
        y=values[values.dims[0]].values,
        customdata=values.values,
        hovertemplate=f"{hover}<extra></extra>",
        hoverongaps=False,
        coloraxis="coloraxis",
        **(place or {}),
    )
    figure.update_layout(coloraxis={"colorbar": bar} | scale)


def token_figure(
    values: xr.DataArray,
    tokens: Mapping[int, str],
    row: str,
    title: str,
    log: bool = False,
    floor: float | None = None,
) -> go.Figure:
    """A map of values over rows × tokens. Positions between the tokens stay white.

    Args:
        values: an array over two dimensions, of which one is `position`, and the other has whole numbers.
        tokens: the token at each position.
        row: what a row is called, for the y axis and the hover text.
        title: title of the colour bar.
        log, floor: as in `add_map`.
    """
    places = np.arange(min(tokens), max(tokens) + 1)
    exact = values.reindex(position=places).transpose(..., "position")
    numbers = exact[exact.dims[0]].values.astype(int)
    names = [number_token(place, tokens.get(place, "")) for place in places.tolist()]
    figure = go.Figure()
    add_map(figure, exact, title, log=log, floor=floor)
    # Instead of the number of a position, with its token.
    hover = f"{escape(row)} %{{y}}, %{{text}}<br>{escape(title)}: %{{customdata:.6g}}"
    figure.update_traces(
        text=[names] * len(numbers), hovertemplate=f"{hover}<extra></extra>"
    )
    figure.update_xaxes(token_axis(tokens))
    if np.ptp(numbers) == len(numbers) - 1:
        return figure.update_yaxes(steps(numbers, escape(row)))
    # Rows with gaps between their numbers are placed by their order.
    figure.update_traces(y=numbers.astype(str))
    return figure.update_yaxes(type="category", title=escape(row))


def guide(figure: go.Figure, *levels: float, **place: Any) -> None:
    """A horizontal line at each level that values are compared with."""
    look = {"color": GUIDE, "width": 1.5, "dash": "dot"}
    for level in levels:
        figure.add_hline(y=level, line=look, **place)


def titles_of(values: xr.DataArray) -> tuple[str, str]:
    """Of a variable with a long name and units: the title of a figure, and that of an axis, as markup."""
    name = str(values.attrs.get("long_name", "")).replace("linf ", "L∞ ")
    unit = str(values.attrs.get("units", ""))
    axis = name or str(values.name or "value")
    if unit not in ("", "1"):
        axis = f"{axis} ({unit})"
    return f"{name[:1].upper()}{name[1:]}", escape(axis)


def is_wide(values: np.ndarray) -> bool:
    """Whether positive values span so much that a linear scale would not show the small ones."""
    positive = values[np.isfinite(values) & (values > 0)]
    if not len(positive) or (values < 0).any():
        return False
    return bool(positive.max() > 10.0 * positive.min())
