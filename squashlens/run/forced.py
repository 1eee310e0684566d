"""Copies of a prompt that differ by their hooks, and how likely the text is that is forced on a prompt."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens.bars import bar
from squashlens.model.hooking.hook import Hook
from squashlens.run.budget import batch_memory, pass_bytes
from squashlens.run.forward import log_probabilities
from squashlens.run.run import Run
from squashlens.run.streams import streams_at


def edited_copies(
    run: Run,
    ids: Int[Tensor, " position"],
    many: int,
    hooks: Callable[[list[int]], Sequence[Hook]],
    cache: Any = None,
) -> Iterator[Float[Tensor, "some position d"]]:
    """y of a number of copies of a prompt, under `hooks` of the numbers of those that are in a pass together.

    With a cache, `ids` follow what is in it.
    """
    whole = len(ids)
    if cache is not None:
        whole += int(cache.get_seq_length())
    size = max(1, int(batch_memory(run) / pass_bytes(run, 1, whole)))
    for numbers in bar(torch.arange(many).split(size), desc="variants", leave=False):
        context = None
        if cache is not None:
            copied = copy.deepcopy(cache)
            copied.batch_repeat_interleave(len(numbers))
            context = {"use_cache": True, "past_key_values": copied}
        copies = ids.expand(len(numbers), -1).clone()
        with run.applied(*hooks(numbers.tolist())):
            yield streams_at(run, copies, [run.site("y")], context)[run.site("y")]


def log_p(
    run: Run, y: Float[Tensor, "branch token d"], tokens: Int[Tensor, " token"]
) -> Float[Tensor, "branch token"]:
    """The log-probability of each token of a text, from the y before it (teacher forcing), in float64 on the CPU."""
    wanted = tokens.cpu().repeat(len(y))
    parts: list[Tensor] = []
    start = 0
    for logs in log_probabilities(run, y.flatten(end_dim=1)):
        stop = start + len(logs)
        parts.append(logs.cpu().gather(1, wanted[start:stop, None])[:, 0])
        start = stop
    return torch.cat(parts).view(y.shape[:2])
