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
import xarray as xr
from torch import Tensor

from squashlens._typing import short_repr
from squashlens.errors import InputError
from squashlens.model.digests import PLAIN, text_of

# What Python's own objects are made of, by their kinds. A code object counts without the place of its source.
CODE = ("co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_argcount")
FUNCTION = ("__code__", "__defaults__", "__kwdefaults__", "__closure__")
PARTS = {
    types.CodeType: CODE,
    types.FunctionType: FUNCTION,
    types.CellType: ("cell_contents",),
    types.MethodType: ("__func__", "__self__"),
    types.BuiltinFunctionType: ("__name__",),
    functools.partial: ("func", "args", "keywords"),
    np.ufunc: ("__name__",),
}


def plain(value: Any, outer: tuple[int, ...] = ()) -> Any:
    """A value as JSON can hold it; `outer` are the ids of the objects that it is inside of."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, set | frozenset):
        return sorted(repr(item) for item in value)
    if id(value) in outer:
        return "itself"
    inside = functools.partial(plain, outer=(*outer, id(value)))
    if isinstance(value, xr.DataArray | xr.Dataset):
        return inside(value.to_dict(data="array"))
    if isinstance(value, Mapping):
        return {str(name): inside(item) for name, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [inside(item) for item in value]
    if isinstance(value, PLAIN | type | Tensor | np.ndarray):
        return text_of(value)
    return [type(value).__qualname__, inside(_parts(value))]


def _parts(value: Any) -> dict[str, Any]:
    """What a function or an object is made of: the values of its attributes, by name."""
    kind = type(value)
    names: list[str] = []
    if kind in PARTS:
        names += PARTS[kind]
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.compare:
                names.append(field.name)
    elif hasattr(value, "__dict__"):
        # What calling it does, if its class says so, belongs to it.
        call = getattr(vars(kind).get("__call__"), "__code__", None)
        return {"__call__": call, **vars(value)}
    else:
        raise InputError(
            f"A cell cannot be named by {short_repr(value)} ({kind.__name__}).",
            "Use numbers, text, lists, arrays, and functions that hold only these.",
        )
    return {name: getattr(value, name) for name in names}
