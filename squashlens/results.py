"""Results that say what they are: labels, units and provenance on xarray objects, and files that keep them.

netCDF (`.nc`) and JSON (`.json`) come back as they were; CSV is for other programs and is not read back: one row
a position, or one row a number where the variables have different dimensions.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from squashlens._typing import shown
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.files import require_output, write
from squashlens.foreign import opened, unwrapped
from squashlens.stored import ENDINGS, Result, as_bytes

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


@cache
def versions() -> dict[str, str]:
    """The versions that made a result; read once, since they stay as they are while a program runs."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}


@validated
def provenance(result: Result) -> dict[str, Any]:
    """What made a result: model, weights, dtype, device, hooks, versions, the call.

    A Dataset without a provenance of its own answers with that of its variables, by name.
    """
    if "provenance" in result.attrs:
        return _read(result.attrs["provenance"])
    if isinstance(result, xr.Dataset):
        return {str(name): provenance(result[name]) for name in result.data_vars}
    raise InputError("This array carries no provenance.", "It was not made by squashlens.")


def _read(text: object) -> dict[str, Any]:
    """A provenance as an object, refused if it is none."""
    try:
        facts = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise InputError(
            f"The attribute provenance={shown(text)} is no JSON object.", "Give a result as squashlens made it."
        )
    return facts


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


def joined_arrays(results: Sequence[xr.DataArray], dim: str) -> xr.DataArray:
    """Arrays of one form side by side along a new leading `dim`, facts as in `joined`.

    Of what certificates state, `rounding` becomes the largest, and `failure_probability` the sum: the chance that any
    number of any of them is too low.
    """
    sets = {
        number: one.to_dataset(name="values").assign_attrs({"provenance": one.attrs["provenance"]})
        for number, one in enumerate(results)
    }
    found = joined(sets, dim)["values"].rename(results[0].name)
    stated = {"rounding": max, "failure_probability": sum}
    return found.assign_attrs(
        {name: of([one.attrs[name] for one in results]) for name, of in stated.items() if name in results[0].attrs}
    )


def restated(result: Any, facts: Mapping[str, Any]) -> Any:
    """The same result with further facts in the provenance of it and of its variables."""
    found = result.copy()
    named = list(found.data_vars.values()) if isinstance(found, xr.Dataset) else []
    for one in (found, *named):
        if "provenance" in one.attrs:
            one.attrs["provenance"] = _written(_read(one.attrs["provenance"]) | dict(facts))
    return found


def _merged(facts: Sequence[Any]) -> Any:
    """What all say, or the list of what each says; inside objects with the same names, name by name."""
    first = facts[0]
    if all(isinstance(each, dict) and each.keys() == first.keys() for each in facts):
        return {name: _merged([each[name] for each in facts]) for name in first}
    return first if all(each == first for each in facts) else list(facts)


@validated
def save(result: Result, path: str | Path) -> Path:
    """Write a result as `.nc`, `.json` or `.csv`, by the name's ending; returns the path.

    The file is made in memory and written whole or not at all: on a full disk an older file stays as it was. In CSV,
    text that a spreadsheet would execute (it begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break) has an
    apostrophe before it. The other two have a checksum of everything in them, which `open_result` compares.

    Refuses: an unknown ending, what would not come back as it is (dates, complex numbers, objects), a folder that does
    not exist, a file that is read-only, a disk that is full.
    """
    if not isinstance(result, xr.DataArray | xr.Dataset):
        raise InputError(f"A {type(result).__name__} is not a result.", "Give a DataArray or Dataset.")
    path = require_output(path, ENDINGS, "path")
    return write(path, as_bytes(result, path.suffix))


@validated
def open_result(path: str | Path) -> Result:
    """Read a result that `save` wrote as `.nc` or `.json`: a DataArray or Dataset, as it was.

    The file is inspected before it is read, since it may come from anywhere. A file of `save` is compared with its
    checksum; one that was written by other means has none, and is read as it is.

    Refuses: a file of which any number, name or attribute is another than when it was saved; a file that is damaged,
    that has its numbers in other files, that holds anything but numbers and text, or that does not fit into memory.
    """
    return unwrapped(opened(path), path)
