"""The results of a grid as one Dataset, joined along the arguments that are varied, and the rows of a scan."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from squashlens.errors import InputError
from squashlens.records.joining import joined, padded
from squashlens.study.cells import Cell
from squashlens.study.description import Grid
from squashlens.study.store import Store


def combine(grid: Grid, cells: Sequence[Cell], store: Store) -> xr.Dataset:
    """One Dataset of all cells of a grid that are done, with the provenance of each."""
    if grid.over is not None:
        raise InputError(
            f"{grid.name!r} is a scan.", "Use `rows`, which gives a table."
        )
    parts = {}
    for cell in _done(grid, cells, store):
        parts[tuple(cell.labels.values())] = _part(store.dataset(cell.key), cell.key)
    first, *others = parts.values()
    if any(_form(part) != _form(first) for part in others):
        cause = f"The cells of {grid.name!r} have different variables or dimensions."
        raise InputError(cause, "Describe them in several grids.")
    taken = {*map(str, first.variables), *map(str, first.dims)}
    axes = {axis_name(name, taken): list(labels) for name, labels in grid.axes.items()}
    whole = _along(axes, parts).set_coords("cell")
    if "n_tokens" in whole.coords and not whole["n_tokens"].ndim:
        whole = whole.drop_vars("n_tokens")
    return whole.assign_attrs(study=str(store.root), grid=grid.name)


def rows(grid: Grid, cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """The rows of the shards of a scan that are done, with the labels of their cells in this study."""
    if grid.over is None:
        raise InputError(f"{grid.name!r} is no scan.", "Use combine().to_dataframe().")
    parts = []
    for cell in _done(grid, cells, store):
        part = pd.read_parquet(store.find(cell.key) or "")
        for name, label in reversed(cell.labels.items()):
            part.insert(0, axis_name(name, part.columns), label)
        part.insert(0, "cell", cell.key)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _done(grid: Grid, cells: Sequence[Cell], store: Store) -> list[Cell]:
    """The cells of a grid that are done; raises an error if there is none."""
    found = store.keys("results")
    done = [cell for cell in cells if cell.grid == grid.name and cell.key in found]
    if not done:
        raise InputError(f"No cell of {grid.name!r} is done.", "Run; see `failures()`.")
    return done


def axis_name(argument: str, taken: Iterable[str]) -> str:
    """The dimension of a varied argument; a name that the results have already gets `study_` in front."""
    name = argument.replace(".", "_")
    return f"study_{name}" if name in {*taken, "cell"} else name


def _part(part: xr.Dataset, key: str) -> xr.Dataset:
    if "position" in part.dims and "n_tokens" not in part.variables:
        part = part.assign_coords({"n_tokens": part.sizes["position"]})
    # Among the variables, so that it gets all dimensions.
    return part.assign({"cell": key})


def _form(part: xr.Dataset) -> set[Any]:
    forms = {(name, frozenset(values.dims)) for name, values in part.data_vars.items()}
    return forms | {*part.coords}


def _along(
    axes: Mapping[str, list[Any]], cells: Mapping[tuple[Any, ...], xr.Dataset]
) -> xr.Dataset:
    """The cells joined along all axes; those that are missing are NaN, and have no provenance."""
    if not axes:
        return cells[()]
    (dim, labels), *inner = axes.items()
    groups: dict[Any, dict[tuple[Any, ...], xr.Dataset]] = {}
    for place, cell in cells.items():
        groups.setdefault(place[0], {})[place[1:]] = cell
    parts = {
        label: _along(dict(inner), groups[label]) for label in labels if label in groups
    }
    whole = joined(parts, dim)
    return padded(whole, {dim: np.array(labels)}) if len(parts) < len(labels) else whole
