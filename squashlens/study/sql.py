"""Questions in SQL about cells and scans, answered by DuckDB from files.

Scans are Parquet files already. The numbers of a grid's cells are copied, when a query names the grid for the first
time, into Parquet files of some thousand cells each; later queries copy only what was added since. If the store cannot
be written, the copies are in memory, and every query makes them again.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import xarray as xr

from squashlens._typing import short_repr
from squashlens.errors import InputError, OutputError
from squashlens.study.cells import Cell, states
from squashlens.study.combine import axis_name
from squashlens.study.contents import dataset_in
from squashlens.study.describing.description import Grid, table_of
from squashlens.study.extras import extra
from squashlens.study.scans.shards import column_of
from squashlens.study.storing.places import Remote
from squashlens.study.storing.store import Store, folder_of

BATCH = 2000  # cells of which the numbers are in one file


def answer(query: str, grids: Sequence[Grid], cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """The rows of a query."""
    duckdb = extra("duckdb", "sql()")
    try:
        with duckdb.connect() as database:
            _require_one(database, query)
            _fill(database, query, grids, cells, store)
            return database.execute(query).df()
    except duckdb.Error as error:
        raise InputError(f"DuckDB refuses the query: {str(error).strip()}", "Correct the query.") from error


def _fill(database: Any, query: str, grids: Sequence[Grid], cells: Sequence[Cell], store: Store) -> None:
    """Register the tables that a query names."""
    if isinstance(store.place, Remote):
        database.register_filesystem(store.place.files)
    words = set(re.findall(r"\w+", query.lower()))  # DuckDB's names have no case
    state = states(cells, store)
    if "cells" in words:
        database.register("cells", _cells(cells, state, store))
    for grid in grids:
        table = table_of(grid.name)
        if table.lower() in words or grid.name in query:
            whole = [cell for cell in cells if cell.grid == grid.name]
            mine = [cell for cell in whole if state[cell.key] == "done"]
            store.warn_of_damaged(grid.name, [cell.key for cell in whole if state[cell.key] != "done"])
            if not mine:
                raise InputError(f"No cell of {grid.name!r} is done.", "Run the study first.")
            _view(database, table, grid, mine, store)


def _require_one(database: Any, query: str) -> None:
    """An error for text that is not one statement: of several, only the last would give its rows."""
    many = len(database.extract_statements(query))
    if many != 1:
        raise InputError(
            f"query={short_repr(query)} has {many or 'no'} statements.", "Give one, such as 'select * from cells'."
        )


def _view(database: Any, table: str, grid: Grid, cells: Sequence[Cell], store: Store) -> None:
    """Let a name stand for the rows of these cells, with their labels.

    A cell's name does not depend on its labels, and other studies and grids can have it under other labels. So labels
    are in no file.
    """
    some = list({cell.key: cell for cell in cells}.values())
    files, copies = (_shards(some, store), []) if grid.over is not None else _tables(grid, some, store)
    listed = ", ".join("'" + store.place.path(file).replace("'", "''") + "'" for file in files)
    sources = [f"read_parquet([{listed}], union_by_name=true)"] if files else []
    for number, copy in enumerate(copies):
        database.register(f"{table} copy {number}", copy)
        sources.append(f'"{table} copy {number}"')
    source = " union all by name ".join(f"select * from {one}" for one in sources)  # noqa: S608 (our own names)
    taken = set(database.sql(source).columns)
    if grid.over is None:
        first = store.read(some[0].key)
        names = dataset_in(first) if first is not None else xr.Dataset()
        taken |= {*map(str, names.variables), *map(str, names.dims)}
    labels = [{"cell": cell.key, **{axis_name(n, taken): label for n, label in cell.labels.items()}} for cell in cells]
    database.register(f"{table} labels", pd.DataFrame(labels))
    database.execute(f'create temp view "{table}" as select * from "{table} labels" join ({source}) using (cell)')  # noqa: S608


def _cells(cells: Sequence[Cell], state: Mapping[str, str], store: Store) -> pd.DataFrame:
    failed, rows = store.failures(), []
    for cell in cells:
        row = {
            "cell": cell.key, "grid": cell.grid, "measurement": cell.measurement,
            "model": cell.model.name if cell.model else None, "state": state[cell.key],
            "reason": failed.get(cell.key, {}).get("reason") if state[cell.key] == "failed" else None,
        }  # fmt: skip
        labels = {("label_model" if name == "model" else axis_name(name, row)): str(label)
                  for name, label in cell.labels.items()}  # fmt: skip
        rows.append(row | labels)
    return pd.DataFrame(rows)


def _shards(cells: Sequence[Cell], store: Store) -> list[str]:
    read = (store.read(cell.key) for cell in cells)
    return [found.header["shard"] for found in read if found is not None]


def _tables(grid: Grid, cells: Sequence[Cell], store: Store) -> tuple[list[str], list[Any]]:
    """The Parquet files with the numbers of these cells, and the numbers that are in no file and cannot be written.

    The name of a file is the digest of its content, and the names of its cells are in its metadata.
    """
    pq = extra("pyarrow.parquet", "sql()")
    folder = f"tables/{folder_of(grid.name)}"
    files, copies, there = [], [], set()
    for name in store.place.names(folder):
        content = store.place.read(name) or b""
        if name == _table_name(folder, content):
            inside = json.loads(pq.read_schema(io.BytesIO(content)).metadata[b"cells"])
            if there.isdisjoint(inside):  # otherwise two processes copied the same cells
                files.append(name)
                there |= set(inside)
    new = [cell for cell in cells if cell.key not in there]
    for start in range(0, len(new), BATCH):
        content = _parquet(new[start : start + BATCH], store)
        try:
            store.place.write(_table_name(folder, content), content)
            files.append(_table_name(folder, content))
        except OutputError:  # a read-only store or a full disk: a question changes nothing, so it needs no file
            copies.append(pq.read_table(io.BytesIO(content)))
    return files, copies


def _table_name(folder: str, content: bytes) -> str:
    return f"{folder}/{hashlib.sha256(content).hexdigest()}.parquet"


def _parquet(cells: Sequence[Cell], store: Store) -> bytes:
    pa, pq = extra("pyarrow", "sql()"), extra("pyarrow.parquet", "sql()")
    columns: dict[str, list[Any]] = {}
    rows = 0
    for cell in cells:
        stored = store.read(cell.key)
        for block, size in _blocks(dataset_in(stored), cell.key) if stored is not None else ():
            for name, values in block.items():
                columns.setdefault(name, [None] * rows).extend(values)
            rows += size
            for values in columns.values():
                values.extend([None] * (rows - len(values)))
    table = pa.table({name: column_of(pa, values) for name, values in columns.items()})
    file = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"cells": json.dumps([cell.key for cell in cells])}), file)
    return file.getvalue()


def _blocks(read: xr.Dataset, key: str) -> Iterator[tuple[Mapping[str, Sequence[Any]], int]]:
    """For each variable of a cell, its rows as columns, and their number."""
    for name, one in read.data_vars.items():
        block: dict[str, Sequence[Any]] = {"cell": [key] * one.size}
        for label, coord in one.coords.items():
            taken = f"{label}_" if label in ("variable", "value", "text", "cell") else str(label)
            block[taken] = coord.variable.set_dims(dict(one.sizes)).values.ravel().tolist()
        text = one.dtype.kind in "OU"
        block |= {"variable": [str(name)] * one.size, "value": [None] * one.size, "text": [None] * one.size}
        values = one.values.ravel()
        block["text" if text else "value"] = values.tolist() if text else values.astype(float).tolist()
        yield block, one.size
