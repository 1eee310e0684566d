"""The cells of a grid as one Dataset, whose values are read from the store when they are used.

One pass over the cells reads the labels and the shapes, and keeps no values. A variable is then an array whose parts
are read, cell by cell, when it is indexed.
"""

import itertools
import json
from collections import OrderedDict
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
from squashlens.saving.digests import HEADS, PROVENANCE, SOURCE
from squashlens.study.cells import Cell
from squashlens.study.contents import Contents, Variable, contents
from squashlens.study.describing.description import Grid
from squashlens.study.storing.store import Store

KEPT = 256 << 20  # bytes of files of which the contents stay in memory, and of a Dataset that is signed
TOKENS = {"token_id": -1}  # what stands after the last token of a shorter prompt
OF_ALL = (*HEADS, SOURCE, PROVENANCE)  # attributes that a single result has as a whole


@dataclass
class _Part:
    """What the first pass keeps of one variable: its dimensions and attributes, and whether all cells agree."""

    dims: tuple[str, ...]
    attrs: dict[str, Any]
    dtype: Any
    first: bytes | None = None
    same: bool = True
    values: Any = None


@dataclass
class _Layout:
    """The labels of every dimension, and the parts of the variables and coordinates."""

    labels: dict[str, list[Any]] = field(default_factory=dict)
    variables: dict[str, _Part] = field(default_factory=dict)
    coords: dict[str, _Part] = field(default_factory=dict)
    whole: bool = True  # no cell lacks a label
    facts: dict[tuple[int, ...], dict[str, Any]] = field(default_factory=dict)  # what each cell stores as provenance
    n_tokens: dict[tuple[int, ...], int] = field(default_factory=dict)


def combine(grid: Grid, cells: Sequence[Cell], store: Store) -> xr.Dataset:
    """One Dataset of all cells of a grid that are done, with the provenance of each."""
    mine = [cell for cell in cells if cell.grid == grid.name]
    if grid.over is not None:
        raise InputError(f"{grid.name!r} is a scan, whose results are tables.", "Ask with `Study.sql` in Python.")
    reader = _Reader(store)
    done, layout = _read(grid, mine, reader)
    taken = {*layout.labels, *layout.variables, *layout.coords}
    axes = {axis_name(name, taken): list(labels) for name, labels in grid.axes.items()}
    keys = np.full([len(labels) for labels in axes.values()], "", dtype=object)
    for place, key in done.items():
        keys[place] = key
    complete = layout.whole and bool((keys != "").all())
    found = xr.Dataset(attrs={"study": store.place.url, "grid": grid.name})
    found = found.assign_coords({name: np.array(labels) for name, labels in axes.items()} | {"cell": ([*axes], keys)})
    for dim, labels in layout.labels.items():
        if dim in layout.coords:
            found = found.assign_coords({dim: np.array(labels, dtype=layout.coords[dim].dtype)})
    for name, part in {**layout.coords, **layout.variables}.items():
        is_coord = name in layout.coords
        if name in layout.labels:
            continue
        if is_coord and part.same and layout.whole:
            made = xr.Variable(part.dims, part.values, part.attrs)
        else:
            lazy = _Lazy(reader, name, part, keys, layout.labels, complete)
            made = xr.Variable((*axes, *part.dims), indexing.LazilyIndexedArray(lazy), part.attrs)
        found = found.assign_coords({name: made}) if is_coord else found.assign({name: made})
    if len(set(layout.n_tokens.values())) > 1 and "n_tokens" not in found.variables:
        sizes = np.zeros(keys.shape, dtype=int)
        for place, size in layout.n_tokens.items():
            sizes[place] = size
        found = found.assign_coords(n_tokens=([*axes], sizes))
    facts = over_axes({name: found[name].values.tolist() for name in axes}, layout.facts)
    # The digests need all values at once, and a larger Dataset is read when it is used.
    return found if facts is None else sealed(found, facts, measured=found.nbytes <= KEPT)


def _read(grid: Grid, cells: Sequence[Cell], reader: "_Reader") -> tuple[dict[tuple[int, ...], str], _Layout]:
    """The keys of the cells that are done, by their places along the axes, and what their results have in common."""
    done, layout, missing = {}, _Layout(), []
    for cell in cells:
        found = reader.get(cell.key)
        if found is not None:
            place = _place(grid, cell)
            done[place] = cell.key
            _add(layout, found, grid.name)
            texts = [one.attrs["provenance"] for one in (found, *found.variables.values()) if "provenance" in one.attrs]
            if texts:
                layout.facts[place] = json.loads(texts[0])
            if "position" in found.dims:
                layout.n_tokens[place] = found.dims["position"]
        else:
            missing.append(cell.key)
    reader.store.warn_of_damaged(grid.name, missing)
    if not done:
        raise InputError(f"No cell of {grid.name!r} is done.", "Run the study; `failures()` says what failed.")
    return done, layout


def axis_name(argument: str, taken: Iterable[str]) -> str:
    """The dimension of a varied argument; a name that the results have already gets `study_` in front."""
    name = argument.replace(".", "_")
    return f"study_{name}" if name in {*taken, "cell"} else name


def _place(grid: Grid, cell: Cell) -> tuple[int, ...]:
    named = {name.replace(".", "_"): [*labels] for name, labels in grid.axes.items()}
    return tuple(labels.index(cell.labels[name]) for name, labels in named.items())


def _add(layout: _Layout, found: Contents, grid: str) -> None:
    """Take the labels and shapes of one more cell into the layout."""
    new = not layout.variables
    if not new and {*found.variables} != {*layout.variables}:
        raise InputError(
            f"The cells of {grid!r} have different variables: {', '.join(found.variables)}, and "
            f"{', '.join(layout.variables)}.",
            "Describe them in grids of their own.",
        )
    for dim, size in found.dims.items():
        labels = found.coords[dim].values.tolist() if dim in found.coords else list(range(size))
        known = layout.labels.setdefault(dim, labels)
        if known != labels:
            layout.whole = False
            layout.labels[dim] = _union(known, labels)
    before = {*layout.coords}
    for group, parts in ((found.variables, layout.variables), (found.coords, layout.coords)):
        for name, one in group.items():
            _add_part(parts, name, one, grid, keep=group is found.coords and name not in found.dims)
    for name in set() if new else before ^ {*found.coords}:  # a coordinate that some cells lack
        layout.coords[name].same = False


def _add_part(parts: dict[str, _Part], name: str, one: Variable, grid: str, *, keep: bool) -> None:
    stated = {attribute: text for attribute, text in one.attrs.items() if attribute not in OF_ALL}
    part = parts.setdefault(name, _Part(one.dims, dict(stated), one.dtype))
    if part.dims != one.dims:
        raise InputError(
            f"{name!r} has other dimensions in some cells of {grid!r}: {part.dims}, and {one.dims}.",
            "Describe these cells in a grid of their own.",
        )
    for attribute, text in stated.items():  # for example the units, when `scale` is varied
        known = str(part.attrs.setdefault(attribute, text)).split(" or ")
        if str(text) not in known and known != [str(text)]:
            part.attrs[attribute] = " or ".join([*known, str(text)])
    if part.dtype != one.dtype:
        part.dtype = (
            np.dtype(object) if "O" in part.dtype.kind + one.dtype.kind else np.result_type(part.dtype, one.dtype)
        )
    if keep and part.same:
        values = one.values
        text = repr(values.tolist()).encode()
        part.first, part.values = (text, values) if part.first is None else (part.first, part.values)
        part.same = text == part.first


def _union(known: list[Any], labels: list[Any]) -> list[Any]:
    """All labels: numbers in increasing order, texts as they first occur."""
    both = list(dict.fromkeys([*known, *labels]))
    return sorted(both) if all(isinstance(label, int | float) for label in both) else both


class _Reader:
    """The contents of cells, of which the last are kept."""

    def __init__(self, store: Store) -> None:
        self.store, self.kept, self.size = store, OrderedDict(), 0

    def get(self, key: str) -> Contents | None:
        if key not in self.kept:
            stored = self.store.read(key)
            if stored is None:
                return None
            self.kept[key] = contents(stored), len(stored.content)
            self.size += len(stored.content)
            while self.size > KEPT and len(self.kept) > 1:
                _, (_, size) = self.kept.popitem(last=False)
                self.size -= size
        self.kept.move_to_end(key)
        return self.kept[key][0]

    def __deepcopy__(self, memo: object) -> "_Reader":
        return self


class _Lazy(BackendArray):
    """A variable over the axes of a grid, of which the cells are read when they are indexed."""

    def __init__(
        self, reader: _Reader, name: str, part: _Part, keys: np.ndarray, labels: Mapping[str, list[Any]], complete: bool
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
        one = read.variables.get(self.name) or read.coords.get(self.name)
        whole = np.full([len(each) for each in self.labels.values()], self.fill, dtype=self.dtype)
        if one is None:
            return whole
        places = []
        for dim, size in zip(one.dims, one.shape, strict=True):
            own = read.coords[dim].values.tolist() if dim in read.coords else list(range(size))
            known = self.labels[dim]
            places.append(range(size) if own == known else [known.index(label) for label in own])
        whole[np.ix_(*places)] = one.values
        return whole if whole.ndim else whole[()]
