"""The results of a span of prompts as one Parquet file: a row for each prompt, a column for each variable.

A variable with dimensions is a list, flattened in the order of its dimensions. `token` and other coordinates along a
dimension are lists too. A prompt that cannot be measured has its reason in `error`, and nothing in the other columns.
Such rows can be measured again, without those that have their numbers.
"""

import io
from collections.abc import Callable, Iterator
from typing import Any

from squashlens.errors import InputError
from squashlens.saving.digests import Result
from squashlens.saving.rows import as_dataset
from squashlens.study.extras import extra

FIRST = ("row", "prompt", "error")  # columns of every row


def shard(
    rows: Iterator[tuple[int, Any]], measure: Callable[[Any], Result], key: str, earlier: bytes | None = None
) -> bytes:
    """The Parquet file of some rows. `measure` is called with each prompt of which `earlier` has no numbers.

    `key` is the name of the shard's cell, by which `sql` finds the labels of its rows.
    """
    pa, pq = extra("pyarrow", "A scan"), extra("pyarrow.parquet", "A scan")
    there = _measured(pq, earlier) if earlier is not None else {}
    found = [there.get(number) or _row(number, prompt, measure) | {"cell": key} for number, prompt in rows]
    names = dict.fromkeys(name for row in found for name in row)
    table = pa.table({name: column_of(pa, [row.get(name) for row in found]) for name in names})
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def failed_rows(content: bytes) -> dict[int, str]:
    """The rows of a shard that could not be measured, with their reasons."""
    pq = extra("pyarrow.parquet", "A scan")
    table = pq.read_table(io.BytesIO(content), columns=["row", "error"]).to_pydict()
    return {row: error.strip() for row, error in zip(table["row"], table["error"], strict=True) if error is not None}


def _measured(pq: Any, content: bytes) -> dict[int, dict[str, Any]]:
    """The rows of a shard that have their numbers, as `_row` made them."""
    rows = pq.read_table(io.BytesIO(content)).to_pylist()
    whole = [row for row in rows if row["error"] is None]
    return {row["row"]: {n: v for n, v in row.items() if v is not None or n in FIRST} for row in whole}


def _row(number: int, prompt: Any, measure: Callable[[Any], Result]) -> dict[str, Any]:
    """A row; what is wrong with one prompt does not stop the scan, but a lack of memory does."""
    row: dict[str, Any] = {"row": number, "prompt": None, "error": None}
    if isinstance(prompt, InputError):
        return row | {"error": str(prompt)}
    row["prompt"] = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
    if not prompt:
        return row | {"error": "The prompt is empty. Give text or a list of token ids."}
    try:
        return row | _values(measure(prompt))
    except InputError as error:
        return row | {"error": str(error)}


def _values(result: Result) -> dict[str, Any]:
    whole = as_dataset(result)
    return {
        str(name): values.values.ravel().tolist() if values.ndim else values.values.item()
        for name, values in (*whole.coords.items(), *whole.data_vars.items())
    }


def column_of(pa: Any, values: list[Any]) -> Any:
    """A column of a table."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # numbers in one row and text in another
        return pa.array([None if value is None else str(value) for value in values])
