"""How repeated text is tokenized, and the distance of two texts compared with that of the true pair of tokens."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.checks.results import chosen, is_relative, takes
from squashlens.figures._theme import BOTTOM, COLOURS, INK, dress, label

# How one more repeat changes the tokens: name, symbol, colour.
STEPS = (
    ("one more repeat adds the last token again: a pair", "circle", "#009E73"),
    ("one more repeat adds something else: no pair", "x", INK),
    ("one more repeat changes earlier tokens: no pair", "diamond-open", INK),
)
# A light version of the theme's palette, for text on top; the last colour is for all further tokens.
TINTS = ("#F7C9A3", "#A9CDE6", "#A3DBC6", "#F5E1A0", "#E6C3D8", "#CDE9F8", "#D9C7B4", "#E3E6EC")
MONO = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
COLUMNS = 2
ABOVE = 100  # pixels above the panels, for title and legend


@takes("squashlens.splits", "token_id piece: form repeats place", "pair grows text: form repeats")
def splits(splits: xr.Dataset, title: str = "How repeated text is tokenized") -> go.Figure:
    """Draw the tokens of repeated texts: one panel for each way of joining, one row for each number of repeats.

    Each box is a token, as wide as its text; equal tokens have equal colours. The mark after a row says how one more
    repeat changes the tokens.

    Args:
        splits: a result of `squashlens.splits`.
        title: title of the figure.

    Returns:
        The figure.
    """
    tints = _tints(splits["token_id"].values)
    figure = _panels(splits, 23 * splits.sizes["repeats"], 48)
    for number, form in enumerate(splits["form"].values):
        row, column = number // COLUMNS + 1, number % COLUMNS + 1
        here = splits.sel(form=form)
        widths = np.vectorize(len)(here["piece"].values)
        ends = widths.cumsum(axis=1)
        for token, tint in tints.items():
            rows, columns = np.nonzero(here["token_id"].values == token)
            if len(rows):
                figure.add_trace(
                    _boxes(here, token, tint, rows, widths[rows, columns], ends[rows, columns]), row=row, col=column
                )
        for step in range(len(STEPS)):
            shown = _steps(here) == step
            where = here["repeats"].values[shown]
            figure.add_trace(_marks(step, ends[shown, -1] + 0.9, where), row=row, col=column)
        figure.update_xaxes(range=[-0.3, ends.max() + 1.7], row=row, col=column)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(range=[splits.sizes["repeats"] + 0.5, 0.5], dtick=1, ticks="", tickfont_size=11)
    figure.update_yaxes(title={"text": "repeats", "standoff": 4}, col=1)
    figure.update_layout(barmode="overlay")
    finished = _finished(figure, title).update_yaxes(showgrid=False)
    # This figure has no axis under its panels, so it needs less space there.
    return finished.update_layout(height=int(finished.layout.height) - BOTTOM + 20, margin_b=20)  # pyright: ignore


@takes("squashlens.tokenization", "naive distance: form layer repeats", "pair grows text: form repeats")
def tokenization(measured: xr.Dataset, *, layer: int | None = None) -> go.Figure:
    """Draw the distance of two texts and of the true pair by number of repeats, one panel for each way of joining.

    The scale is logarithmic. A mark on the line of the two texts says whether they are a pair at that number of
    repeats. Where they are, the two lines coincide.

    Args:
        measured: a result of `squashlens.tokenization`.
        layer: the layer to draw; the last one by default.

    Returns:
        The figure.
    """
    at = chosen(measured, "layer", layer)
    figure = _panels(measured, 210, 84, shared_yaxes="all")
    for number, form in enumerate(measured["form"].values):
        row, column = number // COLUMNS + 1, number % COLUMNS + 1
        here = measured.sel(form=form, layer=at)
        naive = _positive(here["naive"])
        figure.add_trace(_line(here["distance"], "true pair", COLOURS["distance"], 4.0), row=row, col=column)
        figure.add_trace(_line(here["naive"], "two texts", COLOURS["contrast"], 1.6), row=row, col=column)
        for step in range(len(STEPS)):
            shown = _steps(here) == step
            figure.add_trace(_marks(step, here["repeats"].values[shown], naive[shown]), row=row, col=column)
    figure.update_xaxes(dtick=_tick(measured.sizes["repeats"]))
    relative = is_relative(measured["distance"])
    figure.update_yaxes(type="log", exponentformat="power", tickfont_size=11, dtick=_log_tick(measured, at))
    figure.update_yaxes(title="D ÷ rms(v)" if relative else "D", col=1)
    figure.update_xaxes(title={"text": "repeats", "standoff": 4})
    return _finished(figure, f"Distance of two texts, one repeat apart, and of the true pair: layer {at}")


def _panels(found: xr.Dataset, each: int, between: int, **axes: str) -> go.Figure:
    """One panel for each form with its text in the title, `each` pixels high and `between` pixels apart."""
    forms = found["form"].values
    titles = [f"{form}: {_written(here)}" for form, here in ((str(f), found.sel(form=f)) for f in forms)]
    columns = min(COLUMNS, len(forms))
    rows = -(-len(forms) // columns)
    inside = rows * each + (rows - 1) * between
    specs = [[{} if row * columns + column < len(forms) else None for column in range(columns)] for row in range(rows)]
    figure = make_subplots(
        rows=rows, cols=columns, subplot_titles=titles, specs=specs, horizontal_spacing=0.07,
        vertical_spacing=between / inside if rows > 1 else 0, **axes,  # pyright: ignore
    )  # fmt: skip
    return figure.update_layout(height=inside + ABOVE + BOTTOM)


def _finished(figure: go.Figure, title: str) -> go.Figure:
    """The figure with the theme, and with each name once in the legend if it has marks."""
    seen: set[str] = set()
    for trace in cast(tuple[Any, ...], figure.data):
        trace.showlegend = bool(trace.name) and trace.name not in seen and len(trace.x) > 0
        seen |= {trace.name} if trace.showlegend else set()
    dress(figure, title=title, height=int(figure.layout.height), top=ABOVE, lift=26)  # pyright: ignore
    return figure.update_annotations(font_size=13)


def _written(here: xr.Dataset) -> str:
    """The text of a few repeats, quoted."""
    return f"“{label(str(here['text'].values[min(2, here.sizes['repeats'] - 1)]))} …”"


def _steps(here: xr.Dataset) -> np.ndarray:
    """Index into STEPS for each number of repeats."""
    return np.where(here["pair"].values, 0, np.where(here["grows"].values, 1, 2))


def _tints(ids: np.ndarray) -> dict[int, str]:
    """A colour for each token, in the order of first occurrence."""
    distinct = dict.fromkeys(int(token) for token in ids.ravel() if token >= 0)
    return {token: TINTS[min(number, len(TINTS) - 1)] for number, token in enumerate(distinct)}


def _boxes(here: xr.Dataset, token: int, tint: str, rows: np.ndarray, widths: np.ndarray, ends: np.ndarray) -> go.Bar:
    """Boxes at all places of one token in a form."""
    text = label(str(here["piece"].values[here["token_id"].values == token][0]))
    return go.Bar(
        y=here["repeats"].values[rows],
        x=widths,
        base=ends - widths,
        width=0.84,
        orientation="h",
        text=[text] * len(rows),
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"family": MONO, "size": 12, "color": INK},
        constraintext="none",
        marker={"color": tint, "line": {"color": "white", "width": 1.5}},
        hovertemplate=f"{text}<br>token {token}, %{{y}} repeats<extra></extra>",
    )


def _marks(step: int, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> go.Scatter:
    name, symbol, colour = STEPS[step]
    return go.Scatter(
        x=x, y=y, name=name, legendgroup=name, legendrank=2000 + step, mode="markers", cliponaxis=False,
        marker={"symbol": symbol, "color": colour, "size": 8, "line": {"width": 1.5 if "open" in symbol else 0}},
        hovertemplate=f"{name}<extra></extra>",
    )  # fmt: skip


def _line(values: xr.DataArray, name: str, colour: str, width: float) -> go.Scatter:
    return go.Scatter(
        x=values["repeats"].values, y=_positive(values), name=name, legendgroup=name, mode="lines",
        line={"color": colour, "width": width},
        hovertemplate=f"%{{x}} repeats<br>{name}: %{{y:.4g}}<extra></extra>",
    )  # fmt: skip


def _positive(values: xr.DataArray) -> np.ndarray:
    """The values with NaN in place of numbers that are not positive."""
    data = values.values.astype(np.float64)
    return np.where(data > 0, data, np.nan)


def _log_tick(measured: xr.Dataset, layer: int) -> int | str:
    """Axis ticks at every decade, or at 1, 2 and 5 if the values span few decades."""
    here = measured[["naive", "distance"]].sel(layer=layer).to_array()
    low, high = float(here.where(here > 0).min()), float(here.max())
    return 1 if high > 100 * low else "D2"


def _tick(repeats: int) -> int:
    return max(1, -(-repeats // 12))
