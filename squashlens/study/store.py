"""The files of a study: one for each cell that is done, and one for each that has failed, named by its key.

    results/ab12….npz       a result: the arrays of its variables, and what else xarray knows of it as JSON
    results/ab12….parquet   the rows of a shard of a scan
    failures/cd34….json     why a cell could not be computed, or some rows of a shard

A file is written under a temporary name, flushed to the disk and renamed, so that it is whole, or is not there. So a
cell is done if it has a file in `results`. (netCDF takes twenty times as long to write and to read as these.)
"""

import io
import json
import os
import time
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from squashlens.errors import InputError
from squashlens.saving.files import refusing, require_folder, write

ENDINGS = (".npz", ".parquet")  # of results
STALE = 3600  # seconds after which a temporary file is of a process that was killed


def extra(package: str, what: str, name: str = "study") -> Any:
    """A package of the extra `name`, or an error that says what needs it and how to install it."""
    try:
        return import_module(package)
    except ImportError:
        cause = f"{what} needs {package.partition('.')[0]}, which is not installed."
        remedy = f'Install it: pip install "squashlens[{name}]".'
        raise InputError(cause, remedy) from None


class Store:
    """The files in one folder, of this machine or of a network file system."""

    def __init__(self, folder: str | Path) -> None:
        if "://" in str(folder):
            cause = f"store={str(folder)!r} is a URL."
            raise InputError(cause, "Give a folder that all workers see.")
        self.root = Path(folder).expanduser().absolute()

    def prepare(self) -> None:
        """Make the folders, check that they can be written, and remove what killed processes left half written."""
        for kind in ("results", "failures"):
            require_folder(self.root / kind)
            for partial in self.root.glob(f"{kind}/.squashlens-*.partial"):
                with suppress(OSError):  # another run may remove it, too
                    if time.time() - partial.stat().st_mtime > STALE:
                        partial.unlink()

    def keys(self, kind: str) -> set[str]:
        """The keys of all cells with ``"results"`` or ``"failures"``, by the names of the files."""
        folder = self.root / kind
        names = os.listdir(folder) if folder.is_dir() else []
        return {name.partition(".")[0] for name in names}

    def path(self, kind: str, key: str, ending: str) -> Path:
        """The file of a cell."""
        return self.root / kind / f"{key}{ending}"

    def find(self, key: str) -> Path | None:
        """The file of a cell that is done."""
        for ending in ENDINGS:
            file = self.path("results", key, ending)
            if file.exists():
                return file
        return None

    def fail(self, key: str, about: Mapping[str, Any]) -> None:
        """Store why a cell, or some rows of it, could not be computed."""
        text = json.dumps({"key": key, **about}, ensure_ascii=False, default=str)
        content = text.encode("utf-8", "backslashreplace")
        write(self.path("failures", key, ".json"), content)

    def failure(self, key: str) -> dict[str, Any]:
        """What `fail` stored."""
        return json.loads(self.path("failures", key, ".json").read_bytes())

    def forget(self, keys: Iterable[str]) -> None:
        """Remove the failures of cells, and the shards in which they are."""
        for key in keys:
            shard = self.path("results", key, ".parquet")
            failure = self.path("failures", key, ".json")
            with refusing(failure):
                shard.unlink(missing_ok=True)
                failure.unlink(missing_ok=True)

    def result(self, key: str) -> xr.DataArray | xr.Dataset:
        """The result of a cell that is done."""
        path = self.path("results", key, ".npz")
        if not path.exists():
            raise InputError(f"The store has no result {key!r}.", "See `status()`.")
        try:
            return parsed(path.read_bytes())
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            cause = f"{str(path)!r} was changed or damaged since it was saved."
            raise InputError(cause, "Delete it, and run again.") from error


def content_of(result: xr.DataArray | xr.Dataset) -> bytes:
    """The bytes of a result's file; raises an error if reading them would not give the same values and labels."""
    arrays = []

    def apart(values: Any) -> int:
        """Put an array aside, text as NumPy keeps it without pickles; in JSON stands its number."""
        if isinstance(values, np.ndarray) and values.dtype.kind in "OT":
            values = values.astype(str)
        arrays.append(values)
        return len(arrays) - 1

    about = json.dumps(result.to_dict(data="array"), default=apart)
    file = io.BytesIO()
    np.savez(file, about.encode(), *arrays)
    if not parsed(file.getvalue()).equals(result):
        raise InputError("A result holds objects.", "Use only numbers and text in it.")
    return file.getvalue()


def parsed(content: bytes) -> Any:
    """The result in the bytes of a file, in which zip has a checksum of each array."""
    with np.load(io.BytesIO(content)) as stored:
        about, *arrays = stored.values()

    def together(part: dict[str, Any]) -> dict[str, Any]:
        if "data" in part and "dims" in part:  # a variable
            part["data"] = arrays[part["data"]]
        return part

    described = json.loads(about.item(), object_hook=together)
    kind = xr.Dataset if "data_vars" in described else xr.DataArray
    return kind.from_dict(described)
