"""Lengths at which a token leaves the sliding window of one of a pair: D changes there because the pair does."""

from collections.abc import Collection, Iterable

import numpy as np

from squashlens._typing import Bridge
from squashlens.engine.anatomy import windows
from squashlens.errors import UnsoundModelError
from squashlens.sequences import GrowingSequence


def window_edges(model: Bridge, sequence: GrowingSequence, lengths: Iterable[int]) -> np.ndarray:
    """For each length the first position that a block of the model sees in v and not in v*; −1 if there is none."""
    try:
        sizes = {window for window in windows(model) if window is not None}
    except UnsoundModelError:  # other kinds of attention have no window
        sizes = set()
    return np.array([edge(sequence, length, sizes) for length in lengths], dtype=np.int64)


def edge(sequence: GrowingSequence, length: int, sizes: Collection[int]) -> int:
    """The same for one length and windows of these sizes, of which each includes the token itself.

    v's token at position p, the last content token or one of the suffix, sees the positions from p − w + 1 on. The same
    token of v*, at p + 1, sees those from p − w + 2 on, so the token at p − w + 1 has left for v* alone. In its place
    v* sees the repeated token once more, so nothing has changed if these two are the same. Nor if the window begins in
    the suffix: then both see the same tokens of it.
    """
    v = sequence.plain(length)
    last = len(v) - 1 - len(sequence.suffix)

    def token(place: int) -> int:
        return sequence.trunk[place] if place < v.at else v.tokens[place - v.at]

    left = {p - size + 1 for size in sizes for p in range(last, len(v))}
    return min((place for place in left if 0 <= place < last and token(place) != token(last)), default=-1)
