"""What a study has done, what is left and what failed, as tables."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from squashlens.study.cells import Cell, states
from squashlens.study.scans.shards import failed_rows
from squashlens.study.storing.store import Store


def status(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """A row for each grid."""
    state, rows = states(cells, store), rows_that_failed(cells, store)
    grids: dict[str, list[str]] = {}
    for cell in cells:
        grids.setdefault(cell.grid, []).append(cell.key)
    counts = {grid: Counter(state[key] for key in keys) for grid, keys in grids.items()}
    return pd.DataFrame([
        {
            "grid": grid,
            "cells": len(keys),
            **{name: counts[grid][name] for name in ("done", "failed", "left")},
            "failed_rows": sum(len(rows.get(key, ())) for key in keys),
        }
        for grid, keys in grids.items()
    ])  # fmt: skip


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
