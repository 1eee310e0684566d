"""The cells of a grid as one Dataset, whose values are read from the store when they are used.

One pass over the cells reads the labels and the shapes, and keeps no values. A variable is then an array whose parts
are read, cell by cell, when it is indexed.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from squashlens.errors import InputError
from squashlens.records.facts import over_axes
from squashlens.records.results import sealed
from squashlens.saving.digests import OF_ALL, PROVENANCE
from squashlens.study.cells import Cell
from squashlens.study.contents import KEPT, Reader
from squashlens.study.describing.description import Grid
from squashlens.study.storing.store import Store

TOKENS = {"token_id": -1}  # what stands after the last token of a shorter prompt


@dataclass
class _Part:
    """What the first pass keeps of one variable or coordinate, and whether it is a coordinate equal in all cells."""

    dims: tuple[str, ...]
    attrs: dict[str, Any]
    dtype: Any
    is_coord: bool
    same: bool
    values: Any = None


@dataclass
class _Layout:
    """The labels of every dimension, the parts by name, and what each cell stores, by its place along the axes."""

    labels: dict[str, list[Any]] = field(default_factory=dict)
    parts: dict[str, _Part] = field(default_factory=dict)
    keys: dict[tuple[int, ...], str] = field(default_factory=dict)
    whole: bool = True  # no cell lacks a label
    facts: dict[tuple[int, ...], dict[str, Any]] = field(default_factory=dict)  # provenance
    n_tokens: dict[tuple[int, ...], int] = field(default_factory=dict)


def combine(grid: Grid, cells: Sequence[Cell], store: Store) -> xr.Dataset:
    """One Dataset of all cells of a grid that are done, with the provenance of each."""
    mine = [cell for cell in cells if cell.grid == grid.name]
    if grid.over is not None:
        raise InputError(f"{grid.name!r} is a scan, whose results are tables.", "Ask with `Study.sql` in Python.")
    reader = Reader(store)
    layout = _read(grid, mine, reader)
    axes = {axis_name(name, {*layout.labels, *layout.parts}): list(labels) for name, labels in grid.axes.items()}
    keys = np.full([len(labels) for labels in axes.values()], "", dtype=object)
    for place, key in layout.keys.items():
        keys[place] = key
    complete = layout.whole and bool((keys != "").all())
    found = xr.Dataset(attrs={"study": store.place.url, "grid": grid.name})
    found = found.assign_coords({name: np.array(labels) for name, labels in axes.items()} | {"cell": ([*axes], keys)})
    coords, variables = {}, {}
    for name, part in layout.parts.items():
        if name in layout.labels:
            coords[name] = np.array(layout.labels[name], dtype=part.dtype)
        elif part.same and layout.whole:
            coords[name] = xr.Variable(part.dims, part.values, part.attrs)
        else:
            lazy = _Lazy(reader, name, part, keys, layout.labels, complete)
            made = xr.Variable((*axes, *part.dims), indexing.LazilyIndexedArray(lazy), part.attrs)
            (coords if part.is_coord else variables)[name] = made
    found = found.assign_coords(coords).assign(variables)
    if len(set(layout.n_tokens.values())) > 1 and "n_tokens" not in found.variables:
        sizes = np.zeros(keys.shape, dtype=int)
        for place, size in layout.n_tokens.items():
            sizes[place] = size
        found = found.assign_coords(n_tokens=([*axes], sizes))
    facts = over_axes({name: found[name].values.tolist() for name in axes}, layout.facts)
    # The digests need all values at once, and a larger Dataset is read when it is used.
    return found if facts is None else sealed(found, facts, measured=found.nbytes <= KEPT)


def _read(grid: Grid, cells: Sequence[Cell], reader: Reader) -> _Layout:
    """What the results of the cells that are done have in common."""
    layout, missing = _Layout(), []
    for cell in cells:
        found = reader.get(cell.key)
        if found is None:
            missing.append(cell.key)
            continue
        place = tuple([*labels].index(cell.labels[name.replace(".", "_")]) for name, labels in grid.axes.items())
        layout.keys[place] = cell.key
        _add(layout, found, grid.name)
        texts = [one.attrs[PROVENANCE] for one in (found, *found.data_vars.values()) if PROVENANCE in one.attrs]
        if texts:
            layout.facts[place] = json.loads(texts[0])
        if "position" in found.dims:
            layout.n_tokens[place] = found.sizes["position"]
    reader.store.warn_of_damaged(grid.name, missing)
    if not layout.keys:
        raise InputError(f"No cell of {grid.name!r} is done.", "Run the study; `failures()` says what failed.")
    return layout


def axis_name(argument: str, taken: Iterable[str]) -> str:
    """The dimension of a varied argument; a name that the results have already gets `study_` in front."""
    name = argument.replace(".", "_")
    return f"study_{name}" if name in {*taken, "cell"} else name


def _add(layout: _Layout, found: xr.Dataset, grid: str) -> None:
    """Take the labels and shapes of one more cell into the layout."""
    known = [name for name, part in layout.parts.items() if not part.is_coord]
    if known and {*found.data_vars} != {*known}:
        raise InputError(
            f"The cells of {grid!r} have different variables: {', '.join(map(str, found.data_vars))}, and "
            f"{', '.join(known)}.",
            "Describe them in grids of their own.",
        )
    for dim in map(str, found.sizes):
        labels = found[dim].values.tolist()
        before = layout.labels.setdefault(dim, labels)
        if before != labels:
            layout.whole = False
            layout.labels[dim] = _union(before, labels)
    for name in {*layout.parts} - {*found.variables}:  # a coordinate that some cells lack
        layout.parts[name].same = False
    for name, one in found.variables.items():
        _add_part(layout.parts, str(name), one, grid, is_coord=name in found.coords, first=not known)


def _add_part(parts: dict[str, _Part], name: str, one: xr.Variable, grid: str, *, is_coord: bool, first: bool) -> None:
    stated = {str(attribute): text for attribute, text in one.attrs.items() if attribute not in OF_ALL}
    dims = tuple(map(str, one.dims))
    part = parts.setdefault(name, _Part(dims, dict(stated), one.dtype, is_coord, is_coord and first, one.values))
    if part.dims != dims:
        raise InputError(
            f"{name!r} has other dimensions in some cells of {grid!r}: {part.dims}, and {dims}.",
            "Describe these cells in a grid of their own.",
        )
    for attribute, text in stated.items():  # for example the units, when `scale` is varied
        known = str(part.attrs.setdefault(attribute, text)).split(" or ")
        if str(text) not in known and known != [str(text)]:
            part.attrs[attribute] = " or ".join([*known, str(text)])
    if part.dtype != one.dtype:
        text = "O" in part.dtype.kind + one.dtype.kind
        part.dtype = np.dtype(object) if text else np.result_type(part.dtype, one.dtype)
    part.same = part.same and repr(one.values.tolist()) == repr(part.values.tolist())


def _union(known: list[Any], labels: list[Any]) -> list[Any]:
    """All labels: numbers in increasing order, texts as they first occur."""
    both = list(dict.fromkeys([*known, *labels]))
    return sorted(both) if all(isinstance(label, int | float) for label in both) else both


class _Lazy(BackendArray):
    """A variable over the axes of a grid, of which the cells are read when they are indexed."""

    def __init__(
        self, reader: Reader, name: str, part: _Part, keys: np.ndarray, labels: Mapping[str, list[Any]], complete: bool
    ) -> None:
        self.reader, self.name, self.keys, self.dims = reader, name, keys, part.dims
        self.labels = {dim: labels[dim] for dim in part.dims}
        self.shape = (*keys.shape, *(len(each) for each in self.labels.values()))
        text = part.dtype.kind in "OU"
        self.dtype = np.dtype(object) if text else part.dtype
        if not text and not complete and name not in TOKENS and part.dtype.kind != "f":
            self.dtype = np.dtype(float)  # whole numbers and truth values have no NaN
        self.fill = "" if text else TOKENS.get(name, np.nan if self.dtype.kind == "f" else 0)

    def __getitem__(self, key: Any) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        """Some of the array: for each dimension a number or a slice."""
        many = self.keys.ndim
        outer = np.empty(self.keys.shape, dtype=object)
        outer[...] = self.keys
        wanted: Any = outer[key[:many]]
        cells = np.array(wanted, dtype=object) if isinstance(wanted, np.ndarray) else np.array([wanted], dtype=object)
        inner = key[many:]
        shape = np.empty(self.shape[many:], dtype=bool)[inner].shape if inner else ()
        found = np.full((*cells.shape, *shape), self.fill, dtype=self.dtype)
        for place in itertools.product(*map(range, cells.shape)):
            if cells[place]:
                found[place] = self._cell(cells[place])[inner] if inner else self._cell(cells[place])
        return found if isinstance(wanted, np.ndarray) else found[0]

    def _cell(self, key: str) -> Any:
        """The values of one cell over all labels."""
        read = self.reader.get(key)
        if read is None:
            raise InputError(f"The cell {key} was changed or removed.", "Run the study again, then combine it.")
        whole = np.full([len(each) for each in self.labels.values()], self.fill, dtype=self.dtype)
        if self.name not in read.variables:
            return whole
        one = read[self.name]
        own = [read[dim].values.tolist() for dim in self.dims]
        places = [
            range(len(labels)) if labels == known else [known.index(label) for label in labels]
            for labels, known in zip(own, self.labels.values(), strict=True)
        ]
        whole[np.ix_(*places)] = one.transpose(*self.dims).values
        return whole if whole.ndim else whole[()]
