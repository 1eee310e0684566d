"""Compute one cell and store it, in this process or in a worker. A process keeps the model that it used last."""

import gc
import os
import signal
import threading
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import xarray as xr

from squashlens._typing import short_repr
from squashlens.bars import quiet
from squashlens.errors import InputError, SquashlensError
from squashlens.records.files import content_of
from squashlens.saving.files import write
from squashlens.study import measurements as known
from squashlens.study import scans
from squashlens.study.cells import Cell, Model
from squashlens.study.store import Store

LAST = 4000  # characters of a traceback that are stored
# A worker of Dask may have several threads, and a process has one model.
_lock = threading.Lock()
# The model that was used last, or the error why it cannot be loaded, by its description and device.
_kept: dict[Any, Any] = {}


@dataclass(frozen=True)
class Worker:
    """Computes cells into a store."""

    store: Store
    device: str | None = None

    def attempt(self, cell: Cell) -> None:
        """Compute a cell, and store its result or why it failed. Errors of the store itself are raised."""
        store = self.store
        about = {"grid": cell.grid, "labels": cell.labels, "arguments": cell.arguments}
        with _lock:
            if store.find(cell.key) is not None:  # another run was faster
                return
            try:
                with quiet():
                    ending, content, failed_rows = _measured(cell, self.device)
            except Exception as error:
                # Nothing is stored under a key that stands for other code.
                cell.require_current()
                about["reason"] = scans.reason_of(error)
                if not isinstance(error, SquashlensError):
                    lines = traceback.format_exception(error)
                    about["traceback"] = "".join(lines)[-LAST:]
                store.fail(cell.key, about)
                return
            cell.require_current()
            if failed_rows:
                about["reason"] = f"{len(failed_rows)} prompts could not be measured."
                store.fail(cell.key, about | {"rows": failed_rows})
            write(store.path("results", cell.key, ending), content)


def dask_setup(worker: Any) -> None:
    """What Dask calls when a worker of this machine starts.

    A terminal sends Ctrl-C to all processes, and only the first says so. Each worker takes one of the visible GPUs.
    """
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    every = ",".join(map(str, range(torch.cuda.device_count())))
    gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or every).split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus[worker.name % len(gpus)]


def release() -> None:
    """Forget the model, which may be in cycles of references."""
    if _kept:
        _kept.clear()
        gc.collect()


def _measured(cell: Cell, device: str | None) -> tuple[str, bytes, list[Any]]:
    """A cell's file, by its ending and its content, and the rows of a shard that could not be measured."""
    from squashlens.model.applied import applied

    model: Any = None
    if cell.model is not None:
        model = _model(cell.model, device)
    arguments = known.arguments_of(model, cell.function, cell.arguments)

    def measure(**prompt: Any) -> Any:
        """The result of one call, which must be an xarray object."""
        result = cell.function(**arguments, **prompt)
        if not isinstance(result, xr.DataArray | xr.Dataset):
            cause = f"The measurement returned {short_repr(result)}."
            raise InputError(cause, "Return an xarray DataArray or Dataset.")
        return result

    def measure_prompt(prompt: Any) -> Any:
        """The result for one prompt of a scan."""
        if known.takes_sequence(cell.function):
            return measure(sequence=known.sequence_of(model, prompt))
        return measure(prompt=prompt)

    hooks = known.hooks_of(cell.hooks)
    with applied(model, *hooks) if cell.model else nullcontext():
        if cell.shard is None:
            return ".nc", content_of(measure()), []
        content, failed_rows = scans.measured(cell.shard, measure_prompt)
        return ".parquet", content, failed_rows


def _model(wanted: Model, device: str | None) -> Any:
    """The model, which stays loaded until a cell needs another."""
    if (wanted, device) not in _kept:
        release()
        try:
            _kept[wanted, device] = _loaded(wanted, device)
        except SquashlensError as error:
            _kept[wanted, device] = error
    model = _kept[wanted, device]
    if isinstance(model, SquashlensError):
        raise model
    return model


def _loaded(wanted: Model, device: str | None) -> Any:
    """The model as `load` opens it, or one with its architecture and random weights."""
    import torch

    from squashlens.model.loading import load
    from squashlens.model.loading.random_weights import with_random_weights

    torch.cuda.empty_cache()  # nothing without CUDA
    options = {"dtype": wanted.dtype, "revision": wanted.revision}
    model = load.load(wanted.model, device=device, **options)
    if wanted.untrained is None:
        return model
    random = with_random_weights(model, wanted.untrained)
    random.tokenizer = model.tokenizer
    return random
