"""Detect echoes: numbers that repeat the sequence (with errors, cut short, or several times) instead of answering.

A count is a short number. A number of m digits is an echo if it is more than ten times as large as the count can be,
and if at most m ÷ 4 insertions, deletions or substitutions of digits turn a piece of the sequence (repeated as often as
needed) into it.

The threshold m ÷ 4 makes accidental matches rare: a count has few digits, unrelated to those of the sequence. Of all
numbers of 3, 4 and 5 digits, 0.4 %, 1.9 % and 0.4 % are that close to a sequence in which every word of zeros and ones
occurs, and fewer of the longer numbers. For a sequence of ones the shares are 0.1 %, 0.4 % and 0.05 %
(`tests/tasks/test_echo.py` counts them).
"""

import re

import numpy as np

PER_SLIP = 4  # one error is allowed for each 4 digits
FAR = 10  # up to this multiple of the largest possible count, any number may be a count
ENOUGH = 64  # only the first 64 characters of a long echo are compared


def symbols(text: str) -> str:
    """The letters and digits of a text, in lower case.

    >>> symbols("1 + 1, 0")
    '110'
    """
    return re.sub(r"[\W_]", "", text).lower()


def is_echo(said: str, sequences: tuple[str, ...]) -> bool:
    """Whether `said` is close to a piece of one of these sequences, repeated as often as needed.

    >>> is_echo("11111011111", ("1" * 12,)), is_echo("419", ("1" * 85,))
    (True, False)
    """
    piece = symbols(said)[:ENOUGH]
    return bool(piece) and any(
        slips(piece, whole * (len(piece) // len(whole) + 2)) <= len(piece) // PER_SLIP
        for whole in map(symbols, sequences)
        if whole
    )


def slips(piece: str, text: str) -> int:
    """The smallest number of edits that turn some piece of `text` into `piece` (Sellers 1980).

    An edit inserts, deletes or substitutes one symbol.

    >>> slips("1101", "0111011"), slips("1901", "0111011")
    (0, 1)
    """
    letters = np.array(list(text))
    places = np.arange(len(letters) + 1)
    costs = np.zeros(len(letters) + 1, dtype=int)  # a piece may begin and end anywhere in the text
    for row, symbol in enumerate(piece, start=1):
        best = np.minimum(costs[1:] + 1, costs[:-1] + (letters != symbol))
        costs = np.minimum.accumulate(np.concatenate([[row], best]) - places) + places
    return int(costs.min())
