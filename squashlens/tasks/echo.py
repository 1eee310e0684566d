"""Whether a number is the sequence said again, with slips, cut short or repeated, rather than an answer about it.

A count is a short number. A number of m digits that is more than ten times what it can be, and that can be had from a
piece of the sequence (repeated as often as it takes) by at most m ÷ 4 digits left out, added or changed, is an echo.

Why m ÷ 4: a count's digits are few and bear no relation to the sequence's, so a number that is near a piece of it by
chance must be rare. Of all numbers of 3, 4 and 5 digits, 0.4 %, 1.9 % and 0.4 % are that near to a sequence in which
every word of zeros and ones occurs, and fewer of longer ones; 0.1 %, 0.4 % and 0.05 % to a sequence of ones
(`tests/tasks/test_echo.py` counts them).
"""

import re

import numpy as np

PER_SLIP = 4  # digits that allow one slip
FAR = 10  # times what a count can be; below, any number may be a count
ENOUGH = 64  # characters of a long echo that are compared


def symbols(text: str) -> str:
    """Letters and digits alone.

    >>> symbols("1 + 1, 0")
    '110'
    """
    return re.sub(r"[\W_]", "", text).lower()


def is_echo(said: str, sequences: tuple[str, ...]) -> bool:
    """Whether `said` is near a piece of one of these sequences, repeated as often as it takes.

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
    """The fewest symbols left out, added or changed that make `piece` of some piece of `text` (Sellers 1980).

    >>> slips("1101", "0111011"), slips("1901", "0111011")
    (0, 1)
    """
    letters = np.array(list(text))
    places = np.arange(len(letters) + 1)
    costs = np.zeros(len(letters) + 1, dtype=int)  # a piece may begin anywhere, and end anywhere
    for row, symbol in enumerate(piece, start=1):
        best = np.minimum(costs[1:] + 1, costs[:-1] + (letters != symbol))
        costs = np.minimum.accumulate(np.concatenate([[row], best]) - places) + places
    return int(costs.min())
