"""The files of a study: one for each cell that is done, and one for each that has failed, named by its key.

    results/ab12….nc        a result, which `squashlens.results.open` reads too
    results/ab12….parquet   the rows of a shard of a scan
    failures/cd34….json     why a cell could not be computed, or some rows of a shard

A file is written under a temporary name, flushed to the disk and renamed, so that it is whole, or is not there. So a
cell is done if it has a file in `results`.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import xarray as xr

from squashlens.errors import InputError
from squashlens.records.files import open as open_result
from squashlens.saving.files import refusing, require_folder, write

ENDINGS = (".nc", ".parquet")  # of results
STALE = 3600  # seconds after which a temporary file is of a process that was killed


def extra(package: str, what: str, name: str = "study") -> Any:
    """A package of the extra `name`, imported; or an error that says that `what` needs it, and how to install it."""
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
        path = self.path("results", key, ".nc")
        if not path.exists():
            raise InputError(f"The store has no result {key!r}.", "See `status()`.")
        return open_result(path)
