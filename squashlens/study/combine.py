"""The results of a grid as one Dataset, joined along the arguments that are varied."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from squashlens._typing import short_repr
from squashlens.errors import InputError
from squashlens.records.facts import Facts, together
from squashlens.records.joining import aligned, padded, stacked
from squashlens.records.results import sealed
from squashlens.saving.stored import OF_ALL, PROVENANCE, rows_of
from squashlens.study.cells import Cell, table_of_cells
from squashlens.study.describing.description import Grid, table_of
from squashlens.study.store import Store, extra


def combine(grid: Grid, cells: Sequence[Cell], store: Store) -> xr.Dataset:
    """One Dataset of all cells of a grid that are done, with the provenance of each."""
    if grid.over is not None:
        raise InputError(f"{grid.name!r} is a scan, whose results are tables.", "Ask with `Study.sql` in Python.")
    parts: dict[tuple[Any, ...], xr.Dataset] = {}
    for cell in cells:
        stored = store.read(cell.key) if cell.grid == grid.name else None
        if stored is not None:
            parts[tuple(cell.labels.values())] = _part(stored.dataset(), cell.key)
    if not parts:
        raise InputError(f"No cell of {grid.name!r} is done.", "Run the study; `failures()` says what failed.")
    first = next(iter(parts.values()))
    if any(_form(part) != _form(first) for part in parts.values()):
        raise InputError(
            f"The cells of {grid.name!r} have different variables or dimensions.", "Describe them in several grids."
        )
    taken = {*map(str, first.variables), *map(str, first.dims)}
    axes = {axis_name(name, taken): list(labels) for name, labels in grid.axes.items()}
    whole, facts = _along(axes, parts)
    whole = whole.set_coords("cell")
    if "n_tokens" in whole.coords and not whole["n_tokens"].ndim:
        whole = whole.drop_vars("n_tokens")
    whole.attrs = {"study": str(store.root), "grid": grid.name}
    for name, values in whole.data_vars.items():
        values.attrs = _merge_attributes([part[name].attrs for part in parts.values()])
    return sealed(whole, facts) if any(PROVENANCE in part.attrs for part in parts.values()) else whole


def axis_name(argument: str, taken: Iterable[str]) -> str:
    """The dimension of a varied argument; a name that the results have already gets `study_` in front."""
    name = argument.replace(".", "_")
    return f"study_{name}" if name in {*taken, "cell"} else name


def _part(part: xr.Dataset, key: str) -> xr.Dataset:
    if "position" in part.dims and "n_tokens" not in part.variables:
        part = part.assign_coords({"n_tokens": part.sizes["position"]})
    return part.assign({"cell": key})  # among the variables, so that it gets all dimensions


def _form(part: xr.Dataset) -> set[Any]:
    return {(name, frozenset(values.dims)) for name, values in part.data_vars.items()} | {*part.coords}


def _along(axes: Mapping[str, list[Any]], cells: Mapping[tuple[Any, ...], xr.Dataset]) -> tuple[xr.Dataset, Facts]:
    """The cells joined along all axes, and what each states; cells that are missing are NaN, and state nothing."""
    if not axes:
        return cells[()], json.loads(cells[()].attrs.get(PROVENANCE, "{}"))
    (dim, labels), *inner = axes.items()
    groups: dict[Any, dict[tuple[Any, ...], xr.Dataset]] = {}
    for place, cell in cells.items():
        groups.setdefault(place[0], {})[place[1:]] = cell
    parts = {label: _along(dict(inner), groups[label]) for label in labels if label in groups}
    whole = stacked(aligned({label: part for label, (part, _) in parts.items()}), dim)
    facts = together(dim, labels, [parts[label][1] if label in parts else None for label in labels])
    return whole if len(parts) == len(labels) else padded(whole, {dim: np.array(labels)}), facts


def _merge_attributes(each: Sequence[Mapping[Any, Any]]) -> dict[str, Any]:
    """The attributes of a variable; those that differ between cells, such as the units of two scales, with "or"."""
    names = dict.fromkeys(name for attrs in each for name in attrs if name not in OF_ALL)
    values = {name: list({str(attrs[name]): attrs[name] for attrs in each if name in attrs}.values()) for name in names}
    return {str(name): " or ".join(map(str, texts)) if texts[1:] else texts[0] for name, texts in values.items()}


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
        database.register("cells", table_of_cells(cells, store))
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
    whole, last = pd.concat(frames, ignore_index=True), ("variable", "value", "text")
    return whole.reindex(columns=[*(name for name in whole.columns if name not in last), *last])


def _view(database: Any, table: str, cells: Sequence[Cell], store: Store) -> None:
    """Let a name stand for the rows of a scan, with their labels.

    A cell's name does not depend on its labels, and other studies and grids can have it under other labels. So labels
    are in no file.
    """
    shards = (store.read(key) for key in dict.fromkeys(cell.key for cell in cells))
    files = [str(store.root / shard.header["shard"]).replace("'", "''") for shard in shards if shard is not None]
    if not files:
        raise InputError(f"No cell of {cells[0].grid!r} is done.", "Run the study first.")
    listed = ", ".join(f"'{file}'" for file in files)
    source = f"select * from read_parquet([{listed}], union_by_name=true)"  # noqa: S608 (our own names)
    taken = set(database.sql(source).columns)
    labels = [{"cell": cell.key, **{axis_name(n, taken): label for n, label in cell.labels.items()}} for cell in cells]
    database.register(f"{table} labels", pd.DataFrame(labels))
    database.execute(f'create temp view "{table}" as select * from "{table} labels" join ({source}) using (cell)')  # noqa: S608
