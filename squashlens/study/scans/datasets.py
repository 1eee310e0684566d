"""The prompts of a scan, read row by row from a JSONL file, a Parquet file, or a Hugging Face dataset.

    {"file": "prompts.jsonl", "column": "prompt", "shard": 256}
    {"dataset": "name", "split": "train", "column": "text", "limit": 100000}

A prompt is text or a list of token ids. Rows are read in spans, of which each becomes one shard; no more than a span is
in memory. `limit` reads the first rows only.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from squashlens._typing import positive, short_repr
from squashlens.errors import InputError, SquashlensError

ENTRIES = ("file", "dataset", "config", "split", "revision", "column", "shard", "limit")
ROWS = 256  # in a shard, by default
LOOKED_AT = 100  # rows of a JSONL file that are searched for the column
READ = 1024  # rows of a Parquet file that are read at a time


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

    def require_unchanged(self) -> None:
        """An error if the file is not the one that was described; one on the hub is read at its commit."""
        if self.identity.startswith("commit "):
            return
        identity, _ = _digest_of(_path(self.given)) if "file" in self.given else _of_dataset(self.given)
        if identity != self.identity:
            raise InputError(
                f"{short_repr(self.given.get('file') or self.given.get('dataset'))} was changed after the study was "
                "described, whose cells are those of the earlier rows.",
                "Make the Study again: all prompts of the file are then measured.",
            )


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
    identity, rows = _of_file(full) if "file" in full else _of_dataset(full)
    if not rows:
        raise InputError(f"{short_repr(given.get('file') or given.get('dataset'))} has no rows.", "Give another file.")
    return Source(full, identity, min(rows, full.get("limit") or rows))


def _of_file(given: Mapping[str, Any]) -> tuple[str, int]:
    """The digest of a file and the number of its rows, which have the column."""
    path = _path(given)
    digest, rows = _digest_of(path)
    if path.suffix == ".parquet":
        file = _parquet(path)
        if given["column"] not in file.schema_arrow.names:
            raise InputError(
                f"{path.name} has no column {given['column']!r}.", f"It has: {', '.join(file.schema_arrow.names)}."
            )
        rows = file.metadata.num_rows
    elif path.suffix not in (".jsonl", ".ndjson", ".json"):
        raise InputError(f"{path.name!r} is neither a JSONL nor a Parquet file.", "Give a .jsonl or .parquet file.")
    else:
        _require_column(path, given["column"])
    return digest, rows


def _path(given: Mapping[str, Any]) -> Path:
    return Path(str(given["file"])).expanduser()


def _digest_of(path: Path) -> tuple[str, int]:
    """The digest of a file and the number of its lines; the file is read again only if its size or time has changed."""
    try:
        about = path.stat()
        digest, lines, _ = _index(str(path.resolve()), about.st_size, about.st_mtime_ns, 1 << 62)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}.", "Check the name.") from error
    return digest, lines


def _require_column(path: Path, column: str) -> None:
    """Raise an error for a JSONL file of which none of the first rows has the column."""
    seen: dict[str, None] = {}
    with path.open("rb") as file:
        for line in itertools.islice(file, LOOKED_AT):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            seen |= dict.fromkeys(map(str, row)) if isinstance(row, Mapping) else {}
    if seen and column not in seen:
        raise InputError(f"{path.name} has no column {column!r}.", f"Its first rows have: {', '.join(seen)}.")


@cache
def _index(path: str, size: int, changed: int, every: int) -> tuple[str, int, tuple[int, ...]]:
    """The SHA-256 of a file, the number of its lines, and where every `every`-th line begins."""
    whole, rows, offset, starts = hashlib.sha256(), 0, 0, []
    with open(path, "rb") as file:
        if path.endswith(".parquet"):
            return hashlib.file_digest(file, "sha256").hexdigest(), 0, ()
        for line in file:
            if rows % every == 0:
                starts.append(offset)
            rows, offset = rows + 1, offset + len(line)
            whole.update(line)
    return whole.hexdigest(), rows, tuple(starts)


def _of_dataset(given: Mapping[str, Any]) -> tuple[str, int]:
    """The commit of a dataset, or the fingerprint of one on this machine, and the number of its rows."""
    local = _local(given)
    if local is not None:
        return f"fingerprint {local._fingerprint}", len(local)
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
    return f"commit {commit}", rows


def _rows(given: Mapping[str, Any], start: int, stop: int) -> Iterator[Any]:
    """The rows of a span; an error in place of a line that is not JSON."""
    if "file" not in given:
        local = _local(given)
        rows = _streamed(given).skip(start).take(stop - start) if local is None else map(local.__getitem__, range(
            start, stop))  # fmt: skip
        yield from rows
        return
    path = _path(given).resolve()
    if path.suffix == ".parquet":
        yield from _of_parquet(path, given["column"], start, stop)
        return
    about, every = path.stat(), given["shard"]
    _, _, starts = _index(str(path), about.st_size, about.st_mtime_ns, every)
    with path.open("rb") as file:
        file.seek(starts[start // every])
        for _ in range(start, stop):
            try:
                yield json.loads(file.readline())
            except ValueError as error:
                yield InputError(f"The line is not JSON: {error}.", "Correct it.")


def _of_parquet(path: Path, column: str, start: int, stop: int) -> Iterator[dict[str, Any]]:
    file, first = _parquet(path), 0
    for group in range(file.num_row_groups):
        after = first + file.metadata.row_group(group).num_rows
        if first < stop and after > start:
            place = first
            for batch in file.iter_batches(READ, row_groups=[group], columns=[column]):
                if place < stop and place + len(batch) > start:
                    inside = batch.slice(max(0, start - place), stop - max(start, place))
                    yield from ({column: value} for value in inside.column(0).to_pylist())
                place += len(batch)
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
    if not Path(str(given["dataset"])).expanduser().is_dir():
        return None
    from datasets import Dataset, load_from_disk

    found = load_from_disk(str(Path(str(given["dataset"])).expanduser()))
    return found if isinstance(found, Dataset) else found[given.get("split", "train")]


def _streamed(given: Mapping[str, Any]) -> Any:
    from datasets import load_dataset

    return load_dataset(
        given["dataset"], given.get("config"), split=given.get("split", "train"), revision=given.get("revision"),
        streaming=True,
    )  # fmt: skip
