"""Measurements that cost nothing, for tests of studies: they are named as `tests.study.fakes:name`."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import squashlens as sl


def study_of(
    measurement: Any, store: Path | str, each: Any = None, **arguments: Any
) -> sl.Study:
    """A study of one grid; a text names a measurement of this module."""
    if isinstance(measurement, str):
        measurement = f"{__name__}:{measurement}"
    grid = {"measurement": measurement, "arguments": arguments, "each": each or {}}
    return sl.Study(grid, store=store)


def square(x: int, y: int = 0, units: str = "1") -> xr.Dataset:
    """x² + y along three places."""
    values = np.array([x * x + y, x * x + y + 1, x * x + y + 2], dtype=float)
    return xr.Dataset(
        {"area": ("place", values, {"units": units, "long_name": "x² + y"})},
        {"place": [10, 20, 30]},
    )


def labelled(x: int) -> xr.Dataset:
    """Only 2 has a further coordinate."""
    return (
        square(x).assign_coords(low=("place", [2.0, 2.0, 2.0])) if x == 2 else square(x)
    )


def noted(x: int, notes: str, seconds: float = 0.0) -> xr.Dataset:
    """Write a line for each call, so that a test can count calls over all processes."""
    with open(notes, "a", encoding="utf-8") as file:
        file.write(f"{x}\n")
    time.sleep(seconds)
    return square(x)


def broken(x: int) -> xr.Dataset:
    """Cannot be computed for 3."""
    if x == 3:
        raise RuntimeError("no measurement of 3")
    return square(x)


def deadly(x: int, notes: str) -> xr.Dataset:
    """Kills its process for 1."""
    if x == 1:
        noted(x, notes)
        os.kill(os.getpid(), signal.SIGKILL)
    return square(x)


def fixed(x: int, allowed: str) -> xr.Dataset:
    """Can be computed only once a file exists."""
    if not Path(allowed).exists():
        raise RuntimeError("not yet")
    return square(x)


def interrupted(x: int) -> xr.Dataset:
    """Ctrl-C at 2."""
    if x == 2:
        raise KeyboardInterrupt
    return square(x)


def letters(model: Any, prompt: Any) -> xr.Dataset:
    """Of a prompt: its number of characters, and the code of each; not of a prompt with an exclamation mark."""
    if "!" in str(prompt):
        raise ValueError("an exclamation mark")
    codes = [ord(character) for character in prompt]
    return xr.Dataset({"size": len(codes), "code": ("position", codes)})


def permitted(model: Any, prompt: str, allowed: str, notes: str) -> xr.Dataset:
    """As `letters`, noted; a late prompt can be measured only once a file exists."""
    with open(notes, "a", encoding="utf-8") as file:
        file.write(f"{prompt}\n")
    if prompt.endswith("late") and not Path(allowed).exists():
        raise RuntimeError("not yet")
    return letters(model, prompt).assign(share=1 / 3, missing=np.nan)


def plain(x: int) -> int:
    """No xarray object."""
    return x


def size(prompt: str) -> xr.Dataset:
    """A measurement of prompts without a model."""
    return xr.Dataset({"size": len(prompt)})
