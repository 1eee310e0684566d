"""The files of a study: one for each cell, named by what its numbers depend on.

The first line of a cell is a header in JSON: what was computed, the format of what follows, and a SHA-256 of both. The
rest is the result as `results.save` writes it. A cell is done if its file is there and its digest is right. Failed
cells have a file of their own with the reason.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from squashlens.errors import InputError
from squashlens.saving.stored import Result, as_bytes, parsed, result_of
from squashlens.study.places import place_of

FORM = 1  # version of the format
LARGE = 1 << 20  # bytes of a result from which it is stored as netCDF, which is slower to write and smaller


@dataclass(frozen=True)
class Stored:
    """A cell as it was read from the store."""

    header: dict[str, Any]
    content: bytes

    def dataset(self) -> xr.Dataset:
        """The result, as the Dataset that is stored."""
        return parsed(self.content, self.header["ending"], self.header["key"])


class Store:
    """The cells, failures and shards in one place."""

    def __init__(self, url: str | Path) -> None:
        self.place = place_of(url)

    def keep(self, key: str, about: Mapping[str, Any], result: Result) -> None:
        """Store the result of a cell, whole or not at all."""
        ending = ".nc" if result.nbytes > LARGE else ".json"
        self._keep(key, {**about, "ending": ending}, as_bytes(result, ending))

    def keep_shard(self, key: str, about: Mapping[str, Any], grid: str, content: bytes) -> None:
        """Store the Parquet file of a cell of a scan."""
        name = f"shards/{''.join(c if c.isalnum() or c in '_-' else '_' for c in grid)}/{key}.parquet"
        self.place.write(name, content)
        self._keep(key, {**about, "shard": name, "shard_digest": hashlib.sha256(content).hexdigest()}, b"")

    def measure_again(self, key: str) -> None:
        """Let the failed rows of a shard be measured again: its cell is no longer done, and its file remains."""
        found = self._cell(key)
        if found is not None:
            self._keep(key, {**found.header, "again": True}, b"")

    def _keep(self, key: str, about: Mapping[str, Any], content: bytes) -> None:
        header = {**about, "squashlens_cell": FORM, "key": key}
        header["digest"] = _digest(header, content)
        self.place.write(name_of(key), _line(header) + b"\n" + content)
        self.place.remove(failure_of(key))

    def read(self, key: str) -> Stored | None:
        """A cell; None if it is not done, or if its file was changed or damaged."""
        found = self._cell(key)
        if found is None or found.header.get("again") or ("shard" in found.header and self.shard(key) is None):
            return None
        return found

    def shard(self, key: str) -> bytes | None:
        """The Parquet file of a cell of a scan, also if its failed rows are to be measured again."""
        found = self._cell(key)
        content = None if found is None or "shard" not in found.header else self.place.read(found.header["shard"])
        whole = content and found and hashlib.sha256(content).hexdigest() == found.header["shard_digest"]
        return content if whole else None

    def _cell(self, key: str) -> Stored | None:
        line, _, rest = (self.place.read(name_of(key)) or b"").partition(b"\n")
        try:
            header = json.loads(line)
            given = header.pop("digest")
        except (ValueError, KeyError, AttributeError, TypeError):
            return None
        right = header.get("squashlens_cell") == FORM and header.get("key") == key and given == _digest(header, rest)
        return Stored(header, rest) if right else None

    def result(self, key: str) -> Result:
        """The result of a cell."""
        found = self.read(key)
        if found is None or "ending" not in found.header:
            raise InputError(f"The store has no result {key!r}.", "See `status()` for what is done.")
        return result_of(found.dataset())

    def done(self, keys: Iterable[str]) -> set[str]:
        """Those keys whose cells are done."""
        there = {name.rpartition("/")[2].removesuffix(".cell") for name in self.place.names("cells")}
        return {key for key in keys if key in there and self.read(key) is not None}

    def closed(self, keys: Iterable[str]) -> set[str]:
        """Those keys whose cells are done or have failed."""
        return self.done(keys := {*keys}) | (keys & self.failures().keys())

    def named(self, keys: Iterable[str]) -> set[str]:
        """As `closed`, without opening the files: for progress."""
        there = (*self.place.names("cells"), *self.place.names("failures"))
        return {name.rpartition("/")[2].partition(".")[0] for name in there} & {*keys}

    def fail(self, key: str, about: Mapping[str, Any]) -> None:
        """Store why a cell could not be computed."""
        self.place.write(failure_of(key), json.dumps({"key": key, **about}, ensure_ascii=False).encode())

    def failures(self) -> dict[str, dict[str, Any]]:
        """What is known of failed cells, by key."""
        keys = [name.rpartition("/")[2].removesuffix(".json") for name in self.place.names("failures")]
        return {key: record for key in keys if (record := self.failure(key)) is not None}

    def failure(self, key: str) -> dict[str, Any] | None:
        """Why a cell failed; None if it did not, or if the record is damaged: the cell is then computed again."""
        try:
            record = json.loads(self.place.read(failure_of(key)) or b"null")
        except ValueError:
            return None
        return record if isinstance(record, dict) and record.get("key") == key else None

    def forget(self, key: str) -> None:
        """Remove the record of a failure, so that the cell is computed again."""
        self.place.remove(failure_of(key))

    def journal(self, key: str) -> Path | None:
        """Where a long measurement keeps what it has found so far; None on an object store."""
        return self.place.local(f"journals/{key}.sqlite")

    def end_journal(self, key: str) -> None:
        """Remove the journal of a cell that is done or has failed."""
        self.place.remove(f"journals/{key}.sqlite")


def name_of(key: str) -> str:
    return f"cells/{key[:2]}/{key}.cell"


def failure_of(key: str) -> str:
    return f"failures/{key}.json"


def _line(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, ensure_ascii=False, sort_keys=True).encode()


def _digest(header: Mapping[str, Any], content: bytes) -> str:
    return hashlib.sha256(_line(header) + content).hexdigest()
