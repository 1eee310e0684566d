"""The results of a grid as one Dataset, joined along the arguments that are varied."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from squashlens.errors import InputError
from squashlens.records.facts import Facts, together
from squashlens.records.joining import aligned, padded, stacked
from squashlens.records.results import sealed
from squashlens.saving.stored import OF_ALL, PROVENANCE
from squashlens.study.cells import Cell
from squashlens.study.describing.description import Grid
from squashlens.study.store import Store


def combine(grid: Grid, cells: Sequence[Cell], store: Store) -> xr.Dataset:
    """One Dataset of all cells of a grid that are done, with the provenance of each."""
    if grid.over is not None:
        raise InputError(f"{grid.name!r} is a scan, whose results are tables.", "Ask with `Study.sql` in Python.")
    found: dict[tuple[Any, ...], xr.Dataset] = {}
    for cell in cells:
        stored = store.read(cell.key) if cell.grid == grid.name else None
        if stored is not None:
            found[tuple(cell.labels.values())] = _part(stored.dataset(), cell.key)
    if not found:
        raise InputError(f"No cell of {grid.name!r} is done.", "Run the study; `failures()` says what failed.")
    first = next(iter(found.values()))
    if any(_form(one) != _form(first) for one in found.values()):
        raise InputError(
            f"The cells of {grid.name!r} have different variables or dimensions.", "Describe them in several grids."
        )
    taken = {*map(str, first.variables), *map(str, first.dims)}
    axes = {axis_name(name, taken): list(labels) for name, labels in grid.axes.items()}
    whole, facts = _along(axes, found)
    whole = whole.set_coords("cell")
    if "n_tokens" in whole.coords and not whole["n_tokens"].ndim:
        whole = whole.drop_vars("n_tokens")
    whole.attrs = {"study": store.place.url, "grid": grid.name}
    for name, values in whole.data_vars.items():
        values.attrs = _stated([one[name].attrs for one in found.values()])
    return sealed(whole, facts) if any(PROVENANCE in one.attrs for one in found.values()) else whole


def axis_name(argument: str, taken: Iterable[str]) -> str:
    """The dimension of a varied argument; a name that the results have already gets `study_` in front."""
    name = argument.replace(".", "_")
    return f"study_{name}" if name in {*taken, "cell"} else name


def _part(one: xr.Dataset, key: str) -> xr.Dataset:
    if "position" in one.dims and "n_tokens" not in one.variables:
        one = one.assign_coords({"n_tokens": one.sizes["position"]})
    return one.assign({"cell": key})  # among the variables, so that it gets all dimensions


def _form(one: xr.Dataset) -> set[Any]:
    return {(name, frozenset(values.dims)) for name, values in one.data_vars.items()} | {*one.coords}


def _along(axes: Mapping[str, list[Any]], found: Mapping[tuple[Any, ...], xr.Dataset]) -> tuple[xr.Dataset, Facts]:
    """The cells joined along all axes, and what each states; cells that are missing are NaN, and state nothing."""
    if not axes:
        return found[()], json.loads(found[()].attrs.get(PROVENANCE, "{}"))
    (dim, labels), *inner = axes.items()
    groups: dict[Any, dict[tuple[Any, ...], xr.Dataset]] = {}
    for place, one in found.items():
        groups.setdefault(place[0], {})[place[1:]] = one
    parts = {label: _along(dict(inner), groups[label]) for label in labels if label in groups}
    whole = stacked(aligned({label: part for label, (part, _) in parts.items()}), dim)
    facts = together(dim, labels, [parts[label][1] if label in parts else None for label in labels])
    return whole if len(parts) == len(labels) else padded(whole, {dim: np.array(labels)}), facts


def _stated(each: Sequence[Mapping[Any, Any]]) -> dict[str, Any]:
    """The attributes of a variable; those that differ between cells, such as the units of two scales, with "or"."""
    names = dict.fromkeys(name for attrs in each for name in attrs if name not in OF_ALL)
    found = {name: list({str(attrs[name]): attrs[name] for attrs in each if name in attrs}.values()) for name in names}
    return {str(name): " or ".join(map(str, texts)) if texts[1:] else texts[0] for name, texts in found.items()}
