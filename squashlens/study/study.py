"""A study: many measurements with one description and one store, which can be interrupted, resumed and shared."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from squashlens._typing import positive
from squashlens.bars import bar
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.study.cells import Cell, cells_of
from squashlens.study.cluster import compute, connected, on_this_machine
from squashlens.study.combine import combine, rows
from squashlens.study.description import Grid, read
from squashlens.study.store import Store
from squashlens.study.work import Worker, release


class Interrupted(SystemExit, KeyboardInterrupt):
    """Ctrl-C: a script ends with one line that says how far the study came."""


class Study:
    """Many measurements, described once: models × arguments × prompts × seeds × interventions, or files of prompts.

    A **cell** is one call of a measurement. A **grid** describes cells: its `measurement` (a public function of one
    model, by name or itself, or a function of your own, which may take a `model`), the `arguments` that are the
    same in all cells, and for `each` other argument its values, as a list or by label. The cells are all
    combinations of the values. `model` is a name or folder (with `dtype` and `revision` for `load`, and with a seed
    as `untrained` for random weights instead), `task` a task or its name, and `hooks` what `squashlens.applied`
    takes. Hooks, sequences and stacks may be calls by name: ``[{"sliding_window": {"window": 4}}]``, ``{"repeated":
    {"token": "1", "n": 48}}`` (``"sequence.n"`` in `each` varies one of its arguments), ``{"Stack": {"heads":
    2}}``.

    With `over`, a grid is a **scan**: the measurement is made of every prompt of a file (``{"file": "prompts.jsonl",
    "column": "prompt"}``), and stored in Parquet shards.

    All arguments are checked before anything runs. The store has one file for each cell, named by a hash of all that
    its numbers depend on, and a cell that has its file is never computed again. A function of your own counts by its
    code, its defaults and what it closes over, and not by what it calls or reads elsewhere, such as global names. If
    code or a checkpoint changes, make the Study again: until then nothing is stored.

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
            raise InputError("The study has no store.", "Give store=, a folder.")
        self.cells: list[Cell] = cells_of(self.grids)
        self.store = Store(store)

    @validated
    def run(
        self,
        *,
        workers: int = 1,
        client: Any = None,
        device: str | None = None,
        retry: bool = False,
    ) -> pd.DataFrame:
        """Compute all cells that are neither done nor failed.

        A cell that cannot be computed is stored as failed, with the reason, and the others go on; so is one whose
        workers die again and again. Only errors of the store itself, such as a full disk, end a study. What is done
        stays, also after Ctrl-C.

        Args:
            workers: number of processes on this machine, by default this one alone. Each has one of the GPUs, if there
                are any. More than one need the extra ``squashlens[cluster]``, and a script needs ``if __name__ ==
                "__main__":``.
            client: a Dask client (`distributed.Client`) or the address of a scheduler, whose workers compute the cells
                in place of `workers`, such as those of `dask_jobqueue` on Slurm, PBS, SGE and LSF.
            device: device of all workers, such as ``"cpu"``; by default CUDA if there is any.
            retry: compute the cells that have failed before again, and the shards of scans with a prompt that has.

        Returns:
            The table of `status`.

        Raises:
            InputError: the extra is not installed; or code or a checkpoint changed since the study was made.
            OutputError: the store cannot be written.
            SquashlensError: the connection to Dask's scheduler is lost.
        """
        positive(workers, "workers", "a number of workers")
        self.store.prepare()
        cells = {cell.key: cell for cell in self.cells}
        if retry:
            self.store.forget(self.store.keys("failures") & cells.keys())
        # The keys of cells that are done or failed, and the cells that are neither.
        closed = self.store.keys("results") | self.store.keys("failures")
        closed &= cells.keys()
        open_cells: list[Cell] = []
        for key, cell in cells.items():
            if key not in closed:
                open_cells.append(cell)
        if open_cells:
            # Several runs on one folder begin at different cells, and so share the work.
            first = random.randrange(len(open_cells))
            open_cells = open_cells[first:] + open_cells[:first]
        worker = Worker(self.store, device)
        with _progress(len(cells), len(closed)) as progress:
            if client is None and workers == 1:
                for cell in open_cells:
                    worker.attempt(cell)
                    progress.update()
                release()
            elif open_cells:
                connection = on_this_machine(min(workers, len(open_cells)))
                if client is not None:
                    connection = connected(client)
                with connection as dask:
                    for _ in compute(dask, worker, open_cells):
                        progress.update()
        return self.status()

    def status(self) -> pd.DataFrame:
        """What is done: a row for each grid.

        Returns:
            Table with the numbers of cells, and of those that are done, failed and left, and of `failed_rows`, the
            prompts that a scan could not measure.
        """
        done = self.store.keys("results")
        failures = self.store.keys("failures")
        grids = [cell.grid for cell in self.cells]
        keys = pd.Series([cell.key for cell in self.cells], dtype=object)
        # A shard is stored, and has a failure too, if some of its prompts could not be measured.
        n_failed_rows: dict[str, int] = {}
        for key in done & failures & set(keys):
            n_failed_rows[key] = len(self.store.failure(key).get("rows", []))
        table: Any = pd.DataFrame({"grid": grids, "cells": 1})
        table["done"] = keys.isin(done)
        table["failed"] = keys.isin(failures - done)
        table["left"] = ~keys.isin(failures | done)
        table["failed_rows"] = keys.map(n_failed_rows).fillna(0)
        return table.groupby("grid", sort=False).sum().astype(int).reset_index()

    def failures(self) -> pd.DataFrame:
        """The cells that could not be computed, and the prompts that could not be measured, with the reasons.

        Returns:
            Table with a row for each failed cell: its grid, its labels along the axes, the reason, and its key. If the
            study has a scan, there is also a row for each prompt that could not be measured, with its number as `row`.
        """
        done = self.store.keys("results")
        failures = self.store.keys("failures")
        rows = []
        for cell in self.cells:
            if cell.key not in failures:
                continue
            record = self.store.failure(cell.key)
            reasons = record.get("rows", [])  # of prompts of a scan
            if cell.key not in done:  # of the cell as a whole
                reasons = [[None, record["reason"]]]
            for row, reason in reasons:
                about = {"row": row, "reason": reason, "key": cell.key}
                rows.append({"grid": cell.grid, **cell.labels, **about})
        columns = None if rows else ["grid", "row", "reason", "key"]
        table = pd.DataFrame(rows, columns=columns)
        if any(cell.shard for cell in self.cells):
            return table.astype({"row": "Int64"})
        return table.drop(columns="row")

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
        """The rows of a scan as one table, which must fit into memory; the files are Parquet.

        Args:
            name: name of the grid; not needed if there is only one.

        Returns:
            A row for each prompt that is stored: the key of its cell as `cell`, the labels of the varied arguments,
            `row`, `prompt`, `error`, and the variables and coordinates of the result; those with dimensions are lists.

        Raises:
            InputError: a grid that is no scan, or of which nothing is done.
        """
        return rows(self._grid(name), self.cells, self.store)

    def _grid(self, name: str | None) -> Grid:
        """The grid with a name, or the only one."""
        for grid in self.grids:
            if name == grid.name or (name is None and len(self.grids) == 1):
                return grid
        names = [grid.name for grid in self.grids]
        cause = f"name={name!r} is no grid of the study."
        raise InputError(cause, f"Give the name of one: {', '.join(names)}.")


@contextmanager
def _progress(total: int, done: int) -> Iterator[Any]:
    """One bar, which Ctrl-C ends in one line."""
    with bar(total=total, initial=done, desc="cells", unit="cell") as progress:
        try:
            yield progress
        except KeyboardInterrupt:
            progress.close()
            line = f"{progress.n} of {total} computed; run again to go on"
            raise Interrupted(line) from None
