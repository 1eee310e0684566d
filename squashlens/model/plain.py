"""Hooks as TransformerLens users write them: pairs of a hook point and a function, and functions they hung themselves.

A pair becomes a `Plain` hook: probed, checked and taken away like any other, and named in the provenance by the
function's qualified name. What a function does cannot be told from that name, so captures are tied to the function
itself, and nothing is resumed under it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from squashlens._typing import Bridge, shown
from squashlens.errors import InputError
from squashlens.model.functions import function_name, require_like
from squashlens.model.hooks import Filtered, Hook, Plain, Recipe, distinct_points, torch_hook

Pair = tuple[str | Callable[[str], Any], Callable[..., Any]]
Given = Hook | Recipe | Pair | Iterable[Any]  # one hook in any form, or several


def is_pair(given: object) -> bool:
    """Whether this is a hook as TransformerLens writes it: ``(hook point, function)`` or ``(filter, function)``."""
    if not (isinstance(given, tuple) and len(given) == 2):
        return False
    where, function = given
    return not any(isinstance(part, Hook | Recipe) for part in given) and (
        isinstance(where, str) or (callable(where) and callable(function))
    )


def one_or_several(given: Any) -> tuple[Any, ...]:
    """What stands in a list, or the one thing given; a pair is one hook."""
    return (given,) if is_pair(given) or not isinstance(given, Iterable) else tuple(given)


def spelt_out(model: Bridge, hooks: Iterable[Any]) -> list[Hook]:
    """Every hook by itself: recipes as the hooks they make for this model, pairs as `Plain`, lists as their items."""
    found: list[Hook] = []
    for given in hooks:
        if isinstance(given, Hook):
            found.append(given)
        elif isinstance(given, Recipe):
            found += given.make(model)
        elif is_pair(given):
            found += _from_pair(model, *given)
        elif isinstance(given, list | tuple | Iterator):
            found += spelt_out(model, given)
        else:
            raise InputError(
                f"{shown(given)} is not a hook.",
                "Give a squashlens hook, a pair (hook point, function) as in TransformerLens's fwd_hooks, or a list of "
                "such.",
            )
    return found


def _from_pair(model: Bridge, where: Any, function: Any) -> list[Hook]:
    """The hooks of a pair: one, or one for each hook point that has a name of which the filter is true."""
    if not callable(function):
        raise InputError(
            f"The hook at {shown(where)} is {shown(function)}, not a function.", "Give a function of a tensor."
        )
    name = function_name(function)
    if isinstance(where, str):
        return [Plain(name, where, function)]
    chosen: dict[int, str] = {}  # each point once, whatever its other names
    for alias, point in model.hook_dict.items():
        if _is_true(where, alias):
            chosen.setdefault(id(point), alias)
    if not chosen:
        raise InputError(
            f"{name}: the filter {function_name(where)} is true of no hook point of this model.",
            "`model.hook_dict` lists their names.",
        )
    return [Filtered(name, site, function) for site in chosen.values()]


def _is_true(where: Callable[[str], Any], alias: str) -> bool:
    try:
        return bool(where(alias))
    except Exception as error:
        raise InputError(
            f"The filter {function_name(where)} failed on the name {alias!r}: {type(error).__name__}: {error}.",
            "A filter is called with the name of each hook point, and returns True or False.",
        ) from error


@contextmanager
def checked(model: Bridge) -> Iterator[None]:
    """While the body runs, what functions hung by others return at hook points is checked as that of a `Hook` is."""
    with ExitStack() as stack:
        for site, point in distinct_points(model).items():
            theirs = [h.user_hook for h in point.fwd_hooks if not isinstance(h.user_hook, Hook)]
            if theirs:
                torch_hook(stack, point, _Check(" or ".join(map(function_name, theirs)), site), before=False)
        yield


class _Check:
    """Compares what leaves a hook point with what entered it."""

    def __init__(self, name: str, site: str) -> None:
        self.name, self.site = name, site

    def __call__(self, _point: object, entered: tuple[Any, ...], left: object) -> None:
        require_like(entered[0], left, self.name, self.site)
