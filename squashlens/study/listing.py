"""What a study has done, what is left and what failed, as tables."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from squashlens.study.cells import Cell, Model, states
from squashlens.study.scans.shards import failed_rows
from squashlens.study.storing.store import Store

BYTES = {"float64": 8, "float32": 4}  # of one weight; every other dtype has two


def status(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each grid and model."""
    state, failed, times = states(cells, store), rows_that_failed(cells, store), store.times()
    groups: dict[tuple[str, Model | None], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.grid, cell.model), []).append(cell)
    rows = []
    for (grid, model), group in groups.items():
        counts = Counter(state[cell.key] for cell in group)
        count, seconds, peak = times.get(group[0].what, (0, 0.0, None))
        rows.append({
            "grid": grid,
            "model": model.name if model else "",
            "dtype": model.dtype if model else "",
            "cells": len(group),
            **{name: counts[name] for name in ("done", "failed", "left")},
            "failed_rows": sum(len(failed.get(cell.key, ())) for cell in group),
            "weight_bytes": _weights(model),
            "peak_bytes": peak,
            "seconds": round(seconds / count * counts["left"], 3) if count else None,
        })  # fmt: skip
    return pd.DataFrame(rows).astype({"weight_bytes": "Int64", "peak_bytes": "Int64", "seconds": "Float64"})


def failures(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each failed cell, and for each prompt that a scan could not measure."""
    failed, rows_of = store.failures(), rows_that_failed(cells, store)
    rows = []
    for cell in cells:
        reasons: dict[int | None, Any] = {None: failed[cell.key].get("reason")} if cell.key in failed else {}
        for row, reason in (reasons | rows_of.get(cell.key, {})).items():
            rows.append({"grid": cell.grid, **cell.labels, "row": row, "reason": reason, "key": cell.key})
    found = pd.DataFrame(rows, columns=None if rows else ["grid", "row", "reason", "key"])
    return found.astype({"row": "Int64"}) if any(cell.span for cell in cells) else found.drop(columns="row")


def rows_that_failed(cells: Sequence[Cell], store: Store) -> dict[str, dict[int, str]]:
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
