"""Values and annotations in words: for the errors of `squashlens.checks.arguments`, and for long names."""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from squashlens._typing import dtype_name, short_repr
from squashlens.errors import InputError

NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a finite number",
    bool: "True or False",
    str: "text",
    Path: "a path",
    NoneType: "None",
}
# Classes in words, by name: some are not public, and some must not be imported here.
OF_CLASSES = {
    "Annotated": "a real number",
    "GrowingSequence": "a growing sequence of `squashlens.prompts`",
    "PairCapture": "a capture of one",
    "integer": "a whole number",
    "ndarray": "an array",
    **dict.fromkeys(("Hook", "Recipe"), "a hook of `squashlens.hooks`"),
}


def wrong_kind(value: Any, hint: Any, argument: str) -> InputError:
    """The error for a value that an annotation does not allow: it is of another type, or none of the choices."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    literals = [option for option in options if get_origin(option) is Literal]
    choices = list(itertools.chain.from_iterable(map(get_args, literals)))
    not_chosen, wrong = outermost(value, argument)
    if choices and len(literals) == len([option for option in options if option is not NoneType]):
        return InputError(not_chosen, f"Use one of: {', '.join(map(repr, choices))}.")
    alike = any(plain_type(value) is type(choice) for choice in choices)
    return InputError(not_chosen if alike else wrong, f"Give {description(hint)}.")


def outermost(value: Any, argument: str) -> tuple[str, str]:
    """The causes for a value that is not one of the choices, and for one of another kind."""
    given, kind = f"{argument}={short_repr(value)}", f"of type {type(value).__name__}"
    if hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "__len__"):  # not a NumPy number
        kind += f", dtype {dtype_name(value.dtype)} and shape {tuple(value.shape)}"
    return f"{given} is not a choice.", f"{given} is {'not allowed' if value is None or value is True else kind}."


def description(hint: Any) -> str:
    """An annotation in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(description(option) for option in inner if option is not NoneType))
    if origin is Literal:
        return ("one of " if len(inner) > 1 else "") + ", ".join(map(repr, inner))
    if origin is Callable or hint is Callable:
        return "a function"
    if origin in (Sequence, Iterable, Collection, tuple, list):
        if origin is tuple and inner[-1] is not Ellipsis:
            return f"a tuple of {len(inner)} items"
        return "a list" if inner[0] is Any else f"a list in which each item is {description(inner[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a dict in which each value is {description(inner[1])}"
    if hasattr(hint, "array_type"):
        return f"a tensor of floating-point numbers ({hint.dim_str})"
    if hint is Any:
        return "anything"
    name = getattr(hint, "__name__", str(hint))
    return NAMES.get(hint) or OF_CLASSES.get(name) or f"a{'n' * (name[0] in 'AEIOU')} {name}"


def frozen(parts: Collection[str]) -> str:
    """The parts of a model that are held constant, in words; empty if there are none."""
    return f"{' and '.join(parts)} frozen" if parts else ""


def and_frozen(parts: Collection[str]) -> str:
    """What a long name adds for the parts that are held constant, with its comma; empty if there are none."""
    return f", {frozen(parts)}" if parts else ""


def plain_type(value: Any) -> type:
    """The Python type of a number or text, also for NumPy values."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool
    return str if isinstance(value, str) else int if isinstance(value, Integral) else type(value)


def human(n_bytes: int | float) -> str:
    """A number of bytes as text with a decimal prefix.

    >>> human(8_300_000_000)
    '8.3 GB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"
