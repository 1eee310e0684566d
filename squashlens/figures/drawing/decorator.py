"""What a figure is given: one result, or several by label, which are drawn side by side; and one prompt of a result."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from types import UnionType
from typing import Any, Concatenate, ParamSpec, TypeVar, Union, cast, get_origin

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.arguments import validated
from squashlens.checks.results import dims_by_name, require, require_real
from squashlens.errors import InputError
from squashlens.figures.drawing.notes import selections
from squashlens.figures.drawing.page_blocks import Page
from squashlens.figures.drawing.panels import DOT, compose
from squashlens.figures.drawing.style import dress
from squashlens.figures.drawing.text import escape
from squashlens.records.joining import without_padding
from squashlens.records.provenance import joined_along, require_done

R = TypeVar("R")
X = TypeVar("X", xr.Dataset, xr.DataArray)
P = ParamSpec("P")
Drawn = Callable[Concatenate[R, P], go.Figure]


def draws(
    maker: str, *needed: str, usual: bool = True
) -> Callable[[Drawn[R, P]], Callable[Concatenate[R | Mapping[str, R], P], go.Figure]]:
    """Decorator for a function that draws a result of `maker`; several results, by label, become panels of one figure,
    unless the function takes several itself: it then gets a mapping, with labels as markup and "" for a single result.

    Each item of `needed` has names of variables and their dimensions, as in `squashlens.checks.results.dims_by_name`.
    With `usual`, `squashlens.figures.of` draws it for a result that has them all. The docstring need not describe the
    result that is drawn, nor what is returned.
    """
    dims_of = dims_by_name(needed)

    def decorate(
        function: Drawn[R, P],
    ) -> Callable[Concatenate[R | Mapping[str, R], P], go.Figure]:
        signature = inspect.signature(function, eval_str=True)
        first, *rest = signature.parameters.values()
        function.__doc__ = _documented(function.__doc__ or "", first.name, maker)
        takes_several = get_origin(first.annotation) in (Union, UnionType)

        @functools.wraps(function)
        def draw(found: Any, *args: Any, **kwargs: Any) -> go.Figure:
            several: dict[str, Any] = (
                {"": found}
                if isinstance(found, xr.Dataset | xr.DataArray)
                else dict(found)
            )
            several = {label: without_padding(one) for label, one in several.items()}
            if not several:
                raise InputError(
                    f"{first.name} contains no result.", f"Give the result of {maker}."
                )
            ready = {
                label: in_order(with_modes(one, dims_of))
                for label, one in several.items()
            }
            for label, one in ready.items():
                require_done(one)
                require_real(one)
                require(
                    one,
                    f"{first.name}[{label!r}]" if label else first.name,
                    maker,
                    dims_of,
                    joined_along(one),
                )
            draw_one: Any = function
            selected = {
                at: [text for text in selections(one) if text not in at]
                for at, one in ready.items()
            }
            if takes_several:
                escaped = {escape(label): one for label, one in ready.items()}
                return say_selected(
                    draw_one(escaped, *args, **kwargs), *chain(*selected.values())
                )
            figures = {
                label: draw_one(one, *args, **kwargs) for label, one in ready.items()
            }
            drawn = {
                at: say_selected(figure, *selected[at])
                for at, figure in figures.items()
            }
            return compose(drawn) if len(drawn) > 1 else drawn.popitem()[1]

        kinds = (
            first.annotation
            if takes_several
            else first.annotation | Mapping[str, first.annotation]
        )
        setattr(  # noqa: B010
            draw,
            "__signature__",
            signature.replace(parameters=[first.replace(annotation=kinds), *rest]),
        )
        drawing = validated(draw)
        setattr(drawing, "__draws__", (maker, dims_of, usual))  # noqa: B010
        return cast(Any, drawing)

    return decorate


def _documented(text: str, name: str, maker: str) -> str:
    """A docstring that describes the result to draw, and the figure, where it does not."""
    about, raises, errors = inspect.cleandoc(text).partition("\n\nRaises:\n")
    about, _, others = about.partition("\n\nArgs:\n")
    given = (
        ""
        if f"    {name}: " in others
        else f"    {name}: a result of `{maker}`, or several by label.\n"
    )
    return f"{about}\n\nArgs:\n{given}{others.rstrip()}\n\nReturns:\n    The figure.{raises}{errors}\n"


def say_selected(figure: go.Figure, *selected: str) -> go.Figure:
    """The figure, whose line under the title says what was selected."""
    page = Page.of(figure)
    said = [note for note in page.notes.split(DOT) if note]
    new = [
        text
        for text in map(escape, selected)
        if not any(text.endswith(f" {note}") for note in said)
    ]
    notes = DOT.join(dict.fromkeys([*said, *new]))
    if notes == page.notes:
        return figure
    replace(page, notes=notes).keep(figure)
    return dress(figure)


def with_modes(found: Any, dims_of: Mapping[str, str]) -> Any:
    """A result of one mode that was selected from several, for a figure whose variables have the dimension."""
    needed = any("mode" in dims.split() for dims in dims_of.values())
    return (
        found.expand_dims("mode")
        if needed and "mode" in {*found.coords} - {*found.dims}
        else found
    )


def in_order(found: Any) -> Any:
    """The result with its lengths, layers and other numbers in increasing order, however they were selected."""
    return found.sortby(
        [dim for dim, index in found.indexes.items() if index.dtype.kind in "iuf"]
    )


def of_one_prompt(result: X) -> X:
    """The result for the tokens of one prompt, without padding."""
    positions = np.asarray(result["position"].values)
    if positions.dtype.kind not in "iuf" or not np.array_equal(
        positions, np.round(positions)
    ):
        raise InputError(
            "The coordinate 'position' of this result does not have whole numbers.",
            "Keep the positions that the measurement gave.",
        )
    return (
        result.isel(position=positions < int(result["n_tokens"].item()))
        if "n_tokens" in result.coords
        else result
    )


def tokens_of(result: xr.Dataset | xr.DataArray) -> dict[int, str]:
    """The token at each position of a result."""
    return {
        int(place): str(token)
        for place, token in zip(
            result["position"].values, result["token"].values, strict=True
        )
    }
