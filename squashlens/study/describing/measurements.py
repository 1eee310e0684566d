"""The measurements that a study can run, and the check of their arguments before anything runs.

A measurement is a public function of squashlens by its name, such as ``"path_bound"`` or ``"paths.hops"``, or a
function of your own as ``"module:function"``, which must return an xarray object.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from squashlens._typing import short_repr
from squashlens.checks.arguments import converted
from squashlens.errors import InputError, SquashlensError
from squashlens.records.results import versions
from squashlens.study.describing.arguments import MAKES, plain_of, require_hooks, require_names, unknown
from squashlens.study.describing.code import code_of

MEASUREMENTS = (
    "path_bound", "jacobian_norms", "jacobian", "profile", "sensitivity", "substitution_effect", "knockout_effect",
    "needle", "audit", "paths.composition", "paths.hops", "paths.strongest_paths", "paths.depth_limit",
    "collapse", "mechanism",
    "separator_ablation", "tokenization", "precision", "compare", "search_separators",
    "top_tokens", "evaluate", "probe", "collapse_vs_readout",
    "synthetic.convergence", "synthetic.survey", "synthetic.softmax_total_variation",
)  # fmt: skip
LOADING = ("dtype", "quantize", "revision")  # options of `load` that change the numbers
RUNS = {"precision": ("runs", "lengths", "noise_lengths")}  # need a model's name, and a study gives loaded models
BATCHES = ("batch_size", "vjp_batch_size", "tokens_per_pass")  # how the work is divided: no part of a cell's name
NOT_GIVEN = ("progress", "resume", "device", "source", "answer")  # set by the study, or known to Python only


def function_of(name: str) -> Callable[..., Any]:
    """The function of a measurement."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except Exception as error:  # whatever the module raises while it is imported
            cause = f"The measurement {name!r} cannot be imported: {type(error).__name__}: {error}."
            raise InputError(cause, "Give it as 'module:function'.") from error
        if not callable(found):
            raise InputError(f"The measurement {name!r} is not a function.", "Give it as 'module:function'.")
        return found
    if name not in MEASUREMENTS:
        raise unknown(f"There is no measurement {short_repr(name)}.", name, MEASUREMENTS)
    where, _, short = name.rpartition(".")
    return getattr(import_module(f"squashlens.{where}" if where else "squashlens"), short)


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
    if "model" in known:
        import squashlens as sl

        hooks = inspect.Parameter("hooks", inspect.Parameter.KEYWORD_ONLY, default=())
        known = {"hooks": hooks, **{option: _parameters("", sl.load)[option] for option in LOADING}} | known
    if wrong := [argument for argument in arguments if argument in NOT_GIVEN]:
        raise InputError(f"{name}: {wrong[0]}= cannot be given: the study sets it, or cannot say it.", "Leave it out.")
    require_names(name, arguments, known)
    for argument, value in arguments.items():
        try:
            if argument == "model":
                converted(value, str, argument)
            elif argument == "hooks" and "hooks" not in parameters(name):
                require_hooks(value)
            elif argument in MAKES:
                MAKES[argument](None, value)
            else:
                annotation = known[argument].annotation
                converted(plain_of(value, annotation), annotation, argument)
        except SquashlensError as error:
            raise InputError(f"{name}: {error.cause}", error.remedy) from error


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
    return code_of(module, function_of(name)) if colon else {}


def _plain(value: Any) -> Any:
    """A default that JSON does not have, as a list, dict or text."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple | range) else str(value)
