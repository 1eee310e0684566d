"""A worker process: it reads what to do from standard input, as JSON, and works until nothing is left.

It ends after the cell in hand if the process that started it ends, or if it is told to stop by SIGTERM or SIGUSR1. The
exit code is 0, or 2 after an error that would stop every worker, such as a full disk.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from squashlens.errors import InputError, SquashlensError
from squashlens.study.cells import Cell, cells_of
from squashlens.study.describing.description import read
from squashlens.study.storing.store import Store
from squashlens.study.work import Worker, threads_set


def digest(cells: Sequence[Cell]) -> str:
    """A digest of the names of all cells."""
    return hashlib.sha256("".join(cell.key for cell in cells).encode()).hexdigest()


def work(task: Mapping[str, Any], worker: int, stop: Callable[[], bool] = lambda: False) -> None:
    """Compute all cells of a task that are not done, beginning with the part of this worker."""
    grids, _ = read(task["grids"])
    cells = cells_of(grids)
    if digest(cells) != task["cells"]:
        raise InputError(
            "A worker found other cells than the process that started it.",
            "Install the same versions, and use the same models and files, on all machines.",
        )
    first = len(cells) * worker // task["workers"]  # of its own part, in which few models occur; then the others
    with threads_set(task["threads"]):
        Worker(Store(task["store"]), task["device"]).run([*cells[first:], *cells[:first]], stop)


def outcome(task: Mapping[str, Any], worker: int, stop: Callable[[], bool] = lambda: False) -> str:
    """Work, and return nothing; or return, as JSON, the error that would stop every worker."""
    try:
        work(task, worker, stop)
    except SquashlensError as error:
        return json.dumps([type(error).__name__, error.cause, error.remedy])
    return ""


def main() -> None:
    """Run one worker."""
    parent, told = os.getppid(), []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: told.append(True))
    task = json.loads(sys.stdin.readline())
    if error := outcome(task, int(sys.argv[1]), lambda: bool(told) or os.getppid() != parent):
        print(error, file=sys.stderr)
        raise SystemExit(2)


if __name__ == "__main__":
    main()
