"""A study: many measurements with one description and one store, which can be interrupted, resumed and shared."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from squashlens._typing import EngineName, positive
from squashlens.bars import bar
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.saving.files import require_folder
from squashlens.study.cells import Cell, cells_of, require_current
from squashlens.study.combine import combine, rows
from squashlens.study.describing.description import read
from squashlens.study.engines import Local, Ray, Slurm, drive
from squashlens.study.scans import failed_rows
from squashlens.study.store import Store
from squashlens.study.work import Worker, digest, threads_set


class Study:
    """Many measurements, described once: models × arguments × prompts × seeds × interventions, or files of prompts.

    A **cell** is one call of a measurement. A **grid** describes cells: its `measurement` by name, the `arguments` that
    are the same in all cells, and for `each` other argument its values, as a list or by label. The cells are all
    combinations of the values. Python objects are described by names: `model` by a name or folder (with `dtype`
    and `revision` for `load`, and with a seed as `untrained` for random weights instead), `sequence` by a
    function of `squashlens.prompts` with its arguments (``{"repeated": {"token": "1", "n": 48}}``; ``"sequence.n"`` in
    `each` varies one of them), `task` by its name, `stack` by the fields of `synthetic.Stack`, and `hooks` by a list
    such as ``[{"sliding_window": {"window": 4}}]``.

    With `over`, a grid is a **scan**: the measurement is made of every prompt of a file or dataset (``{"file":
    "prompts.jsonl", "column": "prompt"}``), and stored in Parquet shards.

    All arguments are checked before anything runs. The store has one file for each cell, named by a hash of all that
    its numbers depend on. A cell whose file is whole is never computed again, by whatever engine. If code, a checkpoint
    or a scanned file changes, make the Study again: until then nothing is stored.

    Args:
        grids: a grid, a list of grids, or the name of a YAML file with ``grids:`` and, if you like, ``store:``.
        store: a folder, which all workers must see.

    Raises:
        InputError: a grid that names an unknown measurement, or arguments that it cannot take.

    >>> import squashlens as sl, tempfile
    >>> grid = {"measurement": "path_bound", "arguments": {"model": "tiny-gemma"}}
    >>> prompts = {"short": "11 =", "long": "1101 ="}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     study = sl.Study({**grid, "each": {"prompt": prompts}}, store=folder)
    ...     table = study.run()
    ...     bounds = study.combine()
    >>> int(table["done"].sum()), bounds["path_bound"].dims, bounds["prompt"].values.tolist()
    (2, ('prompt', 'position'), ['short', 'long'])
    """

    @validated
    def __init__(
        self,
        grids: str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]],
        store: str | Path | None = None,
    ) -> None:
        self.grids, named = read(grids)
        store = named if store is None else store
        if store is None:
            raise InputError(
                "The study has no store.", "Give store=, a folder for its results."
            )
        self.cells: list[Cell] = cells_of(self.grids)
        self.store = Store(store)

    @validated
    def run(
        self,
        *,
        engine: EngineName = "local",
        workers: int = 1,
        threads: int = 1,
        device: str | None = None,
        resources: Mapping[str, Any] | None = None,
        retry: bool = False,
    ) -> pd.DataFrame:
        """Compute all cells that are neither done nor failed.

        A cell that cannot be computed is stored as failed, with the reason, and the others go on. Only errors of the
        store itself, such as a full disk, end a study; what is stored stays.

        Args:
            engine: ``"local"``: in this process, or in `workers` processes; ``"ray"`` and ``"slurm"`` need the extra of
                that name. Workers of the first two get as much of the CUDA devices as their models need.
            workers: most workers at a time.
            threads: threads that PyTorch uses in each worker. Results with the same number of threads are equal byte
                for byte on all engines.
            device: device of all workers, such as ``"cpu"``; by default CUDA if there is any.
            resources: for Ray, options of an actor (``{"num_gpus": 0.5}``); for Slurm, parameters of submitit's
                executor (``{"slurm_partition": "gpu", "timeout_min": 240}``).
            retry: also compute the cells that have failed before, and the shards of scans with a prompt that has.

        Returns:
            The table of `status`.

        Raises:
            InputError: an engine whose extra is not installed; or code, a checkpoint or a file that changed since the
                study was made.
            OutputError: the store cannot be written.
        """
        positive(workers, "workers", "a number of workers")
        positive(threads, "threads", "a number of threads")
        if resources is not None and engine == "local":
            raise InputError(
                "resources= is given for the engine local.",
                "Leave it out, or choose ray or slurm.",
            )
        require_current(self.cells)
        require_folder(self.store.root)
        if retry:
            failed = self.store.failures().keys() & {cell.key for cell in self.cells}
            for key in failed | {
                key for key, rows in self._failed_rows().items() if rows
            }:
                self.store.forget(key)
        if engine == "local" and workers == 1:
            keys = {cell.key for cell in self.cells}
            shown = bar(
                total=len(keys),
                initial=len(self.store.named(keys)),
                desc="cells",
                unit="cell",
            )
            with threads_set(threads), shown:
                Worker(self.store, device).run(self.cells, after=shown.update)
            return self.status()
        task = {
            "grids": list(map(asdict, self.grids)),
            "store": str(self.store.root),
            "cells": digest(self.cells),
            "workers": workers,
            "threads": threads,
            "device": device,
        }
        others = {"ray": Ray, "slurm": Slurm}
        chosen = (
            others[engine](resources or {}, threads)
            if engine in others
            else Local(device)
        )
        drive(chosen, task, workers, self.store, self.cells)
        return self.status()

    def status(self) -> pd.DataFrame:
        """What is done: a row for each grid.

        Returns:
            Table with the numbers of cells, and of those that are done, failed and left, and of `failed_rows`, the
            prompts that a scan could not measure. A cell of which the file is damaged is left.
        """
        require_current(self.cells)
        rows_of, failed = self._failed_rows(), self.store.failures().keys()
        keys = pd.Series([cell.key for cell in self.cells])
        table: Any = pd.DataFrame(
            {"grid": [cell.grid for cell in self.cells], "cells": 1}
        )
        table["done"] = keys.isin(self.store.done(keys))
        table["failed"] = keys.isin(failed) & ~table["done"]
        table["left"] = ~(table["done"] | table["failed"])
        table["failed_rows"] = [len(rows_of.get(key, ())) for key in keys]
        return table.groupby("grid", sort=False).sum().astype(int).reset_index()

    def failures(self) -> pd.DataFrame:
        """The cells that could not be computed, and the prompts that could not be measured, with the reasons.

        Returns:
            Table with a row for each failed cell: its grid, its labels along the axes, the reason, and its key. If the
            study has a scan, there is also a row for each prompt that could not be measured, with its number as `row`.
        """
        failed, rows_of, rows = self.store.failures(), self._failed_rows(), []
        for cell in self.cells:
            reasons: dict[int | None, Any] = (
                {None: failed[cell.key].get("reason")} if cell.key in failed else {}
            )
            for row, reason in (reasons | rows_of.get(cell.key, {})).items():
                rows.append(
                    {
                        "grid": cell.grid,
                        **cell.labels,
                        "row": row,
                        "reason": reason,
                        "key": cell.key,
                    }
                )
        table = pd.DataFrame(
            rows, columns=None if rows else ["grid", "row", "reason", "key"]
        )
        return (
            table.astype({"row": "Int64"})
            if any(cell.span for cell in self.cells)
            else table.drop(columns="row")
        )

    @validated
    def combine(self, name: str | None = None) -> xr.Dataset:
        """The results of one grid as one labelled Dataset.

        The varied arguments are dimensions. Results are aligned by their labels, positions by number. Each selected
        cell has the provenance of its result; figures draw a panel for each. The coordinate `cell` has the key of each
        cell, for `result(key)`. Where a cell is not done, numbers are NaN, texts are empty, and so is `cell`, which
        tells this NaN from one that was measured.

        Args:
            name: name of the grid; not needed if there is only one.

        Returns:
            Dataset over the varied arguments and the dimensions of the results.

        Raises:
            InputError: a grid of which nothing is done, a scan (use `rows`), or results with different variables.
        """
        return combine(self._grid(name), self.cells, self.store)

    def result(self, key: str) -> xr.DataArray | xr.Dataset:
        """The result of one cell, with its provenance.

        Args:
            key: the key of the cell, from `combine` or `rows`.

        Returns:
            What the measurement returned.

        Raises:
            InputError: a cell that is not done.
        """
        return self.store.result(key)

    @validated
    def rows(self, name: str | None = None) -> pd.DataFrame:
        """The rows of a scan as one table, which must fit into memory; the files in `shards` are Parquet.

        Args:
            name: name of the grid; not needed if there is only one.

        Returns:
            A row for each prompt that is stored: the key of its cell as `cell`, the labels of the varied arguments,
            `row`, `prompt`, `error`, and the variables and coordinates of the result; those with dimensions are lists.

        Raises:
            InputError: a grid that is no scan, or of which nothing is done.
        """
        return rows(self._grid(name), self.cells, self.store)

    def _failed_rows(self) -> dict[str, dict[int, str]]:
        """For each shard, the rows that could not be measured, with their reasons."""
        shards = {
            cell.key: self.store.read(cell.key) for cell in self.cells if cell.span
        }
        return {
            key: failed_rows(shard.content)
            for key, shard in shards.items()
            if shard is not None
        }

    def _grid(self, name: str | None) -> Any:
        names = [grid.name for grid in self.grids]
        if name is None and len(names) > 1:
            raise InputError(
                "The study has several grids.",
                f"Give the name of one: {', '.join(names)}.",
            )
        if name is not None and name not in names:
            raise InputError(
                f"The study has no grid {name!r}.", f"It has: {', '.join(names)}."
            )
        return next(grid for grid in self.grids if name in (None, grid.name))
