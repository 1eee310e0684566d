"""Labels, units and provenance of results, which are xarray objects, and functions to save and open them.

netCDF (`.nc`) and JSON (`.json`) files are read back without a change. CSV is for other programs and is not read back:
it has one row for each position, or one row for each number if the variables have different dimensions.

A result has its provenance once, as JSON text in its attribute `provenance`; `facts` says how that is stored.
"""

import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from squashlens._typing import short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.records.facts import HEADS, headline, joints, told, written
from squashlens.saving.files import require_output, write
from squashlens.saving.foreign import opened, unwrapped
from squashlens.saving.seals import STATED, changes, computed, seal_of, text_of, with_seals
from squashlens.saving.stored import ENDINGS, Result, as_bytes

R = TypeVar("R", xr.DataArray, xr.Dataset)
Variable = tuple[tuple[str, ...], Any, str, str]
MODEL_UNITS = "model units"  # those of activations, which differ between models
OWN = "Or say what the values are: `values.drop_attrs().assign_attrs(long_name='...', units='...')`."
DAMAGED = (KeyError, TypeError, AttributeError, IndexError, RecursionError, ValueError)  # while a provenance is read
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


def attributes(long_name: str, units: str) -> dict[str, str]:
    """The attributes of one variable: what it is, and its units."""
    return {"long_name": long_name, "units": units}


def as_variable(result: xr.DataArray, name: str) -> xr.DataArray:
    """A result as a variable of a Dataset, which has the provenance of all its variables."""
    found = result.rename(name)
    found.attrs = attributes(str(result.attrs["long_name"]), str(result.attrs["units"]))
    return found


def sealed(result: R, facts: Mapping[str, Any]) -> R:
    """The result with its provenance: the facts, and the sizes of the dimensions and coordinates that were measured.

    Further attributes say in short what is in the provenance, for the repr of the result: its model, and its prompt,
    sequence or task.
    """
    sizes = {str(name): size for name, size in result.sizes.items()}
    sizes |= {str(name): int(values.size) for name, values in result.coords.items()}
    found = result.copy(deep=False)
    short = headline(told(dict(facts), labels_of(found)))
    plain = {name: value for name, value in found.attrs.items() if name not in (*HEADS, "provenance")}
    text = written({**facts, "measured": sizes})
    found.attrs = {**plain, **short, "provenance": text}
    return with_seals(found, text)


def signed(
    long_name: str, coords: Mapping[str, Any], variables: Mapping[str, Variable], facts: Mapping[str, Any]
) -> xr.Dataset:
    """A Dataset of named variables, each given as (dimensions, values, long name, units), with one provenance."""
    arrays = {
        name: (dims, np.asarray(values), attributes(text, units))
        for name, (dims, values, text, units) in variables.items()
    }
    return sealed(xr.Dataset(arrays, coords=coords, attrs={"long_name": long_name}), facts)


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the main packages; read once, because they do not change while a program runs."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}


@validated
def provenance(result: Result) -> dict[str, Any]:
    """The provenance of a result: model, weights, dtype, device, hooks, versions and the call that made it.

    A Dataset has one provenance for all of its variables, which each variable keeps when it is selected. For a joined
    result (of `concat`, or of several prompts or interventions), facts that differ between the parts are lists, in the
    order of the labels; for some of the labels, as in ``result.sel(model="llama")``, they are those of these parts
    alone.

    Args:
        result: a result of squashlens, or a selection from one.

    Returns:
        The provenance as a dict.

    Raises:
        InputError: if the result has no provenance; if its values were computed from those of a result, for example by
            arithmetic or a mean; if its labels were replaced or renamed; or if it was joined by other means than
            `concat`, so that its provenance is that of one part only.

    >>> import squashlens as sl
    >>> facts = sl.results.provenance(sl.path_bound(sl.load("tiny-gemma", progress=False), "110 ="))
    >>> facts["model"], facts["call"]["function"], facts["call"]["prompt"]
    ('tiny-gemma', 'path_bound', '110 =')
    """
    text = text_of(result)
    stored = stored_facts(result)
    _require_one_origin(result, text)
    try:
        _require_measured(result, stored.get("measured"))
        _require_unchanged(result, text, stored)
        _require_parts(result, stored)
        facts = told(stored, labels_of(result))
        if not facts:
            raise InputError("This cell of a study was not measured.", "Run the study, and combine its results again.")
        return facts
    except InputError:
        raise
    except DAMAGED:
        raise _unreadable(text) from None


def joined_along(result: Result) -> list[str]:
    """The dimensions along which a result was joined from several, the outer first."""
    text = text_of(result)
    if text is None:
        return []
    stored = stored_facts(result)
    try:
        return list(joints(stored))
    except DAMAGED:
        raise _unreadable(text) from None


def _require_one_origin(result: Result, text: str) -> None:
    """Raise an error for a Dataset with a variable of another result, for instance after `xr.merge`."""
    for name, values in result.data_vars.items() if isinstance(result, xr.Dataset) else ():
        if text_of(values) not in (None, text):
            raise InputError(
                f"The variable {str(name)!r} of this Dataset has a provenance of its own.",
                "Keep results of several calls apart, or join them with `squashlens.results.concat`.",
            )


def stored_facts(result: Result) -> dict[str, Any]:
    """The provenance as it is stored in a result."""
    text = text_of(result)
    if text is None:
        raise InputError(
            "This array has no provenance: squashlens did not measure it, or it was computed from results.",
            "Give a result that squashlens made, or a selection from one.",
        )
    try:
        facts = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise _unreadable(text)
    return facts


def _unreadable(text: object) -> InputError:
    return InputError(
        f"The attribute provenance={short_repr(text)} is not a provenance, which is text of a JSON object.",
        "Give an unchanged result of squashlens.",
    )


def labels_of(result: Result) -> Callable[[str], list[Any] | None]:
    return lambda dim: np.ravel(result[dim].values).tolist() if dim in result.coords else None


def _require_measured(result: Result, measured: Mapping[str, int] | None) -> None:
    """Raise an error for a dimension that the measurement did not make, or that is longer than what was measured."""
    for dim, size in result.sizes.items() if measured is not None else ():
        index = result.indexes.get(dim)
        levels = list(index.names) if index is not None and index.nlevels > 1 else [dim]  # a stacked dimension
        most = math.prod(measured.get(str(name), 0) for name in levels) if measured else 0
        if size > most:
            how = f"{size} values along {str(dim)!r}, and {most} were measured" if most else f"a new dimension {dim!r}"
            raise InputError(
                f"This result has {how}: it was joined or reshaped, and its provenance may be that of one part only.",
                "Join results with `squashlens.results.concat`, which keeps the provenance of each; read the "
                "provenance before you reshape a result.",
            )


def _require_unchanged(result: Result, text: str, stored: Mapping[str, Any]) -> None:
    """Raise an error for values that were computed from those of the measurement, or labels that are not its own."""
    call = told(dict(stored), lambda _: None).get("call")
    made = call.get("function") if isinstance(call, dict) else None
    by = f"`{made}`" if isinstance(made, str) else "the measurement"
    known = changes(result, text, stored.get("measured") or {})
    if all(change in ("values", "labels") for change in known.values()):
        raise InputError(
            f"Nothing in this result is known to be measured: it was computed from a result of {by}, or was saved or "
            "opened by other means than `squashlens.results.save` and `squashlens.results.open`.",
            f"Open files with `squashlens.results.open`. {OWN}",
        )
    for name, change in known.items():
        if change == "attributes":
            raise _edited(result, name, by)
        if change == "added labels":
            raise InputError(
                f"This result has values at labels of {name!r} that {by} did not measure: it was extended, for example "
                "with `reindex`.",
                f"Select the labels that were measured, for example with `result.dropna({name!r}, how='all')`.",
            )
        if change == "labels":
            raise InputError(
                f"The labels {name!r} of this result are not those that {by} gave: they were replaced or renamed.",
                "Keep the labels of a result. `squashlens.results.concat` gives labels to several results.",
            )
        if change:
            raise _computed(result, name, by)


def _computed(result: Result, name: str, by: str) -> InputError:
    leave = f" Leave it out with `result.drop_vars({name!r})`." if isinstance(result, xr.Dataset) else ""
    return InputError(
        f"The values of {name!r} were computed from a result of {by}, for example by arithmetic or a mean, or are "
        "those of another variable.",
        f"Give the result itself or a selection from it (`sel`, `isel`, `sortby`).{leave} {OWN}",
    )


def _edited(result: Result, name: str, by: str) -> InputError:
    """An error for a measured variable whose long name or units were replaced."""
    values: Any = result[name] if isinstance(result, xr.Dataset) else result
    seal = seal_of(values)
    stated = dict(zip(STATED, seal.stated, strict=True)) if seal is not None else {}
    back = ", ".join(f"{key}={value!r}" for key, value in stated.items() if value != values.attrs.get(key))
    return InputError(
        f"The long name or units of {name!r} are not those that {by} gave.",
        f"Restore them with `values.assign_attrs({back})`, and change titles in the figure: "
        "`figure.update_yaxes(title=...)`.",
    )


def facts_of(result: Result) -> dict[str, Any]:
    """The provenance of a result; empty for values that squashlens did not measure.

    Raises an error for values that were computed from measured ones, unless they have a long name of their own.
    """
    if text_of(result) is not None:
        return provenance(result)
    for name in computed(result):
        values: Any = result[name] if isinstance(result, xr.Dataset) else result
        if values.attrs.get("long_name") is None:
            raise InputError(
                f"The values{f' of {name!r}' if name else ''} have labels of a result and no long name: they were "
                "computed from a result, for example as a difference, or are your own.",
                f"Give the result itself or a selection from it (`sel`, `isel`, `sortby`). {OWN}",
            )
        raise _computed(result, name, "a measurement")
    return {}


def _require_parts(result: Result, stored: Mapping[str, Any]) -> None:
    """Raise an error for a joined result that lost the labels of its parts, or has others."""
    seal = seal_of(result) if isinstance(result, xr.DataArray) else None
    for dim, labels in joints(stored).items():
        here = labels_of(result)(dim)
        if seal is not None and dim not in seal.dims:
            continue  # a variable of all parts
        if here is None or any(label not in labels for label in here):
            raise InputError(
                f"This result was joined along {dim!r}, and has lost the labels of its parts.",
                f"Keep the coordinate {dim!r}: select with `sel` or `isel` without drop=True, and do not rename it.",
            )


@validated
def save(result: Result, path: str | Path) -> Path:
    """Write a result to a file.

    The file is written completely or not at all: if the disk is full, an older file remains unchanged. In CSV files,
    text that a spreadsheet would execute (text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break), and
    text that begins with an apostrophe, gets an apostrophe in front. The other formats contain a checksum of everything
    in them, which `open` compares.

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
    ...     path = sl.results.save(bound, f"{folder}/bound.nc")
    ...     sl.results.open(path).identical(bound)
    True
    """
    if not isinstance(result, xr.DataArray | xr.Dataset):
        raise InputError(f"result={short_repr(result)} is not a result.", "Give a DataArray or Dataset.")
    path = require_output(path, ENDINGS, "path")
    if path.suffix == ".csv":  # which says nothing of where its numbers come from
        facts_of(result)
    return write(path, as_bytes(result, path.suffix))


@validated
def open(path: str | Path) -> Result:
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
