"""What is public, and values that no argument takes."""

import functools
import math
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import xarray as xr

import squashlens as sl


class Unprintable:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -(10**30),
    2**63,
    1.5,
    math.nan,
    math.inf,
    1e-320,
    1j,
    "",
    "nonsense",
    "\ud800",
    "a\x00b",
    b"bytes",
    [],
    {},
    set(),
    {"a": 1},
    [None],
    [math.nan],
    [10**30],
    [True],
    ["nonsense"],
    [[1]],
    np.int64(1),
    np.float32("nan"),
    np.array([1, 2]),
    np.array([None, "a"], dtype=object),
    torch.tensor([1, 2]),
    torch.eye(3).to_sparse(),
    torch.ones(3, 3, device="meta"),
    torch.ones(3, dtype=torch.complex64),
    torch.int8,
    Path("/nonexistent"),
    lambda *_: None,
    Unprintable(),
    [Unprintable()],
    xr.Dataset(),
)
MADE_BY_US = {
    "Capture",
    "PairCapture",
    "synthetic.LastTokens",
    "tasks.Question",
    "tasks.Reading",
} | {
    f"theorems.{name}" for name in ("Exhibit", "Statement", "Step")
}  # results, that nobody makes by hand


def modules() -> list[ModuleType]:
    """The package and its public modules."""
    listed = [getattr(sl, name) for name in sl.__all__]
    return [
        sl,
        *(one for one in listed if isinstance(one, ModuleType)),
        import_module("squashlens.hosted"),
    ]


def names(module: ModuleType) -> list[str]:
    """The names of `__all__`; where a module has none, those that it defines."""
    own = [
        n
        for n, v in vars(module).items()
        if n[0] != "_" and getattr(v, "__module__", None) == module.__name__
    ]
    return list(getattr(module, "__all__", own))


@cache
def public() -> dict[str, Callable[..., Any]]:
    """The public functions and classes by name, without errors."""
    found: dict[str, Callable[..., Any]] = {}
    for module in modules():
        prefix = "" if module is sl else module.__name__.split(".")[-1] + "."
        for name in names(module):
            value = getattr(module, name)
            if callable(value) and not (
                isinstance(value, type) and issubclass(value, Exception)
            ):
                found[prefix + name] = value
    return found


def loading_once(load: Any) -> Any:
    """`sl.load`, which opens a bundled model in float32 once."""

    @functools.wraps(load)
    def loaded(name: str, **form: Any) -> Any:
        usual = {"dtype": "float32", "verify": True}
        plain = name == "tiny-gemma" and all(
            value == usual.get(key) for key, value in form.items()
        )
        return _bundled(load) if plain else load(name, **form)

    return loaded


@cache
def _bundled(load: Any) -> Any:
    return load("tiny-gemma", device="cpu")
