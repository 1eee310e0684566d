"""Collapse when the input of one block is rounded: the residual streams of all tokens, for one block at a time."""

from collections.abc import Collection, Sequence
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.bars import bar
from squashlens.engine.anatomy import n_blocks, residual_site
from squashlens.engine.capturing.pairs import PairCapture
from squashlens.engine.proving.effective import require_effective
from squashlens.engine.running.unembed import most_likely
from squashlens.errors import InputError, RangeError
from squashlens.hooks.rounding import Stored, rounding
from squashlens.measure.collapse.metric import Metric
from squashlens.records.results import Variable

Blocks = Collection[int] | Literal["all"]


def blocks_of(model: Bridge, blocks: Blocks) -> list[int]:
    """The blocks in increasing order; an error for one that the model does not have."""
    every = range(n_blocks(model))
    chosen = every if isinstance(blocks, str) else sorted(set(blocks))
    if not set(chosen) <= set(every):
        raise InputError(f"blocks={list(blocks)} are not blocks of this model.", f"Use blocks 0 to {every[-1]}.")
    return list(chosen)


def rounded_inputs(
    model: Bridge, pairs: PairCapture, blocks: Sequence[int], formats: Collection[Stored], metric: Metric, *,
    answers: Tensor | None, progress: bool,
) -> dict[str, Variable]:  # fmt: skip
    """The variables of `precision` over (format, block, length), with the input of each block rounded in its own run.

    `answers` are v's most likely next tokens without rounding; without them there is no `same_answer`.
    """
    run = pairs.run(model)
    shape = (len(formats), len(blocks), len(pairs.lengths))
    distance, enters, same = (torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(3))
    require_effective(model, [residual_site(block, model) for block in blocks], "residual-stream")
    each = list(product(enumerate(formats), enumerate(blocks)))
    for (number, form), (place, block) in bar(each, desc="rounding", progress=progress):
        hook = rounding(form, "residual", (block,))
        try:
            v, star = run.pairs(hooks=lambda _tokens, hook=hook: [hook], branch_hooks=(hook,))
        except RangeError:  # the residual stream of some token exceeds the range of the format
            continue
        distance[number, place] = metric.gap(v.values[-2:-1], star.values[-2:-1])[0]
        enters[number, place] = (v.values[block] == star.values[block]).all(dim=-1).double()
        if answers is not None:
            same[number, place] = (most_likely(model, v.values[-1]) == answers).double()
    # At block 0 most families have equal embeddings for v and v*, which are not above the noise floor.
    reached = (enters == 1) & metric.clear(pairs)[list(blocks)]
    numbers = torch.tensor(list(blocks), dtype=torch.float64)
    first = torch.where(reached.any(dim=1), numbers[reached.double().argmax(dim=1)], torch.nan)
    over = ("format", "block", "length")
    text = metric.distance("distance at the last layer, with the input of one block rounded")
    found: dict[str, Variable] = {
        "distance": (over, distance, text, metric.units),
        "enters_as_one": (over, enters, "whether v and v* are the same at the input of the block", "1"),
        "first_block": (("format", "length"), first, "first block whose rounding makes v and v* the same", "block"),
    }
    if answers is not None:
        text = "whether v's most likely next token is the same as without rounding"
        found["same_answer"] = (over, same, text, "1")
    return found
