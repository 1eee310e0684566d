"""Random attention stacks: figure 8, figure 9, and a survey of stacks by their options."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.errors import InputError
from squashlens.figures.drawing.inputs.facts import notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.maps import interval, shaded
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped
from squashlens.figures.drawing.themes import COLOURS, INK, series

LENGTH = "length n (tokens)"
ROW = 26  # pixels


@draws(
    "squashlens.synthetic.convergence",
    "distance total_variation: seed layer length",
    "exponent_mean variation_exponent_mean: layer",
    "rate:",
)
def synthetic_convergence(found: xr.Dataset | Mapping[str, xr.Dataset]) -> go.Figure:
    """Draw D after the last layer (left) and δ of the first layer's attention rows (right) by length: figure 8.

    Lines are means over seeds and bands span minimum to maximum. The legend has the exponents of the means with their
    intervals. Dashed lines have the exponent that can be derived for infinite length. Both panels share one logarithmic
    scale, so zeros are missing.

    Args:
        found: a result of `squashlens.synthetic.convergence`, or several by name.

    Returns:
        The figure.
    """
    several = {"": found} if isinstance(found, xr.Dataset) else found
    panels = ["D after the last layer", "δ of the first layer's attention rows"]
    figure = make_subplots(cols=2, subplot_titles=panels, shared_yaxes=True)
    for number, (name, one) in enumerate(several.items()):
        colour, _, symbol = series(number)
        shown = escaped(f"{name}: " if name else "")
        top, first = one.isel(layer=-1), one.isel(layer=0)
        slopes = f"D {_power(top, 'exponent')}{_derived(top)}, δ {_power(first, 'variation_exponent')}"
        for column, values in ((1, top["distance"]), (2, first["total_variation"])):
            _band(figure, column, values, f"{shown}{slopes}", colour, symbol)
        _guide(figure, top, colour)
    figure.update_xaxes(type="log", title=LENGTH)
    figure.update_yaxes(type="log")
    norm = str(next(iter(several.values()))["distance"].attrs["long_name"]).split()[0]
    title = f"Distance of v and v* at the last token of random attention stacks ({norm})"
    return finish(figure, title=title, height=320, notes=notes_of(several.values()))


@draws(
    "squashlens.synthetic.softmax_total_variation",
    "total_variation: seed length",
    "expected: length",
    "exponent_mean leading_mean rate perturbed:",
)
def synthetic_total_variation(found: xr.Dataset) -> go.Figure:
    """Draw the total variation δ of the softmax of two growing sequences by length: figure 9.

    The line is the mean over seeds, with bars from minimum to maximum, and the dashed line is the derived mean. Lengths
    at which all entries are perturbed are shaded. The legend has two exponents: that of δ, and that of δ ÷ (1 − k/n),
    which is comparable with the derived −1.

    Args:
        found: a result of `squashlens.synthetic.softmax_total_variation`.

    Returns:
        The figure.
    """
    values, colour = found["total_variation"], COLOURS["distance"]
    middle, low, high = (getattr(values, edge)("seed").values for edge in ("mean", "min", "max"))
    figure = go.Figure()
    figure.add_scatter(
        x=found["length"].values, y=middle, mode="lines+markers",
        name=f"δ {_power(found, 'exponent')}; δ ÷ (1 − k/n) {_power(found, 'leading')}",
        line={"color": colour, "width": 2}, error_y=interval(middle, low, high, colour, 4),
        hovertemplate="n = %{x}<br>δ: %{y:.4g}<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(
        x=found["length"].values, y=found["expected"].values, mode="lines",
        name=f"derived for n > k, δ ÷ (1 − k/n) → n<sup>{_minus(float(found['rate']), 0)}</sup>",
        line={"color": INK, "dash": "dash", "width": 1.2}, hoverinfo="skip",
    )  # fmt: skip
    k, first = int(found["perturbed"]), float(found["length"].values[0])
    if first < k:
        figure.add_vrect(x0=first, x1=k, fillcolor="#000", opacity=0.05, line_width=0)
        figure.add_annotation(
            x=float(np.log10(first)),  # plotly places annotations on a log axis by their logarithm
            y=0, yref="y domain", text=f"n ≤ {k}: all entries perturbed", showarrow=False, xanchor="left",
            yanchor="bottom",
        )  # fmt: skip
    figure.update_xaxes(type="log", title=LENGTH)
    figure.update_yaxes(type="log", title="δ")
    return finish(figure, title="Total variation of the softmax of two growing sequences", height=290)


@draws("squashlens.synthetic.survey", "premise exponent_mean variation_exponent_mean: ...")
def survey(found: xr.Dataset) -> go.Figure:
    """Draw the exponents of D and δ with their intervals for many stacks, one row for each stack.

    Rows are the values of the first option, and panels are the values of the next two. A filled mark of δ means that
    the premise (δ decays with length) was observed; an open mark means that it was not. An exponent of 0 means no
    decay.

    Args:
        found: a result of `squashlens.synthetic.survey` with at most three options.

    Returns:
        The figure.

    Raises:
        InputError: if the result has more than three options.
    """
    first, *others = (str(dim) for dim in found["premise"].dims)
    if len(others) > 2:
        raise InputError(
            f"The figure has no place for the options {', '.join(others[2:])}.",
            "Select one value of each, with found.sel(…).",
        )
    cells = list(product(*(range(len(found[name])) for name in others)))
    columns = len(found[others[0]]) if others else 1
    rows = -(-len(cells) // columns)
    names = [escaped(str(value)) for value in found[first].values]
    figure = make_subplots(
        rows=rows, cols=columns, shared_xaxes="all", shared_yaxes="all",  # pyright: ignore
        subplot_titles=[_place(found, others, cell) for cell in sorted(cells, key=lambda c: c[::-1])],
    )  # fmt: skip
    for cell in cells:
        here = found.isel(dict(zip(others, cell, strict=True)))
        column, row = (cell[0] + 1 if others else 1), (cell[1] + 1 if len(others) > 1 else 1)
        _exponents(figure, here, names, row, column, legend=not any(cell))
    heights = {"tickvals": list(range(len(names))), "ticktext": names, "range": [len(names) - 0.4, -0.6]}
    figure.update_yaxes(**heights, gridcolor="white")
    figure.update_xaxes(title="exponent", row=rows)
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    figure.add_vline(x=-1, line={"color": COLOURS["null"], "width": 1, "dash": "dot"})
    height = rows * ROW * (len(names) + 1)
    return finish(figure, title=f"Decay of D and δ with length, by {_option(first)}", height=height)


def _exponents(figure: go.Figure, here: xr.Dataset, names: list[str], row: int, column: int, *, legend: bool) -> None:
    """Draw the exponents of D and, just below, of δ, at the height of each name."""
    marks: list[tuple[str, str, float, np.ndarray]] = [
        ("exponent", "D", -0.16, np.ones(len(names), dtype=bool)),
        ("variation_exponent", "δ (open: no decay observed)", 0.16, here["premise"].values),
    ]
    styles = ((COLOURS["distance"], "circle"), (COLOURS["path_bound"], "square"))
    for (name, text, offset, filled), (colour, symbol) in zip(marks, styles, strict=True):
        middle, low, high = (here[f"{name}_{edge}"].values for edge in ("mean", "low", "high"))
        style: dict[str, Any] = {
            "size": 8, "symbol": symbol, "color": [colour if full else "white" for full in filled],
            "line": {"color": colour, "width": 2},
        }  # fmt: skip
        figure.add_scatter(
            x=middle, y=np.arange(len(names)) + offset, mode="markers", marker=style, name=text, legendgroup=text,
            error_x=interval(middle, low, high, colour, 0), showlegend=legend, row=row, col=column,
            customdata=np.stack([names, low.astype(str), high.astype(str)], axis=-1),
            hovertemplate="%{customdata[0]}<br>%{x:.3f} [%{customdata[1]:.3f}, %{customdata[2]:.3f}]<extra></extra>",
        )  # fmt: skip


def _band(figure: go.Figure, column: int, values: xr.DataArray, name: str, colour: str, symbol: str) -> None:
    """Draw a band from minimum to maximum over seeds, and the mean."""
    x, kept = values["length"].values, values.where(values > 0)
    low, middle, high = (getattr(kept, edge)("seed").values for edge in ("min", "mean", "max"))
    edge: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    shade = {"fill": "tonexty", "fillcolor": shaded(colour, 0.18)}
    figure.add_scatter(x=x, y=high, legendgroup=name, **edge, row=1, col=column)
    figure.add_scatter(x=x, y=low, legendgroup=name, **edge, **shade, row=1, col=column)
    figure.add_scatter(
        x=x, y=middle, mode="lines+markers", name=name, legendgroup=name, showlegend=column == 1,
        line={"color": colour}, marker={"symbol": symbol},
        hovertemplate="n = %{x}: %{y:.4g}<extra></extra>", row=1, col=column,
    )  # fmt: skip


def _guide(figure: go.Figure, top: xr.Dataset, colour: str) -> None:
    """Draw the derived exponent as a line through the middle of the curve, if an exponent is derived."""
    rate, x = float(top["rate"]), top["length"].values.astype(float)
    if not np.isfinite(rate):
        return
    values = top["distance"].mean("seed").values
    middle = len(x) // 2
    figure.add_scatter(
        x=x, y=values[middle] * (x / x[middle]) ** rate, mode="lines", hoverinfo="skip", row=1, col=1,
        showlegend=False, line={"color": colour, "dash": "dash", "width": 1.2},
    )  # fmt: skip


def _power(found: xr.Dataset, name: str) -> str:
    """The exponent of n with its interval, as text."""
    mean, low, high = (float(found[f"{name}_{edge}"]) for edge in ("mean", "low", "high"))
    around = f" [{_minus(low)}, {_minus(high)}]" if np.isfinite(low) else ""
    return f"∝ n<sup>{_minus(mean)}</sup>{around}"


def _derived(found: xr.Dataset) -> str:
    rate = float(found["rate"])
    return f" (derived limit: n<sup>{_minus(rate, 1)}</sup>, dashed)" if np.isfinite(rate) else ""


def _minus(value: float, digits: int = 3) -> str:
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")  # adding 0 turns −0 into 0


def _place(found: xr.Dataset, options: list[str], cell: tuple[int, ...]) -> str:
    """The values of a panel's options, as its title."""
    return ", ".join(
        f"{_option(name)} {escaped(str(found[name].values[at]))}" for name, at in zip(options, cell, strict=True)
    )


def _option(name: str) -> str:
    """An option of a stack; in a study that varies it, the dimension is called `stack_depth` and so on."""
    return name.removeprefix("stack_")
