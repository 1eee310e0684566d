"""Products of rows with attention patterns that are never written to memory, as two kernels in Triton.

``(r A)_k = Σ_j r_j exp(s_jk − m_j) / l_j``, where s are the logits, m_j the maximum of query j and l_j its sum of
``exp(s_jk − m_j)``. One kernel computes m and l, another recomputes the logits and adds up the keys. Each program has
one prompt, one head and one block of queries or keys, for which it goes over all the others: no number is written by
two programs, and the order of every sum is fixed.

Products of queries and keys are summed in float32, whatever their dtype; sums over queries and keys are in float64
from one block to the next, as in blocks of rows. The last axis of a block of logits is the one that is summed, so that
most of the sum stays within a thread.

`squashlens.theory.row_products` decides when this module is imported. It needs Triton, which PyTorch brings for CUDA.
"""

from typing import TYPE_CHECKING, Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

if TYPE_CHECKING:
    from squashlens.theory.attention import Attention

LOG2_E = 1.4426950408889634  # powers of two take one instruction
ROWS = 16  # at a time, if there are several: the fewest that tensor cores multiply, and they fit into registers


@triton.jit
def _scores(left, right, query, key, window, inner, outer, CAPPED: tl.constexpr, MASKED: tl.constexpr):
    """Logits · log₂ e of a block, −∞ where the key is not seen; without a cap ``inner`` is the scale · log₂ e."""
    scores = tl.dot(left, right, input_precision="ieee") * inner
    if CAPPED:
        # 1 − 2/(e²ˣ + 1) cancels for small x. There the Taylor series up to x⁹ is exact to 9e-9 of its value.
        square = scores * scores
        series = 1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835))))
        tanh = tl.where(tl.abs(scores) < 0.25, scores * series, 1 - 2 / (tl.exp(2 * scores) + 1))
        scores = tanh * outer
    if MASKED:
        scores = tl.where((key <= query) & (query - key < window), scores, float("-inf"))
    return scores


# Many parameters, since a kernel takes tensors and numbers only. One program serves all lengths, if none is special.
@triton.jit(do_not_specialize=["n", "each", "window", "first"])
def _normalize(
    queries, keys, sinks, maxima, sums, n, each, window, inner, outer, first, CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr, SUNK: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """The maximum of a block of queries, in units of log₂ e, and their sums of ``exp(s − maximum)``."""
    start = first + (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK  # those that see most keys come first
    head, heads, prompt = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    queries += (prompt.to(tl.int64) * heads + head) * n * SIZE
    keys += (prompt.to(tl.int64) * (heads // each) + head // each) * n * SIZE
    query, at, place = start + tl.arange(0, BLOCK), tl.arange(0, WIDTH), tl.arange(0, STEP)
    own = tl.load(
        queries + query.to(tl.int64)[:, None] * SIZE + at[None, :],
        mask=(query[:, None] < n) & (at[None, :] < SIZE), other=0.0,
    )  # fmt: skip
    most = tl.full([BLOCK], -1e38, tl.float32)  # not −∞: a block may have no key that a query sees
    total = tl.zeros([BLOCK], tl.float64)
    if SUNK:
        most = tl.zeros([BLOCK], tl.float32) + tl.load(sinks + head)
        total += 1
    low = tl.maximum(0, start - window + 1) // STEP * STEP
    for edge in tl.static_range(2):  # first the keys before the block, which are all seen without a window
        begin = start if edge else low
        end = tl.minimum(start + BLOCK, n) if edge else start
        for there in tl.range(begin, end, STEP):
            key = there + place
            other = tl.load(
                keys + tl.cast(there, tl.int64) * SIZE + (place[None, :] * SIZE + at[:, None]),
                mask=(key[None, :] < n) & (at[:, None] < SIZE), other=0.0,
            )  # fmt: skip
            scores = _scores(
                own, other, query[:, None], key[None, :], window, inner, outer, CAPPED, WINDOWED or edge == 1
            )
            larger = tl.maximum(most, tl.max(scores, 1))
            added = tl.sum(tl.exp2(scores - larger[:, None]), 1)
            total = total * tl.exp2(most - larger).to(tl.float64) + added.to(tl.float64)
            most = larger
    to = (prompt.to(tl.int64) * heads + head) * n + query
    tl.store(maxima + to, most, mask=query < n)
    tl.store(sums + to, total, mask=query < n)


# Many parameters, for the same reason.
@triton.jit(do_not_specialize=["n", "each", "window", "begin", "stop", "count"])
def _multiply(
    queries, keys, rows, maxima, found, n, each, window, inner, outer, begin, stop, count,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """``Σ_j r_j exp(s_jk − m_j)`` for a block of keys, over the queries from `begin` up to `stop`."""
    start = tl.program_id(0) * BLOCK
    head, heads, prompt = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    queries += (prompt.to(tl.int64) * heads + head) * n * SIZE
    keys += (prompt.to(tl.int64) * (heads // each) + head // each) * n * SIZE
    offset = (prompt.to(tl.int64) * heads + head) * n
    apart = tl.num_programs(2).to(tl.int64) * heads * n  # from one row to the next
    key, at, place, row = start + tl.arange(0, BLOCK), tl.arange(0, WIDTH), tl.arange(0, STEP), tl.arange(0, ROWS)
    own = tl.load(
        keys + key.to(tl.int64)[:, None] * SIZE + at[None, :],
        mask=(key[:, None] < n) & (at[None, :] < SIZE), other=0.0,
    )  # fmt: skip
    total = tl.zeros([BLOCK, ROWS], tl.float64)
    for edge in tl.static_range(2):  # first the queries within the block, then those behind it
        low = start + BLOCK if edge == 1 else start
        high = start + BLOCK - 1 + window if edge == 1 else start + BLOCK
        for there in tl.range(tl.maximum(low, begin // STEP * STEP), tl.minimum(high, stop), STEP):
            query = there + place
            other = tl.load(
                queries + tl.cast(there, tl.int64) * SIZE + (place[None, :] * SIZE + at[:, None]),
                mask=(query[None, :] < n) & (at[:, None] < SIZE), other=0.0,
            )  # fmt: skip
            shift = tl.load(maxima + offset + query, mask=query < n, other=0.0)
            scores = _scores(
                own, other, query[None, :], key[:, None], window, inner, outer, CAPPED, WINDOWED or edge == 0
            )
            weights = tl.exp2(scores - shift[None, :])
            inside = (query >= begin) & (query < stop)
            if ROWS == 1:
                left = tl.load(rows + offset + query, mask=inside, other=0.0)
                total += tl.sum(weights * left[None, :], 1).to(tl.float64)[:, None]
            else:
                left = tl.load(
                    rows + row[None, :] * apart + offset + query[:, None],
                    mask=inside[:, None] & (row[None, :] < count), other=0.0,
                )  # fmt: skip
                total += tl.dot(weights, left, input_precision="ieee").to(tl.float64)
    to = found + row[None, :] * apart + offset + key[:, None]
    tl.store(to, total, mask=(key[:, None] < n) & (row[None, :] < count))


def pushed_by_head(attention: "Attention", rows: Tensor, within: slice) -> Tensor:
    """``r_h A_h`` as `Attention.pushed_by_head` gives it, for attention without a mask and as many queries as keys."""
    queries, keys = attention.queries.contiguous(), attention.keys.contiguous()
    prompts, heads, n, size = queries.shape
    cap, window = attention.cap, attention.window
    found = torch.zeros(rows.shape, dtype=torch.float64, device=queries.device)
    if within.start >= within.stop:
        return found
    inner = attention.scale * LOG2_E if cap is None else attention.scale / cap
    sinks = None if attention.sinks is None else attention.sinks.float() * LOG2_E
    numbers = (n, heads // keys.shape[1], min(window or n, n), inner, (cap or 1.0) * LOG2_E)
    kind: dict[str, Any] = dict(
        CAPPED=cap is not None, WINDOWED=window is not None, SIZE=size, WIDTH=max(16, triton.next_power_of_2(size))
    )
    maxima, sums = torch.empty_like(found[0], dtype=torch.float32), torch.ones_like(found[0])
    with torch.cuda.device_of(queries):  # where Triton starts kernels; without effect for tensors on the CPU
        shape = shape_of(queries.dtype)
        first = within.start // shape["BLOCK"] * shape["BLOCK"]
        grid = triton.cdiv(within.stop - first, shape["BLOCK"]), heads, prompts
        _normalize[grid](  # pyright: ignore[reportIndexIssue]
            queries, keys, sinks, maxima, sums, *numbers, first, SUNK=sinks is not None, **kind, **shape
        )
        together = ROWS if len(rows) > 1 else 1
        shape = shape_of(queries.dtype, together)
        grid = triton.cdiv(within.stop, shape["BLOCK"]), heads, prompts
        for start in range(0, len(rows), together):
            here = slice(start, start + together)
            some = (rows[here] / sums).float()
            _multiply[grid](  # pyright: ignore[reportIndexIssue]
                queries, keys, some, maxima, found[here], *numbers, within.start, within.stop, len(some),
                ROWS=together, **kind, **shape,
            )  # fmt: skip
    return found


def shape_of(dtype: torch.dtype, rows: int = 1) -> dict[str, int]:
    """The sizes of blocks, and Triton's options: without spilled registers, and in the memory of small GPUs too."""
    if dtype == torch.float32:  # tensor cores would round to TF32, so products take registers instead
        return {"BLOCK": 32, "STEP": 32, "num_warps": 8, "num_stages": 2}
    return {"BLOCK": 128, "STEP": 64 if rows == 1 else 32, "num_warps": 8, "num_stages": 2}
