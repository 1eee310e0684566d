"""Scans: one measurement of every prompt of a JSONL file, stored as Parquet shards.

    {"file": "prompts.jsonl", "column": "prompt", "shard": 256}

A prompt is text or a list of token ids. Rows are read in spans, of which each becomes one shard; no more than a span is
in memory. A shard has a row for each prompt and a column for each variable of its
result. A variable with dimensions is a list, flattened in the order of its dimensions. `token` and other coordinates
along a dimension are lists too. A row that has no prompt, or whose prompt cannot be measured, has its reason in
`error`, and nothing in the other columns; the others have their numbers.
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from squashlens._typing import positive, short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError, SquashlensError
from squashlens.saving.stored import Result, as_dataset
from squashlens.study.describing.measurements import call
from squashlens.study.store import extra

LOOKED_AT = 100  # rows, of which one must have a prompt


@validated
@dataclass(frozen=True)
class Over:
    """What a description says of the prompts of a scan."""

    file: str
    column: str = "prompt"
    shard: int = 256

    @property
    def path(self) -> Path:
        return Path(self.file).expanduser().resolve()


@dataclass(frozen=True)
class Source:
    """Rows of a file, and the digest that identifies them."""

    given: Over
    identity: str
    rows: int

    def spans(self) -> Iterator[tuple[int, int]]:
        """The rows of each shard, from the first to before the last."""
        size = self.given.shard
        yield from (
            (start, min(start + size, self.rows)) for start in range(0, self.rows, size)
        )

    def prompts(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """The rows of a span by number, each with its prompt, or with the error why it has none."""
        with self.given.path.open("rb") as file:
            for row, line in enumerate(islice(file, start, stop), start):
                try:
                    yield row, _prompt(line, self.given.column)
                except InputError as error:
                    yield row, error

    def is_current(self) -> bool:
        """Whether the file is the one that was described."""
        return _look(self.given.path)[0] == self.identity


WANTED = "Give text or a list of token ids."


def source_of(described: Mapping[str, Any]) -> Source:
    """The source that a description names, after one pass over the file."""
    over: Over = call(Over, described, "over")
    positive(over.shard, "over: shard", "a number of rows", most=2**53)
    identity, rows = _look(over.path)
    if not rows:
        raise InputError(f"{over.file!r} has no rows.", "Give another file.")
    source = Source(over, identity, rows)
    first = [prompt for _, prompt in source.prompts(0, min(LOOKED_AT, source.rows))]
    if all(isinstance(prompt, InputError) for prompt in first):
        raise InputError(
            f"{over.file!r} has no prompt in its first rows. {first[0].cause}",
            first[0].remedy,
        )
    return source


def _look(path: Path) -> tuple[str, int]:
    """What identifies the rows of a file, and their number."""
    if path.suffix not in (".jsonl", ".ndjson", ".json"):
        raise InputError(
            f"{path.name!r} is no JSONL file.",
            "Write one: pandas.DataFrame.to_json(…, orient='records', lines=True).",
        )
    try:
        about = path.stat()
        return _index(path, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read: {error.strerror}.", "Check the name."
        ) from error


@cache
def _index(path: Path, size: int, changed: int) -> tuple[str, int]:
    """The SHA-256 of a file and the number of its lines; read again if its size or its time changed."""
    whole, rows = hashlib.sha256(), 0
    with path.open("rb") as file:
        for line in file:
            whole.update(line)
            rows += 1
    return whole.hexdigest(), rows


def _prompt(line: bytes, column: str) -> str | list[int]:
    """The prompt in a column of a line; raises an error if there is none."""
    try:
        row = json.loads(line.rstrip())
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"The line is not JSON: {error}.", "Correct the line."
        ) from error
    if not isinstance(row, dict):
        raise InputError(f"The line is {short_repr(row)}, no JSON object.", WANTED)
    if column not in row:
        raise InputError(
            f"The row has no {column!r}.", f"It has: {', '.join(sorted(row))}."
        )
    value = row[column]
    if isinstance(value, str) or (
        isinstance(value, list) and all(type(part) is int for part in value)
    ):
        return value
    raise InputError(f"{column!r} of the row is {short_repr(value)}.", WANTED)


def shard(rows: Iterator[tuple[int, Any]], measure: Callable[[Any], Result]) -> bytes:
    """The Parquet file of some rows. `measure` is called with each prompt."""
    pa, pq = extra("pyarrow", "A scan"), extra("pyarrow.parquet", "A scan")
    done = [_row(number, prompt, measure) for number, prompt in rows]
    names = dict.fromkeys(name for row in done for name in row)
    table = pa.table(
        {name: _column(pa, [row.get(name) for row in done]) for name in names}
    )
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def failed_rows(content: bytes) -> dict[int, str]:
    """The rows of a shard that could not be measured, with their reasons."""
    pq = extra("pyarrow.parquet", "A scan")
    table = pq.read_table(io.BytesIO(content), columns=["row", "error"]).to_pydict()
    return {
        row: error.strip()
        for row, error in zip(table["row"], table["error"], strict=True)
        if error is not None
    }


def _row(number: int, prompt: Any, measure: Callable[[Any], Result]) -> dict[str, Any]:
    """A row; whatever is wrong with its prompt is its `error`, and does not stop the scan."""
    text = " ".join(map(str, prompt)) if isinstance(prompt, list) else prompt
    row = {
        "row": number,
        "prompt": _storable(text) if isinstance(text, str) else None,
        "error": None,
    }
    try:
        if isinstance(prompt, InputError):
            raise prompt
        if not prompt:
            raise InputError("The prompt is empty.", WANTED)
        whole = as_dataset(measure(prompt))
    except Exception as error:
        return row | {"error": _storable(reason_of(error))}
    named = {
        str(name): values.values
        for name, values in (*whole.coords.items(), *whole.data_vars.items())
    }
    return row | {
        name: _storable(values.ravel().tolist() if values.ndim else values.item())
        for name, values in named.items()
    }


def reason_of(error: Exception) -> str:
    """Why something could not be measured, on one line."""
    text = " ".join(str(error).split()) or "no message"
    return (
        text
        if isinstance(error, SquashlensError)
        else f"{type(error).__name__}: {text}"
    )


def _storable(value: Any) -> Any:
    r"""A value as Parquet can hold it: half of a surrogate pair is no text in UTF-8, and becomes ``\ud83d``."""
    if isinstance(value, list):
        return [_storable(part) for part in value]
    return (
        value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, str)
        else value
    )


def _column(pa: Any, values: list[Any]) -> Any:
    """A column of a table."""
    try:
        return pa.array(values)
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        OverflowError,
    ):  # such as numbers in one row and text in another
        return pa.array([None if value is None else str(value) for value in values])
