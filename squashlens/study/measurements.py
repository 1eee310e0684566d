"""The measurements that a study can run, and their arguments: as a description gives them, and as a call takes them.

A measurement is a public function of squashlens, by its name such as ``"path_bound"`` or ``"paths.hops"`` or itself, or
a function of your own, itself or as ``"module:function"``, which must return an xarray object.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any, get_args

from squashlens._typing import full_name, short_repr
from squashlens.checks.arguments import checked, converted
from squashlens.errors import InputError, SquashlensError
from squashlens.model.hooking.hook import Hook, Recipe, is_pair
from squashlens.sequences import GrowingSequence
from squashlens.tasks import find

Measurement = str | Callable[..., Any]

WHERE = (
    "",
    "paths",
    "synthetic",
)  # modules of squashlens with measurements; the package itself if empty
MAKERS = ("repeated", "bernoulli", "digits", "words", "build")  # of sequences
NO_HOOKS = (
    "Hook",
    "find_positions",
    "lifted_windows",
)  # other names in squashlens.hooks


@cache
def measurements() -> dict[str, Callable[..., Any]]:
    """The public functions that return an xarray result, by name."""
    public: dict[str, Any] = {}
    for where in WHERE:
        module = import_module(f"squashlens.{where}".rstrip("."))
        for name in module.__all__:
            public[f"{where}.{name}".lstrip(".")] = getattr(module, name)
    return {name: function for name, function in public.items() if _measures(function)}


def _measures(function: Any) -> bool:
    if not inspect.isfunction(function):
        return False
    returned = inspect.signature(function, eval_str=True).return_annotation
    return getattr(returned, "__name__", "") in ("DataArray", "Dataset")


def named(measurement: Measurement) -> Measurement:
    """The name of a public function; any other measurement as it is given."""
    names = [name for name, public in measurements().items() if public is measurement]
    return names[0] if names else measurement


def function_of(measurement: Measurement) -> Callable[..., Any]:
    """The function of a measurement."""
    if not isinstance(measurement, str):
        return measurement
    module, colon, attribute = measurement.partition(":")
    if not colon:
        return _choice(measurement, measurements(), "measurement")
    try:
        function = getattr(import_module(module), attribute)
    except Exception as error:  # whatever the module raises while it is imported
        cause = f"The measurement {measurement!r} cannot be imported: {type(error).__name__}: {error}."
        raise InputError(cause, "Give it as 'module:function'.") from error
    return converted(function, Callable, "measurement")


@cache
def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a measurement."""
    return dict(inspect.signature(function, eval_str=True).parameters)


def scanned_argument(function: Callable[..., Any]) -> str:
    """The argument that a scan gives: a prompt, or the growing sequence that it makes with the model's tokenizer."""
    return (
        "sequence" if {"sequence", "model"} <= parameters(function).keys() else "prompt"
    )


def require_arguments(
    what: str, function: Callable[..., Any], described: Mapping[str, Any]
) -> None:
    """Raise an error unless a measurement can be called with these arguments, without calling it."""
    if "resume" in described:
        cause = f"{what}: resume= is given, but a study resumes by itself."
        raise InputError(cause, "Leave it out.")
    try:
        made = arguments_of(None, function, described)
        checked(inspect.unwrap(function), (), made)
    except SquashlensError as error:
        raise InputError(f"{what}: {error.cause}", error.remedy) from error
    except TypeError as error:
        raise InputError(f"{what}: {error}.", "Correct its arguments.") from error


def arguments_of(
    model: Any, function: Callable[..., Any], described: Mapping[str, Any]
) -> dict[str, Any]:
    """What a measurement is called with. Without a model, it can be checked, but not called."""
    known = parameters(function)
    made = {"model": model} if "model" in known else {}
    for name, value in described.items():
        annotation = known[name].annotation if name in known else None
        made[name] = _argument(model, name, value, annotation)
    return made


def _argument(model: Any, name: str, value: Any, annotation: Any) -> Any:
    """An argument of a call, for what a description gives."""
    if name == "sequence" and isinstance(value, str | Mapping):
        return _sequence(model, value)
    if name == "task":
        return find(value)
    if name == "interventions" and isinstance(value, Mapping):
        return {label: hooks_of(hooks) for label, hooks in value.items()}
    if name == "stack" and isinstance(value, Mapping):
        from squashlens.synthetic import Stack

        return call(Stack, value, name)
    kinds = [
        getattr(kind, "__name__", "") for kind in (annotation, *get_args(annotation))
    ]
    return _dtype(value) if isinstance(value, str) and "dtype" in kinds else value


def _dtype(name: str) -> Any:
    import torch

    dtype = getattr(torch, full_name(name), None)
    if not isinstance(dtype, torch.dtype):
        cause = f"{short_repr(name)} is not a dtype."
        raise InputError(cause, "Give a name such as 'float32' or 'bf16'.")
    return dtype


def hooks_of(described: Any) -> list[Any]:
    """Hooks: one or several, as `squashlens.applied` takes them, or by name with their arguments."""
    if isinstance(described, str | Mapping | Hook | Recipe) or is_pair(described):
        return [_hook(described)]
    return [_hook(item) for item in converted(described, list[Any], "hooks")]


def _hook(item: Any) -> Any:
    import squashlens as sl

    if isinstance(item, Hook | Recipe) or is_pair(item):
        return item
    name, arguments = _name_and_arguments(item, "hooks")
    names = [name for name in sl.hooks.__all__ if name not in NO_HOOKS]
    known = {name: getattr(sl.hooks, name) for name in names}
    return call(_choice(name, known, "hook"), arguments, f"hooks: {name}")


def _sequence(model: Any, described: Any) -> Any:
    """A growing sequence; without a model, its arguments are checked, and it is another one."""
    import squashlens as sl

    name, arguments = _name_and_arguments(described, "sequence")
    makers = {name: getattr(sl.prompts, name) for name in MAKERS}
    maker = _choice(name, makers, "sequence")
    if model is not None:
        return maker(model, **arguments)
    check = partial(checked, inspect.unwrap(maker), ())
    call(check, {"kwargs": {"model": None, **arguments}}, f"sequence: {name}")
    return GrowingSequence("described", content=(0,), alphabet=(0,))


def sequence_of(model: Any, prompt: Any) -> Any:
    """The growing sequence whose content are the tokens of a prompt."""
    import squashlens as sl

    return sl.prompts.build(
        model, sl.prompts.tokenize(model, prompt, bos="none")[0].tolist()
    )


def _name_and_arguments(described: Any, argument: str) -> tuple[str, Mapping[str, Any]]:
    """A name and its arguments."""
    given = {described: None} if isinstance(described, str) else described
    given = converted(given, Mapping[str, Mapping[str, Any] | None], argument)
    if len(given) != 1:
        cause = f"{argument}={short_repr(given)} is not one name."
        raise InputError(cause, "Give {name: {argument: …}}.")
    ((name, arguments),) = given.items()
    return name, arguments or {}


def _choice(name: str, known: Mapping[str, Any], what: str) -> Any:
    """What a name stands for; an error lists similar names."""
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
    cause = f"There is no {what} {short_repr(name)}."
    raise InputError(cause, f"Similar names: {', '.join(near)}.")


def call(function: Callable[..., Any], arguments: Mapping[str, Any], what: str) -> Any:
    """What a function returns; an error for a missing or unknown argument."""
    try:
        return function(**arguments)
    except (TypeError, InputError) as error:
        cause = f"{what}: {str(error).rstrip('.')}."
        raise InputError(cause, "Correct its arguments.") from error
