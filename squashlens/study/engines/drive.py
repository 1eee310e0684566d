"""Start workers, show their progress, and start others in place of those that died, until every cell is closed."""

import itertools
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
COUNT = 10  # looks between two counts of the files in the store


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
