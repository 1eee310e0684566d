"""The files of a study: one for each cell that is done or has failed, named by its key.

    results/ab/ab12….nc        a result as `sl.results.save` writes it (the rows of a scan are .parquet)
    failures/cd/cd34….json     why a cell could not be computed

A file is written under a temporary name, flushed to the disk and renamed, so that it is whole, or is not there. So a
cell is done if it has a file.
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import xarray as xr

from squashlens.errors import InputError
from squashlens.records.files import result_of
from squashlens.records.provenance import Result
from squashlens.records.tables import as_dataset
from squashlens.saving.files import refusing, require_folder, write

ENDINGS = (".nc", ".parquet")
STALE = 3600  # seconds after which a temporary file is of a process that was killed


def extra(package: str, what: str, name: str = "study") -> Any:
    """A package of the extra `name`, or an error that says what needs it and how to install it."""
    try:
        return import_module(package)
    except ImportError:
        cause = f"{what} needs {package.partition('.')[0]}, which is not installed."
        raise InputError(
            cause, f'Install it: pip install "squashlens[{name}]".'
        ) from None


class Store:
    """The files in one folder, of this machine or of a network file system."""

    def __init__(self, folder: str | Path) -> None:
        if "://" in str(folder):
            cause = f"store={str(folder)!r} is a URL."
            raise InputError(cause, "Give a folder that all workers see.")
        self.root = Path(folder).expanduser().absolute()
        if (self.root / "cells").exists() or (self.root / "claims").exists():
            raise InputError(
                f"{str(self.root)!r} was written by an earlier version of squashlens, and nothing in it was changed.",
                "Give another folder as store=; the old one can be read with the version that wrote it.",
            )

    def prepare(self) -> None:
        """Make the folder, check that it can be written, and remove what killed processes left half written."""
        require_folder(self.root)
        for partial in self.root.glob("*/*/.squashlens-*.partial"):
            with suppress(OSError):  # another run may remove it, too
                if time.time() - partial.stat().st_mtime > STALE:
                    partial.unlink()

    def require_seen(self) -> None:
        """Raise an error on a machine where the folder is not."""
        if not self.root.is_dir():
            cause = f"A worker does not see the folder {str(self.root)!r}."
            raise InputError(cause, "Give a store= that all machines share.")

    def keys(self, kind: str) -> set[str]:
        """The keys of all cells with ``"results"`` or ``"failures"``, by the names of the files."""
        files = [file for _, _, names in os.walk(self.root / kind) for file in names]
        return {file.partition(".")[0] for file in files if file[0] != "."}

    def find(self, key: str) -> Path | None:
        """The file of a cell that is done."""
        paths = [self._path("results", key, ending) for ending in ENDINGS]
        return next((path for path in paths if path.exists()), None)

    def closed(self, key: str) -> bool | None:
        """Whether a cell is done (True) or has failed (False); None if it has no file."""
        if self.find(key) is not None:
            return True
        return False if self._path("failures", key, ".json").exists() else None

    def keep(self, key: str, ending: str, content: bytes) -> None:
        """Store the result of a cell, whole or not at all."""
        self._write(self._path("results", key, ending), content)
        failure = self._path("failures", key, ".json")
        with refusing(failure):
            failure.unlink(missing_ok=True)

    def fail(self, key: str, about: Mapping[str, Any]) -> None:
        """Store why a cell could not be computed."""
        text = json.dumps({"key": key, **about}, ensure_ascii=False, default=str)
        content = text.encode("utf-8", "backslashreplace")
        self._write(self._path("failures", key, ".json"), content)

    def failure(self, key: str) -> str:
        """Why a cell failed."""
        path = self._path("failures", key, ".json")
        try:
            return str(json.loads(path.read_bytes())["reason"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"The record cannot be read: {error!r}. run(retry=True) computes the cell again."

    def dataset(self, key: str) -> xr.Dataset:
        """The result of a cell that is done as a Dataset."""
        return as_dataset(self.result(key))

    def result(self, key: str) -> Result:
        """The result of a cell."""
        path = self.find(key)
        if path is None or path.suffix == ".parquet":
            raise InputError(f"The store has no result {key!r}.", "See `status()`.")
        return result_of(path.read_bytes(), path)

    def _path(self, kind: str, key: str, ending: str) -> Path:
        return self.root / kind / key[:2] / f"{key}{ending}"

    def _write(self, path: Path, content: bytes) -> None:
        with refusing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)
