"""A guess at the time and memory of cells before the first is done, from the shapes of the model and its prompts.

Counted are a forward pass of a prompt; two of a growing sequence, one with its last token repeated; and for Jacobians
the vector–Jacobian products, of which each costs about a forward pass. A pass takes the time of its floating-point
operations, at the speed of a matrix product of the model's width on this machine, and for every block the time that
Python takes. Nothing else is counted, so cells take longer.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import psutil

from squashlens.engine.loading.shapes import lengths_of, shape_of
from squashlens.study.cells import Cell
from squashlens.study.work import threads_set

PER_BLOCK = 0.002  # seconds of Python in a block of a bridge with its hooks, for any size of the block
PRODUCTS = ("jacobian_norms", "jacobian", "sensitivity")  # one product for every coordinate of the residual stream
BATCH = 16  # products at a time, about: the measurement chooses by the memory
LOOKED_AT = 64  # prompts of a scan of which the lengths are taken
MEASURED = 0.05  # seconds in which the speed of this machine is measured


@dataclass(frozen=True)
class Guess:
    """Seconds of all cells together, bytes of a worker, and what the guess is made of."""

    seconds: float
    peak_bytes: int
    why: str


def guess(cells: Sequence[Cell], weight_bytes: int | None) -> Guess | None:
    """The guess for cells with one measurement and one model; None if its files are not here, or lengths unknown."""
    model = cells[0].model if cells else None
    shape = shape_of(model.name, model.revision) if model else None
    if model is None or shape is None or weight_bytes is None:
        return None
    lengths = _lengths(cells)
    if lengths is None:
        return None
    products = shape.width if cells[0].measurement in PRODUCTS else 0
    passes = 2 if "sequence" in cells[0].arguments else 1
    longest = max(n for _, n in lengths)
    speed = _speed(model.dtype, 1 << (longest - 1).bit_length(), shape.width)  # a power of two, for the cache
    calls = passes + math.ceil(products / BATCH)
    seconds = sum(
        many * ((passes + products) * shape.operations(n) / speed + calls * shape.blocks * PER_BLOCK)
        for many, n in lengths
    )
    numbers = shape.activations(longest, min(products, BATCH))
    peak = _before() + weight_bytes + numbers * (8 if model.dtype == "float64" else 4)
    what = "a forward pass" if passes == 1 else "two forward passes"
    what += f" and {products} vector–Jacobian products" if products else ""
    return Guess(seconds, peak, f"guess before the first cell: {what} of at most {longest} tokens")


def _lengths(cells: Sequence[Cell]) -> list[tuple[int, int]] | None:
    """How many passes of how many tokens the cells need; None unless all measure a prompt or a growing sequence."""
    model, found, texts, means = cells[0].model, [], Counter[str](), dict[str, int | None]()
    for cell in cells:
        prompt, n = cell.arguments.get("prompt"), _of_sequence(cell.arguments.get("sequence"))
        if cell.source is not None and cell.span is not None:
            if cell.source.identity not in means:
                means[cell.source.identity] = _mean(cell)
            found.append((cell.span[1] - cell.span[0], means[cell.source.identity]))
        elif isinstance(prompt, str | list) and all(isinstance(one, str) for one in prompt):
            texts.update([prompt] if isinstance(prompt, str) else prompt)
        else:
            found.append((1, len(prompt) if isinstance(prompt, list) else n))
    counts = lengths_of(model.name, model.revision, list(texts)) if model else None
    if counts is None or any(n is None for _, n in found):
        return None
    return found + list(zip(texts.values(), counts, strict=True))


def _mean(cell: Cell) -> int | None:
    """The mean length of the first prompts of a scan."""
    if cell.source is None or cell.model is None or cell.span is None:
        return None
    rows = [prompt for _, prompt in islice(cell.source.prompts(*cell.span), LOOKED_AT)]
    counts = lengths_of(cell.model.name, cell.model.revision, [row for row in rows if isinstance(row, str)])
    sizes = [*(counts or []), *(len(row) for row in rows if isinstance(row, list))]
    return math.ceil(sum(sizes) / len(sizes)) if sizes else None


def _of_sequence(given: Any) -> int | None:
    """The length of a growing sequence, without the text around it."""
    arguments = next(iter(given.values())) if isinstance(given, dict) and given else None
    n = (arguments or {}).get("n") or len((arguments or {}).get("content") or ())
    return n if isinstance(n, int) and n > 0 else None


@cache
def _speed(dtype: str, n: int, width: int) -> float:
    """Floating-point operations in a second: n tokens times a matrix of the model, as a worker computes it."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with threads_set(1), torch.inference_mode():
        left = torch.ones(n, width, dtype=getattr(torch, dtype), device=device)
        right = torch.ones(width, 4 * width, dtype=left.dtype, device=device)
        best, end = math.inf, time.monotonic() + MEASURED
        while best == math.inf or time.monotonic() < end:
            began = time.perf_counter()
            float((left @ right)[0, 0])  # waits for the device
            best = min(best, time.perf_counter() - began)
    return 8 * n * width**2 / best


def _before() -> int:
    """Bytes that this process has now, for its libraries; none on CUDA devices, of which `peak_bytes` counts theirs."""
    import torch

    return 0 if torch.cuda.is_available() else psutil.Process().memory_info().rss
