"""A checksum over everything in a result, kept in its file: a number that was changed there is not believed.

It is computed of the content, not of the bytes of a file: names, dimensions, coordinates, attributes, and every value
by its bits (of NaN only that it is one). So it is the same before a result is written and after it is read, and netCDF
and JSON have the same one. It shows damage and careless edits. It is no signature: who edits on purpose can renew it.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

ATTRIBUTE = "squashlens_checksum"


def checksum(dataset: xr.Dataset) -> str:
    """SHA-256 of a Dataset as hexadecimal digits, but for a checksum that it has already."""
    return _sha256(json.dumps(parts(dataset), sort_keys=True).encode())


def parts(dataset: xr.Dataset) -> dict[str, str]:
    """A checksum for each variable and coordinate, by its name, and one for the attributes."""
    attrs = {name: value for name, value in dataset.attrs.items() if name != ATTRIBUTE}
    found = {"attributes": _sha256(_attributes(attrs))}
    for kind, group in (("variable", dataset.data_vars), ("coordinate", dataset.coords)):
        found |= {f"{kind} {name!r}": _sha256(_of_variable(one)) for name, one in group.items()}
    return found


def _of_variable(array: xr.DataArray) -> bytes:
    dtype, content = _values(array.values)
    head = json.dumps([list(map(repr, array.dims)), list(array.shape), dtype])
    return b"\n".join([head.encode(), _attributes(array.attrs), content])


def _values(values: np.ndarray) -> tuple[str, bytes]:
    """The type of an array and its content. Text is text, however NumPy keeps it."""
    if values.dtype.kind in "OUT":
        each = values.ravel().tolist()
        if all(isinstance(value, str) for value in each):
            return "text", json.dumps(each).encode()
        return "objects", repr([(type(value).__name__, value) for value in each]).encode()
    values = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<")))
    if values.dtype.kind == "f":  # what a NaN consists of differs between processors and formats
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values).astype(values.dtype)
    return values.dtype.str, values.tobytes()


def _attributes(attrs: Mapping[Any, Any]) -> bytes:
    return json.dumps(sorted([repr(name), _plain(value)] for name, value in attrs.items())).encode()


def _plain(value: Any) -> str:
    """An attribute as text: NumPy's numbers as Python's, arrays and tuples as lists."""
    if isinstance(value, np.ndarray | np.generic | tuple):
        value = value.tolist() if not isinstance(value, tuple) else list(value)
    return repr([_plain(each) for each in value]) if isinstance(value, list) else repr(value)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
