"""The results of a grid as one Dataset, joined along the arguments that are varied, and the rows of a scan."""

from collections.abc import Collection, Hashable, Sequence
from typing import Any

import pandas as pd
import xarray as xr

from squashlens.errors import InputError
from squashlens.records.joining import joined, padded
from squashlens.records.tables import as_dataset
from squashlens.study.cells import Cell
from squashlens.study.description import Grid
from squashlens.study.store import Store


def combine(grid: Grid, cells: Sequence[Cell], store: Store) -> xr.Dataset:
    """One Dataset of all cells of a grid that are done, with the provenance of each; those that are missing are NaN."""
    if grid.over is not None:
        cause = f"{grid.name!r} is a scan."
        raise InputError(cause, "Use `rows`, which gives a table.")
    parts = {}  # by their labels along all axes
    for cell in _done(grid, cells, store):
        labels = tuple(cell.labels.values())
        parts[labels] = _part(store.result(cell.key), cell.key)
    first = next(iter(parts.values()))
    for part in parts.values():
        if _form(part) != _form(first):
            cause = (
                f"The cells of {grid.name!r} have different variables or dimensions."
            )
            raise InputError(cause, "Describe them in several grids.")
    taken = set(first.variables) | set(first.dims)
    axes = {axis_name(name, taken): list(labels) for name, labels in grid.axes.items()}
    # Parts are joined along the last axis, then along the one before it, and so on.
    for dim in reversed(axes):
        groups: dict[tuple[Any, ...], dict[Any, xr.Dataset]] = {}
        for (*outer, inner), part in parts.items():
            groups.setdefault(tuple(outer), {})[inner] = part
        parts = {labels: joined(group, dim) for labels, group in groups.items()}
    # No axis is left. Labels of which no cell is done are missing, and get NaN.
    whole = parts[()].set_coords("cell").assign_attrs(grid=grid.name)
    for dim, labels in axes.items():
        if whole[dim].values.tolist() != labels:
            return padded(whole, axes)
    return whole


def rows(grid: Grid, cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """The rows of the shards of a scan that are done, with the labels of their cells in this study."""
    if grid.over is None:
        raise InputError(f"{grid.name!r} is no scan.", "Use combine().to_dataframe().")
    parts = []
    for cell in _done(grid, cells, store):
        part = pd.read_parquet(store.path("results", cell.key, ".parquet"))
        for name, label in reversed(cell.labels.items()):
            part.insert(0, axis_name(name, part.columns), label)
        part.insert(0, "cell", cell.key)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _done(grid: Grid, cells: Sequence[Cell], store: Store) -> list[Cell]:
    """The cells of a grid that are done; raises an error if there is none."""
    keys = store.keys("results")
    done: list[Cell] = []
    for cell in cells:
        if cell.grid == grid.name and cell.key in keys:
            done.append(cell)
    if not done:
        raise InputError(f"No cell of {grid.name!r} is done.", "Run; see `failures()`.")
    return done


def axis_name(argument: str, taken: Collection[Hashable]) -> str:
    """The dimension of a varied argument; a name that the results have already gets `study_` in front."""
    name = argument.replace(".", "_")
    is_taken = name == "cell" or name in taken
    return f"study_{name}" if is_taken else name


def _part(result: xr.DataArray | xr.Dataset, key: str) -> xr.Dataset:
    """A result with its key, which is among the variables so that it gets all dimensions."""
    part = as_dataset(result)
    # Joined with longer ones, it is padded, and this tells where it ends.
    if "position" in part.dims and "n_tokens" not in part.variables:
        part = part.assign_coords(n_tokens=part.sizes["position"])
    return part.assign(cell=key)


def _form(part: xr.Dataset) -> set[Any]:
    """The variables with their dimensions, and the coordinates: what all cells of a grid must have in common."""
    form: set[Any] = set(part.coords)
    for name, values in part.data_vars.items():
        form.add((name, frozenset(values.dims)))
    return form
