"""Scans: one measurement of every prompt of a file, stored as Parquet shards.

    {"file": "prompts.jsonl", "column": "prompt", "shard": 256}

A file has JSON objects, one a line or in an array (.jsonl, .json), a table (.csv, .parquet), or a prompt a line (.txt).
A prompt is text or a list of token ids. A shard has a row for each prompt, and a column for each variable of
its result. A variable with dimensions is a list, flattened in its order; coordinates along a dimension,
such as `token`, are lists too. A row that has no prompt, or whose prompt cannot be measured, has its reason in `error`,
and nothing in the other columns.
"""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from squashlens._typing import positive, short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError, SquashlensError
from squashlens.model.digests import sha256
from squashlens.study.store import extra

ENCODING = "utf-8-sig"  # a file may begin with a byte order mark
LOOKED_AT = 100  # rows, of which one must have a prompt

Prompt = str | list[int] | InputError


@dataclass(frozen=True)
class Shard:
    """The prompts of some rows of a file, from row `start` on; of a row without one, the error why."""

    start: int
    prompts: list[Prompt]

    @cached_property
    def digest(self) -> str:
        """What its results depend on."""
        return sha256(json.dumps([self.start, self.prompts], default=str))


@validated
def over(file: str | Path, column: str = "prompt", shard: int = 256) -> list[Shard]:
    """The shards of the file that a description names."""
    extra("pyarrow", "A scan")
    positive(shard, "shard", "a number of rows", most=2**53)
    path = Path(file).expanduser()
    prompts = [_prompt(row, column) for row in _rows(path)]
    if not prompts:
        raise InputError(f"{path.name!r} has no prompt.", "Give another file.")
    _require_some_prompt(prompts[:LOOKED_AT], path.name)
    starts = range(0, len(prompts), shard)
    return [Shard(start, prompts[start : start + shard]) for start in starts]


def _require_some_prompt(prompts: list[Prompt], file: str) -> None:
    """Raise the error of the first row if no row has a prompt."""
    errors: list[InputError] = []
    for prompt in prompts:
        if not isinstance(prompt, InputError):
            return
        errors.append(prompt)
    cause = f"{file!r} has no prompt in its first rows. {errors[0].cause}"
    raise InputError(cause, errors[0].remedy)


def _rows(file: Path) -> list[Any]:
    """The rows of a file: texts, or values by column, or why a row cannot be read."""
    if file.suffix not in READERS:
        cause = f"{file.name!r} has no known ending."
        raise InputError(cause, f"Use one of {', '.join(READERS)}.")
    try:
        return READERS[file.suffix](file)
    except (OSError, ValueError) as error:
        cause = f"{str(file)!r} cannot be read: {error}."
        remedy = "Give the name of a file, with text in UTF-8."
        raise InputError(cause, remedy) from error


def _from_parquet(file: Path) -> list[Any]:
    """The rows of a Parquet table, by column."""
    from pyarrow import parquet

    return parquet.read_table(file).to_pylist()


def _from_csv(file: Path) -> list[Any]:
    """The rows of a CSV table as texts, by column."""
    table = pd.read_csv(file, dtype=str, keep_default_na=False)
    return table.to_dict("records")


def _from_text(file: Path) -> list[Any]:
    """The lines of a text."""
    return _lines(file.read_text(encoding=ENCODING))


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def _from_json(file: Path) -> list[Any]:
    """The items of an array, or the value of each line; of one that is no JSON, the error."""
    text = file.read_text(encoding=ENCODING)
    if not text.startswith("["):
        return list(map(_json, _lines(text)))
    array = _json(text)
    if isinstance(array, list):
        return array
    return [array]


READERS: dict[str, Callable[[Path], list[Any]]] = {
    ".jsonl": _from_json,
    ".json": _from_json,
    ".csv": _from_csv,
    ".txt": _from_text,
    ".parquet": _from_parquet,
}


def _json(text: str) -> Any:
    """The value of JSON text, or the error why it has none: one row that cannot be read does not end a scan."""
    try:
        return json.loads(text)
    except ValueError as error:
        return InputError(f"{short_repr(text)} is not JSON: {error}.", "Correct it.")


def _prompt(row: Any, column: str) -> Prompt:
    """The prompt of a row, or why it has none."""
    if isinstance(row, InputError):
        return row
    if isinstance(row, dict) and column not in row:
        columns = ", ".join(map(str, row))
        cause = f"The row has no {column!r}."
        return InputError(cause, f"Give column=, one of: {columns}.")
    prompt = row
    if isinstance(row, dict):
        prompt = row[column]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and set(map(type, prompt)) == {int}:
        return prompt
    cause = f"The row has {short_repr(prompt)} as its prompt."
    return InputError(cause, "Give text or a list of token ids.")


def measured(
    shard: Shard, measure: Callable[[Any], xr.DataArray | xr.Dataset]
) -> tuple[bytes, list[Any]]:
    """The Parquet file of a shard, and the numbers of the rows that could not be measured, with their reasons.

    `measure` is called with each prompt.
    """
    table = []
    failed = []
    for number, prompt in enumerate(shard.prompts, shard.start):
        values: dict[str, Any] = {"row": number, "prompt": None, "error": None}
        try:
            if isinstance(prompt, InputError):
                raise prompt
            values["prompt"] = _text_of(prompt)
            values |= _columns(measure(prompt))
        except Exception as error:  # whatever is wrong with one prompt
            values["error"] = reason_of(error)
            failed.append([number, values["error"]])
        for name, value in values.items():
            values[name] = _storable(value)
        table.append(values)
    file = io.BytesIO()
    pd.DataFrame(table).to_parquet(file, compression="zstd")
    return file.getvalue(), failed


def _text_of(prompt: str | list[int]) -> str:
    """A prompt, or its token ids with spaces."""
    return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))


def _columns(result: xr.DataArray | xr.Dataset) -> dict[str, Any]:
    """The variables and coordinates of a result by name; those with dimensions are lists."""
    if isinstance(result, xr.DataArray):
        result = result.to_dataset(name=str(result.name or "value"))
    columns = {}
    for name, variable in result.variables.items():
        values = variable.values
        columns[str(name)] = values.ravel().tolist() if values.ndim else values.item()
    return columns


def _storable(value: Any) -> Any:
    r"""A value as Parquet can hold it: half of a surrogate pair is no text in UTF-8, and becomes ``\ud83d``."""
    if isinstance(value, list):
        return [_storable(part) for part in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def reason_of(error: BaseException) -> str:
    """Why something could not be measured, on one line."""
    text = " ".join(str(error).split()) or "no message"
    is_ours = isinstance(error, SquashlensError)
    return text if is_ours else f"{type(error).__name__}: {text}"
