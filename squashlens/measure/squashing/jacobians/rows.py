"""Norms of Jacobian blocks from their rows, which are computed a few at a time and for all positions at once.

A spectral norm needs all rows of a block together. They are kept in memory (*hold*), n · k · d numbers, or written to a
temporary file and read back position by position (*spill*), which gives the same numbers.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import psutil
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.bars import bar, write
from squashlens.engine.anatomy import device_of, dtype_of, width
from squashlens.engine.capturing.capture import REPORT_ABOVE
from squashlens.engine.differentiating.spans import Deferred
from squashlens.engine.memory import available, human
from squashlens.errors import CapacityError, UnsoundModelError
from squashlens.theory.norms import side_by_side

Way = Literal["hold", "spill"]
Batch = Float[Tensor, "cotangent prompt position in"]
Batches = Callable[[], Iterator[Batch]]  # each call goes through all of them again
Spectral = Callable[[Float[Tensor, "many out in"]], Tensor]  # a number for each matrix, or several


def way_to_keep(model: Bridge, blocks: int, rows: int) -> Way:
    """Where some rows of each block are kept, in memory or in a file; the size is printed if it is large."""
    size = blocks * rows * width(model) * max(4, dtype_of(model).itemsize)
    fits = size <= available(device_of(model)) // 2
    if not fits and size > (disk := free_on_disk() // 2):
        raise CapacityError(
            f"Writing all rows of the Jacobian needs {human(size)}, which exceeds the limit of {human(disk)} "
            "(half of the free space).",
            "Use norm='frobenius', which needs no stored rows, or fewer n_probes=, or point TMPDIR to a larger disk.",
        )
    if not fits or size > REPORT_ABOVE:
        where = "kept in memory" if fits else f"written to {tempfile.gettempdir()}"
        write(f"jacobian: rows of {blocks} blocks, {human(size)}, {where}; {rows} products")
    return "hold" if fits else "spill"


def free_on_disk() -> int:
    """The free bytes where temporary files are written."""
    return int(psutil.disk_usage(tempfile.gettempdir()).free)


def spectral_of(
    batches: Batches, way: Way, reach: int, rows: int, norms: Spectral, spans: Sequence[Sequence[int]] | None = None
) -> Float[Tensor, "prompt position *several"]:
    """The spectral norm of the block of each position, or what `norms` gives; zero from position `reach` on.

    With `spans`, positions below `reach`, the norm of the blocks of each span side by side.
    """
    with tempfile.TemporaryDirectory() as folder:
        kept, n, device = collected(batches, way, reach, rows, folder)
        each = bar(spans or range(reach), desc="norms", unit="token" if spans is None else "span")
        parts = (kept[:, one] if spans is None else of_span([kept], one) for one in each)
        found = torch.stack([norms(part.to(device)) for part in parts], dim=1)
    return found if spans is not None else padded(found, n)


def of_span(
    parts: Sequence[Float[Tensor, "prompt place _ in"]], positions: Sequence[int]
) -> Float[Tensor, "prompt cotangent many"]:
    """The rows of the blocks at some positions side by side, from rows that were computed in parts."""
    if not positions:
        return parts[0].new_zeros(len(parts[0]), sum(part.shape[2] for part in parts), 1)
    return side_by_side(torch.cat([part[:, list(positions)] for part in parts], dim=2))


def padded(values: Float[Tensor, "prompt place *several"], n: int) -> Float[Tensor, "prompt position *several"]:
    """Values of the first positions, with zeros for the others up to `n`."""
    return torch.nn.functional.pad(values, (0, 0) * (values.ndim - 2) + (0, n - values.shape[1]))


def collected(
    batches: Batches, way: Way, reach: int, rows: int, folder: str
) -> tuple[Float[Tensor, "prompt place out in"], int, torch.device]:
    """All rows of the blocks up to `reach`, with the number of positions and the device of the products."""
    kept, done, n, device = torch.empty(0), 0, 0, torch.device("cpu")
    for batch in batches():
        if not done:
            _, prompts, n, d = batch.shape
            kept, device = _buffer((prompts, reach, rows, d), batch, way, folder), batch.device
        kept[:, :, done : done + len(batch)] = rearrange(batch[:, :, :reach], "k p i d -> p i k d")
        done += len(batch)
    return kept, n, device


def _buffer(shape: tuple[int, ...], like: Tensor, way: Way, folder: str) -> Tensor:
    """An empty tensor for the rows, in memory or in a file of `folder`."""
    if way != "spill":
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    kind = np.float64 if like.dtype == torch.float64 else np.float32
    handle, name = tempfile.mkstemp(dir=folder)
    os.close(handle)
    return torch.from_numpy(np.memmap(name, kind, "w+", shape=shape))


def causality(what: str, query: int) -> Deferred:
    """The check that tokens after the query have no influence on it."""
    return Deferred(lambda: not_causal(what, query))


def not_causal(what: str, query: int) -> UnsoundModelError:
    """The error for a position that later tokens influence."""
    return UnsoundModelError(
        f"{what} lets tokens after position {query} influence that position, so that it is not causal.",
        "Remove hooks that do this, if there are any; the measurement holds for causal models only.",
    )


def require_causal(rows: Batch, query: int, check: Deferred) -> Batch:
    """The given rows of a derivative at the query, of which the check knows that those of later tokens are zero."""
    check.add(rows[:, :, query + 1 :].count_nonzero() > 0)  # true for NaN too
    return rows
