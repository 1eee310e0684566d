"""Arguments as a description gives them, which is in JSON, and the Python objects that are made of them.

sequence       {"repeated": {"token": "1", "n": 48}}: a function of `squashlens.prompts` and its arguments
task           the name of a task
stack          the fields of `squashlens.synthetic.Stack`
hooks          a list of names of functions of `squashlens.hooks`, or {name: arguments}
interventions  hooks by label, as `squashlens.compare` takes them
a dtype        its name
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from squashlens._typing import full_name, short_repr
from squashlens.checks.arguments import converted
from squashlens.errors import InputError

MAKERS = ("repeated", "alternating", "bernoulli", "digits", "words", "build")


def arguments_for(model: Any, given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The arguments of a call, made of what a description gives."""
    return {
        name: MAKES[name](model, value) if name in MAKES else plain_of(value, parameters[name].annotation)
        for name, value in given.items()
    }


def plain_of(value: Any, annotation: Any) -> Any:
    """A value; a dtype for its name, if the parameter is a dtype."""
    kinds = (annotation, *get_args(annotation))
    if not isinstance(value, str) or all(getattr(kind, "__name__", "") != "dtype" for kind in kinds):
        return value
    import torch

    found = getattr(torch, full_name(value), None)
    if not isinstance(found, torch.dtype):
        raise InputError(f"{short_repr(value)} is not a dtype.", "Give a name such as 'float32' or 'bf16'.")
    return found


def require_hooks(given: Any) -> list[Any]:
    """The hooks of a description, made without a model."""
    import squashlens as sl

    known, found = [hook for hook in sl.hooks.__all__ if hook not in ("Hook", "find_positions")], []
    for one in converted(given, list[Any], "hooks"):
        name, arguments = _named(one, "hooks")
        if name not in known:
            raise unknown(f"There is no hook {short_repr(name)}.", name, known)
        found.append(called(getattr(sl.hooks, name), arguments, f"hooks: {name}"))
    return found


def _named(given: Any, argument: str) -> tuple[str, Mapping[str, Any]]:
    """A name and its arguments."""
    if isinstance(given, str):
        return given, {}
    named = converted(given, Mapping[str, Mapping[str, Any] | None], argument)
    if len(named) != 1:
        raise InputError(f"{argument}={short_repr(given)} is not a name with arguments.", "Give {name: {argument: …}}.")
    ((name, arguments),) = named.items()
    return name, arguments or {}


def called(function: Callable[..., Any], arguments: Mapping[str, Any], what: str) -> Any:
    """What a function returns; an error for a missing or unknown argument."""
    try:
        return function(**arguments)
    except TypeError as error:
        raise InputError(f"{what}: {error}.", "Correct its arguments.") from error


def _sequence(model: Any, given: Any) -> Any:
    """A growing sequence; without a model, its arguments are checked."""
    import squashlens as sl

    maker, arguments = _named(given, "sequence")
    if maker not in MAKERS:
        raise unknown(f"sequence={short_repr(given)} names no function that makes sequences.", maker, MAKERS)
    if model is not None:
        return getattr(sl.prompts, maker)(model, **arguments)
    known = dict(inspect.signature(getattr(sl.prompts, maker), eval_str=True).parameters)
    if "form" in known:
        form = inspect.signature(sl.prompts.build, eval_str=True).parameters
        known |= {name: one for name, one in form.items() if name not in ("content", "name")}
    known = {name: one for name, one in known.items() if name not in ("model", "form")}
    require_names(f"prompts.{maker}", arguments, known)
    for name, value in arguments.items():
        converted(value, known[name].annotation, f"sequence.{name}")
    return None


def require_names(function: str, given: Iterable[str], known: Mapping[str, inspect.Parameter]) -> None:
    """An error unless all arguments are parameters, and all parameters without a default are given."""
    for name in given:
        if name not in known:
            raise unknown(f"{function} has no argument {short_repr(name)}.", name, known)
    needed = [name for name, one in known.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    if missing := [f"{name}=" for name in needed if name not in given]:
        raise InputError(f"{function} needs {', '.join(missing)}.", "Add it to its arguments.")


def sequence_of(model: Any, prompt: Any) -> Any:
    """The growing sequence whose content are the tokens of a prompt."""
    import squashlens as sl

    return sl.prompts.build(model, sl.prompts.tokenize(model, prompt, bos="none")[0].tolist())


def _task(_: Any, given: Any) -> Any:
    from squashlens.tasks import find

    return find(given)


def _stack(_: Any, given: Any) -> Any:
    from squashlens.synthetic import Stack

    return called(Stack, converted(given, Mapping[str, Any], "stack"), "stack")


def _interventions(_: Any, given: Any) -> Any:
    named = converted(given, Mapping[str, Any], "interventions")
    return {label: require_hooks(hooks) for label, hooks in named.items()}


def unknown(cause: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not known, with those that are like it."""
    near = difflib.get_close_matches(str(name), known := list(known), n=3, cutoff=0.4) or known
    return InputError(cause, f"Similar names: {', '.join(near)}.")


# What makes an argument for a model. Without a model (None), the same functions check what is given.
MAKES = {"sequence": _sequence, "task": _task, "stack": _stack, "interventions": _interventions}
