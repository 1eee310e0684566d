"""The prompts of a scan, read row by row from a JSONL file, a Parquet file, or a Hugging Face dataset.

    {"file": "prompts.jsonl", "column": "prompt", "shard": 256}
    {"dataset": "name", "split": "train", "column": "text", "limit": 100000}

A prompt is text or a list of token ids. Rows are read in spans, of which each becomes one shard; no more than a span is
in memory. `limit` reads the first rows only.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from squashlens._typing import positive, short_repr
from squashlens.errors import InputError, SquashlensError

ENTRIES = ("file", "dataset", "config", "split", "revision", "column", "shard", "limit")
ROWS = 256  # in a shard, by default
KNOWN = 256  # lines between two of which the places in a JSONL file are remembered


@dataclass(frozen=True)
class Source:
    """Rows of a file or dataset, and a digest or commit that identifies them."""

    given: dict[str, Any]
    identity: str
    rows: int

    def spans(self) -> Iterator[tuple[int, int]]:
        """The rows of each shard, from the first to before the last."""
        size = self.given["shard"]
        yield from ((start, min(start + size, self.rows)) for start in range(0, self.rows, size))

    def prompts(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """The rows of a span by number, each with its prompt, or with the error why it has none."""
        kind, _, commit = self.identity.partition(" ")  # of a dataset on the hub, later rows may be of another commit
        given = self.given | ({"revision": commit} if kind == "commit" else {})
        for row, value in enumerate(_rows(given, start, stop), start):
            yield row, value if isinstance(value, SquashlensError) else _prompt(value, self.given["column"])

    def is_current(self) -> bool:
        """Whether the file is the one that was described; one on the hub is read at its commit."""
        return self.identity.startswith("commit ") or _look(self.given)[0] == self.identity


def source_of(given: Mapping[str, Any]) -> Source:
    """The source that a description names, after one pass over a file, or a look at a dataset."""
    if unknown := [name for name in given if name not in ENTRIES]:
        raise InputError(f"over has no entry {unknown[0]!r}.", f"Its entries are: {', '.join(ENTRIES)}.")
    if ("file" in given) is ("dataset" in given):
        raise InputError("over needs either a file or a dataset.", "Give one of them.")
    full = {"column": "prompt", "shard": ROWS, **given}
    positive(full["shard"], "over: shard", "a number of rows")
    if full.get("limit") is not None:
        positive(full["limit"], "over: limit", "a number of rows", most=2**53)
    identity, rows, columns = _look(full)
    name = short_repr(given.get("file") or given.get("dataset"))
    if not rows:
        raise InputError(f"{name} has no rows.", "Give another file.")
    if columns and full["column"] not in columns:
        raise InputError(f"{name} has no column {full['column']!r}.", f"It has: {', '.join(columns)}.")
    return Source(full, identity, min(rows, full.get("limit") or rows))


def _look(given: Mapping[str, Any]) -> tuple[str, int, list[str]]:
    """What identifies the rows of a file or dataset, their number, and their columns as far as they are known."""
    if "dataset" in given:
        return _of_dataset(given)
    path = _path(given)
    if path.suffix not in (".parquet", ".jsonl", ".ndjson", ".json"):
        raise InputError(f"{path.name!r} is neither a JSONL nor a Parquet file.", "Give a .jsonl or .parquet file.")
    try:
        digest, rows, _ = _index(path)
        with path.open("rb") as lines:
            first = json.loads((lines.readline() if path.suffix != ".parquet" else b"") or b"{}")
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}.", "Check the name.") from error
    except ValueError as error:
        raise InputError(f"The first line of {path.name!r} is not JSON: {error}.", "Correct it.") from error
    if path.suffix == ".parquet":
        file = _parquet(path)
        return digest, file.metadata.num_rows, file.schema_arrow.names
    return digest, rows, list(first) if isinstance(first, Mapping) else []


def _path(given: Mapping[str, Any]) -> Path:
    return Path(str(given["file"])).expanduser().resolve()


def _index(path: Path) -> tuple[str, int, tuple[int, ...]]:
    """Of a file, its SHA-256, the number of its lines, and where some begin; read again if size or time changed."""
    about = path.stat()
    return _read_index(path, about.st_size, about.st_mtime_ns)


@cache
def _read_index(path: Path, size: int, changed: int) -> tuple[str, int, tuple[int, ...]]:
    whole, rows, offset, starts = hashlib.sha256(), 0, 0, []
    with path.open("rb") as file:
        for rows, line in enumerate(file, 1):
            if rows % KNOWN == 1:
                starts.append(offset)
            offset += len(line)
            whole.update(line)
    return whole.hexdigest(), rows, tuple(starts)


def _of_dataset(given: Mapping[str, Any]) -> tuple[str, int, list[str]]:
    """The commit of a dataset, or the fingerprint of one on this machine, and the number of its rows."""
    local = _local(given)
    if local is not None:
        return f"fingerprint {local._fingerprint}", len(local), local.column_names
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(given["dataset"], revision=given.get("revision")).sha
        splits = _streamed(given).info.splits or {}
    except Exception as error:  # the many errors of networks, of the hub and of names
        raise InputError(
            f"The dataset {short_repr(given['dataset'])} cannot be opened: {' '.join(str(error).split())[:200]}",
            "Check its name and the connection, or give a folder that `save_to_disk` wrote.",
        ) from error
    split = given.get("split", "train")
    rows = splits[split].num_examples if split in splits else given.get("limit")
    if rows is None:
        raise InputError(f"The dataset {given['dataset']!r} does not say how many rows it has.", "Give a limit.")
    return f"commit {commit}", rows, []


def _rows(given: Mapping[str, Any], start: int, stop: int) -> Iterator[Any]:
    """The rows of a span; an error in place of a line that is not JSON."""
    if "dataset" in given:
        local = _local(given)
        yield from (
            _streamed(given).skip(start).take(stop - start) if local is None else local.select(range(start, stop))
        )
    elif (path := _path(given)).suffix == ".parquet":
        yield from _of_parquet(path, given["column"], start, stop)
    else:
        with path.open("rb") as file:
            file.seek(_index(path)[2][start // KNOWN])
            for line in islice(file, start % KNOWN, start % KNOWN + stop - start):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    yield InputError(f"The line is not JSON: {error}.", "Correct it.")


def _of_parquet(path: Path, column: str, start: int, stop: int) -> Iterator[dict[str, Any]]:
    file, first = _parquet(path), 0
    for group in range(file.num_row_groups):
        after = first + file.metadata.row_group(group).num_rows
        if first < stop and after > start:
            values = file.read_row_group(group, columns=[column]).column(0)
            inside = values.slice(max(0, start - first), stop - max(start, first))
            yield from ({column: value} for value in inside.to_pylist())
        first = after


def _prompt(row: Any, column: str) -> Any:
    value = row.get(column) if isinstance(row, Mapping) else None
    ids = isinstance(value, list) and value and all(type(one) is int for one in value)
    if isinstance(value, str) or ids:
        return value
    return InputError(f"The row has no prompt in {column!r}.", "Give text or a list of token ids.")


def _parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path.name!r} is not a Parquet file: {error}.", "Give an undamaged file.") from error


def _local(given: Mapping[str, Any]) -> Any:
    """A dataset that `save_to_disk` wrote; None for a name on the hub."""
    folder = Path(str(given["dataset"])).expanduser()
    if not folder.is_dir():
        return None
    from datasets import Dataset, load_from_disk

    found = load_from_disk(str(folder))
    return found if isinstance(found, Dataset) else found[given.get("split", "train")]


def _streamed(given: Mapping[str, Any]) -> Any:
    from datasets import load_dataset

    options = {"split": given.get("split", "train"), "revision": given.get("revision"), "streaming": True}
    return load_dataset(given["dataset"], given.get("config"), **options)
