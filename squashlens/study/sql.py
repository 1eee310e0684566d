"""Questions in SQL about cells and scans, answered by DuckDB: of scans from Parquet files, of grids from memory."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from squashlens._typing import short_repr
from squashlens.errors import InputError
from squashlens.saving.stored import rows_of
from squashlens.study.cells import Cell, listed
from squashlens.study.combine import axis_name, combine
from squashlens.study.describing.description import Grid, table_of
from squashlens.study.extras import extra
from squashlens.study.places import Remote
from squashlens.study.store import Store


def answer(query: str, grids: Sequence[Grid], cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """The rows of a query."""
    duckdb = extra("duckdb", "sql()")
    try:
        with duckdb.connect() as database:
            if (many := len(database.extract_statements(query))) != 1:  # of several, only the last would give its rows
                raise InputError(
                    f"query={short_repr(query)} has {many or 'no'} statements.", "Give one: 'select * from cells'."
                )
            _fill(database, query, grids, cells, store)
            return database.execute(query).df()
    except duckdb.Error as error:
        raise InputError(f"DuckDB refuses the query: {str(error).strip()}", "Correct the query.") from error


def _fill(database: Any, query: str, grids: Sequence[Grid], cells: Sequence[Cell], store: Store) -> None:
    """Register the tables that a query names."""
    words = set(re.findall(r"\w+", query.lower()))  # DuckDB's names have no case
    if "cells" in words:
        database.register("cells", listed(cells, store))
    for grid in grids:
        table = table_of(grid.name)
        if table.lower() not in words and grid.name not in query:
            continue
        if grid.over is None:
            database.register(table, _numbers(grid, cells, store))
        else:
            _view(database, table, [cell for cell in cells if cell.grid == grid.name], store)


def _numbers(grid: Grid, cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each number or text of the cells of a grid that are done."""
    frames = []
    for name, values in combine(grid, cells, store).data_vars.items():
        frame: Any = rows_of(values, ("variable", "value", "text"))
        there = frame["cell"] != ""
        if "position" in frame and "n_tokens" in frame:  # otherwise after the last token of a shorter prompt
            there &= frame["position"] < frame["n_tokens"]
        column = "text" if values.dtype.kind in "OU" else "value"
        frame = frame[there].rename(columns={"value": column}).assign(variable=str(name))
        frames.append(frame if column == "text" else frame.astype({"value": float}))
    return pd.concat(frames, ignore_index=True).reindex(columns=_columns(frames))


def _columns(frames: Sequence[pd.DataFrame]) -> list[str]:
    last = ("variable", "value", "text")
    return [*dict.fromkeys(name for frame in frames for name in frame.columns if name not in last), *last]


def _view(database: Any, table: str, cells: Sequence[Cell], store: Store) -> None:
    """Let a name stand for the rows of a scan, with their labels.

    A cell's name does not depend on its labels, and other studies and grids can have it under other labels. So labels
    are in no file.
    """
    if isinstance(store.place, Remote):
        database.register_filesystem(store.place.files)
    read = (store.read(key) for key in dict.fromkeys(cell.key for cell in cells))
    files = [store.place.path(found.header["shard"]).replace("'", "''") for found in read if found is not None]
    if not files:
        raise InputError(f"No cell of {cells[0].grid!r} is done.", "Run the study first.")
    listed = ", ".join(f"'{file}'" for file in files)
    source = f"select * from read_parquet([{listed}], union_by_name=true)"  # noqa: S608 (our own names)
    taken = set(database.sql(source).columns)
    labels = [{"cell": cell.key, **{axis_name(n, taken): label for n, label in cell.labels.items()}} for cell in cells]
    database.register(f"{table} labels", pd.DataFrame(labels))
    database.execute(f'create temp view "{table}" as select * from "{table} labels" join ({source}) using (cell)')  # noqa: S608
