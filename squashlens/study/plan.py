"""What a study will do, what it has done, and what failed, as tables."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from squashlens.study.cells import Cell, Model, states
from squashlens.study.guess import guess
from squashlens.study.scans.shards import failed_rows
from squashlens.study.storing.store import Store

LEFT = ("damaged", "left")  # states of cells that `run` computes
BYTES = {"float64": 8, "float32": 4}  # of one weight; every other dtype has two


def plan(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each measurement and model."""
    state, (times, peaks) = states(cells, store), store.times()
    sizes = {cell.what: _weights(cell.model) for cell in cells}
    groups: dict[tuple[str, Model | None], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.measurement, cell.model), []).append(cell)
    rows = []
    for (measurement, model), group in groups.items():
        left = [cell for cell in group if state[cell.key] in LEFT]
        size, counts = _weights(model), Counter(state[cell.key] for cell in group)
        each, origin = _seconds(group[0], times, size, sizes)
        seconds, peak = None if each is None else each * len(left), peaks.get(group[0].what)
        guessed = guess(left, size) if seconds is None and left else None
        if guessed is not None:
            seconds, peak, origin = guessed.seconds, guessed.peak_bytes, guessed.why
        rows.append({
            "measurement": measurement,
            "model": model.name if model else "",
            "dtype": model.dtype if model else "",
            "cells": len(group),
            "done": counts["done"],
            "failed": counts["failed"],
            "left": len(left),
            "weight_bytes": size,
            "peak_bytes": peak,
            "seconds": None if seconds is None else round(seconds, 3),
            "seconds_from": origin,
        })  # fmt: skip
    return pd.DataFrame(rows).convert_dtypes()


def status(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each grid."""
    state, rows_of, groups = states(cells, store), _failed_rows(cells, store), dict[str, list[str]]()
    for cell in cells:
        groups.setdefault(cell.grid, []).append(cell.key)
    rows = []
    for grid, keys in groups.items():
        counts = Counter(state[key] for key in keys)
        rows.append({
            "grid": grid,
            "cells": len(keys),
            **{name: counts[name] for name in ("done", "failed", "damaged")},
            "left": sum(counts[name] for name in LEFT),
            "failed_rows": sum(len(rows_of.get(key, ())) for key in keys),
        })  # fmt: skip
    return pd.DataFrame(rows)


def failures(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each failed cell, and for each prompt that a scan could not measure."""
    failed, rows_of = store.failures(), _failed_rows(cells, store)
    rows = []
    for cell in cells:
        reasons: dict[int | None, Any] = {None: failed[cell.key].get("reason")} if cell.key in failed else {}
        for row, reason in (reasons | rows_of.get(cell.key, {})).items():
            rows.append({"grid": cell.grid, **cell.labels, "row": row, "reason": reason, "key": cell.key})
    found = pd.DataFrame(rows, columns=None if rows else ["grid", "row", "reason", "key"])
    return found.astype({"row": "Int64"}) if any(cell.span for cell in cells) else found.drop(columns="row")


def to_retry(cells: Sequence[Cell], store: Store) -> list[tuple[str, bool]]:
    """The keys of failed cells, and of shards with failed rows, which are marked by True."""
    failed, rows_of = store.failures(), _failed_rows(cells, store)
    keys = dict.fromkeys(cell.key for cell in cells)
    return [(key, False) for key in keys if key in failed] + [(key, True) for key in keys if rows_of.get(key)]


def _failed_rows(cells: Sequence[Cell], store: Store) -> dict[str, dict[int, str]]:
    """For each shard, the rows that could not be measured, with their reasons."""
    shards = {cell.key: store.shard(cell.key) for cell in cells if cell.span}
    return {key: failed_rows(content) for key, content in shards.items() if content is not None}


def _weights(model: Model | None) -> int | None:
    """Bytes of the weights in memory, from the shapes of the stored tensors."""
    if model is None:
        return None
    from squashlens.engine.loading.identity import count_weights

    count = count_weights(model.name)
    return None if count is None else count * (1 if model.quantize else BYTES.get(model.dtype, 2))


def _seconds(cell: Cell, times: Any, size: int | None, sizes: Mapping[str, int | None]) -> tuple[float | None, str]:
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
