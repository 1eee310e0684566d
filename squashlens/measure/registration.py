"""The decorator of a measurement: what the function says of itself, and what happens around every call.

Padding the token ids of a forward pass would shift positions and change sums. Therefore each of several prompts of
unequal lengths is measured by itself, and its numbers are bit-identical to those of a separate call. Only the result is
padded.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from inspect import BoundArguments
from typing import Any, Literal, ParamSpec, TypeVar

import xarray as xr

from squashlens.bars import bar
from squashlens.errors import SquashlensError
from squashlens.model.memory import awaited
from squashlens.model.proof import public
from squashlens.model.text import tokens
from squashlens.model.verify import require_sound
from squashlens.records.joining import joined
from squashlens.run.captured import Capture
from squashlens.run.captures.pairs import Pairs, refuse_keywords_of_capture

T = TypeVar("T")
P = ParamSpec("P")
Prompts = Literal["as given", "one", "equal", "dependent"]
# Arguments of which the provenance says more elsewhere, or that are no data.
ELSEWHERE = {
    *("model", "reference", "other", "prompt", "prompts", "sequence", "task"),
    *("answer", "answers", "choices", "group", "clusters", "interventions", "resume"),
}
OF_CAPTURE = {field.name for field in fields(Pairs)}
CALL: ContextVar[Mapping[str, Any]] = ContextVar("call")


@contextmanager
def calling(
    function: str, arguments: Mapping[str, Any], elsewhere: Collection[str] = ()
) -> Iterator[None]:
    """In the body `this_call` gives this function with its arguments, except those in `ELSEWHERE` or `elsewhere`."""
    options: dict[str, Any] = {"function": function}
    for name, value in arguments.items():
        if name not in ELSEWHERE and name not in elsewhere:
            options[name] = list(value) if isinstance(value, range) else value
    token = CALL.set(options)
    try:
        yield
    finally:
        CALL.reset(token)


def this_call(**resolved: Any) -> dict[str, Any]:
    """The name and the options of the measurement that runs, for `Run`; `resolved` says what some of them came to."""
    return {**CALL.get(), **resolved}


def measurement(
    *figures: str,
    captured: bool = False,
    prompts: Prompts = "as given",
    cheaper: str = "",
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator for a public function that runs a model, whose first parameter is `model`.

    In a call arguments are checked, the model is locked and its state is read, and there is one progress bar. The
    function has its `figures` and `cheaper` as `__measures__`.

    Args:
        figures: names of functions of `squashlens.figures` that draw its result, the usual one first.
        captured: whether it measures a capture of a sequence, beside which it refuses the keywords of `capture`.
        prompts: the prompts that the function takes: all as they are given; ``"one"``; ``"equal"``, several of equal
            length; or ``"dependent"``, where the numbers of each depend on the others.
        cheaper: a sentence that says which arguments take less time, for calls of more than ten seconds.
    """

    def register(function: Callable[P, T]) -> Callable[P, T]:
        """The public function, which takes its arguments to `call` after the checks of `public`."""
        untyped: Any = function  # which is called by keywords, unlike its signature P
        # The provenance states the capture's options under `capture`.
        elsewhere = OF_CAPTURE if captured else ()

        def as_this_call(**arguments: Any) -> Any:
            """Call the function; meanwhile `this_call` gives these arguments."""
            with calling(function.__name__, arguments, elsewhere):
                return untyped(**arguments)

        def call(bound: BoundArguments) -> T:
            """The result for the arguments of a call, which are checked."""
            if captured:
                refuse_keywords_of_capture(bound.arguments)
            bound.apply_defaults()
            if prompts == "as given":
                return as_this_call(**bound.arguments)
            return _of_prompts(as_this_call, bound.arguments, alone=prompts == "one")

        measure = public(function, call, cheaper)
        setattr(measure, "__measures__", (figures, cheaper))  # noqa: B010
        return measure

    return register


def _of_prompts(
    function: Callable[..., Any], arguments: Mapping[str, Any], *, alone: bool
) -> Any:
    """The result for the argument `prompt`, which may be one prompt, several, or a capture.

    Prompts of equal length are measured in one call. If their lengths differ, or with `alone`, each is measured in a
    call of its own, and the results stand along a new dimension `prompt`.
    """
    given = arguments["prompt"]
    if isinstance(given, Capture | str) or _is_single(given):
        return function(**arguments)
    model = require_sound(arguments["model"])
    lengths = [len(row) for row in tokens.rows_of(model, given)]
    in_one_call = len(set(lengths)) == 1 and not (alone and len(lengths) > 1)
    # With spans=, one call with all prompts, so that the function itself refuses several.
    if in_one_call or arguments.get("spans") is not None:
        return function(**arguments)
    others = dict(arguments)
    del others["prompt"]
    results: list[Any] = []
    for number, prompt in enumerate(bar(tokens.each_of(given), desc="prompts")):
        try:
            # Checks on a device are read late: `awaited` raises their errors here, so that they name this prompt.
            with awaited():
                results.append(function(prompt=prompt, **others))
        except SquashlensError as error:
            error.cause = f"Prompt {number}: {error.cause}"
            raise
    return _side_by_side(results, lengths)


def _is_single(given: Any) -> bool:
    """Whether `given` is a single prompt, or something that `each_of` does not accept. The measurement handles both."""
    try:
        return len(tokens.each_of(given)) <= 1
    except SquashlensError:
        return True


def _side_by_side(results: list[Any], lengths: list[int]) -> xr.DataArray | xr.Dataset:
    """The results of single prompts along a new dimension `prompt`, padded to the longest, and their `n_tokens`."""
    together: Any = joined(dict(enumerate(results)), "prompt")
    order = [name for name in ("to_layer", "prompt") if name in together.dims]
    return together.transpose(*order, ...).assign_coords(n_tokens=("prompt", lengths))
