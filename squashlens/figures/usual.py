"""The figure for a result, and several figures on one page."""

from collections.abc import Mapping, Sequence
from functools import cache
from inspect import signature
from itertools import islice
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.arguments import validated
from squashlens.checks.results import EACH, moved_probability, require
from squashlens.errors import InputError
from squashlens.figures.answers import cannot_be_judged
from squashlens.figures.drawing.decorator import say_selected, with_modes
from squashlens.figures.drawing.notes import selections
from squashlens.figures.drawing.panels import compose
from squashlens.figures.drawing.shapes import (
    bars_of,
    curve,
    extremes,
    interval_note,
    is_wide,
    layer_map,
    titles_of,
)
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import series
from squashlens.records.joining import without_padding
from squashlens.records.provenance import is_done, joined_along

Result = xr.Dataset | xr.DataArray
MOST, LINES, LONG = (
    12,
    4,
    24,
)  # panels of variables, lines of a panel (more are a map), and characters of a label


@cache
def usual_figures() -> list[Any]:
    """The public figures that `of` may draw: those that need most variables first, since they show most of a result."""
    import squashlens.figures as public

    found = [getattr(public, name) for name in public.__all__]
    usual = [
        figure
        for figure in found
        if getattr(figure, "__draws__", (None, None, False))[2]
    ]
    return sorted(usual, key=lambda figure: -len(figure.__draws__[1]))


@validated
def of(result: Result | Mapping[str, Result]) -> go.Figure:
    """The usual figure of a result, whatever was measured.

    Args:
        result: a result of squashlens, or several by label for panels with common scales. A result of several prompts,
            with several values of `to_layer`, or joined by `results.concat` has a panel for each. Some variables of a
            result, and means of all of them, have a panel for each variable that can be drawn, of the first 12.

    Returns:
        The figure. `docs/figures.md` lists the figure of each measurement, and others that show the same result. An
        array over one or two dimensions that fits none of them, such as a mean, is drawn as lines or as a map.

    Raises:
        InputError: if there is no figure for this result.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> figure = sl.figures.of(sl.paths.composition(model, "110 ="))
    >>> figure.layout.title.text
    'Where the paths to the query start, by layer'
    """
    several: dict[str, Any] = (
        {"": result} if isinstance(result, Result) else dict(result)
    )
    if not several:
        raise InputError(
            "result contains no result.",
            "Give a result of squashlens, or several by label.",
        )
    figure = _figure_of(several)
    if figure is None:
        figure = _of_values(several[""]) if [*several] == [""] else panels(several)
    if figure is None:
        raise _no_figure(several)
    return figure


def _figure_of(several: Mapping[str, Any]) -> go.Figure | None:
    """The usual figure of one result, without a label, or of several."""
    one = next(iter(several.values()))
    single = "" in several and len(several) == 1
    joined = [dim for dim in joined_along(one) if dim in one.dims]
    for figure in usual_figures():
        if all(_fits(part, figure) for part in several.values()) and not _leaves_open(
            one, figure, joined
        ):
            return figure(one if single else several)
    apart = [
        dim
        for dim in (*(dim for dim in joined if dim not in EACH), *EACH)
        if dim in one.dims
    ]
    for many in range(1, 1 + len(apart)) if single else ():
        parts = _apart(one, apart[:many])
        for figure in usual_figures() if parts else ():
            if all(_fits(part, figure) for part in parts.values()):
                return figure(parts)
    return None


def _of_values(result: Any) -> go.Figure | None:
    """Values that are no whole result: lines of an array, or a panel for each variable of a Dataset."""
    if isinstance(result, xr.DataArray):
        return plain(result)
    each = {
        str(name): _figure_of({"": values}) or plain(values)
        for name, values in result.data_vars.items()
    }
    drawn = {name: figure for name, figure in each.items() if figure is not None}
    if len(drawn) < 2:
        return next(iter(drawn.values()), None)
    title = f"{MOST} of {len(drawn)} variables" if len(drawn) > MOST else None
    return compose(dict(islice(drawn.items(), MOST)), title=title)


def _no_figure(several: Mapping[str, Any]) -> InputError:
    """An error for a result that no figure can draw."""
    one = next(iter(several.values()))
    what = (
        f"these values, over {', '.join(map(str, one.dims))}"
        if one.dims
        else "scalars: these are single numbers"
    )
    select = ", ".join(
        f"{dim}=0"
        for dim in sorted(map(str, one.dims), key=lambda dim: one.sizes[dim])[:-2]
    )
    remedy = "Print them: a figure has numbers over a dimension."
    if select and isinstance(one, xr.DataArray) and one.dtype.kind in "biuf":
        remedy = f"Select one label along all dimensions but two, as in `result.isel({select})`."
    elif one.dims and isinstance(one, xr.Dataset):
        remedy = "Give the unchanged result of a measurement, or one of its variables."
    return InputError(f"There is no figure for {what}.", remedy)


@validated
def panels(
    parts: Mapping[str, Result | go.Figure],
    *,
    columns: int | None = None,
    title: str | None = None,
) -> go.Figure:
    """Several figures on one page, with their labels as titles, one scale for each quantity, and one legend.

    Args:
        parts: figures of `squashlens.figures`, or results, by label; a result is drawn as by `of`.
        columns: how many are side by side at most; fewer on a narrow page.
        title: title of the page; by default that of the parts, if they have the same.

    Returns:
        The figure, which `styled` and `save` take like any other.

    Raises:
        InputError: if `parts` is empty, or has a figure that is not of squashlens or has several parts already.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> results = {prompt: sl.sensitivity(model, prompt) for prompt in ("110 =", "111 =")}
    >>> figure = sl.figures.styled(sl.figures.panels(results), theme="paper")
    """
    if not parts:
        raise InputError(
            "parts is empty: there is nothing to draw.",
            "Give figures or results by label.",
        )
    if columns is not None and not 1 <= columns <= len(parts):
        raise InputError(
            f"columns={columns} is not usable for {len(parts)} parts.",
            f"Use 1 to {len(parts)}.",
        )
    figures = {
        label: part if isinstance(part, go.Figure) else of(part)
        for label, part in parts.items()
    }
    return compose(figures, columns=columns, title=title)


def _apart(result: Any, dims: Sequence[str]) -> dict[str, Result]:
    """The result for each label along some dimensions, by a label for its panel."""
    parts = {"": result}
    for dim in dims:
        parts = {
            ", ".join(
                filter(None, (label, f"{dim.replace('_', ' ')} {value}"))
            ): without_padding(part.isel({dim: place}))
            for label, part in parts.items()
            for place, value in enumerate(part[dim].values)
        }
    return {label: part for label, part in parts.items() if is_done(part)}


def _leaves_open(result: Any, figure: Any, joined: Sequence[str]) -> bool:
    """Whether a joined result has a dimension, in the variables that a figure draws, that the figure does not know."""
    _, dims_of, _ = figure.__draws__
    itself = ("values", getattr(result, "name", None))  # what stands for an array
    drawn = {
        dim
        for name in dims_of
        if name not in itself and name in result
        for dim in result[name].dims
    }
    return any(
        dim in drawn and all(dim not in dims.split() for dims in dims_of.values())
        for dim in joined
    )


def _fits(result: Any, figure: Any) -> bool:
    """Whether a figure can draw a result."""
    maker, dims_of, _ = figure.__draws__
    drawn = next(iter(signature(figure).parameters.values())).annotation
    if type(result).__name__ not in str(getattr(drawn, "__value__", drawn)):
        return False
    try:
        require(with_modes(result, dims_of), "result", maker, dims_of)
    except InputError:
        return False
    return True


def plain(values: xr.DataArray) -> go.Figure | None:
    """Numbers over one dimension or two, as at most four lines or as a map; None for any other array.

    The colours of positive values that span more than a factor of ten are their logarithms.
    """
    if values.ndim not in (1, 2) or values.dtype.kind not in "biuf" or not values.size:
        return None
    values, figure, notes = (
        moved_probability(without_padding(values)),
        go.Figure(),
        list[str](),
    )
    says, (title, axis) = extremes(values), titles_of(values)
    unable = cannot_be_judged({"": values.to_dataset(name="values")})
    for dim in (dim for dim in values.dims if values[dim].dtype.kind in "OUT"):
        texts = [str(one).replace("_", " ") for one in values[dim].values]
        values = values.assign_coords(
            {
                dim: [
                    escape(f"{text[:LONG]}{'…' * (len(text) > LONG)}") for text in texts
                ]
            }
        )
    if values.ndim == 2 and min(values.shape) > LINES:
        blank = "blank: no value"
        if is_wide(values.values):
            blank = "blank: 0 or no value"
            values, axis = (
                values.copy(data=np.log10(values.where(values > 0).values)),
                f"log₁₀ {axis}",
            )
        notes = [blank] * bool(values.isnull().any())
        figure.add_trace(layer_map(values, axis))
        figure.update_yaxes(title=escape(str(values.dims[0]).replace("_", " ")))
    else:
        values = (
            values.transpose() if values.ndim == 2 and len(values) > LINES else values
        )
        for number, part in enumerate(values if values.ndim == 2 else [values]):
            name = (
                f"{values.dims[0]} {values[values.dims[0]].values[number]}"
                if values.ndim == 2
                else ""
            )
            style: Any = (
                series(number)
                | bars_of(part, series(number)["colour"])
                | {"hover": "%{x}: %{y:.4g}"}
            )
            figure.add_trace(
                curve(
                    part[part.dims[0]].values,
                    part.values,
                    escape(name.replace("_", " ")),
                    **style,
                )
            )
        figure.update_yaxes(title=axis).update_traces(
            mode="markers" if unable else "lines+markers"
        )
        notes = interval_note(values)
    figure.update_xaxes(title=escape(str(values.dims[-1]).replace("_", " ")))
    notes += unable
    return say_selected(
        finish(figure, title, 260, values, *notes, says=says), *selections(values)
    )
