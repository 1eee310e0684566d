"""Norms of Jacobian blocks from their rows, which arrive a few at a time and for all positions at once.

The Frobenius norm is a running sum. A spectral norm needs all rows of a block together; there are three ways to have
them, none of which changes a number: *hold* the blocks of all positions, n · k · d numbers; *spill* them to a file and
read that back by position; or *repeat* the products for some positions after the others.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import psutil
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Norm, RowsKept
from squashlens.bars import bar
from squashlens.errors import CapacityError, UnsoundModelError
from squashlens.model.capture import SAY_ABOVE
from squashlens.model.memory import available, human
from squashlens.model.spans import differentiable, vjps
from squashlens.theory.norms import squared_frobenius

Batch = Float[Tensor, "cotangent prompt position in"]
Batches = Callable[[], Iterator[Batch]]  # each call goes through all of them again
Spectral = Callable[[Float[Tensor, "many out in"]], Float[Tensor, " many"]]


@dataclass(frozen=True)
class Room:
    """Where the rows of the blocks go: which way, what that takes, and how many positions at a time."""

    way: RowsKept
    size: int
    positions: int


def room_for(kept: RowsKept, prompts: int, reach: int, rows: int, d: int, like: Tensor) -> Room:
    """The way asked for, or the first of hold, spill and repeat that fits; refused where that one does not."""
    each = prompts * rows * d * max(4, like.dtype.itemsize)
    size, free = reach * each, available(like.device) // 2
    disk = psutil.disk_usage(tempfile.gettempdir()).free // 2
    if kept == "hold" or (kept == "auto" and size <= free):
        _require(size, free, f"Holding all rows of the Jacobian on {like.device}", "Use rows='spill' or 'repeat'.")
        return Room("hold", size, reach)
    if kept == "spill" or (kept == "auto" and size <= disk):
        _require(
            size, disk, "Spilling all rows of the Jacobian", "Use rows='repeat', or point TMPDIR to a larger disk."
        )
        return Room("spill", size, reach)
    _require(each, free, "One position's block of the Jacobian", "Use norm='frobenius', which streams.")
    return Room("repeat", size, max(1, free // each))


def _require(size: int, free: int, what: str, remedy: str) -> None:
    if size > free:
        raise CapacityError(f"{what} needs {human(size)}, and half of what is free are {human(free)}.", remedy)


def told(room: Room, reach: int, rows: int) -> str | None:
    """What a spectral norm is going to take, where that is worth a line."""
    if room.size <= SAY_ABOVE and room.way == "hold":
        return None
    where = {"hold": "held", "spill": f"spilled to {tempfile.gettempdir()}", "repeat": "not kept"}[room.way]
    passes = -(-reach // room.positions)
    return f"jacobian: rows of {reach} blocks, {human(room.size)}, {where}; {passes} × {rows} products"


def frobenius_of(batches: Batches) -> Float[Tensor, "prompt position"]:
    """The root of the sum of squares of all rows."""
    return reduce(torch.add, map(squared_frobenius, batches())).sqrt()


def spectral_of(
    batches: Batches, room: Room, reach: int, rows: int, norms: Spectral, progress: bool
) -> Float[Tensor, "prompt position"]:
    """The spectral norm of each block; 0 behind the reach."""
    found: list[Tensor] = []
    width = 0
    for start in range(0, reach, room.positions):
        stop = min(reach, start + room.positions)
        with tempfile.TemporaryDirectory() as folder:
            kept, done, device = None, 0, torch.device("cpu")
            for batch in batches():
                if kept is None:
                    width, device = batch.shape[2], batch.device
                    kept = _buffer((batch.shape[1], stop - start, rows, batch.shape[3]), batch, room.way, folder)
                part = rearrange(batch[:, :, start:stop], "k p i d -> p i k d")
                kept[:, :, done : done + len(batch)] = part
                done += len(batch)
            if kept is None:
                raise CapacityError("There are no rows to take norms of.", "Ask for at least one cotangent.")
            places = bar(range(stop - start), desc="norms", unit="token", progress=progress)
            found.append(torch.stack([norms(kept[:, place].to(device)) for place in places], dim=1))
            del kept
    whole = torch.cat(found, dim=1)
    return torch.nn.functional.pad(whole, (0, width - reach))


def _buffer(shape: tuple[int, ...], like: Tensor, way: RowsKept, folder: str) -> Tensor:
    if way != "spill":
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    kind = np.float64 if like.dtype == torch.float64 else np.float32
    return torch.from_numpy(np.memmap(Path(folder) / "rows", kind, "w+", shape=shape))


def norms_at(
    output: Float[Tensor, "prompt position d"], query: int, leaf: Float[Tensor, "prompt position in"],
    norm: Norm, directions: Float[Tensor, "cotangent d"], batch: int, norms: Spectral,
) -> Float[Tensor, "prompt position"]:  # fmt: skip
    """Norms of the derivative of `output` at the query by each token of the leaf, on a graph that is at hand."""
    batches, reach = at_query(output, query, leaf, directions, batch), query + 1
    if norm == "frobenius":
        return frobenius_of(batches)
    return spectral_of(batches, Room("hold", 0, reach), reach, len(directions), norms, progress=False)


def at_query(
    output: Float[Tensor, "prompt position d"], query: int, leaf: Float[Tensor, "prompt position in"],
    directions: Float[Tensor, "cotangent d"], batch: int,
) -> Batches:  # fmt: skip
    """Vector–Jacobian products of one token's output, one for each direction, `batch` at a time."""
    with differentiable():
        alone = output[:, query]
    # Prompts do not interact, so one backward pass serves all of them.
    cotangents = directions.to(output.device, output.dtype)[:, None].expand(-1, *alone.shape)
    return lambda: (require_causal(rows, query, "The model") for (rows,) in vjps(alone, [leaf], cotangents, batch))


def require_causal(
    rows: Float[Tensor, "cotangent prompt position in"], query: int, what: str
) -> Float[Tensor, "cotangent prompt position in"]:
    """The same rows of a derivative at the query; refused where a later token has a part in them."""
    if bool(rows[:, :, query + 1 :].count_nonzero()):  # NaN too
        raise UnsoundModelError(
            f"{what} lets tokens after position {query} reach it.",
            "Nothing here holds for such a model: take standing hooks away, if there are any.",
        )
    return rows
