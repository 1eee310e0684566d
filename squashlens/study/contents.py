"""The variables of a stored cell, read one by one, without building an xarray object for each cell."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from squashlens.saving.stored import array_of, parsed
from squashlens.study.storing.store import Stored


@dataclass
class Variable:
    """One variable or coordinate: its dimensions, attributes, and values, which may still be JSON."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attrs: dict[str, Any]
    data: Any

    @property
    def values(self) -> np.ndarray:
        if isinstance(self.data, np.ndarray):
            return self.data
        return array_of({"data": self.data, "dtype": self.dtype, "shape": self.shape})


@dataclass
class Contents:
    """A result, by the names of its variables and coordinates."""

    variables: dict[str, Variable]
    coords: dict[str, Variable]
    attrs: dict[str, Any]
    dims: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in (*self.variables.values(), *self.coords.values()):
            self.dims |= dict(zip(one.dims, one.shape, strict=True))


def contents(stored: Stored) -> Contents:
    """The contents of a cell whose digest was checked."""
    if stored.header["ending"] == ".json":
        raw = json.loads(stored.content)
        parts = {part: {name: _of_json(one) for name, one in raw[part].items()} for part in ("variables", "coords")}
        attrs = raw["attrs"]
    else:
        whole = parsed(stored.content, stored.header["ending"], stored.header["key"])
        parts = {
            part: {str(name): _of_array(one) for name, one in group.items()}
            for part, group in (("variables", whole.data_vars), ("coords", whole.coords))
        }
        attrs = dict(whole.attrs)
    return Contents(parts["variables"], parts["coords"], attrs)


def _of_json(raw: dict[str, Any]) -> Variable:
    return Variable(tuple(raw["dims"]), tuple(raw["shape"]), np.dtype(raw["dtype"]), raw["attrs"], raw["data"])


def _of_array(one: Any) -> Variable:
    return Variable(tuple(map(str, one.dims)), one.shape, one.dtype, dict(one.attrs), one.values)
