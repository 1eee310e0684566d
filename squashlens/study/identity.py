"""What a value is, as text that is the same in every process: keys of cells are hashes of it.

A function counts by its compiled code, its defaults and what it closes over: by what runs, and not by what its file
says now. What it calls does not count.
"""

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from squashlens._typing import short_repr
from squashlens.errors import InputError
from squashlens.model.digests import PLAIN, text_of
from squashlens.records.provenance import Result
from squashlens.records.tables import as_dataset


def plain(value: Any, outer: tuple[int, ...] = ()) -> Any:
    """A value as JSON can hold it; `outer` are the ids of the objects that it is inside of."""
    if value is None or isinstance(value, str | int | float):
        return value
    if id(value) in outer:
        return "itself"
    inside = functools.partial(plain, outer=(*outer, id(value)))
    if isinstance(value, Mapping):
        return {str(name): inside(item) for name, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [inside(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(item) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Result):
        return inside(as_dataset(value).to_dict())
    if isinstance(value, PLAIN | type | Tensor | np.ndarray):
        return text_of(value)
    if isinstance(value, types.CodeType):  # without the place of its source
        names = [
            value.co_names,
            value.co_varnames,
            value.co_freevars,
            value.co_argcount,
        ]
        return [value.co_code.hex(), inside(value.co_consts), inside(names)]
    return [type(value).__qualname__, inside(_content(value))]


def _content(value: Any) -> Any:
    """What a function or an object is made of."""
    if isinstance(value, nn.Module):
        raise InputError(
            "A cell holds a loaded model.",
            "Give its name or the folder it was saved to.",
        )
    if isinstance(value, types.FunctionType):
        defaults = [value.__defaults__, value.__kwdefaults__]
        return [value.__code__, defaults, value.__closure__]
    if isinstance(value, types.CellType):
        return value.cell_contents
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.BuiltinFunctionType | np.ufunc):
        return value.__name__
    if dataclasses.is_dataclass(value):
        fields = [field for field in dataclasses.fields(value) if field.compare]
        return {field.name: getattr(value, field.name) for field in fields}
    if hasattr(
        value, "__dict__"
    ):  # also what a class says of calls, and a cached function of the one inside
        return [
            getattr(vars(type(value)).get("__call__"), "__code__", None),
            vars(value),
        ]
    raise InputError(
        f"A cell cannot be named by {short_repr(value)} ({type(value).__name__}).",
        "Use numbers, text, lists, arrays, and functions that hold only these.",
    )
