"""The files of a study: one for each cell, named by what its numbers depend on.

The first line of a cell is a header in JSON: what was computed, the format of what follows, and a SHA-256 of both. The
rest is the result as `results.save` writes it. A cell is done if its file is there and its digest is right. Failed
cells have a file of their own with the reason.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import xarray as xr

from squashlens.errors import InputError
from squashlens.saving.files import refusing, write
from squashlens.saving.stored import Result, as_bytes, parsed, result_of
from squashlens.study.claims import claimed

FORM = 1  # version of the format
LARGE = (
    1 << 20
)  # bytes of a result from which it is stored as netCDF, which is slower to write and smaller


@dataclass(frozen=True)
class Stored:
    """A cell as it was read from the store."""

    header: dict[str, Any]
    content: bytes

    def dataset(self) -> xr.Dataset:
        """The result, as the Dataset that is stored."""
        return parsed(self.content, self.header["key"])


def extra(package: str, what: str, name: str = "study") -> Any:
    """A package of the extra `name`, or an error that says what needs it and how to install it."""
    try:
        return import_module(package)
    except ImportError:
        raise InputError(
            f"{what} needs {package.partition('.')[0]}, which is not installed.",
            f'Install it: pip install "squashlens[{name}]".',
        ) from None


class Store:
    """The cells, failures and shards in one folder, of this machine or of a network file system."""

    def __init__(self, folder: str | Path) -> None:
        if "://" in str(folder):
            raise InputError(
                f"store={str(folder)!r} is a URL.",
                "Give a folder that all workers see.",
            )
        self.root = Path(folder).expanduser().absolute()

    def claimed(self, key: str) -> AbstractContextManager[int | None]:
        """The claim of this process on a cell, see `squashlens.study.claims`."""
        return claimed(self.root / "claims" / key)

    def keep(self, key: str, about: Mapping[str, Any], result: Result) -> None:
        """Store the result of a cell, whole or not at all."""
        ending = ".nc" if result.nbytes > LARGE else ".json"
        self._keep(key, {**about, "ending": ending}, as_bytes(result, ending))

    def keep_shard(
        self, key: str, about: Mapping[str, Any], grid: str, content: bytes
    ) -> None:
        """Store the Parquet file of a cell of a scan."""
        name = f"shards/{''.join(c if c.isalnum() or c in '_-' else '_' for c in grid)}/{key}.parquet"
        self.write(name, content)
        self._keep(
            key,
            {
                **about,
                "shard": name,
                "shard_digest": hashlib.sha256(content).hexdigest(),
            },
            b"",
        )

    def _keep(self, key: str, about: Mapping[str, Any], content: bytes) -> None:
        header = {**about, "squashlens_cell": FORM, "key": key}
        header["digest"] = _digest(header, content)
        self.write(name_of(key), _line(header) + b"\n" + content)
        self._remove(failure_of(key))

    def read(self, key: str) -> Stored | None:
        """A cell, or the shard of a cell of a scan; None if it is not done, or if a file was changed or damaged."""
        line, _, content = (self._read(name_of(key)) or b"").partition(b"\n")
        try:
            header = json.loads(line)
            digest = header.pop("digest")
        except (ValueError, KeyError, AttributeError, TypeError):
            return None
        right = (FORM, key, _digest(header, content))
        if (header.get("squashlens_cell"), header.get("key"), digest) != right:
            return None
        if "shard" in header:
            content = self._read(header["shard"]) or b""
            if hashlib.sha256(content).hexdigest() != header["shard_digest"]:
                return None
        return Stored(header, content)

    def result(self, key: str) -> Result:
        """The result of a cell."""
        stored = self.read(key)
        if stored is None or "ending" not in stored.header:
            raise InputError(
                f"The store has no result {key!r}.", "See `status()` for what is done."
            )
        return result_of(stored.dataset())

    def done(self, keys: Iterable[str]) -> set[str]:
        """Those keys whose cells are done."""
        there = self._keys("cells")
        return {key for key in keys if key in there and self.read(key) is not None}

    def closed(self, keys: Iterable[str]) -> set[str]:
        """Those keys whose cells are done or have failed."""
        return self.done(keys := {*keys}) | (keys & self.failures().keys())

    def named(self, keys: Iterable[str]) -> set[str]:
        """As `closed`, without opening the files: for progress."""
        return (self._keys("cells") | self._keys("failures")) & {*keys}

    def fail(self, key: str, about: Mapping[str, Any]) -> None:
        """Store why a cell could not be computed."""
        self.write(
            failure_of(key),
            json.dumps({"key": key, **about}, ensure_ascii=False).encode(),
        )

    def failures(self) -> dict[str, dict[str, Any]]:
        """What is known of failed cells, by key."""
        return {
            key: record
            for key in self._keys("failures")
            if (record := self.failure(key)) is not None
        }

    def failure(self, key: str) -> dict[str, Any] | None:
        """Why a cell failed; None if it did not, or if the record is damaged: the cell is then computed again."""
        try:
            record = json.loads(self._read(failure_of(key)) or b"null")
        except ValueError:
            return None
        return record if isinstance(record, dict) and record.get("key") == key else None

    def forget(self, key: str) -> None:
        """Remove the result of a cell and the record of its failure, so that it is computed again."""
        self._remove(name_of(key))
        self._remove(failure_of(key))

    def journal(self, key: str) -> Path:
        """Where a long measurement keeps what it has found so far."""
        return self._beneath(f"journals/{key}.jsonl")

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        write(self._beneath(name), content)

    def _beneath(self, name: str) -> Path:
        """The path of a file to write, in a folder that exists."""
        path = self.root / name
        with refusing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _read(self, name: str) -> bytes | None:
        """The content of a file; None if it is missing."""
        try:
            return (self.root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            cause = f"{str(self.root / name)!r} cannot be read: {error.strerror}."
            raise InputError(cause, "Check the folder and its permissions.") from error

    def _keys(self, folder: str) -> set[str]:
        """The keys in the names of all files below a folder."""
        return {
            file.stem
            for file in (self.root / folder).rglob("*.*")
            if file.name[0] != "."
        }

    def _remove(self, name: str) -> None:
        with refusing(self.root / name):
            (self.root / name).unlink(missing_ok=True)


def name_of(key: str) -> str:
    return f"cells/{key[:2]}/{key}.cell"


def failure_of(key: str) -> str:
    return f"failures/{key}.json"


def _line(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, ensure_ascii=False, sort_keys=True).encode()


def _digest(header: Mapping[str, Any], content: bytes) -> str:
    return hashlib.sha256(_line(header) + content).hexdigest()
