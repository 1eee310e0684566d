"""Hooks in the form of TransformerLens: pairs of a hook point and a function, and functions that users added.

A pair becomes a `Hook`, which is tested, checked and removed like any other. The provenance has the function's
qualified name.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from squashlens._typing import Bridge, short_repr
from squashlens.engine.functions import function_name, require_like
from squashlens.engine.hooking.hook import FilteredHook, Hook, Recipe, distinct_points, torch_hook
from squashlens.errors import InputError

HookPair = tuple[str | Callable[[str], Any], Callable[..., Any]]
HookLike = Hook | Recipe | HookPair | Iterable[Any]  # one hook in any form, or several


def is_pair(given: object) -> bool:
    """Whether this is a hook in the form of TransformerLens: ``(hook point, function)`` or ``(filter, function)``."""
    if not (isinstance(given, tuple) and len(given) == 2):
        return False
    where, function = given
    return not any(isinstance(part, Hook | Recipe) for part in given) and (
        isinstance(where, str) or (callable(where) and callable(function))
    )


def one_or_several(given: Any) -> tuple[Any, ...]:
    """The items of a list, or a single hook as a tuple; a pair is one hook."""
    return (given,) if is_pair(given) or not isinstance(given, Iterable) else tuple(given)


def expanded_hooks(model: Bridge, hooks: Iterable[Any]) -> list[Hook]:
    """The hooks as one flat list: recipes and pairs become hooks for this model."""
    found: list[Hook] = []
    for given in hooks:
        if isinstance(given, Hook):
            found.append(given)
        elif isinstance(given, Recipe):
            found += given.make(model)
        elif is_pair(given):
            found += _from_pair(model, *given)
        elif isinstance(given, list | tuple | Iterator):
            found += expanded_hooks(model, given)
        else:
            raise InputError(
                f"{short_repr(given)} is not a hook.",
                "Give a squashlens hook, a pair (hook point, function) as in TransformerLens's fwd_hooks, or a list of "
                "them.",
            )
    return found


def _from_pair(model: Bridge, where: Any, function: Any) -> list[Hook]:
    """The hooks of a pair: one for a hook point, or one for each hook point with a name that the filter accepts."""
    if not callable(function):
        raise InputError(
            f"The hook at {short_repr(where)} is {short_repr(function)}, not a function.",
            "Give a function of a tensor.",
        )
    name = function_name(function)
    if isinstance(where, str):
        return [Hook(name, where, function)]
    chosen: dict[Any, str] = {}  # each point once, under its first matching name
    for alias, point in model.hook_dict.items():
        try:
            accepted = bool(where(alias))
        except Exception as error:
            raise InputError(
                f"The filter {function_name(where)} failed on the name {alias!r}: {type(error).__name__}: {error}.",
                "A filter gets the name of each hook point, and returns True or False.",
            ) from error
        if accepted:
            chosen.setdefault(point, alias)
    if not chosen:
        raise InputError(
            f"{name}: the filter {function_name(where)} accepts no hook point of this model.",
            "`model.hook_dict` lists the names.",
        )
    return [FilteredHook(name, site, function) for site in chosen.values()]


@contextmanager
def checking_results(model: Bridge) -> Iterator[None]:
    """Check, while the body runs, the results of functions that others added at hook points, as for a `Hook`."""
    with ExitStack() as stack:
        for site, point in distinct_points(model).items():
            theirs = [h.user_hook for h in point.fwd_hooks if not isinstance(h.user_hook, Hook)]
            if theirs:
                check = partial(_check, " or ".join(map(function_name, theirs)), site)
                torch_hook(stack, point, check, before=False)
        yield


def _check(name: str, site: str, _point: object, entered: tuple[Any, ...], left: object) -> None:
    """Compare the tensor that leaves a hook point with the tensor that entered it."""
    require_like(entered[0], left, name, site)
