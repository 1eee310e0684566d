"""Check arguments of public functions against their annotations before anything is computed.

`validated` wraps a function. It reads the signature, and raises an error that names any argument of another kind than
its annotation; the function itself checks the range. Values with a unique meaning are converted: a NumPy number to a
Python number, a generator, array or range to a list.

    int         a whole number that fits into 64 bits; not True or False
    float       a finite number
    Literal     one of the choices
    Sequence    a list, tuple, range, generator or array of at most `MOST` items, each of the annotated kind; not
                text (unless the items are tokens), bytes or a dict; a set only if the order does not matter
    Tensor      a tensor of the annotated dtype and number of axes; it is detached
"""

import collections.abc
import difflib
import functools
import inspect
import itertools
import math
import os
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from squashlens._typing import MOST, dtype_name, short_repr
from squashlens.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])
LISTS = (
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
    tuple,
    list,
)


def validated(function: F, *, tuples: bool = False) -> F:
    """Wrap a function, or the `__init__` of a dataclass, so that arguments of a wrong kind raise an `InputError`.

    With `tuples`, as for a dataclass, lists become tuples, so that it has a hash.
    """
    if isinstance(function, type):
        setattr(function, "__init__", validated(function.__init__, tuples=True))  # noqa: B010
        return typing.cast(F, function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        """Call the function with its arguments checked and converted."""
        bound = checked(function, args, kwargs)
        for name, value in bound.arguments.items():
            if tuples and isinstance(value, list):
                bound.arguments[name] = tuple(value)
        return function(*bound.args, **bound.kwargs)

    call.__validated__ = True  # pyright: ignore[reportAttributeAccessIssue]
    return typing.cast(F, call)


def checked(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """The arguments of a call by name, converted; an `InputError` names one of a wrong kind.

    Arguments that are not given are absent, so defaults are not checked.
    """
    signature = _signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        name = function.__qualname__.removesuffix(".__init__")
        _require_known(name, signature, kwargs)
        # An argument is missing, or there are too many.
        raise TypeError(f"{name}() {error}") from None
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        hint = parameter.annotation
        if parameter.kind is parameter.VAR_POSITIONAL:
            items = [converted(item, hint, name) for item in value]
            bound.arguments[name] = tuple(items)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            bound.arguments[name] = converted(value, hint, name)
    return bound


def _require_known(
    function: str, signature: inspect.Signature, given: Iterable[str]
) -> None:
    """Raise an error for a keyword that the function does not have, with what may have been meant."""
    known = [name for name in signature.parameters if name != "self"]
    unknown = [name for name in given if name not in known]
    if not unknown:
        return
    cause = f"{function}() has no keyword {unknown[0]}=."
    near = difflib.get_close_matches(unknown[0], known)
    if not near:
        raise InputError(cause, f"Use one of: {', '.join(known)}.")
    nearest = signature.parameters[near[0]]
    if nearest.kind is nearest.VAR_POSITIONAL:
        how = "by position, one after another, without a keyword"
        raise InputError(cause, f"Give {near[0]} {how}.")
    raise InputError(cause, f"Did you mean {'= or '.join(near)}=?")


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function, eval_str=True)


def converted(value: Any, hint: Any, argument: str) -> Any:
    """`value` converted to the kind of the annotation `hint`; raises an `InputError` that names `argument`."""
    try:
        return _convert(value, hint)
    except MismatchError as mismatch:
        raise mismatch.input_error(argument) from None


class MismatchError(Exception):
    """A value that an annotation does not allow; `place` is where it is inside the argument, such as "[3]"."""

    def __init__(self, value: Any, hint: Any, cause: str = "") -> None:
        super().__init__()
        self.value = value
        self.hint = hint
        self.cause = cause
        self.place = ""

    def input_error(self, argument: str) -> InputError:
        """The error for a user, which names the argument, the place in it and the value."""
        given = f"{argument}{self.place}={short_repr(self.value)}"
        choices = _choices_of(self.hint)
        if choices:
            listed = ", ".join(map(repr, choices))
            return InputError(f"{given} is not a choice.", f"Use one of: {listed}.")
        cause = self.cause or f"is of type {type(self.value).__name__}"
        return InputError(f"{given} {cause}.", f"Give {_written(self.hint)}.")


def _written(hint: Any) -> str:
    """An annotation as it is written, without the names of modules: ``Iterable[int] | None``."""
    text = inspect.formatannotation(getattr(hint, "__value__", hint))
    return re.sub(r"\b\w+\.", "", text)


def _require(holds: object, value: Any, hint: Any, cause: str = "") -> None:
    """Raise unless what an annotation says of a value holds; `cause` says why in words such as "is too large"."""
    if not holds:
        raise MismatchError(value, hint, cause)


def _convert(value: Any, hint: Any) -> Any:
    """A value converted to the kind of its annotation; a `MismatchError` for one of another kind."""
    hint = getattr(hint, "__value__", hint)  # of an alias
    convert = CONVERTERS.get(get_origin(hint))
    if convert is not None:
        return convert(value, hint)
    if _is_tensor(hint):
        return _tensor(value, hint)
    if isinstance(hint, type) and hint not in (inspect.Parameter.empty, Any):
        return _single(value, hint)
    return value  # of any kind


def _is_tensor(hint: Any) -> bool:
    """Whether an annotation is one of jaxtyping, or the tensor of PyTorch."""
    if hasattr(hint, "array_type"):
        return True
    return getattr(hint, "__name__", "") == "Tensor"


def _inside(value: Any, hint: Any, place: str) -> Any:
    """An item of an argument, converted; an error says its place."""
    try:
        return _convert(value, hint)
    except MismatchError as mismatch:
        mismatch.place = place + mismatch.place
        raise


def _alternatives(hint: Any) -> list[Any]:
    """The kinds that an annotation allows, without aliases."""
    hint = getattr(hint, "__value__", hint)
    if get_origin(hint) not in (Union, UnionType):
        return [hint]
    kinds: list[Any] = []
    for part in get_args(hint):
        kinds += _alternatives(part)
    return kinds


def _choices_of(hint: Any) -> list[Any]:
    """The choices of an annotation that allows only these, and perhaps None; empty of any other kind."""
    choices: list[Any] = []
    for kind in _alternatives(hint):
        if get_origin(kind) is Literal:
            choices += get_args(kind)
        elif kind is not NoneType:
            return []
    return choices


def _one_of_several(value: Any, hint: Any) -> Any:
    """A value of one of the kinds of a union, of which the first that fits counts."""
    options = _alternatives(hint)
    # Text or a tensor: the argument is a prompt.
    if str in options and any(map(_is_tensor, options)):
        return _prompts(value, options, hint)
    mismatches = []
    for option in options:
        try:
            return _convert(value, option)
        except MismatchError as mismatch:
            mismatches.append(mismatch)
    for mismatch in mismatches:
        # The value is of a kind that may be given, and something in it or about it is wrong.
        if mismatch.place or mismatch.cause:
            raise mismatch
    raise MismatchError(value, hint)


def _prompts(value: Any, options: Sequence[Any], hint: Any) -> Any:
    """Text, texts, ids or a capture; `squashlens.prompts.tokenize` checks whether they are prompts of a model."""
    classes = tuple(option for option in options if isinstance(option, type))
    if is_tokenized(value) or isinstance(value, classes) or _is_array(value):
        return _plain_text(value)
    try:
        items = _listed(value, hint)
    except MismatchError:
        raise MismatchError(value, hint, NO_PROMPT) from None
    return [_plain_text(item) for item in items]


def _is_array(value: Any) -> bool:
    """Whether a value is an array or tensor with dimensions, of any library."""
    return hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0


def _plain_text(value: Any) -> Any:
    """A text of a subclass, such as NumPy's, as Python's; other values are returned unchanged."""
    if isinstance(value, str):
        return str(value)
    return value


NO_PROMPT = (
    "is not a prompt: text, a list of texts, token ids, what a tokenizer returns, or the capture of a prompt. (The ids "
    "of a growing sequence are `sequence.plain(n).ids(sequence.trunk)`)"
)


def is_tokenized(value: object) -> bool:
    """Whether a value is what a tokenizer of transformers returns: token ids, often with an attention mask."""
    return isinstance(value, Mapping) and "input_ids" in value


def _choice(value: Any, hint: Any) -> Any:
    """One of the choices of a `Literal`."""
    choices = get_args(hint)
    # A parameter that takes names of dtypes takes the dtypes too.
    if type(value).__module__ == "torch" and getattr(value, "is_floating_point", False):
        value = dtype_name(value)
    for choice in choices:
        # The types too, since in Python 1 is equal to True.
        if type(choice) is plain_type(value) and choice == value:
            return value
    raise MismatchError(value, hint)


def _single(value: Any, hint: type) -> Any:
    """A number, a path, a dtype, or a value of another class."""
    if hint is bool:
        _require(plain_type(value) is bool, value, hint)
        return bool(value)
    if hint is int:
        _require(plain_type(value) is int, value, hint)
        fits = -(2**63) <= value < 2**63
        _require(fits, value, hint, "does not fit into 64 bits")
        return int(value)
    if hint is float:
        number = _real(value, hint)
        _require(math.isfinite(number), value, hint, "is not a finite number")
        if type(value) is int:  # which stays one
            return value
        return number
    if hint is Path:
        _require(isinstance(value, str | os.PathLike), value, hint)
        return value
    _require(isinstance(value, hint), value, hint)
    if hint.__name__ == "dtype":
        _require(value.is_floating_point, value, hint, "is not floating-point")
    return value


def _real(value: Any, hint: Any) -> float:
    """A real number of any type as a float."""
    _require(isinstance(value, Real), value, hint)
    _require(plain_type(value) is not bool, value, hint)
    try:
        return float(value)
    except OverflowError:
        raise MismatchError(value, hint, "is beyond the range of float64") from None


def _items(value: Any, hint: Any) -> Any:
    """A list or tuple whose items are converted, or, where tokens are meant, one text.

    `hint` is ``Sequence[kind]`` or another of `LISTS`, ``tuple[kind, ...]``, or ``tuple[kind, other kind]``.
    """
    kinds = get_args(hint)
    # Tokens may be given as one text.
    if isinstance(value, str) and {str, int} <= set(_alternatives(kinds[0])):
        return _single(value, str)
    if get_origin(hint) is not tuple:
        items = _items_of_kind(value, kinds[0], hint)
        if isinstance(value, tuple):
            return tuple(items)
        if isinstance(items, range):
            return items
        return list(items)
    if kinds[-1] is Ellipsis:
        return tuple(_items_of_kind(value, kinds[0], hint))
    items = _listed(value, hint)
    _require(len(items) == len(kinds), value, hint, f"has {len(items)} items")
    of_their_kinds: list[Any] = []
    for n, kind in enumerate(kinds):
        of_their_kinds.append(_inside(items[n], kind, f"[{n}]"))
    return tuple(of_their_kinds)


def _items_of_kind(value: Any, kind: Any, hint: Any) -> Any:
    """The items of a list, which are all of one kind."""
    # `blocks=1` and `mask_tokens(0)`; token ids are a Sequence, and one of them is no prompt.
    takes_one = kind is int and get_origin(hint) in (Iterable, tuple)
    if takes_one and plain_type(value) is int:
        value = [value]
    items = _listed(value, hint)
    if kind is int and (isinstance(items, range) or _are_ids(items)):
        return items
    return [_inside(item, kind, f"[{n}]") for n, item in enumerate(items)]


def _are_ids(items: Sequence[Any]) -> bool:
    """Whether all items are whole numbers of Python that fit into 64 bits: the fast way for long lists of token ids."""
    if set(map(type, items)) != {int}:
        return False
    return min(items) >= -(2**63) and max(items) < 2**63


def _listed(value: Any, hint: Any) -> Any:
    """The items as a list, in order; a set has none, unless the order does not matter."""
    if isinstance(value, list | tuple | range):
        return value
    # These can be iterated over too, but are no list of items.
    is_whole = isinstance(value, Mapping | str | bytes | bytearray | memoryview)
    _require(isinstance(value, Iterable), value, hint)
    _require(not is_whole, value, hint)
    if get_origin(hint) is Sequence:
        _require(not isinstance(value, Set), value, hint)
    try:
        items = _items_in_order(value)
    except (TypeError, RuntimeError) as error:
        raise MismatchError(value, hint) from error
    # An array without dimensions has a number.
    _require(isinstance(items, list), value, hint)
    _require(len(items) <= MOST, value, hint, f"has more than {MOST:,} items")
    return items


def _items_in_order(value: Any) -> Any:
    """The items of a set, an array or a generator."""
    if isinstance(value, Set):
        return sorted(value)
    if hasattr(value, "tolist"):  # of PyTorch and NumPy
        return value.tolist()
    if hasattr(value, "__array__"):  # of pandas and xarray
        return value.__array__().tolist()
    return list(itertools.islice(value, MOST + 1))


def _mapping(value: Any, hint: Any) -> Any:
    """A mapping; the keys and values of a dict are converted."""
    _require(isinstance(value, Mapping), value, hint)
    kinds = get_args(hint)
    # Other mappings may read their values from disk.
    if type(value) is not dict or not kinds:
        return value
    key_kind, value_kind = kinds
    checked_items = {}
    for key, item in value.items():
        name = _inside(key, key_kind, " (a key)")
        checked_items[name] = _inside(item, value_kind, f"[{short_repr(key)}]")
    return checked_items


def _function(value: Any, hint: Any) -> Any:
    """Anything that can be called."""
    _require(callable(value), value, hint)
    return value


def _tensor(value: Any, hint: Any) -> Any:
    """A tensor of the dtype and the number of axes of its annotation, without its graph."""
    import torch

    _require(isinstance(value, torch.Tensor), value, hint)
    # Not `isinstance`, which would compare axis sizes with those of the caller.
    if hasattr(hint, "array_type"):
        axes = len(hint.dims)
        if hint.index_variadic is None:
            _require(value.ndim == axes, value, hint)
        else:  # "*many" may be any number of axes, or none
            _require(value.ndim >= axes - 1, value, hint)
        _require(dtype_name(value.dtype) in hint.dtypes, value, hint)
    return value.detach()


# How a value of each kind of annotation is checked; other kinds are tensors and classes.
CONVERTERS: dict[Any, Callable[[Any, Any], Any]] = {
    Union: _one_of_several,
    UnionType: _one_of_several,
    Literal: _choice,
    Annotated: _real,  # any real number, also infinite or NaN
    collections.abc.Callable: _function,
    collections.abc.Mapping: _mapping,
    dict: _mapping,
} | dict.fromkeys(LISTS, _items)


def and_frozen(parts: Collection[str]) -> str:
    """What a long name adds for the parts that are held constant, with its comma; empty if there are none."""
    return f", {' and '.join(parts)} frozen" if parts else ""


def plain_type(value: Any) -> type:
    """The Python type of a number or text, also for NumPy values."""
    if type(value).__name__ in ("bool", "bool_"):
        return bool
    if isinstance(value, str):
        return str
    if isinstance(value, Integral):
        return int
    return type(value)
