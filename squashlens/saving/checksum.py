"""The checksum of a result, stored in its file to detect changes.

It is computed from the content, not from the bytes of the file: names, dimensions, coordinates, attributes, and the
bits of every value (all NaNs count as equal). So it is the same before a result is written and after it is read, and
the same in netCDF and JSON. It detects damage and careless edits. It is not a signature: anyone can compute it again.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

ATTRIBUTE = "squashlens_checksum"


def checksum(dataset: xr.Dataset) -> str:
    """SHA-256 of a Dataset in hexadecimal digits; a checksum that the Dataset already has is left out."""
    return _sha256(json.dumps(parts(dataset), sort_keys=True).encode())


def parts(dataset: xr.Dataset) -> dict[str, str]:
    """Checksums of the attributes, and of each variable and coordinate by name."""
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


def _attributes(attrs: Mapping[Any, Any]) -> bytes:
    return json.dumps(sorted([repr(name), _plain(value)] for name, value in attrs.items())).encode()


def _plain(value: Any) -> str:
    """An attribute as text, with NumPy numbers as Python numbers, and arrays and tuples as lists."""
    if isinstance(value, np.ndarray | np.generic | tuple):
        value = value.tolist() if not isinstance(value, tuple) else list(value)
    return repr([_plain(each) for each in value]) if isinstance(value, list) else repr(value)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
