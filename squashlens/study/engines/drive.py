"""Start workers, show their progress, and start others in place of those that died, until every cell is closed.

The engine `local` starts processes on this machine, with one device each. No other package is needed.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from squashlens import errors
from squashlens.bars import bar
from squashlens.errors import OutputError, SquashlensError
from squashlens.study.cells import Cell
from squashlens.study.store import Store

LOOK = 0.2  # seconds between two looks at the workers
COUNT = 10  # looks between two counts of the files in the store
ERRORS = 4000  # characters of a dead worker's messages that are kept
Process = tuple["subprocess.Popen[bytes]", Any]  # with the file of its messages


class Engine(Protocol):
    """What starts workers.

    The state of a worker is None while it runs, "" when it has ended, and otherwise the reason why it died.
    """

    def start(self, task: Mapping[str, Any], worker: int) -> Any: ...
    def state(self, handle: Any) -> str | None: ...
    def stop(self, handles: Sequence[Any]) -> None: ...


def drive(
    engine: Engine, task: Mapping[str, Any], workers: int, store: Store, cells: Sequence[Cell], progress: bool
) -> None:
    """Run a study with some workers. A worker that dies is replaced; deaths without any progress end the study."""
    handles = {worker: engine.start(task, worker) for worker in range(workers)}
    deaths, before = 0, store.count()
    try:
        with bar(total=len({cell.key for cell in cells}), desc="cells", unit="cell", progress=progress) as shown:
            for turn in itertools.count():
                if turn % COUNT == 0 or not handles:
                    now = store.count()
                    deaths, before = (0, now) if now != before else (deaths, before)
                    shown.update(min(now, shown.total) - shown.n)
                if not handles:
                    return
                time.sleep(LOOK)
                for worker, state in [(worker, engine.state(handle)) for worker, handle in handles.items()]:
                    if state is None:
                        continue
                    del handles[worker]
                    if not state:
                        continue
                    if error := reported(state):
                        raise error
                    deaths += 1
                    if deaths > 10 + 3 * workers:
                        raise OutputError(
                            f"The workers die before they compute anything: {state[-600:]}",
                            "Run with workers=1 to see the error.",
                        )
                    handles[worker] = engine.start(task, worker)
    finally:
        engine.stop([*handles.values()])


def reported(text: str) -> SquashlensError | None:
    """The error that a worker printed as its last line."""
    try:
        name, cause, remedy = json.loads(text.strip().splitlines()[-1])
        kind = getattr(errors, name)
    except (ValueError, IndexError, TypeError, AttributeError):
        return None
    return kind(cause, remedy) if name in errors.__all__ else None


class Local:
    """Workers as programs of their own, so that a script needs no `if __name__ == "__main__"`."""

    def start(self, task: Mapping[str, Any], worker: int) -> Process:
        """Start a worker that sees one CUDA device, if there are any and none was chosen."""
        environment = os.environ | {
            "OMP_NUM_THREADS": str(task["threads"]), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }  # fmt: skip
        if task["device"] is None and (devices := visible()):
            environment["CUDA_VISIBLE_DEVICES"] = devices[worker % len(devices)]
        messages = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed with the worker)
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "squashlens.study.work", str(worker)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages, env=environment,
        )  # fmt: skip
        if process.stdin is not None:
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.close()
        return process, messages

    def state(self, handle: Process) -> str | None:
        process, messages = handle
        if process.poll() is None:
            return None
        messages.seek(0)
        text = messages.read().decode("utf-8", "replace")[-ERRORS:]
        messages.close()
        return "" if process.returncode == 0 else text or f"A worker ended with code {process.returncode}."

    def stop(self, handles: Sequence[Process]) -> None:
        for process, messages in handles:
            process.kill()  # its claim remains, and another worker computes the cell
            process.wait()
            messages.close()


def visible() -> list[str]:
    """The CUDA devices that this process sees, by the names that CUDA_VISIBLE_DEVICES has for them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
