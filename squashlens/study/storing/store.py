"""The files of a study: one for each cell, named by what its numbers depend on.

The first line of a cell is a header in JSON: what was computed, the format of what follows, and a SHA-256 of both. The
rest is the result as `results.save` writes it. A cell is done if its file is there and its digest is right. Failed
cells have a file of their own with the reason.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squashlens.errors import InputError
from squashlens.remarks import remark
from squashlens.saving.digests import Result
from squashlens.saving.stored import as_bytes, parsed, result_of
from squashlens.study.storing.places import place_of

FORM = 1  # version of the format
LARGE = 1 << 20  # bytes of a result from which it is stored as netCDF, which is slower to write and smaller


@dataclass(frozen=True)
class Stored:
    """A cell as it was read from the store."""

    header: dict[str, Any]
    content: bytes


class Store:
    """The cells, failures, shards and times in one place."""

    def __init__(self, url: object) -> None:
        self.place = place_of(url)

    def keep(self, key: str, about: Mapping[str, Any], result: Result) -> None:
        """Store the result of a cell, whole or not at all."""
        ending = ".nc" if result.nbytes > LARGE else ".json"
        self.keep_bytes(key, {**about, "ending": ending}, as_bytes(result, ending))

    def keep_bytes(self, key: str, about: Mapping[str, Any], content: bytes) -> None:
        header = {"squashlens_cell": FORM, "key": key, **about}
        header["digest"] = _digest(header, content)
        self.place.write(name_of(key), _line(header) + b"\n" + content)
        self.place.remove(failure_of(key))
        if "shard" in header:
            self.place.remove(earlier_of(key))

    def fail(self, key: str, about: Mapping[str, Any]) -> None:
        """Store why a cell could not be computed."""
        self.place.write(failure_of(key), json.dumps({"key": key, **about}, ensure_ascii=False).encode())

    def read(self, key: str) -> Stored | None:
        """A cell; None if it is not there, or if its file was changed or damaged."""
        found = self._header(key, name_of(key))
        if found is None or "shard" not in found.header:
            return found
        return None if self._shard(found) is None else found

    def shard(self, key: str, *, earlier: bool = False) -> bytes | None:
        """The Parquet file of a cell of a scan, or of one whose failed rows are to be measured again."""
        found = self._header(key, earlier_of(key) if earlier else name_of(key))
        return None if found is None or "shard" not in found.header else self._shard(found)

    def measure_again(self, key: str) -> None:
        """Let the failed rows of a shard be measured again: its header gets another name, so the cell is not done."""
        content = self.place.read(name_of(key))
        if content is not None:
            self.place.write(earlier_of(key), content)
            self.place.remove(name_of(key))

    def _header(self, key: str, name: str) -> Stored | None:
        content = self.place.read(name)
        return None if content is None else _checked(key, content)

    def _shard(self, found: Stored) -> bytes | None:
        content = self.place.read(found.header["shard"])
        whole = content is not None and hashlib.sha256(content).hexdigest() == found.header["shard_digest"]
        return content if whole else None

    def result(self, key: str) -> Result:
        """The result of a cell."""
        found = self.read(key)
        if found is None or "ending" not in found.header:
            raise InputError(f"The store has no result {key!r}.", "See `status()` for what is done.")
        return result_of(parsed(found.content, found.header["ending"], key))

    def done(self, keys: Iterable[str]) -> Iterator[str]:
        """Those keys whose cells are done."""
        there = self.present()
        return (key for key in keys if key in there and self.read(key) is not None)

    def count(self) -> int:
        """How many cells and failures there are, without opening them: for progress."""
        return len(self.place.names("cells")) + len(self.place.names("failures"))

    def present(self) -> set[str]:
        """The keys of all files of cells, whole or damaged."""
        return {name.rpartition("/")[2].removesuffix(".cell") for name in self.place.names("cells")}

    def warn_of_damaged(self, grid: str, keys: Iterable[str]) -> None:
        """Warn if files of these cells, which are not done, are there and damaged."""
        left = set(keys)
        if many := len(left & self.present()) if left else 0:
            which = "1 cell is" if many == 1 else f"{many} cells are"
            remark(f"{which} damaged in the store and left out of {grid!r}. `run` computes damaged cells again.")

    def failures(self) -> dict[str, dict[str, Any]]:
        """What is known of failed cells, by key."""
        records = map(self._failure, self.place.names("failures"))
        return {record["key"]: record for record in records if record is not None}

    def _failure(self, name: str) -> dict[str, Any] | None:
        """The record of a failure; None if there is none, or if it is damaged: the cell is then computed again."""
        try:
            record = json.loads(self.place.read(name) or b"null")
        except ValueError:
            return None
        return record if isinstance(record, dict) and name == failure_of(str(record.get("key"))) else None

    def journal(self, key: str) -> Path | None:
        """Where a long measurement keeps what it has found so far; None on an object store."""
        return self.place.local(journal_of(key))

    def end_journal(self, key: str) -> None:
        """Remove the journal of a cell that is done or has failed."""
        self.place.remove(journal_of(key))

    def failed(self, key: str) -> bool:
        """Whether a cell is recorded as failed."""
        return self._failure(failure_of(key)) is not None

    def forget(self, key: str) -> None:
        """Remove the record of a failure, so that the cell is computed again."""
        self.place.remove(failure_of(key))

    def add_times(self, worker: str, times: Mapping[str, tuple[int, float, int]]) -> None:
        """Store how many cells a worker has computed of each measurement and model, their seconds and memory."""
        self.place.write(f"times/{worker}.json", json.dumps(times).encode())

    def times(self) -> tuple[dict[str, tuple[int, float]], dict[str, int]]:
        """Cells and seconds over all workers, and the largest memory of one, by measurement and model."""
        found: dict[str, tuple[int, float]] = {}
        peaks: dict[str, int] = {}
        for name in self.place.names("times"):
            try:
                each = json.loads(self.place.read(name) or b"{}")
                for what, (cells, seconds, peak) in each.items():
                    before = found.get(what, (0, 0.0))
                    found[what] = (before[0] + cells, before[1] + seconds)
                    peaks[what] = max(peak, peaks.get(what, 0))
            except (ValueError, TypeError, AttributeError):  # times are estimates: a damaged file is left out
                continue
        return found, peaks


def name_of(key: str) -> str:
    return f"cells/{key[:2]}/{key}.cell"


def earlier_of(key: str) -> str:
    return f"earlier/{key}.cell"


def journal_of(key: str) -> str:
    return f"journals/{key}.sqlite"


def folder_of(grid: str) -> str:
    """The name of a grid as the name of a folder."""
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in grid)


def failure_of(key: str) -> str:
    return f"failures/{key}.json"


def _checked(key: str, content: bytes) -> Stored | None:
    line, _, rest = content.partition(b"\n")
    try:
        header = json.loads(line)
        given = header.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    right = header.get("squashlens_cell") == FORM and header.get("key") == key and given == _digest(header, rest)
    return Stored(header, rest) if right else None


def _line(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, ensure_ascii=False, sort_keys=True).encode()


def _digest(header: Mapping[str, Any], content: bytes) -> str:
    whole = hashlib.sha256(_line(header))
    whole.update(content)
    return whole.hexdigest()
