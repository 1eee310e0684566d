"""The measurements that a study can run, and the check of their arguments before anything runs.

A measurement is a public function of squashlens by its name, such as ``"path_bound"`` or ``"paths.hops"``, or a
function of your own as ``"module:function"``, which must return an xarray object.
"""

import difflib
import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from squashlens._typing import Quantized, one_of, short_repr
from squashlens.checks.arguments import converted
from squashlens.errors import InputError, SquashlensError
from squashlens.records.results import versions
from squashlens.study.describing.arguments import MAKES, plain_of, require_hooks
from squashlens.study.describing.code import code_of

OF_MODELS = (
    "path_bound", "jacobian_norms", "jacobian", "profile", "sensitivity", "substitution_effect", "needle",
    "audit", "paths.composition", "paths.hops", "paths.strongest_paths", "paths.depth_limit", "collapse", "mechanism",
    "separator_ablation", "tokenization", "precision", "compare", "search_separators",
    "top_tokens", "evaluate", "probe", "collapse_vs_readout",
)  # fmt: skip
WITHOUT_MODEL = ("synthetic.convergence", "synthetic.survey", "synthetic.softmax_total_variation")
MEASUREMENTS = (*OF_MODELS, *WITHOUT_MODEL)
LOADING = ("dtype", "quantize", "revision")  # options of `load` that change the numbers
RUNS = {"precision": ("runs", "lengths", "noise_lengths")}  # need a model's name, and a study gives loaded models
BATCHES = ("batch_size", "vjp_batch_size", "tokens_per_pass")  # how the work is divided: no part of a cell's name
# Parameters that a study sets itself, or that only Python can pass, and why.
NOT_GIVEN = {
    "progress": "the study shows its own progress",
    "resume": "the study itself can be resumed",
    "device": "the engine chooses the device",
    "source": "only Python can make it",
    "answer": "it is a Python function; use a task instead",
}


def function_of(name: str) -> Callable[..., Any]:
    """The function of a measurement."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except Exception as error:  # whatever the module raises while it is imported
            reason = str(error) if isinstance(error, ImportError | AttributeError | ValueError) else repr(error)
            raise InputError(
                f"The measurement {name!r} cannot be imported: {reason}.", "Give it as 'module:function'."
            ) from error
        if not callable(found):
            raise InputError(f"The measurement {name!r} is not a function.", "Give it as 'module:function'.")
        return found
    if name not in MEASUREMENTS:
        near = difflib.get_close_matches(str(name), MEASUREMENTS, n=3, cutoff=0.4) or MEASUREMENTS
        raise InputError(f"There is no measurement {short_repr(name)}.", f"Similar names: {', '.join(near)}.")
    where, _, short = name.rpartition(".")
    return getattr(import_module(f"squashlens.{where}" if where else "squashlens"), short)


def takes_model(name: str) -> bool:
    """Whether a measurement measures a model."""
    return "model" in parameters(name)


def scanned(name: str) -> str:
    """The argument that a scan gives: a prompt, or the growing sequence that it makes with the model's tokenizer."""
    return "sequence" if {"sequence", "model"} <= parameters(name).keys() else "prompt"


def parameters(name: str) -> dict[str, inspect.Parameter]:
    return _parameters(name, function_of(name))


@cache
def _parameters(name: str, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function; one that was imported again may have others."""
    known = inspect.signature(function, eval_str=True).parameters
    return {argument: one for argument, one in known.items() if argument not in RUNS.get(name, ())}


def require_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Raise an error unless the measurement can be called with these arguments, without calling it."""
    known = parameters(name)
    model = "model" in known
    for argument in arguments:
        if argument in NOT_GIVEN and argument in (*known, "device"):
            raise InputError(f"{name}: {argument}= cannot be given: {NOT_GIVEN[argument]}.", "Leave it out.")
        if argument not in known and not (model and argument in (*LOADING, "hooks")):
            near = difflib.get_close_matches(argument, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Its arguments are: {', '.join(known)}."
            raise InputError(f"{name} has no argument {short_repr(argument)}.", hint)
    needed = [n for n, one in known.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    if missing := [one for one in needed if one not in arguments]:
        raise InputError(f"{name} needs {', '.join(f'{one}=' for one in missing)}.", "Add it to arguments or each.")
    for argument, value in arguments.items():
        try:
            _require_value(argument, value, known.get(argument))
        except SquashlensError as error:
            raise InputError(f"{name}: {error.cause}", error.remedy) from error


def _require_value(argument: str, value: Any, parameter: inspect.Parameter | None) -> None:
    if argument == "hooks" and parameter is None:
        require_hooks(value)
    elif argument in ("model", *LOADING) and (parameter is None or argument == "model"):
        if not isinstance(value, str) and (argument in ("model", "dtype") or value is not None):
            raise InputError(f"{argument}={short_repr(value)} is not text.", "Give a name, such as 'tiny-gemma'.")
        _require_loading(argument, value)
    elif argument in MAKES:
        MAKES[argument](None, value)
    elif parameter is not None:
        converted(plain_of(value, parameter.annotation), parameter.annotation, argument)


def _require_loading(argument: str, value: Any) -> None:
    """Raise an error for a dtype or quantization that no model can be loaded with."""
    import torch

    if argument == "dtype" and not plain_of(value, torch.dtype).is_floating_point:
        raise InputError(
            f"dtype={value!r} has whole numbers.", "Give 'float32', 'bf16' or another floating-point dtype."
        )
    if argument == "quantize" and value is not None:
        one_of(value, Quantized, "quantize")


def identity_of(name: str, arguments: Mapping[str, Any], code: Mapping[str, str]) -> dict[str, Any]:
    """What the numbers depend on beside the model: the function, all arguments with their defaults, and versions."""
    filled = {
        argument: parameter.default
        for argument, parameter in parameters(name).items()
        if parameter.default is not parameter.empty and argument not in (*NOT_GIVEN, *BATCHES)
    }
    given = {argument: value for argument, value in arguments.items() if argument not in (*BATCHES, *LOADING, "model")}
    own = {argument: arguments[argument] for argument in LOADING if argument in parameters(name).keys() & arguments}
    known = {package: version for package, version in versions().items() if package != "python"}
    found = {"measurement": name, "arguments": filled | given | own, "versions": known, "code": dict(code)}
    return json.loads(json.dumps(found, default=_plain))


def code_for(name: str) -> dict[str, str]:
    """The digests of the code of your own measurement; none of a public function, for which the version stands."""
    module, colon, _ = name.partition(":")
    if not colon:
        return {}
    found = code_of(module, function_of(name))
    if not found:
        raise InputError(
            f"The measurement {name!r} is in no file, so that a change of it could not be noticed.",
            "Write it into a module of its own, and give that as 'module:function'.",
        )
    return found


def _plain(value: Any) -> Any:
    """A default that JSON does not have, as a list, dict or text."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple | range) else str(value)
