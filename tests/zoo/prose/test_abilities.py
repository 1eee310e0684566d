"""The tests of abilities and the verdicts of the card, on models and numbers whose outcome is known."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from training.prose.abilities import AGREEMENT, BRACKETS, PRONOUNS, _copying, _share_right
from training.prose.evaluate import _targets


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


def test_no_ending_is_right_more_often_than_wrong() -> None:
    """So a model that always prefers one word gets half of the pairs: agreement cannot be guessed."""
    for pairs in (AGREEMENT, PRONOUNS):
        for word in {right for _, right, _ in pairs}:
            assert sum(right == word for _, right, _ in pairs) == sum(wrong == word for _, _, wrong in pairs)
    assert len({pair[0] for pair in (*AGREEMENT, *PRONOUNS, *BRACKETS)}) == 28


@pytest.mark.parametrize("gap", [0, 7])
def test_copying_looks_at_the_second_time_alone(gap: int) -> None:
    """A model that gives the k-th token k nats: the mean of the first segment, and of the second, by their places."""
    reader = Words(set())
    reader.nats = lambda rows: [np.arange(1, len(rows[0])) for _ in rows]  # type: ignore[method-assign]
    first, again = _copying(reader, gap, length=24, rows=2)  # type: ignore[arg-type]
    assert first == pytest.approx(np.mean(range(2, 25)))
    assert again == pytest.approx(np.mean(range(24 + gap + 2, 24 + gap + 25)))


def _found(model: float, each: list[float]) -> dict[str, Any]:
    lengths = {"all": {"model": model, "kneser_ney": 1.45}}
    return {"code_lengths": lengths, "distinct_2": {"mean": np.mean(each), "each": each, "together": 0.4}}


def test_a_missed_target_is_said() -> None:
    assert "**missed**" in _targets(_found(1.46, [0.6, 0.7]))
    assert "missed" not in _targets(_found(1.44, [0.5, 0.7]))
    assert "**missed by 1 of 2**" in _targets(_found(1.44, [0.49, 0.7]))
    assert "mean 0.60, lowest 0.49" in _targets(_found(math.inf, [0.49, 0.71]))
