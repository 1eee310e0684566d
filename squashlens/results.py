"""Labels, units and provenance of results, which are xarray objects, and functions to save and open them.

netCDF (`.nc`) and JSON (`.json`) files are read back without a change. CSV is for other programs and is not read back:
it has one row for each position, or one row for each number if the variables have different dimensions.
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

from squashlens._typing import short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.saving.files import require_output, write
from squashlens.saving.foreign import opened, unwrapped
from squashlens.saving.stored import ENDINGS, Result, as_bytes

Variable = tuple[tuple[str, ...], Any, str, str]
PACKAGES = ("squashlens", "torch", "transformers", "transformer-lens")


def position_coords(ids: np.ndarray, labels: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Dimensions and coordinates of a per-token result; a single prompt has no `prompt` dimension."""
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
    """Attributes that every file format can store: text only, with the provenance as one JSON object."""
    return {
        "long_name": long_name,
        "units": units,
        "provenance": _written(facts),
    }


def _written(facts: Mapping[str, Any]) -> str:
    """The facts as text of one JSON object."""
    return json.dumps(facts, ensure_ascii=False, sort_keys=True, default=str)


def signed(
    long_name: str, coords: Mapping[str, Any], variables: Mapping[str, Variable], facts: Mapping[str, Any]
) -> xr.Dataset:
    """A Dataset of named variables, each given as (dimensions, values, long name, units), with one provenance."""
    arrays = {
        name: (dims, np.asarray(values), attributes(text, units, facts))
        for name, (dims, values, text, units) in variables.items()
    }
    return xr.Dataset(arrays, coords=coords, attrs=attributes(long_name, "as each variable says", facts))


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the main packages; read once, because they do not change while a program runs."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}


@validated
def provenance(result: Result) -> dict[str, Any]:
    """The provenance of a result: model, weights, dtype, device, hooks, versions and the call that made it.

    Args:
        result: a result of squashlens.

    Returns:
        The provenance as a dict. For a Dataset without its own provenance, a dict of the provenance of its variables.

    Raises:
        InputError: if the result has no provenance.
    """
    if "provenance" in result.attrs:
        return _read(result.attrs["provenance"])
    if isinstance(result, xr.Dataset):
        return {str(name): provenance(result[name]) for name in result.data_vars}
    raise InputError("This array has no provenance.", "Give a result that squashlens made.")


def _read(text: object) -> dict[str, Any]:
    """A provenance as a dict; an error if the text is not a JSON object."""
    try:
        facts = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise InputError(
            f"The attribute provenance={short_repr(text)} is not a JSON object.",
            "Give an unchanged result of squashlens.",
        )
    return facts


def joined(results: Mapping[Any, xr.Dataset], dim: str) -> xr.Dataset:
    """Datasets of equal form joined along a new leading `dim`; facts that differ become lists, in the same order."""
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
    """Arrays of equal form joined along a new leading `dim`, with facts as in `joined`.

    For certificates, `rounding` is the largest of the arrays' values, and `failure_probability` is their sum: an upper
    bound on the probability that any number of any array is too low.
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
    """The same result with additional facts in its own provenance and in that of its variables."""
    found = result.copy()
    named = list(found.data_vars.values()) if isinstance(found, xr.Dataset) else []
    for one in (found, *named):
        if "provenance" in one.attrs:
            one.attrs["provenance"] = _written(_read(one.attrs["provenance"]) | dict(facts))
    return found


def _merged(facts: Sequence[Any]) -> Any:
    """The common value of all facts, or the list of their values; dicts with the same keys are merged key by key."""
    first = facts[0]
    if all(isinstance(each, dict) and each.keys() == first.keys() for each in facts):
        return {name: _merged([each[name] for each in facts]) for name in first}
    return first if all(each == first for each in facts) else list(facts)


@validated
def save(result: Result, path: str | Path) -> Path:
    """Write a result to a file.

    The file is written completely or not at all: if the disk is full, an older file remains unchanged. In CSV files,
    text that a spreadsheet would execute (text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break) gets
    an apostrophe in front. The other formats contain a checksum of everything in them, which `open_result` compares.

    Args:
        result: a DataArray or Dataset.
        path: the file to write; its ending, ``.nc``, ``.json`` or ``.csv``, chooses the format.

    Returns:
        The path.

    Raises:
        InputError: if the ending is unknown, the folder does not exist, or the result contains values that the format
            would not give back unchanged (dates, complex numbers, objects).
        OutputError: if the file is read-only or the disk is full.

    >>> import squashlens as sl
    >>> bound = sl.path_bound(sl.load("tiny-gemma", progress=False), "110 =")
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = sl.save(bound, f"{folder}/bound.nc")
    ...     sl.open_result(path).identical(bound)
    True
    """
    if not isinstance(result, xr.DataArray | xr.Dataset):
        raise InputError(f"result={short_repr(result)} is not a result.", "Give a DataArray or Dataset.")
    path = require_output(path, ENDINGS, "path")
    return write(path, as_bytes(result, path.suffix))


@validated
def open_result(path: str | Path) -> Result:
    """Read a result that `save` wrote as `.nc` or `.json`.

    The file is inspected before it is read, because it may come from anywhere. A file written by `save` is compared
    with its checksum. A file written by another program has no checksum and is read without this comparison.

    Args:
        path: the file to read.

    Returns:
        The DataArray or Dataset that was saved.

    Raises:
        InputError: if any number, name or attribute was changed since the file was saved; if the file is damaged,
            refers to other files, or contains anything but numbers and text.
        CapacityError: if the file does not fit into memory.
    """
    return unwrapped(opened(path), path)
