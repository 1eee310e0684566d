"""What a study will do, what it has done, and what failed, as tables."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from squashlens.study.cells import Cell, Model
from squashlens.study.guess import guess
from squashlens.study.scans.shards import failed_rows
from squashlens.study.storing.store import Store

BYTES = {"float64": 8, "float32": 4}  # of one weight; every other dtype has two


def plan(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each measurement and model."""
    done, failed = set(store.done(cell.key for cell in cells)), set(store.failures())
    times, peaks = store.times()
    groups: dict[tuple[str, Model | None], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.measurement, cell.model), []).append(cell)
    rows = []
    for (measurement, model), group in groups.items():
        left = [cell for cell in group if cell.key not in done and cell.key not in failed]
        size = _weights(model)
        each, origin = _seconds(group[0], times, size, {cell.what: _weights(cell.model) for cell in cells})
        seconds, peak = None if each is None else each * len(left), peaks.get(group[0].what)
        guessed = guess(left, size) if seconds is None and left else None
        if guessed is not None:
            seconds, peak, origin = guessed.seconds, guessed.peak_bytes, guessed.why
        rows.append({
            "measurement": measurement,
            "model": model.name if model else "",
            "dtype": model.dtype if model else "",
            "cells": len(group),
            "done": sum(cell.key in done for cell in group),
            "failed": sum(cell.key in failed and cell.key not in done for cell in group),
            "left": len(left),
            "weight_bytes": size,
            "peak_bytes": peak,
            "seconds": None if seconds is None else round(seconds, 3),
            "seconds_from": origin,
        })  # fmt: skip
    return pd.DataFrame(rows).convert_dtypes()


def status(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each grid."""
    done, failed = set(store.done(cell.key for cell in cells)), set(store.failures())
    present, groups, rows_of = store.present(), {}, _failed_rows(cells, done, store)
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
            "failed_rows": sum(len(rows_of.get(key, ())) for key in keys),
        })  # fmt: skip
    return pd.DataFrame(rows)


def failures(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each failed cell, and for each prompt that a scan could not measure."""
    failed, done = store.failures(), set(store.done(cell.key for cell in cells if cell.span))
    rows_of = _failed_rows(cells, done, store)
    rows = []
    for cell in cells:
        common = {"grid": cell.grid, **cell.labels}
        if cell.key in failed:
            rows.append({**common, "row": None, "reason": failed[cell.key].get("reason"), "key": cell.key})
        for row, reason in rows_of.get(cell.key, {}).items():
            rows.append({**common, "row": row, "reason": reason, "key": cell.key})
    found = pd.DataFrame(rows, columns=None if rows else ["grid", "row", "reason", "key"])
    return found.astype({"row": "Int64"}) if any(cell.span for cell in cells) else found.drop(columns="row")


def to_retry(cells: Sequence[Cell], store: Store) -> list[tuple[str, bool]]:
    """The keys of failed cells, and of shards with failed rows, which are marked by True."""
    failed, done = store.failures(), set(store.done(cell.key for cell in cells if cell.span))
    rows_of = _failed_rows(cells, done, store)
    keys = dict.fromkeys(cell.key for cell in cells)
    return [(key, False) for key in keys if key in failed] + [(key, True) for key in keys if rows_of.get(key)]


def _failed_rows(cells: Sequence[Cell], done: set[str], store: Store) -> dict[str, dict[int, str]]:
    """For each shard, the rows that could not be measured, with their reasons."""
    shards = ((cell.key, store.shard(cell.key)) for cell in cells if cell.span and cell.key in done)
    return {key: failed_rows(content) for key, content in shards if content is not None}


def _weights(model: Model | None) -> int | None:
    """Bytes of the weights in memory, from the shapes of the stored tensors."""
    if model is None:
        return None
    from squashlens.engine.loading.identity import count_weights

    count = count_weights(model.name)
    return None if count is None else count * (1 if model.quantize else BYTES.get(model.dtype, 2))


def _seconds(cell: Cell, times: Any, size: int | None, sizes: dict[str, int | None]) -> tuple[float | None, str]:
    """Seconds for a cell, and where they are from: the mean of cells that are done, scaled for another model.

    Before the first cell there is none: how many passes a cell makes, and what else it does, depends on the measurement
    and its options. `guess` then counts what is certain.
    """
    if cell.what in times:
        count, seconds = times[cell.what]
        return seconds / count, f"mean of {count} {'cell' if count == 1 else 'cells'}"
    for what in (what for what in times if what.startswith(f"{cell.measurement} | ")):
        count, seconds = times[what]
        other = sizes.get(what)
        if size and other:
            name = what.partition(" | ")[2]
            return seconds / count * size / other, f"mean of {count} of {name}, times the ratio of weights"
    return None, "unknown until a cell is done"
