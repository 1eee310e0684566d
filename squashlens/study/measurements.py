"""The measurements that a study can run, and their arguments: as a description gives them, and as a call takes them.

A measurement is a public function of squashlens, by its name such as ``"path_bound"`` or ``"attention_paths.hops"`` or
itself, or a function of your own, itself or as ``"module:function"``, which must return an xarray object. Hooks,
sequences and synthetic stacks are described as calls by name: ``{"sliding_window": {"window": 4}}``.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import xarray as xr

from squashlens._typing import short_repr
from squashlens.checks.arguments import checked, converted
from squashlens.errors import InputError
from squashlens.model.agreement import dtype_to_run_in
from squashlens.model.hooking.hook import Hook, HookPair, Recipe, one_or_several
from squashlens.sequences import GrowingSequence
from squashlens.tasks import find

Measurement = str | Callable[..., Any]

WHERE = (
    "",
    "attention_paths.",
    "synthetic.",
)  # modules with measurements; squashlens itself
CALLS = ("sequence", "stack", "interventions")  # arguments that may be calls by name
NAMED = {"dtype": dtype_to_run_in, "Dtype": dtype_to_run_in, "Task": find}  # by kind


@cache
def measurements() -> dict[str, Callable[..., Any]]:
    """The public functions that return an xarray result, by name.

    Those of two models are called in a function of your own, which makes the other model.
    """
    functions: dict[str, Callable[..., Any]] = {}
    for prefix in WHERE:
        module = import_module(f"squashlens.{prefix}".rstrip("."))
        for name in module.__all__:
            public = getattr(module, name)
            if _measures(public):
                functions[prefix + name] = public
    return functions


def _measures(function: Any) -> bool:
    """Whether a public name is a function that returns a result of one model, or of none."""
    if not inspect.isfunction(function):
        return False
    annotated = signature(function)
    is_result = annotated.return_annotation in (xr.DataArray, xr.Dataset)
    # `reference` is a second model.
    return is_result and "reference" not in annotated.parameters


def function_of(measurement: Measurement) -> Callable[..., Any]:
    """The function of a measurement."""
    if not isinstance(measurement, str):
        return measurement
    module, colon, attribute = measurement.partition(":")
    if not colon:
        return _choice(measurement, measurements())
    try:
        function = getattr(import_module(module), attribute)
    except Exception as error:  # whatever the module raises while it is imported
        cause = f"{measurement!r} cannot be imported: {type(error).__name__}: {error}."
        raise InputError(cause, "Give measurement= as 'module:function'.") from error
    return converted(function, Callable, "measurement")


@cache
def signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a measurement."""
    return inspect.signature(function, eval_str=True)


def takes_sequence(function: Callable[..., Any]) -> bool:
    """Whether a scan gives a growing sequence, which it makes of a prompt with the model's tokenizer."""
    return {"sequence", "model"} <= signature(function).parameters.keys()


def scanned_argument(function: Callable[..., Any]) -> dict[str, Any]:
    """The argument that a scan gives, by its name, with a value that stands for all in a check of arguments."""
    if takes_sequence(function):
        return {"sequence": {"build": {"content": ["1"]}}}
    return {"prompt": "text"}


def require_arguments(
    function: Callable[..., Any], described: Mapping[str, Any]
) -> None:
    """Raise an error unless a measurement can be called with these arguments, without calling it."""
    if "resume" in described:
        cause = "resume= is given, but a study resumes by itself."
        raise InputError(cause, "Leave it out.")
    checked(inspect.unwrap(function), (), arguments_of(None, function, described))


def arguments_of(
    model: Any, function: Callable[..., Any], described: Mapping[str, Any]
) -> dict[str, Any]:
    """What a measurement is called with: calls by name are made, and names of dtypes and tasks replaced.

    Without a model these arguments can only be checked: growing sequences are then stand-ins.
    """
    parameters = signature(function).parameters
    arguments = dict(described)
    for name, value in described.items():
        if name in CALLS:
            arguments[name] = made(model, value)
        if name in parameters and isinstance(value, str):
            arguments[name] = _meant(value, parameters[name])
    if "model" in parameters:
        arguments["model"] = model
    return arguments


def _meant(text: str, parameter: inspect.Parameter) -> Any:
    """The dtype or the task that a text is the name of, where the parameter takes one; else the text."""
    for kind, value_of in NAMED.items():
        if kind in str(parameter.annotation):  # such as "torch.dtype | None"
            return value_of(text)
    return text


def hooks_of(described: Any) -> list[Any]:
    """Hooks: one or several, as `squashlens.applied` takes them, or as calls by name."""
    several = [described] if isinstance(described, Mapping) else described
    hooks = [made(None, hook) for hook in one_or_several(several)]
    return converted(hooks, list[Hook | Recipe | HookPair], "hooks")


def made(model: Any, described: Any) -> Any:
    """A value, where ``{name: {argument: …}}`` is a call of a public function, also inside lists and mappings."""
    if isinstance(described, list):
        return [made(model, item) for item in described]
    if not isinstance(described, dict):
        return described
    content = list(described.values())
    # Anything else than one name with its arguments, or with None, is a plain mapping.
    if len(content) != 1 or not isinstance(content[0], dict | None):
        return {name: made(model, item) for name, item in described.items()}
    (name,) = described
    return _called(model, _choice(name, makers()), content[0] or {})


@cache
def makers() -> dict[str, Callable[..., Any]]:
    """The functions that a description can call: those that make hooks, growing sequences and synthetic stacks."""
    import squashlens as sl

    names = {name: getattr(sl.hooks, name) for name in sl.hooks.__all__}
    for name in ("repeated", "bernoulli", "digits", "words", "build"):
        names[name] = getattr(sl.prompts, name)
    return names | {"Stack": sl.synthetic.Stack}


def _called(model: Any, make: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """What a maker returns. Without the model that it takes, its arguments are checked, and a stand-in is returned."""
    if "model" not in signature(make).parameters:
        return make(**arguments)
    if model is not None:
        return make(model, **arguments)
    checked(inspect.unwrap(make), (), {"model": None, **arguments})
    return GrowingSequence("described", content=(0,), alphabet=(0,))


def sequence_of(model: Any, prompt: Any) -> GrowingSequence:
    """The growing sequence whose content are the tokens of a prompt."""
    import squashlens as sl

    ids = sl.prompts.tokenize(model, prompt, bos="none")
    return sl.prompts.build(model, ids[0].tolist())


def _choice(name: str, known: Mapping[str, Any]) -> Any:
    """What a name stands for; an error lists similar names."""
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
    cause = f"There is no {short_repr(name)} for a study."
    raise InputError(cause, f"Similar names: {', '.join(near)}.")
