"""Compute one cell and store it, in this process or in a worker. A process keeps the model that it used last."""

import gc
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
from squashlens.records.provenance import Result
from squashlens.study import measurements as known
from squashlens.study.cells import Cell, Model
from squashlens.study.scans import reason_of, shard
from squashlens.study.store import Store

_one = (
    threading.Lock()
)  # a worker of Dask may have several threads, and a process has one model
_kept: dict[
    Any, Any
] = {}  # the model that was used last, or the error why it cannot be loaded


@dataclass(frozen=True)
class Worker:
    """Computes cells into a store; those of which the keys are in `again` also if they have a file."""

    store: Store
    device: str | None = None
    again: frozenset[str] = frozenset()

    def attempt(self, cell: Cell) -> bool:
        """Compute a cell, and store its result or why it failed.

        Returns:
            Whether the cell is done. Errors of the store itself, such as a full disk, are raised.
        """
        with _one:
            if cell.key not in self.again and self.store.find(cell.key) is not None:
                return True
            cell.require_current()
            try:
                with quiet():
                    ending, content = _measured(cell, self.device)
            except Exception as error:
                cell.require_current()
                about = cell.about | {"reason": reason_of(error)}
                if not isinstance(error, SquashlensError):
                    about["traceback"] = "".join(traceback.format_exception(error))[
                        -4000:
                    ]
                self.store.fail(cell.key, about)
                return False
            cell.require_current()
            self.store.keep(cell.key, ending, content)
            return True


def dask_setup(_: Any) -> None:
    """What Dask calls when a worker starts: a terminal sends Ctrl-C to all processes, and the first says so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def release() -> None:
    """Forget the model."""
    _kept.clear()
    gc.collect()


def _measured(cell: Cell, device: str | None) -> tuple[str, bytes]:
    """The file of a cell, by its ending and its content."""
    from squashlens.model.applied import applied

    function = known.function_of(cell.measurement)
    model = None if cell.model is None else _model(cell.model, device)
    arguments = known.arguments_of(model, function, cell.arguments)

    def measure(**prompt: Any) -> Result:
        result = function(**arguments, **prompt)
        if not isinstance(result, xr.DataArray | xr.Dataset):
            cause = f"{cell.grid} returned {short_repr(result)}."
            raise InputError(cause, "Return an xarray DataArray or Dataset.")
        return result

    def measure_prompt(prompt: Any) -> Result:
        if known.scanned_argument(function) == "prompt":
            return measure(prompt=prompt)
        return measure(sequence=known.sequence_of(model, prompt))

    hooks = known.hooks_of(cell.hooks)
    with nullcontext() if model is None else applied(model, *hooks):
        if cell.source is not None and cell.span is not None:
            return ".parquet", shard(cell.source.prompts(*cell.span), measure_prompt)
        result = measure()
    return ".nc", content_of(result)


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
    import torch

    from squashlens.model.loading import load
    from squashlens.model.loading.random_weights import with_random_weights

    torch.cuda.empty_cache()  # nothing without CUDA
    model = load.load(
        wanted.name, device=device, dtype=wanted.dtype, revision=wanted.revision
    )
    if wanted.untrained is None:
        return model
    random = with_random_weights(model, wanted.untrained)
    random.tokenizer = model.tokenizer
    return random
