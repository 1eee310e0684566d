"""The results of a grid as one Dataset, joined along the arguments that are varied, and the rows of a scan."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from squashlens.errors import InputError
from squashlens.records.facts import Facts, together
from squashlens.records.joining import padded, stacked
from squashlens.records.results import sealed
from squashlens.saving.stored import PROVENANCE
from squashlens.study.cells import Cell
from squashlens.study.describing.description import Grid
from squashlens.study.store import Store, extra


def combine(grid: Grid, cells: Sequence[Cell], store: Store) -> xr.Dataset:
    """One Dataset of all cells of a grid that are done, with the provenance of each."""
    if grid.over is not None:
        raise InputError(
            f"{grid.name!r} is a scan, whose results are tables.", "Use `rows`."
        )
    parts: dict[tuple[Any, ...], xr.Dataset] = {}
    for cell in cells:
        stored = store.read(cell.key) if cell.grid == grid.name else None
        if stored is not None:
            parts[tuple(cell.labels.values())] = _part(stored.dataset(), cell.key)
    if not parts:
        raise InputError(
            f"No cell of {grid.name!r} is done.",
            "Run the study; `failures()` says what failed.",
        )
    first = next(iter(parts.values()))
    if any(_form(part) != _form(first) for part in parts.values()):
        raise InputError(
            f"The cells of {grid.name!r} have different variables or dimensions.",
            "Describe them in several grids.",
        )
    taken = {*map(str, first.variables), *map(str, first.dims)}
    axes = {axis_name(name, taken): list(labels) for name, labels in grid.axes.items()}
    whole, facts = _along(axes, parts)
    whole = whole.set_coords("cell")
    if "n_tokens" in whole.coords and not whole["n_tokens"].ndim:
        whole = whole.drop_vars("n_tokens")
    whole.attrs = {"study": str(store.root), "grid": grid.name}
    return (
        sealed(whole, facts)
        if any(PROVENANCE in part.attrs for part in parts.values())
        else whole
    )


def axis_name(argument: str, taken: Iterable[str]) -> str:
    """The dimension of a varied argument; a name that the results have already gets `study_` in front."""
    name = argument.replace(".", "_")
    return f"study_{name}" if name in {*taken, "cell"} else name


def _part(part: xr.Dataset, key: str) -> xr.Dataset:
    if "position" in part.dims and "n_tokens" not in part.variables:
        part = part.assign_coords({"n_tokens": part.sizes["position"]})
    return part.assign(
        {"cell": key}
    )  # among the variables, so that it gets all dimensions


def _form(part: xr.Dataset) -> set[Any]:
    return {
        (name, frozenset(values.dims)) for name, values in part.data_vars.items()
    } | {*part.coords}


def _along(
    axes: Mapping[str, list[Any]], cells: Mapping[tuple[Any, ...], xr.Dataset]
) -> tuple[xr.Dataset, Facts]:
    """The cells joined along all axes, and what each states; cells that are missing are NaN, and state nothing."""
    if not axes:
        return cells[()], json.loads(cells[()].attrs.get(PROVENANCE, "{}"))
    (dim, labels), *inner = axes.items()
    groups: dict[Any, dict[tuple[Any, ...], xr.Dataset]] = {}
    for place, cell in cells.items():
        groups.setdefault(place[0], {})[place[1:]] = cell
    parts = {
        label: _along(dict(inner), groups[label]) for label in labels if label in groups
    }
    whole, stored = stacked(
        {at: part for at, (part, _) in parts.items()},
        dim,
        [own for _, own in parts.values()],
    )
    facts = together(
        dim, labels, [*map(dict(zip(parts, stored, strict=True)).get, labels)]
    )
    return whole if len(parts) == len(labels) else padded(
        whole, {dim: np.array(labels)}
    ), facts


def rows(grid: Grid, cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """The rows of the shards of a scan that are done, with the labels of their cells in this study."""
    if grid.over is None:
        raise InputError(
            f"{grid.name!r} is no scan, and has no rows.",
            "Use combine().to_dataframe().",
        )
    pq = extra("pyarrow.parquet", "A scan")
    parts = []
    for cell in cells:
        stored = store.read(cell.key) if cell.grid == grid.name else None
        if stored is not None:
            part = pq.read_table(io.BytesIO(stored.content)).to_pandas()
            labels = {
                axis_name(name, part.columns): label
                for name, label in cell.labels.items()
            }
            parts.append(
                pd.DataFrame({"cell": cell.key, **labels}, part.index).join(part)
            )
    if not parts:
        raise InputError(
            f"No cell of {grid.name!r} is done.",
            "Run the study; `failures()` says what failed.",
        )
    return pd.concat(parts, ignore_index=True)
