"""An echo of the sequence: near it by a threshold that few numbers meet by chance."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squashlens.tasks.task import is_echo, slips


def brute(piece: str, text: str) -> int:
    """The edit distance to the nearest piece of a text, by the definition."""

    def distance(a: str, b: str) -> int:
        rows = list(range(len(b) + 1))
        for i, x in enumerate(a, start=1):
            before, rows[0] = rows[0], i
            for j, y in enumerate(b, start=1):
                before, rows[j] = rows[j], min(rows[j] + 1, rows[j - 1] + 1, before + (x != y))
        return rows[-1]

    ends = range(len(text) + 1)
    return min(distance(piece, text[a:b]) for a, b in product(ends, ends) if a <= b)


@settings(deadline=None, max_examples=60)
@given(piece=st.text("012", max_size=6), text=st.text("01", max_size=8))
def test_slips_are_the_edit_distance_to_the_nearest_piece(piece: str, text: str) -> None:
    assert slips(piece, text) == brute(piece, text)


@pytest.mark.few(1)
@pytest.mark.parametrize(("digits", "words", "ones"), [(3, 0.005, 0.0012), (4, 0.02, 0.0045)])
def test_few_numbers_are_near_by_chance(digits: int, words: float, ones: float) -> None:
    """Of all numbers of so many digits: against a sequence with every binary word of that length, and one of ones."""
    every = "".join(map("".join, product("01", repeat=digits)))
    numbers = [str(n) for n in range(10 ** (digits - 1), 10**digits)]
    assert sum(is_echo(n, (every,)) for n in numbers) <= words * len(numbers)
    assert sum(is_echo(n, ("1" * 20,)) for n in numbers) <= ones * len(numbers)


@pytest.mark.parametrize(
    ("said", "sequence", "echo"),
    [
        ("1" * 12, "1" * 12, True), ("1" * 200, "1" * 12, True), ("1" * 11 + "9", "1" * 12, True), ("119",
        "1" * 12, False),
        ("1191", "1" * 12, True), ("999111", "1" * 12, False), ("110110", "110", True), ("", "110", False), ("5",
        "", False),
        ("car car tree", "car tree car car tree", True), ("12" * 40, "12" * 6, True), ("1234567", "1101", False),
    ],
)  # fmt: skip
def test_echoes(said: str, sequence: str, echo: bool) -> None:
    assert is_echo(said, (sequence,)) == echo
    assert is_echo(said, ("5", sequence)) == echo or said == "5"
