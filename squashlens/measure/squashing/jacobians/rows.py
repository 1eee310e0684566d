"""Norms of Jacobian blocks from their rows, which are computed a few at a time and for all positions at once.

The Frobenius norm is a running sum. A spectral norm needs all rows of a block together. There are three ways to store
them, which give the same numbers, and the first that fits is taken: *hold* keeps the blocks of all positions in memory,
n · k · d numbers; *spill* writes them to a temporary file and reads it back position by position; *repeat* keeps the
blocks of a few positions and repeats the products for the next ones.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import psutil
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from squashlens.bars import bar
from squashlens.engine.capturing.capture import REPORT_ABOVE
from squashlens.engine.differentiating.spans import Deferred, differentiable, vjps
from squashlens.engine.memory import available, human
from squashlens.errors import CapacityError, UnsoundModelError
from squashlens.theory.norms import side_by_side

Way = Literal["hold", "spill", "repeat"]
Batch = Float[Tensor, "cotangent prompt position in"]
Batches = Callable[[], Iterator[Batch]]  # each call goes through all of them again
Spectral = Callable[[Float[Tensor, "many out in"]], Tensor]  # a number for each matrix, or several


@dataclass(frozen=True)
class Storage:
    """How the rows of the blocks are stored: the way, the size in bytes, and the number of positions at a time."""

    way: Way
    size: int
    positions: int


def storage_for(prompts: int, reach: int, rows: int, d: int, like: Tensor, *, once: bool = False) -> Storage:
    """The first of hold, spill and repeat that fits; without repeat, if each product is computed once. Or an error."""
    each = prompts * rows * d * max(4, like.dtype.itemsize)
    size, free = reach * each, available(like.device) // 2
    disk = free_on_disk() // 2
    if size <= free:
        return Storage("hold", size, reach)
    if once:
        _require(size, disk, "Writing all rows of the Jacobian", "Point TMPDIR to a larger disk, or use n_probes=.")
    if size <= disk:
        return Storage("spill", size, reach)
    _require(each, free, "The Jacobian block of one position", "Use norm='frobenius', which needs no stored rows.")
    return Storage("repeat", size, max(1, free // each))


def free_on_disk() -> int:
    """The free bytes where temporary files are written."""
    return int(psutil.disk_usage(tempfile.gettempdir()).free)


def _require(size: int, limit: int, what: str, remedy: str) -> None:
    """Raise if `size` bytes exceed `limit`, which is half of the free space."""
    if size > limit:
        raise CapacityError(
            f"{what} needs {human(size)}, which exceeds the limit of {human(limit)} (half of the free space).", remedy
        )


def cost_message(storage: Storage, reach: int, rows: int) -> str | None:
    """A line about the size and products of a spectral norm, or None if they are small."""
    if storage.size <= REPORT_ABOVE and storage.way == "hold":
        return None
    where = {
        "hold": "kept in memory", "spill": f"written to {tempfile.gettempdir()}", "repeat": "computed repeatedly",
    }[storage.way]  # fmt: skip
    passes = -(-reach // storage.positions)
    return f"jacobian: rows of {reach} blocks, {human(storage.size)}, {where}; {passes} × {rows} products"


# More than six arguments that are not options, since all describe the rows.
def spectral_of(
    batches: Batches, storage: Storage, reach: int, rows: int, norms: Spectral,
    spans: Sequence[Sequence[int]] | None = None,
) -> Float[Tensor, "prompt position *several"]:  # fmt: skip
    """The spectral norm of the block of each position, or what `norms` gives; zero from position `reach` on.

    With `spans`, positions below `reach`, the norm of the blocks of each span side by side.
    """
    if spans is not None:
        if storage.positions < reach:
            raise CapacityError(
                f"The rows of all {reach} blocks are needed for spans, {human(storage.size)}, and do not fit.",
                "Point TMPDIR to a larger disk, or use norm='frobenius', which needs no stored rows.",
            )
        with tempfile.TemporaryDirectory() as folder:
            kept, _, device = collected(batches, storage.way, slice(0, reach), rows, folder)
            each = bar(spans, desc="norms", unit="span")
            return torch.stack([norms(of_span([kept], inside).to(device)) for inside in each], dim=1)
    found: list[Tensor] = []
    width = 0
    for start in range(0, reach, storage.positions):
        stop = min(reach, start + storage.positions)
        with tempfile.TemporaryDirectory() as folder:
            kept, width, device = collected(batches, storage.way, slice(start, stop), rows, folder)
            places = bar(range(stop - start), desc="norms", unit="token")
            found.append(torch.stack([norms(kept[:, place].to(device)) for place in places], dim=1))
            del kept
    return padded(torch.cat(found, dim=1), width)


def of_span(
    parts: Sequence[Float[Tensor, "prompt place _ in"]], positions: Sequence[int]
) -> Float[Tensor, "prompt cotangent many"]:
    """The rows of the blocks at some positions side by side, from rows that were computed in parts."""
    if not positions:
        return parts[0].new_zeros(len(parts[0]), sum(part.shape[2] for part in parts), 1)
    return side_by_side(torch.cat([part[:, list(positions)] for part in parts], dim=2))


def padded(values: Float[Tensor, "prompt place *several"], width: int) -> Float[Tensor, "prompt position *several"]:
    """Values of the first positions, with zeros for the others up to `width`."""
    return torch.nn.functional.pad(values, (0, 0) * (values.ndim - 2) + (0, width - values.shape[1]))


def collected(
    batches: Batches, way: Way, positions: slice, rows: int, folder: str
) -> tuple[Float[Tensor, "prompt place out in"], int, torch.device]:
    """All rows of the blocks of some positions, with the number of positions and the device of the products."""
    kept, done, width, device = None, 0, 0, torch.device("cpu")
    for batch in batches():
        if kept is None:
            width, device = batch.shape[2], batch.device
            shape = (batch.shape[1], positions.stop - positions.start, rows, batch.shape[3])
            kept = _buffer(shape, batch, way, folder)
        kept[:, :, done : done + len(batch)] = rearrange(batch[:, :, positions], "k p i d -> p i k d")
        done += len(batch)
    if kept is None:
        raise CapacityError("The Jacobian has no rows to compute norms of.", "Give at least one cotangent.")
    return kept, width, device


def _buffer(shape: tuple[int, ...], like: Tensor, way: Way, folder: str) -> Tensor:
    """An empty tensor for the rows, in memory or in a file of `folder`."""
    if way != "spill":
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    kind = np.float64 if like.dtype == torch.float64 else np.float32
    handle, name = tempfile.mkstemp(dir=folder)
    os.close(handle)
    return torch.from_numpy(np.memmap(name, kind, "w+", shape=shape))


def norms_at(
    output: Float[Tensor, "prompt position d"], query: int, leaf: Float[Tensor, "prompt position in"], batch: int,
    norms: Spectral,
) -> Float[Tensor, "prompt position"]:  # fmt: skip
    """Spectral norms of the derivative of `output` at the query by each token of the leaf, on an existing graph."""
    with differentiable():
        alone = output[:, query]
    every = torch.eye(output.shape[-1], dtype=output.dtype, device=output.device)
    cotangents = every[:, None].expand(-1, *alone.shape)

    def batches() -> Iterator[Batch]:
        check = causality("The model", query)
        for (rows,) in vjps(alone, [leaf], cotangents, batch):
            yield require_causal(rows, query, check)
        check.require()

    reach = query + 1
    return spectral_of(batches, Storage("hold", 0, reach), reach, len(every), norms)


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
