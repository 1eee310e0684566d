"""Start workers, show their progress, and start others in place of those that died, until every cell is closed."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from squashlens import errors
from squashlens.bars import bar
from squashlens.errors import OutputError, SquashlensError
from squashlens.study.cells import Cell
from squashlens.study.storing.store import Store

LOOK = 0.2  # seconds between two looks at the workers
SHARE = 20  # counting the files of the store takes at most one twentieth of the time


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
    deaths, most = 0, 10 + 3 * workers
    try:
        with bar(total=len({cell.key for cell in cells}), desc="cells", unit="cell", progress=progress) as shown:
            before, looked = store.count(), 0.0
            shown.update(min(before, shown.total))
            while handles:
                time.sleep(LOOK)
                began = time.monotonic()
                if began >= looked:
                    now = store.count()
                    looked = time.monotonic() + SHARE * (time.monotonic() - began)
                    shown.n = min(now, shown.total)
                    shown.refresh()
                    deaths, before = (0, now) if now != before else (deaths, before)
                for worker, handle in list(handles.items()):
                    state = engine.state(handle)
                    if state is None:
                        continue
                    del handles[worker]
                    if state:
                        if error := reported(state):
                            raise error
                        if deaths >= most:
                            raise OutputError(
                                f"The workers die before they compute anything: {state[-600:]}",
                                "Run with workers=1 to see the error.",
                            )
                        deaths += 1
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
