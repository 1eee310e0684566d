"""Scans: one measurement of every prompt of a file, stored as Parquet shards.

    {"file": "prompts.jsonl", "column": "prompt", "shard": 256}

A file has JSON objects, one a line (.jsonl) or in an array (.json), a table (.csv, .parquet), or a prompt a line
(.txt). A prompt is text or a list of token ids. A shard has a row for each prompt, and a column for each variable of
its result. A variable with dimensions is a list, flattened in its order; coordinates along a dimension,
such as `token`, are lists too. A row that has no prompt, or whose prompt cannot be measured, has its reason in `error`,
and nothing in the other columns.
"""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from squashlens._typing import positive, short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError, SquashlensError
from squashlens.records.provenance import Result
from squashlens.records.tables import as_dataset
from squashlens.study.measurements import call
from squashlens.study.store import extra

LOOKED_AT = 100  # rows, of which one must have a prompt
WANTED = "Give text or a list of token ids."
CHAT = (
    "Write the ids that tokenizer.apply_chat_template(messages, "
    "add_generation_prompt=True, return_dict=False) gives."
)
Prompt = str | list[int] | InputError  # or why a row has none


@validated
@dataclass(frozen=True)
class Source:
    """What a description says of the prompts of a scan, and the SHA-256 of the file when it was described."""

    file: str | Path
    column: str = "prompt"
    shard: int = 256
    identity: str = ""

    @property
    def path(self) -> Path:
        return Path(self.file).expanduser().resolve()

    def rows(self) -> list[Any]:
        """The rows of the file; raises an error if it is another one than was described."""
        identity, rows = _look(self.path)
        if self.identity not in ("", identity):
            raise InputError(
                f"{self.path} changed after the study was described.",
                "Make the Study again.",
            )
        return rows

    def spans(self) -> list[tuple[int, int]]:
        """The rows of each shard, from the first to before the last."""
        count = len(self.rows())
        return [
            (start, min(start + self.shard, count))
            for start in range(0, count, self.shard)
        ]

    def prompts(self, start: int, stop: int) -> list[tuple[int, Prompt]]:
        """The rows of a span by number, each with its prompt, or with the error why it has none."""
        return [
            (number, _prompt(row, self.column))
            for number, row in enumerate(self.rows()[start:stop], start)
        ]


def source_of(described: Mapping[str, Any]) -> Source:
    """The source that a description names, after a look at its file."""
    asked: Source = call(Source, described, "over")
    positive(asked.shard, "over: shard", "a number of rows", most=2**53)
    identity, _ = _look(asked.path)
    first = [prompt for _, prompt in asked.prompts(0, LOOKED_AT)] or [
        InputError("It has no rows.", "Give another file.")
    ]
    errors = [prompt for prompt in first if isinstance(prompt, InputError)]
    if len(errors) == len(first):
        cause = (
            f"{asked.path.name!r} has no prompt in its first rows. {errors[0].cause}"
        )
        raise InputError(cause, errors[0].remedy)
    return Source(asked.file, asked.column, asked.shard, identity)


def _look(path: Path) -> tuple[str, list[Any]]:
    """The SHA-256 of a file, and its rows; read again if its size or its time changed."""
    if path.suffix not in READERS:
        raise InputError(
            f"{path.name!r} has no known ending.", f"Use one of {', '.join(READERS)}."
        )
    try:
        about = path.stat()
        return _read(path, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read: {error.strerror}.", "Check the name."
        ) from error


@lru_cache(4)
def _read(path: Path, size: int, changed: int) -> tuple[str, list[Any]]:
    content = path.read_bytes()
    try:
        return hashlib.sha256(content).hexdigest(), list(READERS[path.suffix](content))
    except UnicodeDecodeError as error:
        encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
        raise InputError(
            f"{path.name!r} is not text in UTF-8, but perhaps in {encoding}: {error.reason} at byte {error.start}.",
            f"Write it again, in Python: text = open({path.name!r}, encoding={encoding!r}).read(); "
            f"open({'utf8-' + path.name!r}, 'w', encoding='utf-8').write(text).",
        ) from error


def _text(content: bytes) -> str:
    return content.decode("utf-8-sig")


def _lines(content: bytes) -> list[str]:
    return (
        [
            line.removesuffix("\r")
            for line in _text(content).removesuffix("\n").split("\n")
        ]
        if content
        else []
    )


def _json_lines(content: bytes) -> list[Any]:
    if content.startswith(b"["):
        raise InputError(
            "The file is one JSON array, and not one object a line.",
            "Rename it to end in .json.",
        )
    return [_json(line) for line in _lines(content)]


def _json(text: str) -> Any:
    """What a line of JSON says, or why it says nothing."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return InputError(f"The line is not JSON: {error}.", "Correct the line.")


def _array(content: bytes) -> list[Any]:
    rows = _json(_text(content))
    if not isinstance(rows, list):
        raise InputError(
            "The file is no JSON array.",
            "If it has one JSON object a line, rename it to end in .jsonl.",
        )
    return rows


def _table(content: bytes) -> Iterable[Any]:
    csv.field_size_limit(
        2**31 - 1
    )  # of one prompt; the usual limit is 131,072 characters
    return csv.DictReader(io.StringIO(_text(content), newline=""))


READERS: dict[str, Callable[[bytes], Iterable[Any]]] = {
    ".jsonl": _json_lines,
    ".json": _array,
    ".csv": _table,
    ".txt": _lines,
    ".parquet": lambda content: (
        extra("pyarrow.parquet", "A scan").read_table(io.BytesIO(content)).to_pylist()
    ),
}


def _prompt(row: Any, column: str) -> Prompt:
    """The prompt in a column of a row, or why there is none."""
    if isinstance(row, dict) and column not in row:
        columns = ", ".join(str(name) for name in row)
        return InputError(
            f"The row has no {column!r}.", f"Give column=, one of: {columns}."
        )
    value = row[column] if isinstance(row, dict) else row
    if isinstance(value, str | InputError) and value:
        return value
    if isinstance(value, list) and value and value is not row:
        if all(type(part) is int for part in value):
            return value
        if all(isinstance(part, dict) for part in value):
            return InputError(f"{column!r} of the row has chat messages.", CHAT)
    return InputError(f"The row has {short_repr(value)} as its prompt.", WANTED)


def shard(
    prompts: Iterable[tuple[int, Prompt]], measure: Callable[[Any], Result]
) -> bytes:
    """The Parquet file of some rows. `measure` is called with each prompt."""
    extra("pyarrow", "A scan")
    rows = [_row(number, prompt, measure) for number, prompt in prompts]
    file = io.BytesIO()
    pd.DataFrame(rows).to_parquet(file, compression="zstd")
    return file.getvalue()


def failed_rows(file: Path) -> dict[int, str]:
    """The rows of a shard that could not be measured, with their reasons."""
    return (
        pd.read_parquet(file, columns=["row", "error"])
        .set_index("row")["error"]
        .dropna()
        .to_dict()
    )


def _row(
    number: int, prompt: Prompt, measure: Callable[[Any], Result]
) -> dict[str, Any]:
    """A row; whatever is wrong with its prompt is its `error`, and does not stop the scan."""
    if isinstance(prompt, InputError):
        return {"row": number, "prompt": None, "error": _storable(reason_of(prompt))}
    text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
    row = {"row": number, "prompt": _storable(text), "error": None}
    try:
        result = as_dataset(measure(prompt))
    except Exception as error:
        return row | {"error": _storable(reason_of(error))}
    values = {
        str(name): result[name].values.ravel().tolist()
        for name in (*result.coords, *result.data_vars)
    }
    return row | {
        name: _storable(items if result[name].ndim else items[0])
        for name, items in values.items()
    }


def reason_of(error: BaseException) -> str:
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
