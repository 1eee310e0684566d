"""Results as the bytes of a file: netCDF, JSON, CSV.

Every format is made in memory, so that a full disk is met by one plain write: the HDF5 library takes the whole
interpreter with it where it cannot extend its file.
"""

import csv
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pandas as pd
import xarray as xr

from squashlens.errors import InputError

Result = xr.DataArray | xr.Dataset
ENDINGS = (".nc", ".json", ".csv")
RISKY = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # OWASP, "CSV Injection"


def as_bytes(result: Result, ending: str) -> bytes | memoryview:
    """The file of a result, by the ending of its name."""
    makers: Mapping[str, Callable[[Result], Any]] = {".nc": _netcdf, ".json": _json, ".csv": _csv}
    try:
        return makers[ending](result)
    except (TypeError, ValueError) as error:  # of a result that was changed: attributes or values of another kind
        raise InputError(
            f"This result cannot be kept as {ending}: {error}.",
            "Keep numbers and text in its variables, and text in its attributes.",
        ) from error


def _as_dataset(result: Result) -> xr.Dataset:
    if isinstance(result, xr.Dataset):
        return result.assign_attrs(squashlens_kind="Dataset")
    named = result if result.name else result.rename("value")
    return named.to_dataset().assign_attrs(squashlens_kind="DataArray")


def _netcdf(result: Result) -> bytes | memoryview:
    return cast(memoryview, _as_dataset(result).to_netcdf(engine="h5netcdf"))


def _csv(result: Result) -> bytes:
    if isinstance(result, xr.DataArray):
        result = result.to_dataset(name=result.name or "value")
    if len({variable.dims for variable in result.data_vars.values()}) > 1:
        table = _tidy(result)  # side by side, they would fill the product of all dimensions
    else:
        table = result.to_dataframe().reset_index()
    table = table.rename(columns=_inert)
    for column in table.columns:
        if not pd.api.types.is_numeric_dtype(table[column]):
            table[column] = table[column].map(_inert)
    return table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).encode("utf-8")


def _inert(cell: Any) -> Any:
    """Text that a spreadsheet would execute as a formula gets an apostrophe before it; numbers stay numbers.

    >>> _inert("=HYPERLINK(1)"), _inert("-"), _inert("a=b"), _inert(-1.5)
    ("'=HYPERLINK(1)", "'-", 'a=b', -1.5)
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(RISKY) else cell


def _tidy(result: xr.Dataset) -> pd.DataFrame:
    """A row for every number: its variable's name, its coordinates, its value."""
    tables = []
    for name, values in result.data_vars.items():
        labelled = values if values.ndim else values.expand_dims("scalar")
        table = labelled.to_dataframe(name="value").reset_index().drop(columns="scalar", errors="ignore")
        table.insert(0, "variable", str(name))
        tables.append(table)
    joined = pd.concat(tables, ignore_index=True).convert_dtypes()  # whole numbers stay whole beside gaps
    return joined.reindex(columns=[*joined.columns.drop("value"), "value"])


def _json(result: Result) -> bytes:
    dataset = _as_dataset(result)

    def variable(array: xr.DataArray) -> dict[str, Any]:
        return {
            "dims": list(array.dims),
            "dtype": str(array.dtype),
            # repr of a float reads back to the same bits; JSON itself has no NaN or infinity
            "data": [_plain(v) for v in array.values.ravel().tolist()],
            "shape": list(array.shape),
            "attrs": dict(array.attrs),
        }

    content = {
        "attrs": dict(dataset.attrs),
        "coords": {str(n): variable(c) for n, c in dataset.coords.items()},
        "variables": {str(n): variable(v) for n, v in dataset.data_vars.items()},
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8")


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, float) and not np.isfinite(value) else value
