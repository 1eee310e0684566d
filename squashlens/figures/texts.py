"""How repeated text is tokenized, and the distance of two texts compared with that of the true pair of tokens."""

from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.checks.results import chosen
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import curve, grid
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape, label
from squashlens.figures.drawing.themes import COLOURS, INK

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
SMALLEST = 8  # pixels of text in a box; boxes that are too narrow for it have none
MOST = 8  # rows of a panel of tokens
ROW = 24  # pixels of a row: with fewer, a box is lower than its text with plotly's space around it
LEAST = 3  # rows, however long they are
LONGEST = 22  # characters of a row: with more, a box of one character is narrower than its text in a column of a paper


@draws("squashlens.repeat_tokenization", "token_id piece: form repeats place", "pair grows text: form repeats")
def splits(splits: xr.Dataset, title: str = "How repeated text is tokenized") -> go.Figure:
    """Draw the tokens of repeated texts: one panel for each way of joining, one row for each number of repeats.

    Each box is a token, as wide as its text; equal tokens have equal colours. The mark after a row says how one more
    repeat changes the tokens. Panels show the first repeats that fit: 8 at most, and fewer where rows are longer than
    22 characters. Select others with `sel(repeats=…)`. A box that is too narrow has its text in the hover text only.

    Args:
        title: title of the figure.
    """
    measured, splits = splits, _distinct(splits)
    distinct = dict.fromkeys(int(token) for token in splits["token_id"].values.ravel() if token >= 0)
    tints = dict(zip(distinct, chain(TINTS, repeat(TINTS[-1])), strict=False))
    shown = [_that_fit(splits.sel(form=form)) for form in splits["form"].values]
    rows = [here.sizes["repeats"] for here in shown]
    longest = max(_widths(here).sum(axis=1).max() for here in shown)
    figure = make_subplots(rows=len(rows), cols=1, row_heights=rows, subplot_titles=_titles(splits))
    for row, here in enumerate(shown, start=1):
        widths, repeats = _widths(here), here["repeats"].values
        ends = widths.cumsum(axis=1)
        for token, tint in tints.items():
            own, places = np.nonzero(here["token_id"].values == token)
            if len(own):
                boxes = _boxes(here, token, tint, own, widths[own, places], ends[own, places])
                figure.add_trace(boxes, row=row, col=1)
        for step in range(len(STEPS)):
            which = _steps(here) == step
            figure.add_trace(_marks(step, ends[which, -1] + 0.9, repeats[which]), row=row, col=1)
        figure.update_yaxes(range=[repeats[-1] + 0.5, repeats[0] - 0.5], row=row)
    figure.update_xaxes(visible=False, range=[-0.3, longest + 1.7])
    figure.update_yaxes(title="repeats", dtick=1, ticks="", showgrid=False)
    figure.update_layout(barmode="overlay", uniformtext={"mode": "hide", "minsize": SMALLEST})
    every = splits.sizes["repeats"]
    notes = [f"of {every} repeats, the first that fit"] if min(rows) < every else []
    return finish(figure, escape(title), ROW * sum(rows), measured, *notes)


@draws(
    "squashlens.repeat_tokenization",
    "naive distance: form layer repeats",
    "token_id piece: form repeats place",
    "pair grows text: form repeats",
)
def repeat_tokenization(measured: xr.Dataset, *, layer: int | None = None) -> go.Figure:
    """Draw the distance of two texts and of the true pair by number of repeats, one panel for each way of joining.

    The scale is logarithmic. A mark on the line of the two texts says whether they are a pair at that number of
    repeats. Where they are, the two lines coincide.

    Args:
        layer: the layer to draw; the last one by default.
    """
    at = chosen(measured, "layer", layer)
    figure, places = grid(_titles(measured), min(COLUMNS, measured.sizes["form"]), shared_yaxes="all")
    lines = (("distance", "true pair", "distance", 4.0, "solid"), ("naive", "two texts", "contrast", 1.6, "dot"))
    for form, place in zip(measured["form"].values, places, strict=True):
        here = measured.sel(form=form, layer=at)
        repeats, naive = here["repeats"].values, here["naive"].where(here["naive"] > 0).values
        for variable, name, colour, width, dash in lines:
            hover, style = f"%{{x}} repeats<br>{name}: %{{y:.4g}}", {"width": width, "dash": dash, "mode": "lines"}
            line = curve(repeats, here[variable].values, name, colour=COLOURS[colour], hover=hover, log=True, **style)
            figure.add_trace(line, **place)
        for step in range(len(STEPS)):
            shown = _steps(here) == step
            figure.add_trace(_marks(step, repeats[shown], naive[shown]), **place)
    figure.update_yaxes(type="log", title=distance_of(measured)).update_xaxes(title="repeats")
    title = f"Distance of two texts, one repeat apart, and of the true pair: layer {at}"
    return finish(figure, title, 190 * places[-1]["row"], measured)


def _distinct(splits: xr.Dataset) -> xr.Dataset:
    """The forms that give different tokens; forms that give the same ones share a panel, with both names."""
    names: dict[bytes, list[str]] = {}
    firsts = []
    for number, form in enumerate(splits["form"].values):
        same = names.setdefault(splits["token_id"].sel(form=form).values.tobytes(), [])
        firsts += [] if same else [number]
        same.append(str(form))
    return splits.isel(form=firsts).assign_coords(form=[", ".join(each) for each in names.values()])


def _that_fit(here: xr.Dataset) -> xr.Dataset:
    """The first numbers of repeats of a form, as many as have a row."""
    fit = int((_widths(here).sum(axis=1) <= LONGEST).sum())
    return here.isel(repeats=slice(min(max(fit, LEAST), MOST)))


def _widths(here: xr.Dataset) -> np.ndarray:
    """The number of characters of each token of a form."""
    return np.vectorize(len)(here["piece"].values)


def _titles(found: xr.Dataset) -> list[str]:
    """The name of each form, with the text of a few repeats."""
    texts = found["text"].isel(repeats=min(2, found.sizes["repeats"] - 1)).transpose("form").values
    return [f"{form}: “{label(str(text))} …”" for form, text in zip(found["form"].values, texts, strict=True)]


def _steps(here: xr.Dataset) -> np.ndarray:
    """Index into STEPS for each number of repeats."""
    return np.where(here["pair"].values, 0, np.where(here["grows"].values, 1, 2))


def _boxes(here: xr.Dataset, token: int, tint: str, rows: np.ndarray, widths: np.ndarray, ends: np.ndarray) -> go.Bar:
    """Boxes at all places of one token in a form."""
    text = label(str(here["piece"].values[here["token_id"].values == token][0]))
    return go.Bar(
        y=here["repeats"].values[rows], x=widths, base=ends - widths, width=0.84, orientation="h",
        text=[text] * len(rows), textposition="inside", insidetextanchor="middle", textangle=0,
        textfont={"family": MONO, "color": INK}, constraintext="inside",
        marker={"color": tint, "line": {"color": "white", "width": 1.5}},
        hovertemplate=f"{text}<br>token {token}, %{{y}} repeats<extra></extra>",
    )  # fmt: skip


def _marks(step: int, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> go.Scatter:
    name, symbol, colour = STEPS[step]
    return go.Scatter(
        x=x, y=y, name=name, legendrank=2000 + step, mode="markers", cliponaxis=False,
        marker={"symbol": symbol, "color": colour, "size": 8, "line": {"width": 1.5 if "open" in symbol else 0}},
        hovertemplate=f"{name}<extra></extra>",
    )  # fmt: skip
