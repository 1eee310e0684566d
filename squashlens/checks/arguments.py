"""Check arguments of public functions against their annotations before anything is computed.

`validated` wraps a function. It reads the signature, and raises an error that names any argument of another kind than
its annotation. Values with a unique meaning are converted: a NumPy number to a Python number, a generator, array or
range to a list. An annotation gives the kind of a value; the function itself checks the range (a positive number, a
length of the sequence).

    int         a whole number that fits into 64 bits; not True or False
    float       a finite number, and not a subnormal one, since arithmetic on these loses digits
    Literal     one of the choices
    Sequence    a list, tuple, range, generator or array of at most `MOST` items, each of the annotated kind; not
                text (unless the items are tokens), bytes or a dict; a set only if the order does not matter
    Tensor      a dense tensor with data, of the annotated dtype and number of axes; it is detached

For prompts only the kind is checked here; `prompts.tokenize` checks the rest, and `require_bridge` checks models.
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
from squashlens.checks.words import description, outermost, plain_type, wrong_kind
from squashlens.errors import InputError

# What a sequence is that is given to a measurement of prompts, and what to do.
OF_SEQUENCES = {
    "PairCapture": (
        "the capture of a growing sequence, and this function measures prompts.",
        "Give text, token ids or `capture(model, prompt)`. Captures of sequences are for `collapse`, `mechanism`, "
        "`precision` and the other measurements of sequences.",
    ),
    "GrowingSequence": (
        "a growing sequence, and this function measures prompts.",
        "Give the prompt of one length as token ids: `sequence.plain(n).ids(sequence.trunk)`.",
    ),
}

F = TypeVar("F", bound=Callable[..., Any])


def validated(function: F) -> F:
    """Wrap a function, or the `__init__` of a dataclass, so that arguments of a wrong kind raise an `InputError`."""
    if isinstance(function, type):
        setattr(function, "__init__", validated(function.__init__))  # noqa: B010
        return typing.cast(F, function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        signature = _signature(function)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:  # a missing or unknown argument: Python's error, with the function's name
            raise TypeError(_unbound(function, signature, kwargs, error)) from None
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if parameter.kind is parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(converted(one, parameter.annotation, name) for one in value)
            else:
                bound.arguments[name] = converted(value, parameter.annotation, name)
        return function(*bound.args, **bound.kwargs)

    call.__validated__ = True  # pyright: ignore[reportAttributeAccessIssue]
    return typing.cast(F, call)


def _unbound(
    function: Callable[..., Any], signature: inspect.Signature, kwargs: Mapping[str, Any], error: TypeError
) -> str:
    """Python's message for a missing or unknown argument, with the function's name and a similar parameter name."""
    name = function.__qualname__.removesuffix(".__init__")
    others = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    unknown = "" if others else next((key for key in kwargs if key not in signature.parameters), "")
    near = difflib.get_close_matches(unknown, [key for key in signature.parameters if key not in kwargs], n=1)
    message = f"got an unexpected keyword argument {unknown!r}" if unknown else error
    return f"{name}() {message}" + (f". Did you mean {near[0]!r}?" if near else "")


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function, eval_str=True)


def converted(value: Any, hint: Any, argument: str) -> Any:
    """`value` converted to the kind of the annotation `hint`; raises an `InputError` that names `argument`."""
    if hint is inspect.Parameter.empty or hint is Any or isinstance(hint, TypeVar):
        return value
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _one_of_several(value, hint, argument)
    if origin is Literal:
        if isinstance(value, str | int) and any(value == c and plain_type(value) is type(c) for c in get_args(hint)):
            return value
        if (name := _name_of_dtype(value)) in get_args(hint):
            return name
        raise wrong_kind(value, hint, argument)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(value, hint, argument)
    if origin in (Sequence, Iterable, Collection, tuple, list):
        return _items(value, hint, argument)
    if origin is Callable or hint is Callable:
        return _require(value, callable(value), hint, argument)
    if hasattr(hint, "array_type") or getattr(hint, "__name__", "") == "Tensor":
        return _tensor(value, hint, argument)
    return _single(value, hint, argument)


def _one_of_several(value: Any, hint: Any, argument: str) -> Any:
    options = get_args(hint)
    if str in options and any(getattr(option, "__name__", "") == "Tensor" for option in options):
        return _prompts(value, options, argument)
    if value is None and NoneType in options:  # before the errors of the other kinds are made
        return None
    errors = []
    if Path in options and isinstance(value, str | os.PathLike):
        value = _path(value, argument)  # its error says more than the list of kinds
    for option in options:
        try:
            return converted(value, option, argument)
        except InputError as error:
            errors.append(error)
    wanted = [option for option in options if option is not NoneType]
    if len(wanted) == 2 and get_origin(wanted[0]) is Literal and get_args(wanted[1]) == (wanted[0],):
        wanted = [wanted[isinstance(value, list | tuple | Set)]]  # one choice or several: the error of what was given
    # For one kind or None, the error of that kind says more than the list of kinds.
    if len(wanted) == 1:
        raise errors[options.index(wanted[0])]
    # The value is of a kind that may be given, and something else is wrong with it, such as an item of a dict.
    raise next((e for e in errors if e.cause not in outermost(value, argument)), wrong_kind(value, hint, argument))


def _prompts(value: Any, options: tuple[Any, ...], argument: str) -> Any:
    """Text, texts or ids; `squashlens.prompts.tokenize` checks whether they are prompts of a model."""
    if any(isinstance(option, type) and isinstance(value, option) for option in options):
        if hasattr(value, "is_meta"):
            _require_dense(value, argument)
        return _text(value, argument) if isinstance(value, str) else value
    if hasattr(value, "__array__") and getattr(value, "ndim", 0):
        return value
    if type(value).__name__ in OF_SEQUENCES:
        raise InputError(
            f"{argument}= is {OF_SEQUENCES[type(value).__name__][0]}", OF_SEQUENCES[type(value).__name__][1]
        )
    try:
        items = _listed(value, False, list[str], argument)
    except InputError as error:
        raise InputError(
            f"{argument}={short_repr(value)} ({type(value).__name__}) is not a prompt.",
            'Give its token ids: `["input_ids"]`.'
            if isinstance(value, Mapping) and "input_ids" in value
            else "Give text, a list of texts, or token ids.",
        ) from error
    return [_text(item, argument) if isinstance(item, str) else item for item in items]


def _single(value: Any, hint: Any, argument: str) -> Any:
    if get_origin(hint) is Annotated:  # any real number, also infinite or NaN
        return _real(value, argument)
    if not isinstance(hint, type):
        return value
    if hint is bool:
        return bool(_require(value, plain_type(value) is bool, hint, argument))
    if hint is int:
        whole = isinstance(value, Integral) and plain_type(value) is not bool
        number = int(_require(value, whole, hint, argument))
        if not -(2**63) <= number < 2**63:
            raise InputError(f"{argument}={short_repr(value)} does not fit into 64 bits.", "Give a smaller number.")
        return number
    if hint is float:
        return _number(value, argument)
    if hint is str:
        return _text(_require(value, isinstance(value, str), hint, argument), argument)
    if hint is Path:
        return _path(value, argument)
    if hint.__module__ == "torch" and hint.__name__ == "dtype":
        return _floating(_require(value, isinstance(value, hint), hint, argument), argument)
    return _require(value, isinstance(value, hint), hint, argument)


def _name_of_dtype(value: Any) -> str | None:
    """The name of a floating-point dtype, for a parameter that takes names of dtypes."""
    is_dtype = type(value).__module__ == "torch" and type(value).__name__ == "dtype"
    return dtype_name(value) if is_dtype and value.is_floating_point else None


def _floating(dtype: Any, argument: str) -> Any:
    if not dtype.is_floating_point:
        raise InputError(f"{argument}={dtype} is not a floating-point dtype.", "Give a dtype such as torch.float32.")
    return dtype


def _real(value: Any, argument: str) -> float:
    if not isinstance(value, Real) or plain_type(value) is bool:
        raise wrong_kind(value, float, argument)
    try:
        return float(value)
    except OverflowError as error:
        raise InputError(
            f"{argument}={short_repr(value)} is beyond the range of float64.", "Give a smaller number."
        ) from error


def _number(value: Any, argument: str) -> Any:
    number = _real(value, argument)
    if not math.isfinite(number):
        raise InputError(f"{argument}={short_repr(value)} is not a finite number.", "Give a finite number.")
    if 0 < abs(number) < sys.float_info.min:
        raise InputError(
            f"{argument}={short_repr(value)} is a subnormal number, for which float64 has too few digits.",
            f"Give 0, or a number of at least {sys.float_info.min:.2g} in absolute value.",
        )
    return value if type(value) is int and abs(value) < 2**63 else number


def _text(value: str, argument: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{argument}={short_repr(value)} contains half of a surrogate pair, which is not a character.",
            "Correct the text.",
        ) from error
    return value


def _path(value: Any, argument: str) -> Any:
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(name, str):
        raise wrong_kind(value, Path, argument)
    if "\0" in name:
        raise InputError(
            f"{argument}={short_repr(value)} contains a null character, which a path cannot have.", "Remove it."
        )
    if any(len(os.fsencode(_text(part, argument))) > 255 for part in name.split(os.sep)):
        raise InputError(f"{argument}={short_repr(value)} is too long for a file name.", "Shorten it.")
    return value


def _items(value: Any, hint: Any, argument: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    fixed = origin is tuple and inner and inner[-1] is not Ellipsis
    of = inner[0] if inner else Any
    if isinstance(value, str):
        tokens = get_origin(of) in (Union, UnionType) and {str, int} <= set(get_args(of))
        return _text(_require(value, tokens, hint, argument), argument)
    if (
        of is int
        and origin in (Iterable, tuple)
        and isinstance(value, Integral)
        and not (fixed or isinstance(value, bool))
    ):
        value = [value]  # `blocks=1`, `mask_tokens(0)`; token ids are a Sequence, and one of them is no prompt
    listed = _listed(value, origin in (Iterable, Collection), hint, argument)
    if fixed:
        if len(listed) != len(inner):
            raise InputError(f"{argument}={short_repr(value)} has {len(listed)} items.", f"Give {description(hint)}.")
        return tuple(converted(item, kind, f"{argument}[{k}]") for k, (item, kind) in enumerate(zip(listed, inner)))  # noqa: B905
    if isinstance(listed, range) and of is int:
        return tuple(listed) if origin is tuple else listed
    if of is int and set(map(type, listed)) == {int} and min(listed) >= -(2**63) and max(listed) < 2**63:
        made = listed  # fast path for long lists of token ids
    else:
        made = [converted(item, of, f"{argument}[{k}]") for k, item in enumerate(listed)]
    return tuple(made) if origin is tuple or isinstance(value, tuple) else list(made)


def _listed(value: Any, unordered: bool, hint: Any, argument: str) -> Any:
    """The items as a list, in order."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Mapping | bytes | bytearray | memoryview) or (isinstance(value, Set) and not unordered):
        raise wrong_kind(value, hint, argument)
    if isinstance(value, Set):
        try:
            return sorted(value)
        except TypeError as error:
            raise InputError(
                f"{argument}={short_repr(value)} is a set whose items cannot be sorted.", f"Give {description(hint)}."
            ) from error
    if hasattr(value, "is_meta"):
        _require_dense(value, argument)
        return _require(value, value.ndim >= 1, hint, argument).tolist()
    if hasattr(value, "__array__"):  # NumPy, xarray, pandas
        import numpy as np

        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise wrong_kind(value, hint, argument) from error
        _require(value, array.ndim >= 1, hint, argument)
        return array.tolist()
    try:
        items = value if isinstance(value, range) else list(itertools.islice(value, MOST + 1))
    except TypeError as error:
        raise wrong_kind(value, hint, argument) from error
    if len(items) > MOST:
        raise InputError(f"{argument} has more than {MOST:,} items.", "Give fewer.")
    return items


def _mapping(value: Any, hint: Any, argument: str) -> Any:
    inner = get_args(hint)
    _require(value, isinstance(value, Mapping), hint, argument)
    if type(value) is not dict or not inner:  # other mappings may read their values from disk
        return value
    return {
        converted(k, inner[0], f"key of {argument}"): converted(v, inner[1], f"{argument}[{short_repr(k)}]")
        for k, v in value.items()
    }


def _tensor(value: Any, hint: Any, argument: str) -> Any:
    import torch

    _require(value, isinstance(value, torch.Tensor), hint, argument)
    _require_dense(value, argument)
    if hasattr(hint, "array_type"):  # not `isinstance`, which would compare axis sizes with those of the caller
        axes = value.ndim - len(hint.dims)
        alike = axes == 0 if hint.index_variadic is None else axes >= -1
        _require(value, alike and dtype_name(value.dtype) in hint.dtypes, hint, argument)
    return value.detach()


def _require_dense(tensor: Any, argument: str) -> None:
    import torch

    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise InputError(f"{argument} is a tensor that is not dense or has no data.", "Give a dense tensor with data.")


def _require(value: Any, holds: object, hint: Any, argument: str) -> Any:
    if not holds:
        raise wrong_kind(value, hint, argument)
    return value
