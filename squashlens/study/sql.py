"""Questions in SQL about cells and scans, answered by DuckDB from files.

Scans are Parquet files already. The numbers of a grid's cells are copied, when a query names the grid for the first
time, into Parquet files of some thousand cells each; later queries copy only what was added since.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from squashlens.errors import InputError
from squashlens.study.cells import Cell
from squashlens.study.combine import axis_name
from squashlens.study.contents import contents
from squashlens.study.description import Grid
from squashlens.study.extras import extra
from squashlens.study.scans.shards import column_of
from squashlens.study.storing.places import Remote
from squashlens.study.storing.store import Store, folder_of

BATCH = 2000  # cells of which the numbers are in one file


def answer(query: str, grids: Sequence[Grid], cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """The rows of a query."""
    duckdb = extra("duckdb", "sql()")
    with duckdb.connect() as database:
        if isinstance(store.place, Remote):
            database.register_filesystem(store.place.files)
        words = set(re.findall(r"\w+", query))
        done = set(store.done(cell.key for cell in cells))
        if "cells" in words:
            database.register("cells", _cells(cells, done, store))
        for grid in grids:
            table = re.sub(r"\W", "_", grid.name)
            if table not in words and grid.name not in query:
                continue
            mine = [cell for cell in cells if cell.grid == grid.name and cell.key in done]
            files = _shards(mine, store) if grid.over is not None else _tables(grid, mine, store)
            if not files:
                raise InputError(f"No cell of {grid.name!r} is done.", "Run the study first.")
            database.register("_keys", pd.DataFrame({"cell": [cell.key for cell in mine]}))
            chosen = "" if grid.over is not None else " where cell in (select cell from _keys)"
            listed = ", ".join("'" + store.place.path(file).replace("'", "''") + "'" for file in files)
            source = f"read_parquet([{listed}], union_by_name=true){chosen}"
            database.execute(f'create temp view "{table}" as select * from {source}')  # noqa: S608 (our own names)
        try:
            return database.execute(query).df()
        except duckdb.Error as error:
            raise InputError(f"DuckDB refuses the query: {str(error).strip()}", "Correct the query.") from error


def _cells(cells: Sequence[Cell], done: set[str], store: Store) -> pd.DataFrame:
    failed = store.failures()
    rows = [
        {
            "cell": cell.key, "grid": cell.grid, "measurement": cell.measurement,
            "model": cell.model.name if cell.model else None,
            "state": "done" if cell.key in done else "failed" if cell.key in failed else "left",
            "reason": failed.get(cell.key, {}).get("reason") if cell.key not in done else None,
            **{name if name != "model" else "label_model": str(label) for name, label in cell.labels.items()},
        }
        for cell in cells
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _shards(cells: Sequence[Cell], store: Store) -> list[str]:
    read = (store.read(cell.key) for cell in cells)
    return [found.header["shard"] for found in read if found is not None]


def _tables(grid: Grid, cells: Sequence[Cell], store: Store) -> list[str]:
    """The Parquet files with the numbers of these cells; those that are missing are written."""
    folder = f"tables/{folder_of(grid.name)}"
    files, there = [], set()
    for name in store.place.names(folder):
        if name.endswith(".json"):
            about = _manifest(store.place.read(name))
            content = store.place.read(about["file"]) if about else None
            if about and content is not None and hashlib.sha256(content).hexdigest() == about["digest"]:
                files.append(about["file"])
                there |= set(about["cells"])
    new = [cell for cell in cells if cell.key not in there]
    for start in range(0, len(new), BATCH):
        some = new[start : start + BATCH]
        content = _parquet(grid, some, store)
        name = f"{folder}/{hashlib.sha256(''.join(cell.key for cell in some).encode()).hexdigest()[:32]}"
        about = {
            "file": f"{name}.parquet",
            "digest": hashlib.sha256(content).hexdigest(),
            "cells": [c.key for c in some],
        }
        store.place.write(about["file"], content)
        store.place.write(f"{name}.json", json.dumps(about).encode())
        files.append(about["file"])
    return files


def _manifest(content: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(content or b"null")
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"file", "digest", "cells"} <= found.keys() else None


def _parquet(grid: Grid, cells: Sequence[Cell], store: Store) -> bytes:
    pa, pq = extra("pyarrow", "sql()"), extra("pyarrow.parquet", "sql()")
    columns: dict[str, list[Any]] = {}
    rows = 0
    for cell in cells:
        stored = store.read(cell.key)
        for block, size in _blocks(contents(stored), cell) if stored is not None else ():
            for name, values in block.items():
                columns.setdefault(name, [None] * rows).extend(values)
            rows += size
            for values in columns.values():
                values.extend([None] * (rows - len(values)))
    file = io.BytesIO()
    pq.write_table(pa.table({name: column_of(pa, values) for name, values in columns.items()}), file)
    return file.getvalue()


def _blocks(read: Any, cell: Cell) -> Iterator[tuple[Mapping[str, Sequence[Any]], int]]:
    """For each variable of a cell, its rows as columns, and their number."""
    taken = {*read.coords, *read.variables, *read.dims}
    labels = {axis_name(name, taken): label for name, label in cell.labels.items()}
    for name, one in read.variables.items():
        size = int(np.prod(one.shape))
        block = {"cell": [cell.key] * size, **{axis: [label] * size for axis, label in labels.items()}}
        for label, coord in read.coords.items():
            if set(coord.dims) <= set(one.dims):
                block[f"{label}_" if label in ("variable", "value", "text", "cell") else label] = _along(coord, one)
        text = one.dtype.kind in "OU"
        block |= {"variable": [name] * size, "value": [None] * size, "text": [None] * size}
        values = one.values.ravel()
        block["text" if text else "value"] = values.tolist() if text else values.astype(float).tolist()
        yield block, size


def _along(coord: Any, one: Any) -> list[Any]:
    """The values of a coordinate for each number of a variable."""
    order = [dim for dim in one.dims if dim in coord.dims]
    values = np.transpose(coord.values, [coord.dims.index(dim) for dim in order])
    shape = [size if dim in coord.dims else 1 for dim, size in zip(one.dims, one.shape, strict=True)]
    return np.broadcast_to(values.reshape(shape), one.shape).ravel().tolist()
