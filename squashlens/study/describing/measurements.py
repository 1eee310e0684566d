"""The measurements that a study can run, and the check of their arguments before anything runs.

A measurement is a public function of squashlens by its name, such as ``"path_bound"`` or ``"paths.hops"``, or a
function of your own as ``"module:function"``, which must return an xarray object.
"""

import ast
import difflib
import inspect
import json
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from squashlens._typing import full_name, short_repr
from squashlens.checks.arguments import converted
from squashlens.errors import InputError, SquashlensError
from squashlens.model.digests import sha256
from squashlens.records.results import versions
from squashlens.tasks import find

MAKERS = ("repeated", "bernoulli", "digits", "words", "build")


def arguments_for(
    model: Any, values: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """The arguments of a call, made of what a description gives."""
    return {
        name: MAKES[name](model, value)
        if name in MAKES
        else plain_of(value, parameters[name].annotation)
        for name, value in values.items()
    }


def plain_of(value: Any, annotation: Any) -> Any:
    """A value; a dtype for its name, if the parameter is a dtype."""
    kinds = (annotation, *get_args(annotation))
    if not isinstance(value, str) or all(
        getattr(kind, "__name__", "") != "dtype" for kind in kinds
    ):
        return value
    import torch

    dtype = getattr(torch, full_name(value), None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(
            f"{short_repr(value)} is not a dtype.",
            "Give a name such as 'float32' or 'bf16'.",
        )
    return dtype


def require_hooks(described: Any) -> list[Any]:
    """The hooks of a description, made without a model."""
    import squashlens as sl

    others = ("Hook", "find_positions", "lifted_windows")
    known, hooks = [hook for hook in sl.hooks.__all__ if hook not in others], []
    for item in converted(described, list[Any], "hooks"):
        name, arguments = _name_and_arguments(item, "hooks")
        if name not in known:
            raise unknown_name(f"There is no hook {short_repr(name)}.", name, known)
        hooks.append(call(getattr(sl.hooks, name), arguments, f"hooks: {name}"))
    return hooks


def _name_and_arguments(described: Any, argument: str) -> tuple[str, Mapping[str, Any]]:
    """A name and its arguments."""
    if isinstance(described, str):
        return described, {}
    named = converted(described, Mapping[str, Mapping[str, Any] | None], argument)
    if len(named) != 1:
        raise InputError(
            f"{argument}={short_repr(described)} is not a name with arguments.",
            "Give {name: {argument: …}}.",
        )
    ((name, arguments),) = named.items()
    return name, arguments or {}


def call(function: Callable[..., Any], arguments: Mapping[str, Any], what: str) -> Any:
    """What a function returns; an error for a missing or unknown argument."""
    try:
        return function(**arguments)
    except (TypeError, InputError) as error:
        raise InputError(
            f"{what}: {str(error).rstrip('.')}.", "Correct its arguments."
        ) from error


def _sequence(model: Any, described: Any) -> Any:
    """A growing sequence; without a model, its arguments are checked."""
    import squashlens as sl

    maker, arguments = _name_and_arguments(described, "sequence")
    if maker not in MAKERS:
        raise unknown_name(
            f"sequence={short_repr(described)} names no function that makes sequences.",
            maker,
            MAKERS,
        )
    if model is not None:
        return getattr(sl.prompts, maker)(model, **arguments)
    known = dict(
        inspect.signature(getattr(sl.prompts, maker), eval_str=True).parameters
    )
    del known["model"]
    require_names(f"prompts.{maker}", arguments, known)
    for name, value in arguments.items():
        converted(value, known[name].annotation, f"sequence.{name}")
    return None


def require_names(
    function: str, names: Iterable[str], known: Mapping[str, inspect.Parameter]
) -> None:
    """An error unless all arguments are parameters, and all parameters without a default are given."""
    for name in names:
        if name not in known:
            raise unknown_name(
                f"{function} has no argument {short_repr(name)}.", name, known
            )
    needed = [
        name
        for name, p in known.items()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]
    if missing := [f"{name}=" for name in needed if name not in names]:
        raise InputError(
            f"{function} needs {', '.join(missing)}.", "Add it to its arguments."
        )


def sequence_of(model: Any, prompt: Any) -> Any:
    """The growing sequence whose content are the tokens of a prompt."""
    import squashlens as sl

    return sl.prompts.build(
        model, sl.prompts.tokenize(model, prompt, bos="none")[0].tolist()
    )


def _interventions(_: Any, described: Any) -> Any:
    named = converted(described, Mapping[str, Any], "interventions")
    return {label: require_hooks(hooks) for label, hooks in named.items()}


def _stack(_: Any, described: Any) -> Any:
    from squashlens.synthetic import Stack

    return call(Stack, converted(described, Mapping[str, Any], "stack"), "stack")


def unknown_name(cause: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not known, with those that are like it."""
    near = (
        difflib.get_close_matches(str(name), known := list(known), n=3, cutoff=0.4)
        or known
    )
    return InputError(cause, f"Similar names: {', '.join(near)}.")


# What makes an argument for a model. Without a model (None), the same functions check what is given.
MAKES = {
    "sequence": _sequence,
    "task": lambda _, given: find(given),
    "interventions": _interventions,
    "stack": _stack,
}


WHERE = (
    "",
    "paths",
    "synthetic",
)  # the modules of squashlens that have measurements; the package itself if empty
LOADING = ("dtype", "revision")  # options of `load` that change the numbers
RUNS = {"separation": ("runs",)}  # need a model's name, and a study gives loaded models
BATCHES = (
    "batch_size",
    "vjp_batch_size",
)  # how the work is divided: no part of a cell's name
NOT_GIVEN = ("resume", "answer")  # set by the study, or known to Python only


@cache
def measurements() -> tuple[str, ...]:
    """The public functions that return an xarray result, and need nothing that a study cannot say."""
    public = [
        f"{where}.{name}".lstrip(".")
        for where in WHERE
        for name in _module(where).__all__
    ]
    return tuple(name for name in public if _measures(_public(name)))


def _module(where: str) -> ModuleType:
    return import_module(f"squashlens.{where}" if where else "squashlens")


def _public(name: str) -> Any:
    where, _, short = name.rpartition(".")
    return getattr(_module(where), short)


def _measures(function: Any) -> bool:
    if not inspect.isfunction(function):
        return False
    signature = inspect.signature(function, eval_str=True)
    returned = getattr(signature.return_annotation, "__name__", "")
    needed = {
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
    }
    return returned in ("DataArray", "Dataset") and not needed & {*NOT_GIVEN}


def function_of(name: str) -> Callable[..., Any]:
    """The function of a measurement."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            function = getattr(import_module(module), attribute)
        except Exception as error:  # whatever the module raises while it is imported
            cause = f"The measurement {name!r} cannot be imported: {type(error).__name__}: {error}."
            raise InputError(cause, "Give it as 'module:function'.") from error
        if not callable(function):
            raise InputError(
                f"The measurement {name!r} is not a function.",
                "Give it as 'module:function'.",
            )
        return function
    if name not in measurements():
        raise unknown_name(
            f"There is no measurement {short_repr(name)}.", name, measurements()
        )
    return _public(name)


def scanned_argument(name: str) -> str:
    """The argument that a scan gives: a prompt, or the growing sequence that it makes with the model's tokenizer."""
    return "sequence" if {"sequence", "model"} <= parameters(name).keys() else "prompt"


def parameters(name: str) -> dict[str, inspect.Parameter]:
    return _parameters(name, function_of(name))


@cache
def _parameters(
    name: str, function: Callable[..., Any]
) -> dict[str, inspect.Parameter]:
    """The parameters of a function; one that was imported again may have others."""
    known = inspect.signature(function, eval_str=True).parameters
    return {
        argument: parameter
        for argument, parameter in known.items()
        if argument not in RUNS.get(name, ())
    }


def require_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Raise an error unless the measurement can be called with these arguments, without calling it."""
    known = parameters(name)
    if "model" in known:
        import squashlens as sl

        hooks = inspect.Parameter("hooks", inspect.Parameter.KEYWORD_ONLY, default=())
        untrained = inspect.Parameter(
            "untrained", hooks.kind, default=None, annotation=int | None
        )
        known = {
            "hooks": hooks,
            "untrained": untrained,
            **{option: _parameters("", sl.load)[option] for option in LOADING},
        } | known
    if wrong := [argument for argument in arguments if argument in NOT_GIVEN]:
        raise InputError(
            f"{name}: {wrong[0]}= cannot be given: the study sets it, or cannot say it.",
            "Leave it out.",
        )
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


def identity_of(name: str, arguments: Mapping[str, Any], code: str) -> dict[str, Any]:
    """What the numbers depend on beside the model: the function, all arguments with their defaults, and versions."""
    known = parameters(name)
    filled = {
        argument: parameter.default
        for argument, parameter in known.items()
        if parameter.default is not parameter.empty
        and argument not in (*NOT_GIVEN, *BATCHES)
    }
    stated = {
        argument: vars(_stack(None, value)) if argument == "stack" else value
        for argument, value in arguments.items()
        if argument not in (*BATCHES, *LOADING, "untrained", "model")
    }
    own = {
        argument: arguments[argument]
        for argument in LOADING
        if argument in parameters(name).keys() & arguments
    }
    used = {
        package: version
        for package, version in versions().items()
        if package != "python"
    }
    identity = {
        "measurement": name,
        "arguments": filled | stated | own,
        "versions": used,
        "code": code,
    }
    return json.loads(json.dumps(identity, default=_plain))


def code_for(name: str) -> str:
    """The digest of the code of your own measurement; empty for a public function, for which the version stands."""
    return _code_behind(inspect.unwrap(function_of(name))) if ":" in name else ""


@cache
def _code_behind(function: Any) -> str:
    """A digest of the module of a function and of your own modules that it imports, without comments.

    It is that of the first look, since a file that is edited and not imported again does not run.
    """
    waiting, code = [str(function.__module__)], dict[str, str]()
    for name in waiting:
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        if name in code or not file.endswith(".py") or _installed(Path(file)):
            continue
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
        code[name] = ast.dump(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                home = resolve_name(
                    "." * node.level + (node.module or ""),
                    sys.modules[name].__package__,
                )
                waiting += [home, *(f"{home}.{alias.name}" for alias in node.names)]
    return sha256(repr(sorted(code.items())))


def _installed(file: Path) -> bool:
    """Whether a file belongs to Python, to an installed package, or to squashlens."""
    homes = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")]
    ours = Path(__file__).parents[2]
    return "site-packages" in file.parts or any(
        file.is_relative_to(home) for home in (*homes, ours)
    )


def _plain(value: Any) -> Any:
    """A value that JSON does not have, as a list, dict or text."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple | range) else str(value)
