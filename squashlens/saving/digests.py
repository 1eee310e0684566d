"""Digests of the values and labels of a result, by which measured values are told from derived ones.

A digest is computed from the content: dimensions, attributes, and the bits of every value (all NaNs count as equal). So
it is the same in memory, in netCDF and in JSON. It detects changes. It is no proof against forgery: anyone can compute
it again.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
import xxhash

PROVENANCE = "provenance"
SOURCE, OURS = "source", "squashlens"  # an attribute of every result, which arithmetic between two results keeps
SIGNED = "signed"  # the entry of a provenance with the digests of what was measured
HEADS = ("model", "prompt", "sequence", "task")  # attributes that repeat a provenance in short
OF_ALL = (*HEADS, SOURCE, PROVENANCE)  # attributes that say where a result comes from, which none of them signs
Result = xr.DataArray | xr.Dataset


def digests(result: Result) -> dict[str, str]:
    """The digest of each variable by name, with its attributes, and of each coordinate by `label_of` its name.

    Attributes of coordinates are left out, and those that hold a provenance.
    """
    own: Mapping[Any, Any] = result.data_vars if isinstance(result, xr.Dataset) else {result.name or "": result}
    stated = {name: {k: v for k, v in one.attrs.items() if k not in OF_ALL} for name, one in own.items()}
    found = {str(name): _digest(one.variable, stated[name]) for name, one in own.items()}
    return found | {label_of(name): _digest(one.variable, {}) for name, one in result.coords.items()}


def label_of(name: object) -> str:
    """The name under which a coordinate is signed, since an array may be called like one of its coordinates."""
    return f"labels {name}"


def contents(dataset: xr.Dataset) -> dict[str, str]:
    """What a file must give back: the digests, the names of variables and coordinates, and the attributes."""
    names = [sorted(map(repr, group)) for group in (dataset.data_vars, dataset.coords)]
    attrs = sorted([repr(name), _plain(value)] for name, value in dataset.attrs.items())
    return digests(dataset) | {"names": repr(names), "attributes": repr(attrs)}


def texts_of(result: Result) -> list[Any]:
    """The distinct provenances of a result's variables, as they are stored."""
    whole = result.attrs.get(PROVENANCE)
    members = [*result.data_vars.values()] if isinstance(result, xr.Dataset) else []
    texts = [one.attrs.get(PROVENANCE, whole) for one in members] or [whole]
    return [text for text in dict.fromkeys(texts) if text is not None]


def is_ours(result: Result) -> bool:
    """Whether values come from results of squashlens, also where these were of different calls."""
    members = [*result.data_vars.values()] if isinstance(result, xr.Dataset) else []
    return any(one.attrs.get(SOURCE) == OURS for one in (result, *members))


def _digest(variable: xr.Variable, attrs: Mapping[Any, Any]) -> str:
    dtype, content = _values(variable.values)
    stated = sorted([str(name), _plain(value)] for name, value in attrs.items())
    head = json.dumps([list(map(str, variable.dims)), list(variable.shape), dtype, stated])
    return xxhash.xxh3_64_hexdigest(head.encode() + b"\n" + content)


def _values(values: np.ndarray) -> tuple[str, bytes]:
    """The type of an array and its content; every NumPy type of text counts as text."""
    if values.dtype.kind in "OUT":
        each = values.ravel().tolist()
        if all(isinstance(value, str) for value in each):
            return "text", json.dumps(each).encode()
        return "objects", repr([(type(value).__name__, value) for value in each]).encode()
    values = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<")))
    if values.dtype.kind == "f":  # the bits of a NaN differ between processors and formats
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values).astype(values.dtype)
    return values.dtype.str, values.tobytes()


def _plain(value: Any) -> str:
    """An attribute as text, with NumPy numbers as Python numbers, and arrays and tuples as lists."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return repr([_plain(each) for each in value]) if isinstance(value, list | tuple) else repr(value)
