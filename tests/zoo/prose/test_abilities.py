"""The tests of abilities and the verdicts of the card, on models and numbers whose outcome is known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from training.prose.abilities import _copying, _share_right


class Words:
    """A reader of words, which gives every word in `liked` one nat and every other word two."""

    def __init__(self, liked: set[str]) -> None:
        self.liked = liked
        self.model = SimpleNamespace(config=SimpleNamespace(vocab_size=2048))
        self.tokenizer = lambda text: {"input_ids": ["<bos>", *text.split()]}
        self.tokenizer.bos_token_id = 2  # type: ignore[attr-defined]

    def nats(self, rows: list[list[Any]]) -> list[np.ndarray]:
        return [np.array([1.0 if token in self.liked else 2.0 for token in row[1:]]) for row in rows]


def test_the_right_ending_must_be_the_more_likely() -> None:
    pairs = (("a", " b", " c"), ("a", " c", " b"), ("a", " d", " e"))
    assert _share_right(Words({"b"}), pairs) == pytest.approx(1 / 3)  # type: ignore[arg-type]
    assert _share_right(Words({"b", "d", "a"}), pairs) == pytest.approx(2 / 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("gap", [0, 7])
def test_copying_looks_at_the_second_time_alone(gap: int) -> None:
    """A model that gives the k-th token k nats: the mean of the first segment, and of the second, by their places."""
    reader = Words(set())
    reader.nats = lambda rows: [np.arange(1, len(rows[0])) for _ in rows]  # type: ignore[method-assign]
    first, again = _copying(reader, gap, length=24, rows=2)  # type: ignore[arg-type]
    assert first == pytest.approx(np.mean(range(2, 25)))
    assert again == pytest.approx(np.mean(range(24 + gap + 2, 24 + gap + 25)))
