"""Check arguments of public functions against their annotations before anything is computed.

`validated` wraps a function. It reads the signature, and raises an error that names any argument of another kind than
its annotation; the function itself checks the range. Values with a unique meaning are converted: a NumPy number to a
Python number, a generator, array or range to a list.

    int         a whole number that fits into 64 bits; not True or False
    float       a finite number
    Literal     one of the choices
    Sequence    a list, tuple, range, generator or array of at most `MOST` items, each of the annotated kind; not
                text (unless the items are tokens), bytes or a dict; a set only if the order does not matter
    Tensor      a dense tensor with data, of the annotated dtype and number of axes; it is detached
"""

import difflib
import functools
import inspect
import itertools
import math
import os
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from squashlens._typing import MOST, dtype_name, short_repr
from squashlens.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def validated(function: F, *, tuples: bool = False) -> F:
    """Wrap a function, or the `__init__` of a dataclass, so that arguments of a wrong kind raise an `InputError`.

    A dataclass gets `tuples` for lists, so that it has a hash.
    """
    if isinstance(function, type):
        setattr(function, "__init__", validated(function.__init__, tuples=True))  # noqa: B010
        return typing.cast(F, function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = checked(function, args, kwargs)
        if tuples:
            lists = {
                name: tuple(value)
                for name, value in bound.arguments.items()
                if isinstance(value, list)
            }
            bound.arguments.update(lists)
        return function(*bound.args, **bound.kwargs)

    call.__validated__ = True  # pyright: ignore[reportAttributeAccessIssue]
    return typing.cast(F, call)


def checked(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """The arguments of a call by name, converted; an `InputError` names one of a wrong kind."""
    signature = _signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        name = function.__qualname__.removesuffix(".__init__")
        known = [name for name in signature.parameters if name != "self"]
        if unknown := [name for name in kwargs if name not in known]:
            several = [
                parameter.name
                for parameter in signature.parameters.values()
                if parameter.kind is parameter.VAR_POSITIONAL
            ]
            remedy = _nearest(unknown[0], known, several)
            raise InputError(
                f"{name}() has no keyword {unknown[0]}=.", remedy
            ) from None
        raise TypeError(
            f"{name}() {error}{_by_name(signature, args)}"
        ) from None  # a missing argument, or too many
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            bound.arguments[name] = tuple(
                converted(item, parameter.annotation, name) for item in value
            )
        elif parameter.kind is not parameter.VAR_KEYWORD:
            bound.arguments[name] = converted(value, parameter.annotation, name)
    return bound


def _nearest(unknown: str, known: Sequence[str], by_position: Sequence[str]) -> str:
    """What may have been meant by an unknown keyword: the nearest parameters, functions that have it, or any of all."""
    if near := difflib.get_close_matches(unknown, by_position):
        return f"Give {near[0]} by position, one after another, without a keyword."
    if near := difflib.get_close_matches(unknown, known):
        return f"Did you mean {' or '.join(f'{name}=' for name in near)}?"
    library: Any = sys.modules["squashlens"]
    public = [(name, getattr(library, name)) for name in library.__all__]
    public += [
        (f"figures.{name}", getattr(library.figures, name))
        for name in library.figures.__all__
    ]
    owners = [
        name
        for name, one in public
        if inspect.isfunction(one) and unknown in inspect.signature(one).parameters
    ]
    owned = f"It is a keyword of {', '.join(owners)}. " if owners else ""
    return f"{owned}Use one of: {', '.join(known)}."


def _by_name(signature: inspect.Signature, values: Sequence[Any]) -> str:
    """How the first positional argument too many is given; empty if there is none."""
    kinds = {
        name: parameter.kind.name for name, parameter in signature.parameters.items()
    }
    positional = [
        name
        for name, kind in kinds.items()
        if kind in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")
    ]
    named = [name for name, kind in kinds.items() if kind == "KEYWORD_ONLY"]
    if (
        len(values) <= len(positional)
        or not named
        or "VAR_POSITIONAL" in kinds.values()
    ):
        return ""
    return f": only {', '.join(positional)} can be given by position. Give the others by name, such as {named[0]}=…."


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function, eval_str=True)


def converted(value: Any, hint: Any, argument: str) -> Any:
    """`value` converted to the kind of the annotation `hint`; raises an `InputError` that names `argument`."""
    if hint is inspect.Parameter.empty or hint is Any or isinstance(hint, TypeVar):
        return value
    hint = getattr(hint, "__value__", hint)  # of an alias
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _one_of_several(value, hint, argument)
    if origin is Literal:
        if (
            type(value).__module__ == "torch"
            and dtype_name(value) in get_args(hint)
            and value.is_floating_point
        ):
            return dtype_name(value)  # of a parameter that takes names of dtypes
        known = any(
            plain_type(value) is type(choice) and value == choice
            for choice in get_args(hint)
        )
        return _require(value, known, hint, argument)
    if origin in (Mapping, dict):
        return _mapping(value, hint, argument)
    if origin in (Sequence, Iterable, Collection, tuple, list):
        return _items(value, hint, argument)
    if origin is Callable or hint is Callable:
        return _require(value, callable(value), hint, argument)
    if hasattr(hint, "array_type") or getattr(hint, "__name__", "") == "Tensor":
        return _tensor(value, hint, argument)
    if origin is Annotated:  # any real number, also infinite or NaN
        return _real(value, argument)
    return _single(value, hint, argument) if isinstance(hint, type) else value


def _alternatives(hint: Any) -> list[Any]:
    """The kinds that an annotation allows, without aliases."""
    hint = getattr(hint, "__value__", hint)
    if get_origin(hint) not in (Union, UnionType):
        return [hint]
    return [kind for part in get_args(hint) for kind in _alternatives(part)]


def _one_of_several(value: Any, hint: Any, argument: str) -> Any:
    options = _alternatives(hint)
    if str in options and any(
        getattr(option, "__name__", "") == "Tensor" for option in options
    ):
        return _prompts(value, options, argument)
    errors = []
    for option in sorted(
        options, key=lambda option: option is not NoneType
    ):  # None without errors of other kinds
        try:
            return converted(value, option, argument)
        except InputError as error:
            errors.append(error)
    # For one kind or None, the error of that kind says more than the list of kinds.
    if len(options) == 2 and NoneType in options:
        raise errors[-1]
    # The value is of a kind that may be given, and something else is wrong with it, such as an item of a dict.
    raise next(
        (e for e in errors if e.cause not in outermost(value, argument)),
        wrong_kind(value, hint, argument),
    )


def _prompts(value: Any, options: Sequence[Any], argument: str) -> Any:
    """Text, texts or ids; `squashlens.prompts.tokenize` checks whether they are prompts of a model."""
    if any(
        isinstance(option, type) and isinstance(value, option) for option in options
    ):
        if hasattr(value, "is_meta"):
            _require_dense(value, argument)
        return _text(value, argument) if isinstance(value, str) else value
    if is_tokenized(value) or (
        hasattr(value, "__array__") and getattr(value, "ndim", 0)
    ):
        return value
    try:
        items = _listed(value, False, list[str], argument)
    except InputError as error:
        raise InputError(
            f"{argument}={short_repr(value)} ({type(value).__name__}) is not a prompt.",
            "Give text, a list of texts, token ids, what a tokenizer returns, or the capture of a prompt. The ids of a "
            "growing sequence are `sequence.plain(n).ids(sequence.trunk)`.",
        ) from error
    return [_text(item, argument) if isinstance(item, str) else item for item in items]


def _single(value: Any, hint: type, argument: str) -> Any:
    if hint is bool:
        return bool(_require(value, plain_type(value) is bool, hint, argument))
    if hint is int:
        number = int(_require(value, plain_type(value) is int, hint, argument))
        if not -(2**63) <= number < 2**63:
            raise InputError(
                f"{argument}={short_repr(value)} does not fit into 64 bits.",
                "Give a smaller number.",
            )
        return number
    if hint is float:
        number = _real(value, argument)
        if not math.isfinite(number):
            raise InputError(
                f"{argument}={short_repr(value)} is not a finite number.",
                "Give a finite number.",
            )
        return value if type(value) is int and abs(value) < 2**63 else number
    if hint is str:
        return _text(_require(value, isinstance(value, str), hint, argument), argument)
    if hint is Path:
        return _require(value, isinstance(value, str | os.PathLike), hint, argument)
    _require(value, isinstance(value, hint), hint, argument)
    if (
        hint.__module__ == "torch"
        and hint.__name__ == "dtype"
        and not value.is_floating_point
    ):
        raise InputError(
            f"{argument}={value} is not a floating-point dtype.",
            "Give a dtype such as torch.float32.",
        )
    return value


def _real(value: Any, argument: str) -> float:
    _require(
        value,
        isinstance(value, Real) and plain_type(value) is not bool,
        float,
        argument,
    )
    try:
        return float(value)
    except OverflowError as error:
        cause = f"{argument}={short_repr(value)} is beyond the range of float64."
        raise InputError(cause, "Give a smaller number.") from error


def _text(value: str, argument: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        cause = f"{argument}={short_repr(value)} contains half of a surrogate pair, which is not a character."
        raise InputError(cause, "Correct the text.") from error
    return value


def _items(value: Any, hint: Any, argument: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    of = inner[0] if inner else Any
    if isinstance(value, str):
        tokens = {str, int} <= {*filter(inspect.isclass, _alternatives(of))}
        return _text(_require(value, tokens, hint, argument), argument)
    fixed = origin is tuple and inner and inner[-1] is not Ellipsis
    if (
        of is int
        and origin in (Iterable, tuple)
        and not fixed
        and plain_type(value) is int
    ):
        value = [
            value
        ]  # `blocks=1`, `mask_tokens(0)`; token ids are a Sequence, and one of them is no prompt
    items = _listed(value, origin in (Iterable, Collection), hint, argument)
    if fixed and len(items) != len(inner):
        raise InputError(
            f"{argument}={short_repr(value)} has {len(items)} items.",
            f"Give {description(hint)}.",
        )
    if isinstance(items, range) and of is int:
        return tuple(items) if origin is tuple else items
    if (
        of is int
        and set(map(type, items)) == {int}
        and min(items) >= -(2**63)
        and max(items) < 2**63
    ):
        made = items  # fast path for long lists of token ids
    else:
        kinds = inner if fixed else itertools.repeat(of)
        made = [
            converted(item, kind, f"{argument}[{k}]")
            for k, (item, kind) in enumerate(zip(items, kinds))  # noqa: B905
        ]
    return tuple(made) if origin is tuple or isinstance(value, tuple) else list(made)


def is_tokenized(value: object) -> bool:
    """Whether a value is what a tokenizer of transformers returns: token ids, often with an attention mask."""
    return isinstance(value, Mapping) and "input_ids" in value


def _listed(value: Any, unordered: bool, hint: Any, argument: str) -> Any:
    """The items as a list, in order."""
    if isinstance(value, list | tuple | range):
        return value
    if isinstance(value, Mapping | bytes | bytearray | memoryview) or (
        isinstance(value, Set) and not unordered
    ):
        raise wrong_kind(value, hint, argument)
    try:
        if isinstance(value, Set):
            return sorted(value)
        if hasattr(value, "is_meta"):
            _require_dense(value, argument)
        elif hasattr(value, "__array__"):  # NumPy, xarray, pandas
            import numpy as np

            value = np.asarray(value)
        if hasattr(value, "tolist"):
            return _require(
                value, getattr(value, "ndim", 1) >= 1, hint, argument
            ).tolist()
        items = list(itertools.islice(value, MOST + 1))
    except (TypeError, RuntimeError) as error:
        raise wrong_kind(value, hint, argument) from error
    if len(items) > MOST:
        raise InputError(f"{argument} has more than {MOST:,} items.", "Give fewer.")
    return items


def _mapping(value: Any, hint: Any, argument: str) -> Any:
    inner = get_args(hint)
    _require(value, isinstance(value, Mapping), hint, argument)
    if (
        type(value) is not dict or not inner
    ):  # other mappings may read their values from disk
        return value
    return {
        converted(k, inner[0], f"key of {argument}"): converted(
            v, inner[1], f"{argument}[{short_repr(k)}]"
        )
        for k, v in value.items()
    }


def _tensor(value: Any, hint: Any, argument: str) -> Any:
    import torch

    _require(value, isinstance(value, torch.Tensor), hint, argument)
    _require_dense(value, argument)
    if hasattr(
        hint, "array_type"
    ):  # not `isinstance`, which would compare axis sizes with those of the caller
        axes = value.ndim - len(hint.dims)
        alike = axes == 0 if hint.index_variadic is None else axes >= -1
        _require(
            value, alike and dtype_name(value.dtype) in hint.dtypes, hint, argument
        )
    return value.detach()


def _require_dense(tensor: Any, argument: str) -> None:
    import torch

    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise InputError(
            f"{argument} is a tensor that is not dense or has no data.",
            "Give a dense tensor with data.",
        )


def _require(value: Any, holds: object, hint: Any, argument: str) -> Any:
    if not holds:
        raise wrong_kind(value, hint, argument)
    return value


# Classes in words, by name: some are not public, and some must not be imported here.
NAMES = {
    "int": "a whole number",
    "float": "a finite number",
    "bool": "True or False",
    "str": "text",
    "Path": "a path",
    "NoneType": "None",
    "Annotated": "a real number",
    "GrowingSequence": "a growing sequence of `squashlens.prompts`",
    "PairCapture": "a capture of one",
    "integer": "a whole number",
    "ndarray": "an array",
    "Any": "anything",
    "Hook": "a hook of `squashlens.hooks`",
    "Recipe": "a hook of `squashlens.hooks`",
}


def wrong_kind(value: Any, hint: Any, argument: str) -> InputError:
    """The error for a value that an annotation does not allow: it is of another type, or none of the choices."""
    options = _alternatives(hint)
    literals = [option for option in options if get_origin(option) is Literal]
    choices = list(itertools.chain.from_iterable(map(get_args, literals)))
    not_chosen, wrong = outermost(value, argument)
    if choices and len(literals) == len(
        [option for option in options if option is not NoneType]
    ):
        return InputError(not_chosen, f"Use one of: {', '.join(map(repr, choices))}.")
    alike = any(plain_type(value) is type(choice) for choice in choices)
    return InputError(not_chosen if alike else wrong, f"Give {description(hint)}.")


def outermost(value: Any, argument: str) -> tuple[str, str]:
    """The causes for a value that is not one of the choices, and for one of another kind."""
    shown, kind = f"{argument}={short_repr(value)}", f"of type {type(value).__name__}"
    if (
        hasattr(value, "dtype")
        and hasattr(value, "shape")
        and hasattr(value, "__len__")
    ):  # not a NumPy number
        kind += f", dtype {dtype_name(value.dtype)} and shape {tuple(value.shape)}"
    return (
        f"{shown} is not a choice.",
        f"{shown} is {'not allowed' if value is None or value is True else kind}.",
    )


def description(hint: Any) -> str:
    """An annotation in words."""
    hint = getattr(hint, "__value__", hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = (kind for kind in _alternatives(hint) if kind is not NoneType)
        return " or ".join(dict.fromkeys(map(description, kinds)))
    if origin is Literal:
        return ("one of " if len(inner) > 1 else "") + ", ".join(map(repr, inner))
    if origin is Callable or hint is Callable:
        return "a function"
    if origin in (Sequence, Iterable, Collection, tuple, list):
        if origin is tuple and inner[-1] is not Ellipsis:
            return f"a tuple of {len(inner)} items"
        return (
            "a list"
            if inner[0] is Any
            else f"a list in which each item is {description(inner[0])}"
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a dict in which each value is {description(inner[1])}"
    if hasattr(hint, "array_type"):
        return f"a tensor of floating-point numbers ({hint.dim_str})"
    name = getattr(hint, "__name__", str(hint))
    return NAMES.get(name) or f"a{'n' * (name[0] in 'AEIOU')} {name}"


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
    return (
        str
        if isinstance(value, str)
        else int
        if isinstance(value, Integral)
        else type(value)
    )
