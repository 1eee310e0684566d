"""Norms of Jacobian blocks from their rows, which are computed a few at a time and for all positions at once.

A spectral norm needs all rows of a block together. There are three ways to keep them, which give the same numbers, and
the first that fits is taken: *hold* keeps the blocks of all positions in memory, n · k · d numbers; *spill* writes them
to a temporary file and reads it back position by position; *repeat* keeps the blocks of a few positions and repeats the
products for the next ones.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

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

Way = Literal["hold", "spill", "repeat"]
Batch = Float[Tensor, "cotangent prompt position in"]
Batches = Callable[[], Iterator[Batch]]  # each call goes through all of them again
Spectral = Callable[[Float[Tensor, "many out in"]], Tensor]  # a number for each matrix, or several


class Storage(NamedTuple):
    """How the rows of the blocks are kept: the way, and the number of positions at a time."""

    way: Way
    positions: int


def storage_for(model: Bridge, each: int, reach: int, rows: int, *, once: bool = False) -> Storage:
    """The first of hold, spill and repeat that fits `rows` rows of each block, of which a position has `each`.

    With `once`, products are not repeated. The size is printed if it is large.
    """
    one = each * rows * width(model) * max(4, dtype_of(model).itemsize)
    size, free, disk = reach * one, available(device_of(model)) // 2, free_on_disk() // 2
    if size <= free:
        found, where = Storage("hold", reach), "kept in memory"
    elif size <= disk:
        found, where = Storage("spill", reach), f"written to {tempfile.gettempdir()}"
    elif one <= free and not once:
        found, where = Storage("repeat", free // one), "computed repeatedly"
    else:
        what, needed, limit = ("All rows of the Jacobian", size, disk) if once else ("One block's rows", one, free)
        raise CapacityError(
            f"{what} need {human(needed)}, which exceeds the limit of {human(limit)} (half of the free space).",
            "Use norm='frobenius', which needs no stored rows, or n_probes=, or point TMPDIR to a larger disk.",
        )
    if size > REPORT_ABOVE or found.way != "hold":
        passes = -(-reach // found.positions)
        write(f"jacobian: rows of {reach} blocks, {human(size)}, {where}; {passes} × {rows} products")
    return found


def free_on_disk() -> int:
    """The free bytes where temporary files are written."""
    return int(psutil.disk_usage(tempfile.gettempdir()).free)


def spectral_of(
    batches: Batches, kept: Storage, reach: int, count: int, norms: Spectral,
    spans: Sequence[Sequence[int]] | None = None,
) -> Float[Tensor, "prompt position *several"]:  # fmt: skip
    """The spectral norm of the block of each position, or what `norms` gives; zero from position `reach` on.

    With `spans`, positions below `reach`, the norm of the blocks of each span side by side.
    """
    if spans is not None and kept.positions < reach:
        raise CapacityError(
            f"The rows of all {reach} blocks are needed for spans, and do not fit.",
            "Point TMPDIR to a larger disk, or use norm='frobenius', which needs no stored rows.",
        )
    found: list[Tensor] = []
    n = reach
    for start in range(0, reach, kept.positions):
        places = slice(start, min(reach, start + kept.positions))
        with tempfile.TemporaryDirectory() as folder:
            rows, n, device = collected(batches, kept.way, places, count, folder)
            each = bar(spans or range(rows.shape[1]), desc="norms", unit="token" if spans is None else "span")
            parts = (rows[:, one] if spans is None else of_span([rows], one) for one in each)
            found.append(torch.stack([norms(part.to(device)) for part in parts], dim=1))
            del rows
    return found[0] if spans is not None else padded(torch.cat(found, dim=1), n)


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
    batches: Batches, way: Way, places: slice, count: int, folder: str
) -> tuple[Float[Tensor, "prompt place out in"], int, torch.device]:
    """All rows of the blocks of some positions, with the number of positions and the device of the products."""
    kept, done, n, device = torch.empty(0), 0, 0, torch.device("cpu")
    for batch in batches():
        if not done:
            _, prompts, n, d = batch.shape
            shape = (prompts, places.stop - places.start, count, d)
            kept, device = _buffer(shape, batch, way, folder), batch.device
        kept[:, :, done : done + len(batch)] = rearrange(batch[:, :, places], "k p i d -> p i k d")
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
