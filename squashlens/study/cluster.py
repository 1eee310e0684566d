"""Compute cells in the workers of Dask: on this machine, or of any client.

Dask starts again workers that die, and gives their cells to others. A cell whose workers died several times has failed.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from squashlens.bars import write
from squashlens.errors import InputError, SquashlensError
from squashlens.study import work
from squashlens.study.cells import Cell
from squashlens.study.store import extra
from squashlens.study.work import Worker

DEATHS = 4  # of workers, that do not end a cell
KILLED = "The process that computed it died each time, as it does without memory. Use workers=1 to see why."
GUARD = 'if __name__ == "__main__":'


@contextmanager
def on_this_machine(workers: int) -> Iterator[Any]:
    """The client of workers on this machine, each with one thread of Dask and at most one GPU."""
    distributed = extra("distributed", "workers=", "cluster")
    import dask.config

    _require_guard()
    write(f"Starting {workers} workers")
    n_cores = os.cpu_count() or 1
    threads = max(1, n_cores // workers)
    settings = {
        "distributed.scheduler.allowed-failures": DEATHS,
        # No cell waits in a worker beside one that kills it.
        "distributed.scheduler.worker-saturation": 1.0,
        # A worker that starts again after a kill is no lost one, however long it takes.
        "distributed.deploy.lost-worker-timeout": "1 day",
        # So that a measurement may start processes.
        "distributed.worker.daemon": False,
        # The prompts of a scan are sent with its cells.
        "distributed.admin.large-graph-warning-threshold": "1 TB",
    }
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address=":0",
            silence_logs="CRITICAL",
            preload=[work.__name__],
            env={"OMP_NUM_THREADS": str(threads)},
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        write(f"Dask's page: {cluster.dashboard_link}")
        yield client


@contextmanager
def connected(client: Any) -> Iterator[Any]:
    """A Dask client, also for the address of a scheduler."""
    distributed = extra("distributed", "client=", "cluster")
    if isinstance(client, str):
        write(f"Connecting to {client}")
        with distributed.Client(client) as made:
            yield made
    else:
        yield client


def _require_guard() -> None:
    """Raise an error for a script that each worker, which imports it anew, would run anew."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None or not script.endswith(".py"):  # a notebook, a program
        return
    if "__main__" not in Path(script).read_text(encoding="utf-8"):
        cause = f"workers= is used by a script without {GUARD}, which each worker would run anew."
        raise InputError(cause, f"Put what the script does below a line {GUARD}")


def compute(client: Any, worker: Worker, cells: Sequence[Cell]) -> Iterator[None]:
    """Compute cells in the workers of a Dask client; each value that is given, a None, says that one more has ended."""
    import cloudpickle
    from distributed import KilledWorker, as_completed

    # With the functions of scripts and notebooks by their code.
    jobs = [cloudpickle.dumps((worker, cell)) for cell in cells]
    futures = client.map(_work, jobs, pure=False)
    cell_of = dict(zip(futures, cells, strict=True))
    try:
        for future in as_completed(futures):
            if future.status == "cancelled":
                cause = "The connection to Dask's scheduler is lost."
                raise SquashlensError(cause, "Start it, and run again.")
            error = future.exception()
            if isinstance(error, KilledWorker):
                cell = cell_of[future]
                worker.store.fail(cell.key, {"grid": cell.grid, "reason": KILLED})
            elif error is not None:
                raise error
            yield
    finally:
        if client.status == "running":  # after an error, or Ctrl-C
            client.cancel(futures)


def _work(sent: bytes) -> None:
    """Compute one cell in a worker of Dask: `sent` is a pickled `Worker` with the cell."""
    import cloudpickle

    worker, cell = cloudpickle.loads(sent)
    worker.attempt(cell)
