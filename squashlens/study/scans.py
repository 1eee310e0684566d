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

ENDINGS = (".jsonl", ".json", ".csv", ".txt", ".parquet")
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
    wrong = [one for one in prompts[:LOOKED_AT] if isinstance(one, InputError)]
    if len(wrong) == len(prompts[:LOOKED_AT]):
        cause = f"{path.name!r} has no prompt in its first rows. {wrong[0].cause}"
        raise InputError(cause, wrong[0].remedy)
    starts = range(0, len(prompts), shard)
    return [Shard(start, prompts[start : start + shard]) for start in starts]


def _rows(file: Path) -> list[Any]:
    """The rows of a file: texts, or values by column, or why a row cannot be read."""
    if file.suffix not in ENDINGS:
        cause = f"{file.name!r} has no known ending."
        raise InputError(cause, f"Use one of {', '.join(ENDINGS)}.")
    try:
        if file.suffix == ".parquet":
            from pyarrow import parquet

            return parquet.read_table(file).to_pylist()
        if file.suffix == ".csv":
            table = pd.read_csv(file, dtype=str, keep_default_na=False)
            return table.to_dict("records")
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        cause = f"{str(file)!r} cannot be read: {error}."
        raise InputError(
            cause, "Give the name of a file, with text in UTF-8."
        ) from error
    if file.suffix != ".txt" and text.startswith("["):
        array = _json(text)
        return array if isinstance(array, list) else [array]
    lines = text.removesuffix("\n").split("\n")
    return lines if file.suffix == ".txt" else list(map(_json, lines))


def _json(text: str) -> Any:
    """What JSON says, or why it says nothing."""
    try:
        return json.loads(text)
    except ValueError as error:
        return InputError(f"{short_repr(text)} is not JSON: {error}.", "Correct it.")


def _prompt(row: Any, column: str) -> Prompt:
    """The prompt of a row, or why it has none."""
    if isinstance(row, InputError):
        return row
    if isinstance(row, dict) and column not in row:
        columns = ", ".join(str(name) for name in row)
        cause = f"The row has no {column!r}."
        return InputError(cause, f"Give column=, one of: {columns}.")
    prompt = row[column] if isinstance(row, dict) else row
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
        table.append({name: _storable(value) for name, value in values.items()})
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
