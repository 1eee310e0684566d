"""The figure for a result, and several figures on one page."""

from collections.abc import Mapping, Sequence
from functools import cache
from inspect import signature
from itertools import chain, combinations, islice, product
from string import ascii_lowercase
from typing import Any

import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.arguments import validated
from squashlens.checks.results import moved_probability, require
from squashlens.errors import InputError
from squashlens.figures.answers import cannot_be_judged
from squashlens.figures.drawing.decorator import with_mode
from squashlens.figures.drawing.panels import compose
from squashlens.figures.drawing.shapes import (
    add_lines,
    add_map,
    interval_note,
    is_wide,
    titles_of,
    with_its_intervals,
)
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape, shortened

Result = xr.Dataset | xr.DataArray
MOST_PANELS = 12  # panels of a page
LINES = 4  # lines of a panel; more are a map
LONG = 24  # characters of a label


@cache
def usual_figures() -> list[Any]:
    """The public figures that `of` may draw: those that need most variables first, since they show most of a result."""
    import squashlens.figures as public

    usual = []
    for name in public.__all__:
        figure: Any = getattr(public, name)
        # What `draws` has set; other functions, such as `save`, have none.
        _, _, is_usual = getattr(figure, "__draws__", (None, None, False))
        if is_usual:
            usual.append(figure)
    return sorted(usual, key=_n_needed, reverse=True)


def _n_needed(figure: Any) -> int:
    """The number of variables that a figure needs."""
    _, dims_of, _ = figure.__draws__
    return len(dims_of)


@validated
def of(result: Result | Mapping[str, Result]) -> go.Figure:
    """The usual figure of a result, whatever was measured.

    Args:
        result: a result of squashlens, or several by label for panels with common scales. A result that has more
            dimensions than its figure draws, such as several prompts or what `results.concat` joined, has a panel for
            each label, at most 12. Some variables of a result, and means of all of them, have a panel for each variable
            that can be drawn, of the first 12.

    Returns:
        The figure. `docs/figures.md` lists the figure of each measurement, and others that show the same result. An
        array over one or two dimensions that fits none of them, such as a mean, is drawn as lines or as a map.

    Raises:
        InputError: if there is no figure for this result.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> figure = sl.figures.of(sl.attention_paths.composition(model, "110 ="))
    >>> figure.layout.title.text
    'Where the paths to the query start, by layer'
    """
    if not isinstance(result, Result):
        return _of_several(result)
    figure = _whole(result)
    if figure is None:
        figure = _apart(result)
    if figure is None:
        figure = _of_values(result)
    if figure is None:
        raise _no_figure(result)
    return figure


def _of_several(results: Mapping[str, Result]) -> go.Figure:
    """Several results: what one usual figure draws of all of them, or a panel for each."""
    if not results:
        raise InputError(
            "result contains no result.",
            "Give a result of squashlens, or several by label.",
        )
    figure = _usual_of(*results.values())
    if figure is not None:
        return figure(results)
    return compose({label: of(result) for label, result in results.items()})


def _usual_of(*results: Result) -> Any:
    """The usual figure that can draw all of some results; None if there is none."""
    for figure in usual_figures():
        if all(_fits(result, figure) for result in results):
            return figure
    return None


def _whole(result: Result) -> go.Figure | None:
    """The usual figure of a result that has the dimensions it draws; None if there is none."""
    figure = _usual_of(result)
    return None if figure is None else figure(result)


def _apart(result: Result) -> go.Figure | None:
    """A panel for each label of one dimension or two that the usual figure of a result does not draw; None if no
    figure draws the parts, or there are more than 12."""
    short_dims = [str(dim) for dim in result.dims if result.sizes[dim] <= MOST_PANELS]
    for dims in chain(combinations(short_dims, 1), combinations(short_dims, 2)):
        parts = _parts(result, dims)
        if 0 < len(parts) <= MOST_PANELS:
            figure = _usual_of(*parts.values())
            if figure is not None:
                return figure(parts)
    return None


def _parts(result: Any, dims: Sequence[str]) -> dict[str, Any]:
    """The result for each label along some dimensions, by the title of its panel, such as "prompt 0, to layer 6";
    without parts that are empty."""
    parts = {}
    sizes = [range(result.sizes[dim]) for dim in dims]
    for places in product(*sizes):
        indices = dict(zip(dims, places, strict=True))
        part = _without_padding(result.isel(indices))
        labels = []
        for dim, place in indices.items():
            labels.append(f"{dim.replace('_', ' ')} {result[dim].values[place]}")
        if all(part.sizes.values()):
            parts[", ".join(labels)] = part
    return parts


def _without_padding(part: Any) -> Any:
    """A part of a joined result without the labels that only longer parts have: there all its floating-point variables
    are NaN."""
    data = part.to_dataset(name="values") if isinstance(part, xr.DataArray) else part
    floats = data[[name for name in data if data[name].dtype.kind == "f"]]
    for dim in floats.dims:
        if dim in floats.indexes:
            labels = floats.dropna(dim, how="all")[dim]
            part = part.sel({dim: labels})
    return part


def _of_values(result: Result) -> go.Figure | None:
    """Values that are no whole result: lines of an array, or a panel for each variable of a Dataset; None if nothing
    of them can be drawn."""
    if isinstance(result, xr.DataArray):
        return plain(result)
    if len(result.data_vars) == 1:  # an array that a study combined
        (alone,) = result.data_vars.values()
        return of(alone)
    drawn = {}
    for name, values in result.data_vars.items():
        figure = _whole(values)
        if figure is None:
            figure = plain(values)
        if figure is not None:
            drawn[str(name)] = figure
    if not drawn:
        return None
    title = None
    if len(drawn) > MOST_PANELS:
        title = f"{MOST_PANELS} of {len(drawn)} variables"
        drawn = dict(islice(drawn.items(), MOST_PANELS))
    return compose(drawn, title=title)


def _no_figure(result: Result) -> InputError:
    """An error for a result that no figure can draw."""
    over = ", ".join(str(dim) for dim in result.dims)
    return InputError(
        f"There is no figure for these values over ({over}).",
        "Give the unchanged result of a measurement, or numbers over one dimension or two: "
        "`isel` selects a label along each other dimension.",
    )


@validated
def panels(
    parts: Mapping[str, Result | go.Figure] | Sequence[Result | go.Figure],
    *,
    columns: int | None = None,
    title: str | None = None,
) -> go.Figure:
    """Several figures on one page, with their labels as titles, one scale for each quantity, and one legend.

    Args:
        parts: figures of `squashlens.figures`, or results, by label, or as a list, whose panels are (a), (b), …; a
            result is drawn as by `of`.
        columns: how many are side by side, on a page of any width; by default two or three, and fewer on a narrow page.
        title: title of the page; by default that of the parts, if they have the same.

    Returns:
        The figure, which `styled` and `save` take like any other.

    Raises:
        InputError: if `parts` is empty, or has a figure that is not of squashlens or has several parts already.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> results = {prompt: sl.bound_vs_jacobian(model, prompt) for prompt in ("110 =", "111 =")}
    >>> figure = sl.figures.styled(sl.figures.panels(results), theme="paper")
    """
    if not len(parts):
        raise InputError(
            "parts is empty: there is nothing to draw.",
            "Give figures or results by label.",
        )
    if columns is not None and not 1 <= columns <= len(parts):
        raise InputError(
            f"columns={columns} is not usable for {len(parts)} parts.",
            f"Use 1 to {len(parts)}.",
        )
    if not isinstance(parts, Mapping):
        by_letter = {}
        for number, part in enumerate(parts):
            letter = str(number + 1)  # after (z) comes (27)
            if number < len(ascii_lowercase):
                letter = ascii_lowercase[number]
            by_letter[f"({letter})"] = part
        parts = by_letter
    figures = {}
    for label, part in parts.items():
        figures[label] = part if isinstance(part, go.Figure) else of(part)
    return compose(figures, columns=columns, title=title)


def _fits(result: Any, figure: Any) -> bool:
    """Whether a figure can draw a result: its type, and the variables and dimensions that the figure needs."""
    maker, dims_of, _ = figure.__draws__
    # The annotation of the first argument names Dataset or DataArray; an alias has it as its value.
    first = next(iter(signature(figure).parameters.values()))
    annotation = getattr(first.annotation, "__value__", first.annotation)
    if type(result).__name__ not in str(annotation):
        return False
    try:
        require(with_mode(result, dims_of), "result", maker, dims_of)
    except InputError:
        return False
    return True


def plain(values: xr.DataArray) -> go.Figure | None:
    """Numbers over one dimension or two, as at most four lines or as a map; None for any other array.

    Labels that are text are shortened. Colours are logarithms if the positive values span more than a factor of ten.
    """
    if values.ndim not in (1, 2) or values.dtype.kind not in "biuf" or not values.size:
        return None
    values = with_its_intervals(moved_probability(values))
    for dim in values.dims:
        if values[dim].dtype.kind in "OUT":
            texts = values[dim].to_series().astype(str).str.replace("_", " ")
            labels = [shortened(text, LONG) for text in texts]
            values = values.assign_coords({dim: labels})
    if values.ndim == 2 and min(values.shape) > LINES:
        return _map(_with_markup(values, *values.dims))
    if values.ndim == 2 and len(values) > LINES:
        values = values.transpose()  # a line for each label of the shorter dimension
    # Names of lines are plain text: `line` escapes them.
    values = _with_markup(values, values.dims[-1])
    by_name = {"": values}
    if values.ndim == 2:
        kind = str(values.dims[0])
        names = [f"{kind.replace('_', ' ')} {label}" for label in values[kind].values]
        by_name = dict(zip(names, values, strict=True))
    figure = go.Figure()
    add_lines(figure, by_name)
    # Marks without lines: of answers whose longer lengths cannot be judged, and over texts, which have no order.
    unable = cannot_be_judged({"": values.to_dataset(name="values")})
    if unable or values[values.dims[-1]].dtype.kind in "OUT":
        figure.update_traces(mode="markers")
    title, axis = titles_of(values)
    figure.update_xaxes(title=escape(str(values.dims[-1]).replace("_", " ")))
    figure.update_yaxes(title=axis)
    return finish(figure, title, values, interval_note(values), unable)


def _with_markup(values: xr.DataArray, *dims: Any) -> xr.DataArray:
    """Values whose labels along some dimensions are text that plotly shows unchanged."""
    for dim in dims:
        if values[dim].dtype.kind in "OUT":
            labels = list(map(escape, values[dim].values))
            values = values.assign_coords({dim: labels})
    return values


def _map(values: xr.DataArray) -> go.Figure:
    """A map of values over two dimensions."""
    title, _ = titles_of(values)
    name = str(values.name or "value").replace("_", " ")
    unit = values.attrs.get("units", "1")
    of_colours = name if unit == "1" else unit
    log = is_wide(values.values)
    figure = go.Figure()
    add_map(figure, values, of_colours, log=log)
    blank = "blank: no value"
    if log:
        blank = "blank: 0 or no value"
        values = values.where(values > 0)
    rows, columns = (escape(str(dim).replace("_", " ")) for dim in values.dims)
    figure.update_xaxes(title=columns).update_yaxes(title=rows)
    if not values.isnull().any():
        blank = ""
    return finish(figure, title or name, values, blank)
