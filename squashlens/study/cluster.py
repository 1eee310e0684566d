"""Compute cells in the workers of Dask: on this machine, or of any client.

Dask starts again workers that die, and gives their cells to others. A cell whose workers died several times may only
have waited beside one that kills them, so it is tried once more, alone, before it counts as failed.
"""

import ast
import os
import queue
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squashlens.bars import write
from squashlens.errors import InputError, SquashlensError
from squashlens.study import work
from squashlens.study.cells import Cell
from squashlens.study.scans import reason_of
from squashlens.study.store import extra
from squashlens.study.work import Worker

DEATHS = 4  # of workers, that do not end a cell
LOOK = 1.0  # seconds between two looks at the workers
KILLED = "The process that computed it died each time, as it does without memory. Use workers=1 to see why."


@dataclass
class Cluster:
    """The workers of a Dask client; `keep` is called about once a second."""

    client: Any
    keep: Callable[[], object] = lambda: None

    def compute(
        self, worker: Worker, cells: Sequence[Cell], tell: Callable[..., None]
    ) -> None:
        """Compute cells. `tell` is called with each that has ended, and whether it is done, and with notes."""
        for cell in self._submitted(worker, cells, tell):
            if self._submitted(worker, [cell], tell):
                worker.store.fail(cell.key, cell.about | {"reason": KILLED})
                tell(done=False)

    def _submitted(
        self, worker: Worker, cells: Sequence[Cell], tell: Callable[..., None]
    ) -> list[Cell]:
        """Compute cells; those whose workers died too often are returned."""
        import cloudpickle

        ended: queue.Queue[Any] = queue.Queue()
        waiting: dict[Any, Cell] = {}
        try:
            for cell in cells:
                told = cloudpickle.dumps((worker, cell))
                future = self.client.submit(_work, told, pure=False)
                future.add_done_callback(ended.put)
                waiting[future] = cell
        except Exception as error:  # whatever the objects of a user raise
            cause = f"A cell cannot be sent to a worker: {reason_of(error)}."
            raise InputError(
                cause, "Use workers=1, or functions that can be pickled."
            ) from error
        try:
            return self._ended(worker, ended, waiting, tell)
        finally:
            if self.client.status == "running":
                self.client.cancel(
                    [*waiting]
                )  # none, unless there was an error or Ctrl-C

    def _ended(
        self,
        worker: Worker,
        ended: "queue.Queue[Any]",
        waiting: dict[Any, Cell],
        tell: Callable[..., None],
    ) -> list[Cell]:
        """Wait for cells; those whose workers died too often are returned."""
        from distributed import KilledWorker

        suspects = []
        while waiting:
            try:
                future = ended.get(timeout=LOOK)
            except queue.Empty:
                self.keep()
                tell(note=self._workers())
                continue
            cell = waiting.pop(future)
            if future.status in ("finished", "lost"):
                # The file counts, since what Dask remembers is lost with a worker that is killed.
                done = worker.store.closed(cell.key)
                if done is None:
                    suspects.append(cell)
                else:
                    tell(done=done)
            elif future.status != "error":
                cause = "The connection to Dask's scheduler is lost."
                raise SquashlensError(cause, "Start it, and run again.")
            elif isinstance(error := future.exception(), KilledWorker):
                suspects.append(cell)
            elif isinstance(error, SquashlensError):
                raise error
            else:
                cause = f"A worker cannot compute a cell: {reason_of(error)}."
                raise SquashlensError(
                    cause, "Install the same packages on all machines."
                ) from error
        return suspects

    def _workers(self) -> str:
        """How many workers there are, in words."""
        count = len(self.client.nthreads()) if self.client.status == "running" else 0
        return f"{count} workers" if count else "waiting for workers"


def _work(told: bytes) -> bool:
    """What runs in a worker: whether the cell is done."""
    import cloudpickle

    worker, cell = cloudpickle.loads(told)
    worker.store.require_seen()
    return worker.attempt(cell)


@contextmanager
def on_this_machine(workers: int, device: str | None) -> Iterator[Cluster]:
    """Workers on this machine, each with one thread of Dask and at most one GPU."""
    _require_guard()
    distributed, dask = (
        extra("distributed", "workers=", "cluster"),
        extra("dask", "workers=", "cluster"),
    )
    gpus = _gpus() if device is None else []
    common = {
        "nthreads": 1,
        "memory_limit": 0,
        "silence_logs": "CRITICAL",
        "preload": [work.__name__],
    }
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
    specified = {}
    for number in range(workers):
        gpu = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
        specified[number] = {
            "cls": distributed.Nanny,
            "options": {**common, "env": environment | gpu},
        }
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {"host": "127.0.0.1", "dashboard_address": ":0"},
    }
    settings = {
        "distributed.worker.daemon": False,
        "distributed.scheduler.allowed-failures": DEATHS,
    }
    with (
        dask.config.set(settings),
        distributed.SpecCluster(
            specified, scheduler, silence_logs="CRITICAL"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):

        def keep() -> None:
            """Start again what Dask gave up, such as a worker that was killed while it started."""
            for name, nanny in [*cluster.workers.items()]:
                if nanny.status.name in ("failed", "closed"):
                    cluster.workers.pop(name, None)
            cluster.scale(workers)

        write(f"Dask's page: {cluster.dashboard_link}")
        yield Cluster(client, keep)


def _require_guard() -> None:
    """Raise an error if each worker, which imports the script anew, would start workers of its own."""
    main, frame = vars(sys.modules["__main__"]), sys._getframe()
    while frame is not None and not (
        frame.f_globals is main and frame.f_code.co_name == "<module>"
    ):
        frame = frame.f_back
    if frame is None or not str(main.get("__file__")).endswith(
        ".py"
    ):  # a notebook, an installed program
        return
    tree = ast.parse(Path(main["__file__"]).read_text(encoding="utf-8"))
    conditions = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
    ]
    if not any(
        node.lineno <= frame.f_lineno <= (node.end_lineno or 0) for node in conditions
    ):
        guard = 'if __name__ == "__main__":'
        cause = f"workers= is used by a script without {guard}, which each worker starts anew."
        raise InputError(cause, f"Put what the script does below a line {guard}")


def _gpus() -> list[str]:
    """The GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES has for them."""
    import torch

    count = torch.cuda.device_count()
    visible = [
        name
        for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if name.strip()
    ]
    return visible[:count] or [str(number) for number in range(count)]
