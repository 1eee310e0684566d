"""What a study will do, what it has done, and what failed, as tables."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from squashlens.study.cells import Cell, Model
from squashlens.study.storing.store import Store

BYTES = {"float64": 8, "float32": 4}  # of one weight; every other dtype has two


def plan(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each measurement and model."""
    done, failed = set(store.done(cell.key for cell in cells)), set(store.failures())
    times, groups = store.times(), {}
    for cell in cells:
        groups.setdefault((cell.measurement, cell.model), []).append(cell)
    rows = []
    for (measurement, model), group in groups.items():
        left = [cell for cell in group if cell.key not in done and cell.key not in failed]
        size = _weights(model)
        each = _seconds(group[0], times, size, {cell.what: _weights(cell.model) for cell in cells})
        rows.append({
            "measurement": measurement,
            "model": model.name if model else "",
            "dtype": model.dtype if model else "",
            "cells": len(group),
            "done": sum(cell.key in done for cell in group),
            "failed": sum(cell.key in failed and cell.key not in done for cell in group),
            "left": len(left),
            "weight_bytes": size,
            "seconds": None if each is None else round(each * len(left), 3),
        })  # fmt: skip
    return pd.DataFrame(rows).convert_dtypes()


def status(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each grid."""
    done, failed = set(store.done(cell.key for cell in cells)), set(store.failures())
    present, groups = store.present(), {}
    for cell in cells:
        groups.setdefault(cell.grid, []).append(cell.key)
    rows = []
    for grid, keys in groups.items():
        closed = [key in done or key in failed for key in keys]
        rows.append({
            "grid": grid,
            "cells": len(keys),
            "done": sum(key in done for key in keys),
            "failed": sum(key in failed and key not in done for key in keys),
            "damaged": sum(key in present and key not in done for key in keys),
            "left": len(keys) - sum(closed),
        })  # fmt: skip
    return pd.DataFrame(rows)


def failures(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each failed cell."""
    failed = store.failures()
    rows = [
        {"grid": cell.grid, **cell.labels, "reason": failed[cell.key].get("reason"), "key": cell.key}
        for cell in cells
        if cell.key in failed
    ]
    return pd.DataFrame(rows, columns=None if rows else ["grid", "reason", "key"])


def _weights(model: Model | None) -> int | None:
    """Bytes of the weights in memory, from the shapes of the stored tensors."""
    if model is None:
        return None
    from squashlens.engine.loading.identity import count_weights

    count = count_weights(model.name)
    return None if count is None else count * (1 if model.quantize else BYTES.get(model.dtype, 2))


def _seconds(cell: Cell, times: Any, size: int | None, sizes: dict[str, int | None]) -> float | None:
    """Seconds for a cell: the mean of those that are done; of another model, scaled by the size of its weights."""
    if cell.what in times:
        count, seconds = times[cell.what]
        return seconds / count
    same = [what for what in times if what.startswith(f"{cell.measurement} | ")]
    for what in same:
        count, seconds = times[what]
        other = sizes.get(what)
        if size and other:
            return seconds / count * size / other
    return None
