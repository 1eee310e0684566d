"""Several prompts of unequal lengths: measured one by one, put side by side, padded where a prompt has no token.

Padding inside a pass would move positions and change sums. So each prompt is measured by itself, with the same numbers,
bit for bit, as a call for it alone; what is padded is the result.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import xarray as xr

from squashlens.bars import bar
from squashlens.errors import SquashlensError
from squashlens.model.capture import Capture
from squashlens.model.given import each_of
from squashlens.model.proof import require_sound
from squashlens.model.tokens import rows_of
from squashlens.results import joined, joined_arrays, restated

T = TypeVar("T", xr.DataArray, xr.Dataset)
P = ParamSpec("P")
SAID = "each prompt was measured by itself; behind its own tokens all is NaN, with the token '' and the token_id -1"


def one_by_one(*, always: bool = False) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For measurements whose second parameter is the prompts: several of unequal lengths become one result.

    Of one length they are left to the measurement, unless `always`.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        second = list(signature.parameters)[1]

        @functools.wraps(function)
        def measure(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # which says what is wrong
            bound.apply_defaults()
            given, asked = bound.arguments[second], bound.arguments
            if isinstance(given, Capture | str) or _single(given):
                return function(*args, **kwargs)
            model = require_sound(asked["model"])
            lengths = [len(row) for row in rows_of(model, given, asked["bos"])]
            if len(set(lengths)) == 1 and not (always and len(lengths) > 1):
                return function(*args, **kwargs)
            rest = {name: value for name, value in asked.items() if name not in ("model", second)}
            quiet: Any = rest | ({"progress": False} if "progress" in rest else {})
            measured: list[T] = []
            prompts = bar(each_of(given), desc="prompts", progress=rest.get("progress", True))
            for number, prompt in enumerate(prompts):
                try:
                    measured.append(cast(Any, function)(model, prompt, **quiet))
                except SquashlensError as error:
                    error.args = (f"Prompt {number}: {error}",)
                    raise
            return side_by_side(measured, lengths)

        return measure

    return decorate


def _single(given: Any) -> bool:
    """Whether this is one prompt, or nothing that `each_of` takes: both are the measurement's own matter."""
    try:
        return len(each_of(given)) <= 1
    except SquashlensError:
        return True


def side_by_side(measured: list[T], lengths: list[int]) -> T:
    """Results of single prompts along a new dimension `prompt`, padded to the longest, lengths as a coordinate."""
    longest = np.arange(max(len(one["position"]) for one in measured))
    padding: Any = {name: np.nan for name in _variables(measured[0])} | {"token": "", "token_id": -1}
    padded = [one.reindex(position=longest, fill_value=padding) for one in measured]
    if isinstance(padded[0], xr.DataArray):
        found: Any = joined_arrays(cast(list[xr.DataArray], padded), "prompt")
    else:
        found = joined(dict(enumerate(cast(list[xr.Dataset], padded))), "prompt")
    order = [name for name in ("target", "prompt") if name in found.dims]
    found = found.transpose(*order, ...).assign_coords(length=("prompt", lengths))
    return restated(found, {"unequal_lengths": SAID} if len(set(lengths)) > 1 else {})


def _variables(one: xr.DataArray | xr.Dataset) -> set[str]:
    own = one.data_vars if isinstance(one, xr.Dataset) else [one.name]
    return {str(name) for name in (*own, *one.coords)}
