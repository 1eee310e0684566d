"""Detect echoes: numbers that repeat the sequence (with errors, cut short, or several times) instead of answering.

A number of m digits is an echo if it is more than ten times as large as the count can be, and if at most m ÷ 4 edits
turn a piece of the sequence, repeated as often as needed, into it. Few numbers are that close by chance
(docs/answers.md).
"""

import re

import numpy as np

PER_SLIP = 4  # one error is allowed for each 4 digits
FAR = 10  # up to this multiple of the largest possible count, any number may be a count
ENOUGH = 64  # only the first 64 characters of a long echo are compared


def symbols(text: str) -> str:
    """The letters and digits of a text, in lower case."""
    return re.sub(r"[\W_]", "", text).lower()


def is_echo(said: str, sequences: tuple[str, ...]) -> bool:
    """Whether `said` is close to a piece of one of these sequences, repeated as often as needed."""
    piece = symbols(said)[:ENOUGH]
    return bool(piece) and any(
        slips(piece, whole * (len(piece) // len(whole) + 2)) <= len(piece) // PER_SLIP
        for whole in map(symbols, sequences)
        if whole
    )


def slips(piece: str, text: str) -> int:
    """The smallest number of edits of one symbol that turn some piece of `text` into `piece` (Sellers 1980)."""
    letters = np.array(list(text))
    places = np.arange(len(letters) + 1)
    costs = np.zeros(len(letters) + 1, dtype=int)  # a piece may begin and end anywhere in the text
    for row, symbol in enumerate(piece, start=1):
        best = np.minimum(costs[1:] + 1, costs[:-1] + (letters != symbol))
        costs = np.minimum.accumulate(np.concatenate([[row], best]) - places) + places
    return int(costs.min())
