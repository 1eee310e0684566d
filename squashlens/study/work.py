"""What a worker does: claim a cell, compute it, store it, and go on. Every engine starts workers that run this.

Nobody hands out cells. Each worker begins at another one, and goes on to those that are left; the store says what is
done. So a worker may be killed, join or leave at any time, and a study that was begun with one engine can be continued
with another.

As a program, a worker reads what to do from standard input, as JSON. It ends after the cell in hand if the process that
started it ends, or if it is told to stop by SIGTERM or SIGUSR1. The exit code is 0, or 2 after an error that would stop
every worker, such as a full disk.
"""

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import xarray as xr

from squashlens._typing import short_repr
from squashlens.bars import quiet
from squashlens.errors import InputError, OutputError, SquashlensError
from squashlens.model.digests import sha256
from squashlens.saving.stored import Result
from squashlens.study.cells import Cell, Model, by_model, cells_of
from squashlens.study.describing.description import read
from squashlens.study.describing.measurements import (
    LOADING,
    arguments_for,
    function_of,
    parameters,
    require_hooks,
    scanned_argument,
    sequence_of,
)
from squashlens.study.scans import reason_of, shard
from squashlens.study.store import Store

DEATHS = 5  # workers that may die while they compute a cell, also by pre-emption, before it counts as failed
PAUSE = 0.2  # seconds between two looks at cells that other workers hold


class Worker:
    """A worker with the model that it loaded last. `loads` counts the models that it loaded."""

    def __init__(self, store: Store, device: str | None = None) -> None:
        self.store, self.device, self.loads = store, device, 0
        self._loaded: tuple[Model | None, Any] = (None, None)
        self._refused: dict[Model, SquashlensError] = {}

    def run(
        self,
        cells: Sequence[Cell],
        stop: Callable[[], bool] = lambda: False,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        """Compute the cells that are not done, and wait for those that other workers hold.

        All cells of one model come before those of the next. `stop` is asked before each cell, and `after` is called
        after each.
        """
        closed = self.store.closed(cell.key for cell in cells)
        left = by_model(cell for cell in cells if cell.key not in closed)
        while left and not stop():
            for model in sorted(left, key=lambda model: model != self._loaded[0]):
                held = []
                for cell in left[model]:
                    if stop():
                        return
                    if self.attempt(cell):
                        after()
                    else:
                        held.append(cell)
                left[model] = held
            left = {model: held for model, held in left.items() if held}
            time.sleep(PAUSE if left else 0)

    def attempt(self, cell: Cell) -> bool:
        """Compute a cell unless it is done; False if another worker holds it."""
        with self.store.claimed(cell.key) as deaths:
            if deaths is None:
                return False
            if (
                self.store.read(cell.key) is None
                and self.store.failure(cell.key) is None
            ):
                self._compute(cell, deaths)
                if "resume" in parameters(cell.measurement):
                    self.store.journal(cell.key).unlink(missing_ok=True)
        return True

    def _compute(self, cell: Cell, deaths: int) -> None:
        """Compute and store a cell, or store why it failed. Errors of the store itself are raised."""
        if deaths >= DEATHS:
            remedy = "Use retry=True if they were pre-empted, and workers=1 to see why they crash."
            self._fail(cell, f"{deaths} workers died while they computed it. {remedy}")
            return
        try:
            with quiet():
                result = self._measure(cell)
        except Exception as error:
            if isinstance(error, OutputError) and "resume" in parameters(
                cell.measurement
            ):
                raise  # its journal is in the store
            self._fail(cell, reason_of(error), error)
            return
        cell.require_described()
        try:
            if isinstance(result, bytes):
                self.store.keep_shard(cell.key, cell.about, cell.grid, result)
            else:
                self.store.keep(cell.key, cell.about, result)
        except OutputError:
            raise
        except Exception as error:  # a result that no file can hold
            self._fail(cell, reason_of(error), error)

    def _measure(self, cell: Cell) -> Any:
        from squashlens.model.applied import applied

        known = parameters(cell.measurement)
        model = self._model(cell.model) if cell.model else None
        arguments = arguments_for(model, cell.arguments, known)
        if (
            "resume" in known
        ):  # if this worker is killed, the next one goes on from here
            arguments |= {"resume": self.store.journal(cell.key)}
        first = () if model is None else (model,)

        def function(**more: Any) -> Result:
            result = function_of(cell.measurement)(*first, **more, **arguments)
            if not isinstance(result, xr.DataArray | xr.Dataset):
                cause = f"{cell.measurement} returned {short_repr(result)}."
                raise InputError(cause, "Return an xarray DataArray or Dataset.")
            return result

        # A measurement without a model has no hooks.
        with (
            nullcontext()
            if model is None
            else applied(model, *require_hooks(cell.hooks))
        ):
            if cell.source is None or cell.span is None:
                return function()

            def measure(prompt: Any) -> Any:
                grows = scanned_argument(cell.measurement) == "sequence"
                return (
                    function(sequence=sequence_of(model, prompt))
                    if grows
                    else function(prompt=prompt)
                )

            return shard(cell.source.prompts(*cell.span), measure)

    def _model(self, wanted: Model) -> Any:
        """The model, which stays loaded until a cell needs another."""
        if wanted in self._refused:
            raise self._refused[wanted]
        if self._loaded[0] != wanted:
            import torch

            from squashlens.model.loading.load import load
            from squashlens.model.loading.random_weights import with_random_weights

            self._loaded = (None, None)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            options = {name: getattr(wanted, name) for name in LOADING}
            try:
                model: Any = load(wanted.name, device=self.device, **options)
                if wanted.untrained is not None:
                    tokenizer, model = (
                        model.tokenizer,
                        with_random_weights(model, wanted.untrained),
                    )
                    model.tokenizer = tokenizer
            except SquashlensError as error:
                self._refused[wanted] = error
                raise
            self._loaded, self.loads = (wanted, model), self.loads + 1
        return self._loaded[1]

    def _fail(self, cell: Cell, reason: str, error: Exception | None = None) -> None:
        cell.require_described()
        about = cell.about | {"reason": reason}
        if error is not None and not isinstance(error, SquashlensError):
            about["traceback"] = "".join(traceback.format_exception(error))[-4000:]
        self.store.fail(cell.key, about)


@contextmanager
def threads_set(number: int) -> Any:
    """Let PyTorch use this many threads. Sums in another order have other last digits, so the number is fixed."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def digest(cells: Sequence[Cell]) -> str:
    """A digest of the names of all cells."""
    return sha256("".join(cell.key for cell in cells))


def work(
    task: Mapping[str, Any], worker: int, stop: Callable[[], bool] = lambda: False
) -> None:
    """Compute the cells of a task that are not done."""
    grids, _ = read(task["grids"])
    cells = cells_of(grids)
    if digest(cells) != task["cells"]:
        raise InputError(
            "A worker found other cells than the process that started it.",
            "Install the same versions, and use the same models and files, on all machines.",
        )
    first = len(cells) * worker // task["workers"]  # other workers begin elsewhere
    with threads_set(task["threads"]):
        Worker(Store(task["store"]), task["device"]).run(
            [*cells[first:], *cells[:first]], stop
        )


def outcome(
    task: Mapping[str, Any], worker: int, stop: Callable[[], bool] = lambda: False
) -> str:
    """Work, and return nothing; or return, as JSON, the error that would stop every worker."""
    try:
        work(task, worker, stop)
    except SquashlensError as error:
        return json.dumps([type(error).__name__, error.cause, error.remedy])
    return ""


def main() -> None:
    """Run one worker."""
    told = list[bool]()
    for name in ("SIGTERM", "SIGUSR1"):
        if hasattr(signal, name):  # Windows has only the first
            signal.signal(getattr(signal, name), lambda *_: told.append(True))
    task = json.loads(sys.stdin.readline())
    # A parent's identity would not do: it may have ended before this line.
    threading.Thread(
        target=lambda: told.append(not os.read(sys.stdin.fileno(), 1)), daemon=True
    ).start()
    if error := outcome(task, int(sys.argv[1]), lambda: bool(told)):
        print(error, file=sys.stderr)
        raise SystemExit(2)


if __name__ == "__main__":
    main()
