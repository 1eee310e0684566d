"""The files of results: netCDF and JSON with a SHA-256 of the whole file.

The SHA-256 is compared before anything else reads a file, so that damage raises an error and nothing parses it. In
netCDF it stands after the end of the HDF5 data, which HDF5 ignores; in JSON it is the first entry. It is no signature:
anyone can compute it again, so files are for people who trust each other.

Every format is made in memory and then written at once, because the HDF5 library crashes the interpreter if it cannot
extend a file on a full disk.

Digests of values and labels, by which measured values are told from derived ones, are computed from the content:
dimensions, attributes, and the bits of every value (all NaNs count as equal). So they are the same in memory, in netCDF
and in JSON.
"""

import hashlib
import io
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import xxhash

from squashlens.errors import InputError

PROVENANCE = "provenance"
SOURCE, OURS = (
    "source",
    "squashlens",
)  # an attribute of every result, which arithmetic between two results keeps
SIGNED = "signed"  # the entry of a provenance with the digests of what was measured
HEADS = (
    "model",
    "prompt",
    "sequence",
    "task",
)  # attributes that repeat a provenance in short
OF_ALL = (
    *HEADS,
    SOURCE,
    PROVENANCE,
)  # attributes that say where a result comes from, which none of them signs
Result = xr.DataArray | xr.Dataset


def digests(result: Result) -> dict[str, str]:
    """The digest of each variable by name, with its own attributes, and of each coordinate by `label_of` its name."""
    whole = isinstance(
        result, xr.Dataset
    )  # variables themselves: xarray makes an array for each it is asked for
    own: Mapping[Any, Any] = (
        result.data_vars.variables if whole else {result.name or "": result.variable}
    )
    stated = {
        name: {k: v for k, v in values.attrs.items() if k not in OF_ALL}
        for name, values in own.items()
    }
    signed = {str(name): _digest(values, stated[name]) for name, values in own.items()}
    return signed | {
        label_of(name): _digest(values, {})
        for name, values in result.coords.variables.items()
    }


def label_of(name: object) -> str:
    """The name under which a coordinate is signed, since an array may be called like one of its coordinates."""
    return f"labels {name}"


def contents(dataset: xr.Dataset) -> dict[str, str]:
    """What a file must give back: the digests, the names of variables and coordinates, and the attributes."""
    names = [sorted(map(repr, group)) for group in (dataset.data_vars, dataset.coords)]
    attrs = sorted(
        [repr(name), _as_text(value)] for name, value in dataset.attrs.items()
    )
    return digests(dataset) | {"names": repr(names), "attributes": repr(attrs)}


def texts_of(result: Result) -> list[Any]:
    """The distinct provenances of a result's variables, as they are stored."""
    whole = result.attrs.get(PROVENANCE)
    members = [*result.data_vars.values()] if isinstance(result, xr.Dataset) else []
    texts = [member.attrs.get(PROVENANCE, whole) for member in members] or [whole]
    return [text for text in dict.fromkeys(texts) if text is not None]


def is_ours(result: Result) -> bool:
    """Whether values come from results of squashlens, also where these were of different calls."""
    members = [*result.data_vars.values()] if isinstance(result, xr.Dataset) else []
    return any(part.attrs.get(SOURCE) == OURS for part in (result, *members))


def _digest(variable: xr.Variable, attrs: Mapping[Any, Any]) -> str:
    dtype, content = _values(variable.values)
    stated = sorted([str(name), _as_text(value)] for name, value in attrs.items())
    head = json.dumps(
        [list(map(str, variable.dims)), list(variable.shape), dtype, stated]
    )
    whole = xxhash.xxh3_64(f"{head}\n".encode())
    whole.update(content)
    return whole.hexdigest()


def _values(values: np.ndarray) -> tuple[str, bytes | memoryview]:
    """The type of an array and its content; every NumPy type of text counts as text."""
    if values.dtype.kind in "OUT":
        each = values.ravel().tolist()
        if all(isinstance(value, str) for value in each):
            return "text", json.dumps(each).encode()
        return "objects", repr(
            [(type(value).__name__, value) for value in each]
        ).encode()
    values = np.ascontiguousarray(
        values.astype(values.dtype.newbyteorder("<"), copy=False)
    )
    if (
        values.dtype.kind == "f" and values.size and np.isnan(values.min())
    ):  # the bits of a NaN differ between processors and formats
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values).astype(
            values.dtype
        )
    return values.dtype.str, values.reshape(-1).view(np.uint8).data


def _as_text(value: Any) -> str:
    """An attribute as text, with NumPy numbers as Python numbers, and arrays and tuples as lists."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return (
        repr([_as_text(each) for each in value])
        if isinstance(value, list | tuple)
        else repr(value)
    )


ENDINGS = (".nc", ".json")
KIND = "squashlens_kind"  # attribute of a file: "Dataset", or "DataArray" and the name of the array, if it has one
AFTER = re.compile(rb"\nsquashlens sha256 ([0-9a-f]{64})\n$")  # netCDF
BEFORE = re.compile(rb'^\{"squashlens_sha256": "([0-9a-f]{64})", ')  # JSON
TAIL = 84  # the bytes that this takes
PLACE = "place without dimension"  # stands for the dimension of a single number


def as_bytes(result: Result, ending: str) -> bytes:
    """The bytes of a result's file; raises an error if reading them would not give the same result."""
    content = b""
    try:
        dataset = _as_dataset(result, once=ending == ".json")
        content = _netcdf(dataset) if ending == ".nc" else _json(dataset)
        before, after = contents(dataset), contents(parsed(content, "result"))
        changed = [
            name for name in {**before, **after} if before.get(name) != after.get(name)
        ]
    except (
        Exception
    ) as error:  # a result that the user changed; h5netcdf has errors of its own
        changed = [str(error) or type(error).__name__]
    if changed:
        raise InputError(
            f"This result cannot be saved as {ending}, which would not give back the same: {changed[0]}",
            "Use only numbers and text in its variables, and only text in its attributes.",
        )
    return content


def parsed(content: bytes, name: object) -> xr.Dataset:
    """The Dataset in the bytes of a file, after a comparison of its SHA-256."""
    digest = BEFORE.match(content) or AFTER.search(content, max(0, len(content) - TAIL))
    if digest is None:
        raise InputError(
            f"{str(name)!r} was not written by `squashlens.results.save`, or a part of it is missing.",
            "Delete it and measure again, if it is one of `save`. Open the files of other programs with xarray.",
        )
    body = content[digest.end() :] if digest.re is BEFORE else content[: digest.start()]
    if hashlib.sha256(body).hexdigest().encode() != digest[1]:
        raise InputError(
            f"{str(name)!r} was changed or damaged since it was saved.",
            "Delete it and measure again.",
        )
    if digest.re is BEFORE:
        return _of_json(json.loads(content))
    with xr.open_dataset(
        io.BytesIO(body), engine="h5netcdf", decode_times=False
    ) as dataset:
        return dataset.load()


def result_of(dataset: xr.Dataset) -> Result:
    """The DataArray or Dataset that is stored as this Dataset."""
    attrs = {name: value for name, value in dataset.attrs.items() if name != KIND}
    text, kind = attrs.get(PROVENANCE), dataset.attrs.get(KIND)
    result = dataset.copy(deep=False)
    result.attrs = attrs
    for values in result.data_vars.values() if text is not None else ():
        values.attrs.setdefault(PROVENANCE, text)
    if kind == "Dataset":
        return result
    (array,) = result.data_vars.values()
    return array.rename(
        None if kind == "DataArray" else str(kind).removeprefix("DataArray ")
    )


def _as_dataset(result: Result, *, once: bool) -> xr.Dataset:
    """The Dataset to write, without another file's encoding; with `once`, variables do not repeat the provenance."""
    dataset = as_dataset(result)
    kind = (
        "Dataset"
        if dataset is result
        else "DataArray"
        if result.name is None
        else f"DataArray {result.name}"
    )
    text = result.attrs.get(PROVENANCE)
    about = {KIND: kind} if text is None else {KIND: kind, PROVENANCE: text}
    written = dataset.drop_encoding().assign_attrs(about)
    for name, values in written.variables.items():
        if values.dtype == object and any(
            isinstance(value, str) for value in values.values.flat
        ):
            # Places without a text, as `reindex` and `align` leave them.
            written[name] = values.copy(
                data=np.where(pd.isna(values.values), "", values.values)
            )
    for values in written.data_vars.values():
        if once and text is not None and values.attrs.get(PROVENANCE) == text:
            del values.attrs[PROVENANCE]
    return written


def _netcdf(dataset: xr.Dataset) -> bytes:
    content = bytes(dataset.to_netcdf(engine="h5netcdf"))
    return (
        content
        + f"\nsquashlens sha256 {hashlib.sha256(content).hexdigest()}\n".encode()
    )


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
    body = json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8")[1:]
    return (
        f'{{"squashlens_sha256": "{hashlib.sha256(body).hexdigest()}", '.encode() + body
    )


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, float) and not np.isfinite(value) else value


def _of_json(content: dict[str, Any]) -> xr.Dataset:
    def variables(part: str) -> dict[str, Any]:
        return {
            name: (
                stored["dims"],
                np.array(stored["data"], stored["dtype"]).reshape(stored["shape"]),
                stored["attrs"],
            )
            for name, stored in content[part].items()
        }

    return xr.Dataset(
        variables("variables"), coords=variables("coords"), attrs=content["attrs"]
    )


def rows_of(values: xr.DataArray, taken: Collection[str]) -> pd.DataFrame:
    """One row for each entry: its coordinates, then its `value`. A coordinate with a `taken` name gets an underscore.

    Whole numbers and truth values among the coordinates keep their kind where they are put below rows without them.
    """
    renamed = {
        name: f"{name}_" for name in (*values.dims, *values.coords) if name in taken
    }
    array = values.rename(renamed).rename("value")
    if not array.ndim:
        array = array.expand_dims(PLACE)
    frame = array.to_dataframe().reset_index().drop(columns=PLACE, errors="ignore")
    kinds = {"b": "boolean", "i": "Int64", "u": "UInt64"}
    for name in frame.columns.drop("value"):
        kind = frame[name].dtype.kind
        if kind in kinds:
            frame[name] = frame[name].astype(kinds[kind])
    return frame.reindex(columns=[*frame.columns.drop("value"), "value"])


def long_table(result: Result) -> pd.DataFrame:
    """One row for each number or text of a result: the name of its variable, its labels, and its `value`."""
    variables = as_dataset(result).data_vars
    frames = [
        rows_of(values, ("variable", "value")).assign(variable=str(name))
        for name, values in variables.items()
    ]
    return pd.concat(frames, ignore_index=True)


def as_dataset(result: xr.DataArray | xr.Dataset) -> xr.Dataset:
    """A result as a Dataset; an array without a name, or called like one of its coordinates, becomes `value`."""
    if isinstance(result, xr.Dataset):
        return result
    return result.to_dataset(
        name="value"
        if result.name is None or result.name in result.coords
        else result.name
    )
