"""The results of a span of prompts as one Parquet file: a row for each prompt, a column for each variable.

A variable with dimensions is a list, flattened in the order of its dimensions. `token` and other coordinates along a
dimension are lists too. A prompt that cannot be measured has its reason in `error`, and nothing in the other columns.
"""

import io
from collections.abc import Callable, Iterator
from typing import Any

import xarray as xr

from squashlens.errors import InputError
from squashlens.saving.stored import Result
from squashlens.study.extras import extra


def shard(rows: Iterator[tuple[int, Any]], measure: Callable[[Any], Result], labels: dict[str, Any]) -> bytes:
    """The Parquet file of some rows. `measure` is called with each prompt."""
    pa, pq = extra("pyarrow", "A scan"), extra("pyarrow.parquet", "A scan")
    found = [_row(number, prompt, measure) | labels for number, prompt in rows]
    names = dict.fromkeys(name for row in found for name in row)
    table = pa.table({name: column_of(pa, [row.get(name) for row in found]) for name in names})
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def _row(number: int, prompt: Any, measure: Callable[[Any], Result]) -> dict[str, Any]:
    """A row; what is wrong with one prompt does not stop the scan, but a lack of memory does."""
    row: dict[str, Any] = {"row": number, "prompt": None, "error": None}
    if isinstance(prompt, InputError):
        return row | {"error": str(prompt)}
    row["prompt"] = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
    try:
        return row | _values(measure(prompt))
    except InputError as error:
        return row | {"error": str(error)}


def _values(result: Result) -> dict[str, Any]:
    whole = result if isinstance(result, xr.Dataset) else result.to_dataset(name=result.name or "value")
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
