"""Labels, units and provenance of results, which are xarray objects, and functions to save and open them.

netCDF (`.nc`) and JSON (`.json`) files are read back without a change.

A result and its variables have their provenance as JSON text in the attribute `provenance`; `facts` says how that is
stored. It contains digests of the values and labels that were measured. Equal digests mean *measured*; anything else is
*derived*, which is allowed everywhere and says so.
"""

import json
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
from squashlens.records.facts import (
    headline,
    joints,
    of_several,
    part_facts,
    read_facts,
    written,
)
from squashlens.saving.files import require_output, write
from squashlens.saving.stored import (
    ENDINGS,
    OF_ALL,
    OURS,
    PROVENANCE,
    SIGNED,
    SOURCE,
    Result,
    as_bytes,
    as_dataset,
    digests,
    is_ours,
    label_of,
    parsed,
    result_of,
    texts_of,
)

R = TypeVar("R", xr.DataArray, xr.Dataset)
Variable = tuple[tuple[str, ...], Any, str, str]
MODEL_UNITS = "model units"  # those of activations, which differ between models
AS_IT_IS = "as it is"  # the name of the model without a change in what `compare` gives
DAMAGED = (
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    RecursionError,
    ValueError,
)  # while a provenance is read
PACKAGES = ("squashlens", "torch", "transformers", "transformer-lens")


def position_coords(
    ids: np.ndarray, labels: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], dict[str, Any]]:
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


def arrays_of(
    variables: Mapping[str, Variable],
) -> dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, str]]]:
    """Named variables as a Dataset takes them."""
    return {
        name: (dims, np.asarray(values), attributes(*text))
        for name, (dims, values, *text) in variables.items()
    }


def as_variable(result: xr.DataArray, name: str) -> xr.DataArray:
    """A result as a variable of a Dataset, which has the provenance of all its variables."""
    variable = result.rename(name)
    variable.attrs = attributes(
        str(result.attrs["long_name"]), str(result.attrs["units"])
    )
    return variable


def sealed(result: R, facts: Mapping[str, Any], *, measured: bool = True) -> R:
    """The result and each of its variables with the provenance: the facts, and digests of what was measured.

    Further attributes say in short what is in it. Unless `measured`, nothing is signed, and the result is derived.
    """
    copy = result.copy(deep=False)
    short = headline(read_facts(dict(facts), labels_of(copy)))
    plain = {name: value for name, value in copy.attrs.items() if name not in OF_ALL}
    kept = {
        name: value for name, value in facts.items() if name != "values"
    }  # that is seen, and not stored
    sizes = {
        str(name): dict(values.sizes)
        for name, values in as_dataset(copy).data_vars.items()
    }
    text = written(
        kept | ({SIGNED: digests(copy), "sizes": sizes} if measured else {SIGNED: {}})
    )
    copy.attrs = {**plain, **short, SOURCE: OURS, PROVENANCE: text}
    for values in copy.data_vars.values() if isinstance(copy, xr.Dataset) else ():
        values.attrs = {**values.attrs, SOURCE: OURS, PROVENANCE: text}
    return copy


def signed(
    long_name: str,
    coords: Mapping[str, Any],
    variables: Mapping[str, Variable],
    facts: Mapping[str, Any],
) -> xr.Dataset:
    """A Dataset of named variables, each given as (dimensions, values, long name, units), with one provenance."""
    return sealed(
        xr.Dataset(arrays_of(variables), coords=coords, attrs={"long_name": long_name}),
        facts,
    )


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the main packages; read once, because they do not change while a program runs."""
    return {"python": platform.python_version()} | {
        name: metadata.version(name) for name in PACKAGES
    }


@validated
def provenance(result: Result) -> dict[str, Any]:
    """The provenance of a result: model, weights, dtype, device, hooks, versions and the call that made it.

    Its entry `values` is ``"measured"`` if all values and labels are those that the call gave, and ``"derived"`` for
    anything that was made from them: a selection, a mean, a ratio, other labels. The rest is then the provenance of
    what it came from. Where arithmetic combined results of different calls, xarray keeps none of their provenances, and
    `values` is the only entry.

    A Dataset has one provenance for all of its variables, which each variable keeps when it is selected. For a joined
    result (of `concat`, or of several prompts or interventions), facts that differ between the parts are lists, in the
    order of the labels; for some of the labels, as in ``result.sel(model="llama")``, they are those of these parts
    alone. For a Dataset of variables from several calls, they are lists too.

    Args:
        result: a result of squashlens, or anything that xarray made of one.

    Returns:
        The provenance as a dict.

    Raises:
        InputError: if the result has no provenance.

    >>> import squashlens as sl
    >>> bound = sl.path_bound(sl.load("tiny-gemma"), "110 =")
    >>> facts = sl.results.provenance(bound)
    >>> facts["model"], facts["call"]["function"], facts["call"]["prompt"], facts["values"]
    ('tiny-gemma', 'path_bound', '110 =', 'measured')
    >>> sl.results.provenance(bound / bound.sum())["values"]
    'derived'
    """
    require_done(result)
    if not texts_of(result) and not is_ours(result):
        raise InputError(
            "These values have no provenance: squashlens did not measure them.",
            "Give a result of squashlens, or what xarray makes of one.",
        )
    return facts_of(result) | {"values": origin_of(result)}


def facts_of(result: Result) -> dict[str, Any]:
    """The provenance of a result without the entry `values`, which takes a digest of all of them; empty without one."""
    return of_several([facts for facts in _facts(result) if facts])


def origin_of(result: Result) -> str:
    """Whether the values are ``"measured"`` or ``"derived"``; empty for values that are not of squashlens."""
    if texts_of(result):
        return "measured" if is_measured(result) else "derived"
    return "derived" if is_ours(result) else ""


def is_done(result: Result) -> bool:
    """Whether a result has numbers: not a cell of a study that is not done yet, or labels that no joined part has."""
    facts = _facts(result)
    if facts and not any(facts):
        return False
    own = [own_facts(result, _read(text)) for text in texts_of(result)]
    selected = {
        name: values.item() for name, values in result.coords.items() if not values.ndim
    }
    foreign = [
        dim
        for facts in own
        for dim, labels in facts.get("labels", {}).items()
        if dim in selected and selected[dim] not in labels
    ]
    return not foreign or any(
        bool(one.notnull().any())
        for one in as_dataset(result).values()
        if one.dtype.kind == "f"
    )


def require_done(result: Result) -> None:
    """Raise an error for a result without numbers."""
    if not is_done(result):
        raise InputError(
            "Nothing was measured at these labels: this cell of a study is not done, or no joined part has them.",
            "Select others, or run the study and combine its results again.",
        )


def _facts(result: Result) -> list[dict[str, Any]]:
    return [read_facts(_read(text), labels_of(result)) for text in texts_of(result)]


def is_measured(result: Result) -> bool:
    """Whether all values and labels are those that one measurement signed, or one part of a joined result."""
    texts = texts_of(result)
    if len(texts) != 1:
        return False
    stored, present = _read(texts[0]), digests(result)
    part = own_facts(result, stored)
    # Labels of the part, which it did not have before it was joined.
    added = {*map(label_of, joints(stored)), *stored.get(SIGNED, {})} - {
        *part.get(SIGNED, {})
    }
    own = {name: digest for name, digest in present.items() if name not in added}
    return _signs(stored, present) or (part is not stored and _signs(part, own))


def _signs(stored: Mapping[str, Any], present: Mapping[str, str]) -> bool:
    signed = stored.get(SIGNED)
    return isinstance(signed, dict) and all(
        signed.get(name) == digest for name, digest in present.items()
    )


def joined_along(result: Result) -> list[str]:
    """The dimensions along which a result was joined from several, the outer first."""
    return list(
        dict.fromkeys(dim for text in texts_of(result) for dim in joints(_read(text)))
    )


def stored_facts(result: Result) -> dict[str, Any]:
    """The provenance as it is stored in a result, of which there must be one."""
    texts = texts_of(result)
    if not texts and is_ours(result):  # of several calls
        return {}
    if len(texts) != 1:
        raise InputError(
            f"These values have {len(texts) or 'no'} provenances.",
            "Give a result of one call of squashlens, or what xarray makes of one.",
        )
    return _read(texts[0])


def own_facts(result: Result, stored: dict[str, Any]) -> dict[str, Any]:
    """What a result stores; for one part that was selected from a joined result, what that part stored."""
    return part_facts(stored, labels_of(result), [*map(str, result.dims)])


def measured_sizes(result: Result) -> dict[str, dict[str, int]]:
    """The sizes of each variable by dimension, before anything was selected, as far as they are recorded."""
    each = [own_facts(result, _read(text)) for text in texts_of(result)]
    return {
        name: sizes for facts in each for name, sizes in facts.get("sizes", {}).items()
    }


def _read(text: object) -> dict[str, Any]:
    try:
        facts: Any = json.loads(text) if isinstance(text, str) else None
        joints(facts)  # reads all parts of a joined result
        return facts | {}
    except DAMAGED:
        raise InputError(
            f"The attribute provenance={short_repr(text)} is not a provenance, which is text of a JSON object.",
            "Drop this attribute, or give a result of squashlens.",
        ) from None


def labels_of(result: Result) -> Callable[[str], list[Any] | None]:
    return lambda dim: (
        np.ravel(result[dim].values).tolist() if dim in result.coords else None
    )


def selected(result: R, places: Mapping[str, int]) -> R:
    """A part of a result, which is signed if the whole is: for a figure that shows one part after another."""
    part = result.isel(dict(places))
    return sealed(part, stored_facts(result)) if is_measured(result) else part


@validated
def save(result: Result, path: str | Path) -> Path:
    """Write a result to a file.

    The file is written completely or not at all: if the disk is full, an older file remains unchanged. netCDF and JSON
    files contain a SHA-256 of the whole file, which `open` compares. xarray reads netCDF files too. Where an array of
    text has none, as after `reindex` and `xr.align`, its text in the file is empty, as for the padding of prompts.

    Args:
        result: a DataArray or Dataset.
        path: the file to write; its ending, ``.nc`` or ``.json``, chooses the format.

    Returns:
        The path.

    Raises:
        InputError: if the ending is unknown, the folder does not exist, or the result contains values that the format
            would not give back unchanged (dates, complex numbers, objects).
        OutputError: if the file is read-only or the disk is full.

    >>> import squashlens as sl
    >>> bound = sl.path_bound(sl.load("tiny-gemma"), "110 =")
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = sl.results.save(bound, f"{folder}/bound.nc")
    ...     sl.results.open(path).identical(bound)
    True
    """
    path = require_output(path, ENDINGS, "path")
    return write(path, as_bytes(result, path.suffix))


@validated
def open(path: str | Path) -> Result:
    """Read a result that `save` wrote.

    The SHA-256 of a whole file of `save` is compared before anything in it is read. It shows damage and changes; it is
    no proof against forgery, so open only files of people whom you trust. Open files of xarray's `to_netcdf` with
    xarray: `provenance` says whether their values are measured, by the digests in it.

    Args:
        path: the file to read.

    Returns:
        The DataArray or Dataset that was saved.

    Raises:
        InputError: if the file was changed or damaged since it was saved, or has no result of squashlens.
    """
    path = Path(path)
    try:
        if not path.is_file():  # a pipe would wait for its writer
            raise InputError(
                f"There is no file {str(path)!r}.",
                "Give the name of a file that `save` wrote.",
            )
        return result_of(parsed(path.read_bytes(), path))
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
