"""Results that say what they are: labels, units and provenance on xarray objects, and files that keep them.

netCDF (`.nc`) and JSON (`.json`) come back as they were; CSV is for other programs and is not read back: one row
a position, or one row a number where the variables have different dimensions.
Files are written beside their name and renamed, so a killed writer leaves no half of one.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from squashlens.errors import InputError

Result = xr.DataArray | xr.Dataset
Variable = tuple[tuple[str, ...], Any, str, str]
PACKAGES = ("squashlens", "torch", "transformers", "transformer-lens")


def position_coords(ids: np.ndarray, labels: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Dimensions and coordinates of a per-token result; one prompt has no `prompt` dimension."""
    dims = ("position",) if len(ids) == 1 else ("prompt", "position")
    table = np.array(labels, dtype=object)
    coords: dict[str, Any] = {
        "position": np.arange(ids.shape[1]),
        "token": (dims, table[0] if len(ids) == 1 else table),
        "token_id": (dims, ids[0] if len(ids) == 1 else ids),
    }
    if len(ids) > 1:
        coords["prompt"] = np.arange(len(ids))
    return dims, coords


def attributes(long_name: str, units: str, facts: Mapping[str, Any]) -> dict[str, str]:
    """Attributes that survive every file format: text only, the provenance as one JSON object."""
    return {
        "long_name": long_name,
        "units": units,
        "provenance": _written(facts),
    }


def _written(facts: Mapping[str, Any]) -> str:
    """Facts as one JSON object."""
    return json.dumps(facts, ensure_ascii=False, sort_keys=True, default=str)


def signed(
    long_name: str, coords: Mapping[str, Any], variables: Mapping[str, Variable], facts: Mapping[str, Any]
) -> xr.Dataset:
    """Named variables, each (dimensions, values, long name, units), as one Dataset with one provenance."""
    arrays = {
        name: (dims, np.asarray(values), attributes(text, units, facts))
        for name, (dims, values, text, units) in variables.items()
    }
    return xr.Dataset(arrays, coords=coords, attrs=attributes(long_name, "as each variable says", facts))


def versions() -> dict[str, str]:
    """The versions that made a result."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}


def provenance(result: Result) -> dict[str, Any]:
    """What made a result: model, weights, dtype, device, hooks, versions, the call.

    A Dataset without a provenance of its own answers with that of its variables, by name.
    """
    if "provenance" in result.attrs:
        return json.loads(result.attrs["provenance"])
    if isinstance(result, xr.Dataset):
        return {str(name): provenance(result[name]) for name in result.data_vars}
    raise InputError("This array carries no provenance.", "It was not made by squashlens.")


def joined(results: Mapping[Any, xr.Dataset], dim: str) -> xr.Dataset:
    """Datasets of one form side by side along a new leading `dim`; facts that differ become lists, in that order."""
    facts = [provenance(one) for one in results.values()]
    found = xr.concat(
        list(results.values()), dim=xr.Variable(dim, np.array(list(results))), data_vars="all", coords="different",
        compat="equals", join="exact", combine_attrs="override",
    )  # fmt: skip
    merged = {"provenance": _written(_merged(facts))}
    found.attrs |= merged
    for variable in found.data_vars.values():
        variable.attrs |= merged
    return found


def _merged(facts: Sequence[Any]) -> Any:
    """What all say, or the list of what each says; inside objects with the same names, name by name."""
    first = facts[0]
    if all(isinstance(each, dict) and each.keys() == first.keys() for each in facts):
        return {name: _merged([each[name] for each in facts]) for name in first}
    return first if all(each == first for each in facts) else list(facts)


def save(result: Result, path: str | Path) -> Path:
    """Write a result as `.nc`, `.json` or `.csv`, by the name's ending; returns the path."""
    path = Path(path)
    writers = {".nc": _write_netcdf, ".json": _write_json, ".csv": _write_csv}
    if path.suffix not in writers:
        raise InputError(f"Cannot write {path.name!r}.", f"End the name in {', '.join(writers)}.")
    if not path.parent.is_dir():
        raise InputError(f"There is no folder {str(path.parent)!r}.", "Make it first.")
    return write_atomically(path, lambda partial: writers[path.suffix](result, partial))


def open_result(path: str | Path) -> Result:
    """Read a result that `save` wrote as `.nc` or `.json`: a DataArray or Dataset, as it was."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file {str(path)!r}.", "Check the name.")
    if path.suffix == ".nc":
        with xr.open_dataset(path, engine="h5netcdf", decode_times=False) as stored:
            loaded = stored.load()
    elif path.suffix == ".json":
        loaded = _from_json(json.loads(path.read_text(encoding="utf-8")))
    else:
        raise InputError(f"Cannot read {path.name!r}.", "Results come back from .nc and .json.")
    kind = loaded.attrs.pop("squashlens_kind", "Dataset")
    if kind == "DataArray":
        (name,) = loaded.data_vars
        return loaded[name]
    return loaded


def write_atomically(path: Path, write: Any) -> Path:
    """Call `write` with a temporary name beside `path`, then rename it into place."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _as_dataset(result: Result) -> xr.Dataset:
    if isinstance(result, xr.Dataset):
        return result.assign_attrs(squashlens_kind="Dataset")
    named = result if result.name else result.rename("value")
    return named.to_dataset().assign_attrs(squashlens_kind="DataArray")


def _write_netcdf(result: Result, path: Path) -> None:
    _as_dataset(result).to_netcdf(path, engine="h5netcdf")


def _write_csv(result: Result, path: Path) -> None:
    if isinstance(result, xr.DataArray):
        result = result.to_dataset(name=result.name or "value")
    if len({variable.dims for variable in result.data_vars.values()}) > 1:
        _tidy(result).to_csv(path, index=False)  # side by side, they would fill the product of all dimensions
    else:
        result.to_dataframe().to_csv(path)


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


def _write_json(result: Result, path: Path) -> None:
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
    path.write_text(json.dumps(content, ensure_ascii=False, allow_nan=False), encoding="utf-8")


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, float) and not np.isfinite(value) else value


def _from_json(content: Mapping[str, Any]) -> xr.Dataset:
    def variable(stored: Mapping[str, Any]) -> tuple[Any, ...]:
        values = np.array(stored["data"], dtype=stored["dtype"]).reshape(stored["shape"])
        return stored["dims"], values, stored["attrs"]

    return xr.Dataset(
        {n: variable(v) for n, v in content["variables"].items()},
        coords={n: variable(c) for n, c in content["coords"].items()},
        attrs=content["attrs"],
    )
