"""What several figures have: curves with intervals, rows with their median, maps of tokens and layers.

The legend has each name once, whichever traces have it: `squashlens.figures.drawing.style.finish` sees to that.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.figures.drawing.axes import token_axis
from squashlens.figures.drawing.page_blocks import Page, Panel
from squashlens.figures.drawing.text import escape, label, number_token
from squashlens.figures.drawing.themes import GUIDE, pale
from squashlens.records.sentences import ends_of, number, open_order

MARKS = ("dots: lengths", "rings: medians", "bars: middle half")  # what `spread` draws
LAYERS: dict[str, Any] = {"title": "layer ℓ", "dtick": 1}  # an axis of layers


def curve(
    x: Any,
    y: Any,
    name: str = "",
    *,
    colour: str,
    dash: str = "solid",
    symbol: Any = "circle",
    width: float = 2.0,
    size: Any = 6,
    mode: str = "lines+markers",
    hover: str = "",
    log: bool = False,
    **trace: Any,
) -> go.Scatter:
    """A line with marks; on a logarithmic scale without zeros. Without `hover`, the template of its text, it has none.

    Further properties of plotly's trace are passed on to it.
    """
    values = np.asarray(y, dtype=np.float64)
    shown: Any = (
        {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}
    )
    return go.Scatter(
        x=x,
        y=np.where(values > 0, values, np.nan) if log else values,
        name=name or None,
        mode=mode,
        line={"color": colour, "dash": dash, "width": width},
        marker={"symbol": symbol, "size": size},
        **shown,
        **trace,
    )


def interval(
    middle: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, width: int = 2
) -> dict[str, Any]:
    """Error bars from `low` to `high` around `middle`, with caps of `width` pixels; none where an end is NaN."""
    middle = np.where(
        np.isfinite(middle), middle, np.nan
    )  # infinity minus itself is no number
    up, down = np.nan_to_num(high - middle), np.nan_to_num(middle - low)
    return {
        "type": "data",
        "array": up,
        "arrayminus": down,
        "color": colour,
        "width": width,
    }


def bars_of(values: xr.DataArray, colour: str) -> dict[str, Any]:
    """Thin error bars over the intervals of values, as a property of their curve; nothing without intervals."""
    low, high = ends_of(values)
    bars = interval(values.values.astype(np.float64), low, high, colour, 3) | {
        "thickness": 1.2
    }
    return {} if np.array_equal(low, high, equal_nan=True) else {"error_y": bars}


def interval_note(values: xr.DataArray) -> list[str]:
    """What the bars of `bars_of` are, for the line under the title."""
    kind = (
        "95 % intervals" if "high" in values.coords else "from a certified lower bound"
    )
    return [f"bars: {kind}"] * bool(bars_of(values, ""))


def band(x: Any, low: Any, high: Any, fill: str, group: str) -> list[go.Scatter]:
    """A filled band from `low` to `high` without a place of its own in the legend."""
    edge: Any = {
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "legendgroup": group,
    }
    return [
        go.Scatter(x=x, y=high, **edge),
        go.Scatter(x=x, y=low, fill="tonexty", fillcolor=fill, **edge),
    ]


def tint(colour: str, opacity: float = 0.18) -> str:
    """A palette colour as a transparent fill."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def shade_range(figure: go.Figure, start: float, end: float, text: str) -> None:
    """Shade a part of a logarithmic x axis, with a text at the bottom of its left edge, or of that of the panel."""
    figure.add_vrect(x0=start, x1=end, fillcolor="#7F7F7F", opacity=0.12, line_width=0)  # pyright: ignore
    # A text at the edge of a panel stays there when the range is changed.
    figure.add_annotation(
        x=float(np.log10(start)),
        y=0,
        yref="y domain",
        text=text,
        showarrow=False,
        xanchor="left",
        yanchor="bottom",
    )


def name_rows(
    figure: go.Figure, names: Sequence[str], panel: int | None = None, **axis: Any
) -> None:
    """Give the rows 0, 1, … of a figure names on its y axis, or on that of one of its panels, from top to
    bottom; `names` are markup."""
    ticks = {
        "tickvals": list(range(len(names))),
        "ticktext": list(names),
        "range": [len(names) - 0.4, -0.6],
    }
    figure.update_yaxes(ticks | {"showgrid": False} | axis, row=panel)


def spread(
    figure: go.Figure,
    row: int,
    name: str,
    values: np.ndarray,
    colour: str,
    col: int | None = None,
) -> None:
    """Draw one row: faint dots for all values, a ring at their median, and a bar over their middle half."""
    place: Any = {"col": col, "row": 1} if col else {}
    dots: Any = {"mode": "markers", "showlegend": False}
    faint = curve(
        values,
        np.full(len(values), row),
        colour=pale(colour),
        size=5,
        opacity=0.6,
        **dots,
    )
    figure.add_trace(faint, **place)
    if not len(values):
        return
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    hover = f"{name}<br>median {middle:.4g}, middle half {low:.4g} to {high:.4g}"
    figure.add_trace(
        curve([low, high], [row] * 2, colour=colour, width=4, mode="lines"), **place
    )
    ring = {"color": "white", "size": 11, "line": {"color": colour, "width": 3}}
    centre = curve(
        [middle], [row], colour=colour, cliponaxis=False, hover=hover, **dots
    )
    figure.add_trace(centre.update(marker=ring), **place)


def layer_map(values: xr.DataArray, colourbar: str, **heatmap: Any) -> go.Heatmap:
    """A heatmap over two numbered dimensions, rows first, with the exact values in the hover text."""
    rows, columns = (str(dim).replace("_", " ") for dim in values.dims)
    return go.Heatmap(
        z=values.values.astype(np.float32),
        x=values[values.dims[1]].values,
        y=values[values.dims[0]].values,
        hovertemplate=f"{rows} %{{y}}, {columns} %{{x}}<br>{colourbar}: %{{customdata:.4g}}<extra></extra>",
        customdata=values.values,
        colorbar={"title": {"text": colourbar}},
        **{"colorscale": "Viridis", "hoverongaps": False} | heatmap,
    )


def token_figure(
    values: xr.DataArray,
    tokens: Mapping[int, str],
    row: str,
    axis: str,
    colourbar: str,
    *,
    logarithmic: bool = True,
    ends: tuple[float, float] | None = None,
) -> go.Figure:
    """A heatmap of values over rows × tokens; `row` labels a row in the hover text, as in ``"layer {}"``.

    Zeros and positions between the tokens stay white on a logarithmic scale. With `ends`, powers of ten, the scale ends
    there, and values beyond have the colours of the ends.
    """
    places = np.arange(min(tokens), max(tokens) + 1)
    exact = np.full((len(values), len(places)), np.nan)
    exact[:, values["position"].values.astype(int) - places[0]] = values.values
    numbers = values[str(values.dims[0])].values.astype(int)
    names = [number_token(place, tokens.get(place, "")) for place in map(int, places)]
    shown: np.ndarray = exact
    scale: dict[str, Any] = {}
    bar: dict[str, Any] = {}
    if logarithmic:
        shown = np.log10(
            np.maximum(exact, ends[0]) if ends else np.where(exact > 0, exact, np.nan)
        )
        low, high = (
            np.log10(ends)
            if ends
            else (np.floor(np.nanmin(shown)), np.ceil(np.nanmax(shown)))
        )
        decades = np.arange(low, high + 1)[:: 1 + int(high - low + 1) // 8]
        texts = [f"10<sup>{int(each)}</sup>".replace("-", "−") for each in decades]
        if ends:
            texts[0] = f"≤ {texts[0]}"
            texts[-1] = texts[-1] if high == 0 else f"≥ {texts[-1]}"
        bar = {"tickvals": decades, "ticktext": texts}
        scale = {"zmin": low, "zmax": high} if ends else {}
    whole = np.ptp(numbers) == len(numbers) - 1
    figure = go.Figure()
    figure.update_xaxes(token_axis(tokens)).update_yaxes(title=axis)
    if whole:
        figure.update_yaxes(dtick=1)
    else:  # rows with gaps between their numbers are placed by their order
        figure.update_yaxes(
            tickvals=list(range(len(numbers))), ticktext=list(map(str, numbers))
        )
    return figure.add_heatmap(
        z=shown.astype(np.float32),
        x=places.astype(np.float32),
        colorscale="Viridis",
        hoverongaps=False,
        **scale,
        y=numbers if whole else np.arange(len(numbers)),
        text=[[f"{row.format(each)}, {name}" for name in names] for each in numbers],
        customdata=exact,
        hovertemplate=f"%{{text}}<br>{colourbar}: %{{customdata:.6g}}<extra></extra>",
        colorbar={"title": {"text": colourbar}, **bar},
    )


def grid(
    titles: Sequence[str], columns: int = 1, heights: Sequence[float] = (), **axes: Any
) -> tuple[go.Figure, list[Any]]:
    """A figure with a panel for each title, row by row, and the row and column of each panel.

    Panels of one column stay below each other; of several columns a narrow page has fewer. `heights` are relative.
    """
    places = [
        {"row": 1 + at // columns, "col": 1 + at % columns} for at in range(len(titles))
    ]
    rows = places[-1]["row"]
    specs = [
        [
            {} if row * columns + column < len(titles) else None
            for column in range(columns)
        ]
        for row in range(rows)
    ]
    figure = make_subplots(rows=rows, cols=columns, specs=specs, **axes)
    panels = []
    for title, place, height in zip(
        titles, places, heights or [1.0] * len(titles), strict=True
    ):
        shown: Any = figure.get_subplot(place["row"], place["col"])
        panels.append(
            Panel(shown.xaxis.plotly_name, shown.yaxis.plotly_name, height, title)
        )
    Page([panels] if columns == 1 else [[panel] for panel in panels], columns).keep(
        figure
    )
    return figure, places


def titles_of(values: xr.DataArray) -> tuple[str, str]:
    """Of a variable with a long name and units: the title of a figure, and that of an axis."""
    name, unit = (
        str(values.attrs.get(key, "")).replace("linf ", "L∞ ")
        for key in ("long_name", "units")
    )
    short = name or str(values.name or "value")
    axis = f"{short} ({unit})" if unit not in ("", "1") else short
    return escape(f"{name[:1].upper()}{name[1:]}"), escape(axis)


def extremes(values: xr.DataArray, of: str = "value") -> str:
    """Where the largest and the smallest of values are, if they are apart, as a sentence on `of`; or nothing.

    Zeros of tokens, which may not act on the query at all, are only counted.
    """
    zeros, besides = int((values == 0).sum()) if "position" in values.dims else 0, ""
    if 0 < zeros < int(values.notnull().sum()):
        values, besides = (
            values.where(values != 0),
            f", besides {'a zero' if zeros == 1 else f'{zeros} zeros'}",
        )
    numbers, places = values.values.astype(np.float64), list[str]()
    if not np.isfinite(numbers).any():
        return ""
    if "sketched" in str(values.attrs.get("long_name")) and not bars_of(values, ""):
        return f"Each {of} is an estimate, whose interval is in the whole result."
    count, order = int(np.isfinite(numbers).sum()), open_order(values)
    if count > 1 and all(low < high and may.sum() == count for may, low, high in order):
        return f"The intervals of all {count} values overlap: no {of} is clearly the largest or smallest{besides}."
    for may, low, high in order:
        many = int(may.sum())
        level = (
            f"between {number(low)} and {number(high)}" if low < high else number(low)
        )
        if many == count and (low == high or many == 1):
            return f"The {of} is {level}{' everywhere' if many > 1 else ''}{besides}."
        if many > 1:
            overlap = (
                f"one of {many} whose intervals overlap"
                if low < high
                else f"{many} of {count} values"
            )
            places.append(f"{level} ({overlap})")
            continue
        index, where = np.unravel_index(may.argmax(), may.shape), list[str]()
        here = values.isel(dict(zip(values.dims, index, strict=True)))
        for dim, at in zip(map(str, values.dims), index, strict=True):
            text, token = (
                str(values[dim].values[at]),
                dim == "position" and "token" in values.coords,
            )
            name = f"{dim.replace('_', ' ')} {escape(text)}"
            where.append(
                f"“{label(str(here['token'].item()))}” at position {text}"
                if token
                else name
            )
        places.append(f"{number(numbers[index])} ({', '.join(where)})")
    return f"The largest {of} is {places[0]}; the smallest is {places[1]}{besides}."


def guide(figure: go.Figure, *levels: float, **place: Any) -> None:
    """A horizontal line at each level that values are compared with."""
    for y in levels:
        figure.add_hline(
            y=y, line={"color": GUIDE, "width": 1.5, "dash": "dot"}, **place
        )


def is_wide(values: np.ndarray) -> bool:
    """Whether positive values span so much that a linear scale would not show the small ones."""
    there = values[np.isfinite(values) & (values > 0)]
    return bool(
        len(there) and not (values < 0).any() and there.max() > 10.0 * there.min()
    )
