"""What a figure is given: one result, or several by label, which are drawn side by side.

``@draws("squashlens.collapse", "distance: layer length", "noise_floor unrelated: ? ...")`` is a figure of the results
of `collapse` that have the variable `distance` over layer and length; the other two may be missing, and may have any
dimensions.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Concatenate, ParamSpec, TypeVar, Union, cast, get_origin

import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.arguments import validated
from squashlens.checks.results import dims_by_name, require
from squashlens.errors import InputError
from squashlens.figures.drawing.panels import compose
from squashlens.records.provenance import require_done

R = TypeVar("R")
P = ParamSpec("P")
Drawn = Callable[Concatenate[R, P], go.Figure]


def draws(
    maker: str, *needed: str, usual: bool = True
) -> Callable[[Drawn[R, P]], Callable[Concatenate[R | Mapping[str, R], P], go.Figure]]:
    """Decorator for a function that draws a result of `maker`; several results, by label, become panels of one figure,
    unless the function takes several itself: it then gets a mapping, with "" as the label of a single result.

    Args:
        maker: name of the measurement whose result is drawn, for errors.
        needed: names of variables and their dimensions, as in `squashlens.checks.results.dims_by_name`; see the module.
        usual: whether `squashlens.figures.of` draws the figure for a result that has all of them.
    """
    dims_of = dims_by_name(needed)

    def decorate(
        function: Drawn[R, P],
    ) -> Callable[Concatenate[R | Mapping[str, R], P], go.Figure]:
        signature = inspect.signature(function, eval_str=True)
        first, *others = signature.parameters.values()
        # Such a function is annotated with a mapping too: `xr.Dataset | Mapping[str, xr.Dataset]`.
        takes_several = get_origin(first.annotation) in (Union, UnionType)
        draw_given: Any = function

        @functools.wraps(function)
        def draw(found: Any, *args: Any, **kwargs: Any) -> go.Figure:
            """Check the result or results, and draw them."""
            is_alone = isinstance(found, xr.Dataset | xr.DataArray)
            several: dict[str, Any] = {"": found} if is_alone else dict(found)
            if not several:
                raise InputError(
                    f"{first.name} contains no result.", f"Give the result of {maker}."
                )
            for label, result in several.items():
                several[label] = in_order(with_mode(result, dims_of))
                argument = f"{first.name}[{label!r}]" if label else first.name
                require_done(result)
                require(several[label], argument, maker, dims_of)
            if takes_several:
                return draw_given(several, *args, **kwargs)
            figures = {}
            for label, result in several.items():
                figures[label] = draw_given(result, *args, **kwargs)
            return figures[""] if is_alone else compose(figures)

        # `validated` and the reference read the signature: the decorated function takes a mapping as well.
        kinds = first.annotation
        if not takes_several:
            kinds = first.annotation | Mapping[str, first.annotation]
        parameters = [first.replace(annotation=kinds), *others]
        setattr(draw, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
        drawing = validated(draw)
        setattr(drawing, "__draws__", (maker, dims_of, usual))  # noqa: B010
        return cast(Any, drawing)

    return decorate


def with_mode(found: Any, dims_of: Mapping[str, str]) -> Any:
    """The result; of one mode that was selected from several, with this dimension again if the figure needs it."""
    is_needed = any("mode" in dims.split() for dims in dims_of.values())
    if is_needed and "mode" in found.coords and "mode" not in found.dims:
        return found.expand_dims("mode")
    return found


def in_order(found: Any) -> Any:
    """The result with its lengths, layers and other numbers in increasing order, however they were selected."""
    return found.sortby(
        [dim for dim, index in found.indexes.items() if index.dtype.kind in "iuf"]
    )


def tokens_of(result: xr.Dataset | xr.DataArray) -> dict[int, str]:
    """The token at each position of a result."""
    places = result["position"].values.astype(int).tolist()
    return dict(zip(places, map(str, result["token"].values), strict=True))
