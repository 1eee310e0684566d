"""Save results to netCDF files and open them. xarray writes and reads; a file is whole, or it is refused.

A SHA-256 of the file stands after the end of its HDF5 data, which HDF5 ignores, and is compared before anything else
reads the file: HDF5 has read damaged numbers without an error. It shows damage, and is no proof against forgery.
"""

import hashlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.records.provenance import Result
from squashlens.saving.files import require_output, write

FORMAT = "squashlens_format"  # attribute of a file: what `open` gives, and the version of the format
DATASET = "Dataset, version 2"
ARRAY = "DataArray, version 2"
NAMELESS = "nameless"
DIGEST = re.compile(rb"\nsquashlens sha256 ([0-9a-f]{64})\n$")
DIGEST_BYTES = 84  # length of what `DIGEST` matches


@validated
def save(result: Result, path: str | Path) -> Path:
    """Write a result to a netCDF file, which xarray and other programs read too.

    The file is written completely or not at all: if the disk is full, an older file remains unchanged. Where an array
    of text has none, as after `reindex` and `xr.align`, its text in the file is empty, as for the padding of prompts.

    Args:
        result: a DataArray or Dataset.
        path: the file to write, which ends in ``.nc``.

    Returns:
        The path.

    Raises:
        InputError: if the ending is another, the folder does not exist, or the result contains values that netCDF
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
    path = require_output(path, [".nc"], "path")
    return write(path, content_of(result))


@validated
def open(path: str | Path) -> Result:
    """Read a result that `save` wrote.

    Args:
        path: the file to read.

    Returns:
        The DataArray or Dataset that was saved.

    Raises:
        InputError: if the file was changed or damaged since it was saved, or is not of `save`. ``xr.open_dataset``
            reads netCDF files of other programs.
    """
    path = Path(path)
    # A pipe would wait for its writer.
    if not path.is_file():
        raise InputError(
            f"There is no file {str(path)!r}.",
            "Give the name of a file that `save` wrote.",
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    return result_of(content, path)


def content_of(result: Result) -> bytes:
    """The bytes of a result's file, which is made in memory: HDF5 crashes if it cannot extend a file on a full disk."""
    try:
        dataset = _storable(result)
        content = _trimmed(bytes(dataset.to_netcdf(engine="netcdf4")))
        is_unchanged = _parsed(content).identical(dataset)
    except Exception as error:  # of a result that the user changed, by each library
        raise _not_storable(str(error) or type(error).__name__) from error
    if not is_unchanged:
        raise _not_storable("values or attributes would be read back as others.")
    digest = hashlib.sha256(content).hexdigest()
    return content + f"\nsquashlens sha256 {digest}\n".encode()


def result_of(content: bytes, path: Path) -> Result:
    """The result in the bytes of a file; an error, with the file's name, unless its digest is right."""
    digest = DIGEST.search(content, max(0, len(content) - DIGEST_BYTES))
    if digest is None:
        raise InputError(
            f"{str(path)!r} was not written by `squashlens.results.save`, or a part of it is missing.",
            "Delete it and measure again, if it is one of `save`; xr.open_dataset reads other netCDF files.",
        )
    body = content[: digest.start()]
    if hashlib.sha256(body).hexdigest().encode() != digest[1]:
        raise InputError(
            f"{str(path)!r} was changed or damaged since it was saved.",
            "Delete it and measure again.",
        )
    dataset = _parsed(body)
    if dataset.attrs.pop(FORMAT) == DATASET:
        return dataset
    (array,) = dataset.data_vars.values()
    if array.name == NAMELESS:
        return array.rename(None)
    return array


def _parsed(content: bytes) -> xr.Dataset:
    with xr.open_dataset(content, engine="netcdf4", decode_times=False) as dataset:
        return dataset.load()


def _trimmed(content: bytes) -> bytes:
    """An HDF5 file without the zeros after its end, up to 64 KiB; its end is a number in its header."""
    place = 28 if content[8] >= 2 else 40  # by byte 8, the version of the header
    end = int.from_bytes(content[place : place + 8], "little")
    return content[:end]


def _storable(result: Result) -> xr.Dataset:
    """The Dataset to write: without the encoding of another file, and with empty texts where there are none."""
    if isinstance(result, xr.DataArray):
        dataset = result.to_dataset(name=result.name or NAMELESS)
        dataset.attrs = {FORMAT: ARRAY}
    else:
        dataset = result.assign_attrs({FORMAT: DATASET})
    dataset = dataset.drop_encoding()
    for name, variable in dataset.variables.items():
        if _is_text(variable.values):
            texts = np.where(pd.isna(variable.values), "", variable.values)
            dataset[name] = variable.copy(data=texts)
    return dataset


def _is_text(values: np.ndarray) -> bool:
    """Whether an array of objects has texts, and at most missing values beside them."""
    if values.dtype != object:
        return False
    return pd.api.types.infer_dtype(values.ravel(), skipna=True) == "string"


def _not_storable(cause: str) -> InputError:
    return InputError(
        f"This result cannot be saved as netCDF, which would not give back the same: {cause}",
        "Use only numbers and text in its variables, and only text in its attributes.",
    )
