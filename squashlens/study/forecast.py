"""What a study will take: a few cells of each grid and model are computed, which are kept, and the others follow."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import psutil

from squashlens.study.cells import Cell
from squashlens.study.work import Worker


def forecast(worker: Worker, cells: Sequence[Cell], sample: int) -> pd.DataFrame:
    """For each grid and model, the seconds of the cells that are left, and the most memory that the process took."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.grid, cell.model), []).append(cell)
    rows = []
    for (grid, model), own in groups.items():
        own.sort(key=_size)
        began = time.perf_counter()
        worker.prepare(own[0])
        loading, seconds = time.perf_counter() - began, {}
        for place in sorted({round(at) for at in np.linspace(0, len(own) - 1, min(sample, len(own)))}):
            began = time.perf_counter()
            if worker.attempt(own[place]):
                seconds[place] = time.perf_counter() - began
        others = [place for place in range(len(own)) if place not in seconds]
        expected = np.interp(others, [*seconds], [*seconds.values()]).sum() if seconds and others else 0.0
        rows.append({
            "grid": grid, "model": model.name if model else None, "measured": len(seconds), "left": len(others),
            "loading": loading, "seconds": float(expected), "memory": _peak(),
        })  # fmt: skip
    return pd.DataFrame(rows, columns=["grid", "model", "measured", "left", "loading", "seconds", "memory"])


def _size(cell: Cell) -> float:
    """By what cells of one grid and model are put in the order of their cost: lengths, numbers, and length of text."""

    def of(value: Any) -> float:
        if isinstance(value, dict | list):
            held = value.values() if isinstance(value, dict) else value
            return len(value) + sum(map(of, held))
        return abs(float(value)) if isinstance(value, int | float) else len(str(value))

    return of({name: value for name, value in cell.arguments.items() if "seed" not in name})


def _peak() -> int:
    """The most memory that this process has had, in bytes; on a GPU, what PyTorch has had there."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    from resource import RUSAGE_SELF, getrusage

    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
