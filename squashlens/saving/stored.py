"""Convert results to the bytes of a netCDF, JSON or CSV file.

Every format is made in memory and then written at once, because the HDF5 library crashes the interpreter if it cannot
extend a file on a full disk.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pandas as pd
import xarray as xr

from squashlens.errors import CapacityError, InputError, SquashlensError
from squashlens.saving.checksum import ATTRIBUTE, checksum, parts
from squashlens.saving.foreign import READERS
from squashlens.saving.rows import rows_of
from squashlens.saving.seals import COMPUTED, MEASURED, computed, names_with_seals, text_of

Result = xr.DataArray | xr.Dataset
ENDINGS = (".nc", ".json", ".csv")
RISKY = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # OWASP, "CSV Injection"


def as_bytes(result: Result, ending: str) -> bytes | memoryview:
    """The bytes of a result's file, in the format of the given ending."""
    makers: Mapping[str, Callable[[xr.Dataset], Any]] = {".nc": _netcdf, ".json": _json}
    try:
        if ending == ".csv":
            return _csv(result)
        dataset = _as_dataset(result)
        content = makers[ending](dataset)
        changed = _changed(dataset, content, ending)
    except SquashlensError as error:
        raise _unkept(ending, error.cause.rstrip(".")) from error
    except (TypeError, ValueError, NotImplementedError, AttributeError, KeyError, RuntimeError, OSError) as error:
        raise _unkept(ending, str(error) or type(error).__name__) from error  # a result that the user changed
    if changed:
        raise _unkept(ending, f"its {changed[0]} would not be read back unchanged")
    return content


def _unkept(ending: str, why: str) -> InputError:
    return InputError(
        f"This result cannot be saved as {ending}: {why}.",
        "Use only numbers and text in its variables, and only text in its attributes.",
    )


def _changed(dataset: xr.Dataset, content: bytes | memoryview, ending: str) -> list[str]:
    """Names of the parts of a result that would not be read back unchanged from its file."""
    try:
        back = parts(READERS[ending](io.BytesIO(content), f"result{ending}"))
    except CapacityError:  # there is too little memory now to check
        return []
    before = parts(dataset)
    return [name for name in {**before, **back} if before.get(name) != back.get(name)]


def _as_dataset(result: Result) -> xr.Dataset:
    """The Dataset to write: with the kind of the result, its provenance and checksum, without another file's encoding.

    A variable that was selected from a Dataset has its provenance in a seal, and in its file in the global attributes.
    """
    if isinstance(result, xr.Dataset):
        dataset = result.assign_attrs(squashlens_kind="Dataset")
    else:
        named = result.rename("value") if result.name is None else result
        kind = "DataArray" if named is result else "DataArray without a name"
        dataset = named.to_dataset().assign_attrs(squashlens_kind=kind)
    text = text_of(result)
    if text is not None:
        own = {} if "provenance" in result.attrs else {"provenance": text}
        dataset = dataset.assign_attrs(own | {MEASURED: json.dumps(names_with_seals(result))})
    if names := computed(result):
        dataset = dataset.assign_attrs({COMPUTED: json.dumps(names)})
    dataset = dataset.drop_encoding()
    return dataset.assign_attrs({ATTRIBUTE: checksum(dataset)})


def _netcdf(dataset: xr.Dataset) -> bytes | memoryview:
    return cast(memoryview, dataset.to_netcdf(engine="h5netcdf"))


def _csv(result: Result) -> bytes:
    if isinstance(result, xr.DataArray):
        result = result.to_dataset(name=result.name or "value")
    dims = {variable.dims for variable in result.data_vars.values()}
    # A column for each of several shapes would need the product of all dimensions; single numbers have no rows.
    several = len(dims) > 1 or dims == {()}
    table = _tidy(result) if several else result.to_dataframe().reset_index()
    table = table.rename(columns=_inert)
    for column in table.columns:
        if not pd.api.types.is_numeric_dtype(table[column]):
            table[column] = table[column].map(_inert)
    return table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).encode("utf-8")


def _inert(cell: Any) -> Any:
    """The cell, with an apostrophe in front of text that a spreadsheet would execute as a formula.

    Text that begins with an apostrophe gets another, so that one can be removed from every text.

    >>> _inert("=HYPERLINK(1)"), _inert("-"), _inert("a=b"), _inert(-1.5), _inert("'=")
    ("'=HYPERLINK(1)", "'-", 'a=b', -1.5, "''=")
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith((*RISKY, "'")) else cell


def _tidy(result: xr.Dataset) -> pd.DataFrame:
    """A table with one row for each number: the name of its variable, its coordinates, its value."""
    tables = [rows_of(values).assign(variable=str(name)) for name, values in result.data_vars.items()]
    joined = pd.concat(tables, ignore_index=True)
    between = joined.columns.drop(["variable", "value"])
    return joined.reindex(columns=["variable", *between, "value"])


def _json(dataset: xr.Dataset) -> bytes:
    def variable(array: xr.DataArray) -> dict[str, Any]:
        return {
            "dims": list(array.dims),
            "dtype": str(array.dtype),
            # json writes floats with all their bits; NaN and infinity, which JSON lacks, become text
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
