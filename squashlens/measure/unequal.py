"""Several prompts of unequal lengths: they are measured one by one, and the results are padded to one length.

Padding the token ids of a forward pass would shift positions and change sums. Therefore each prompt is measured by
itself, and its numbers are bit-identical to those of a separate call. Only the result is padded.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import xarray as xr

from squashlens.bars import bar
from squashlens.engine.capturing.capture import Capture
from squashlens.engine.proving.proof import require_sound
from squashlens.engine.text.tokens import each_of, rows_of
from squashlens.errors import InputError, SquashlensError
from squashlens.records.joining import joined, restated
from squashlens.records.results import provenance

T = TypeVar("T", xr.DataArray, xr.Dataset)
P = ParamSpec("P")
NOTE = "each prompt was measured by itself; after its own tokens, values are NaN, token is '' and token_id is -1"


def one_by_one(*, always: bool = False) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator that lets a measurement, whose second parameter is the prompts, take prompts of unequal lengths.

    Prompts of equal length are passed to the measurement together, unless `always` is true.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        second = list(signature.parameters)[1]

        @functools.wraps(function)
        def measure(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # raises Python's own error about the arguments
            bound.apply_defaults()
            given, arguments = bound.arguments[second], bound.arguments
            if isinstance(given, Capture | str) or _single(given):
                return function(*args, **kwargs)
            model = require_sound(arguments["model"])
            if arguments.get("spans") is not None:
                raise InputError(
                    "spans= is for a single prompt, and this call has several.",
                    "Measure prompts one by one: each has spans of its own.",
                )
            lengths = [len(row) for row in rows_of(model, given, arguments["bos"])]
            if len(set(lengths)) == 1 and not (always and len(lengths) > 1):
                return function(*args, **kwargs)
            rest = {name: value for name, value in arguments.items() if name not in ("model", second)}
            quiet: Any = rest | ({"progress": False} if "progress" in rest else {})
            measured: list[T] = []
            prompts = bar(each_of(given), desc="prompts", progress=rest.get("progress", True))
            for number, prompt in enumerate(prompts):
                try:
                    measured.append(cast(Any, function)(model, prompt, **quiet))
                except SquashlensError as error:
                    error.args = (f"Prompt {number}: {error}",)
                    raise
                if "seed" in quiet:  # all prompts have the seed that the first one drew
                    quiet["seed"] = provenance(measured[0])["call"].get("seed")
            return side_by_side(measured, lengths)

        return measure

    return decorate


def _single(given: Any) -> bool:
    """Whether `given` is a single prompt, or something that `each_of` does not accept. The measurement handles both."""
    try:
        return len(each_of(given)) <= 1
    except SquashlensError:
        return True


def side_by_side(measured: list[T], lengths: list[int]) -> T:
    """The results of single prompts along a new dimension `prompt`, padded to the longest, and their `n_tokens`."""
    longest = np.arange(max(len(one["position"]) for one in measured))
    padding: Any = {name: np.nan for name in _variables(measured[0])} | {"token": "", "token_id": -1}
    padded = [one.reindex(position=longest, fill_value=padding) for one in measured]
    found: Any = joined(dict(enumerate(padded)), "prompt")
    order = [name for name in ("to_layer", "prompt") if name in found.dims]
    found = found.transpose(*order, ...).assign_coords(n_tokens=("prompt", lengths))
    return restated(found, {"unequal_lengths": NOTE} if len(set(lengths)) > 1 else {})


def _variables(one: xr.DataArray | xr.Dataset) -> set[str]:
    """The names of the variables and coordinates of a result."""
    own = one.data_vars if isinstance(one, xr.Dataset) else [one.name]
    return {str(name) for name in (*own, *one.coords)}
