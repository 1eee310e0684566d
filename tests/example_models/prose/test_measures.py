"""Code length, repetition and the tests of abilities, on models whose answers are known."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.prose.corpus import Document
from training.prose.measures import CONTEXT, STRIDE, Reader, bits_per_byte


class Counting:
    """A stand-in without preferences, which records the length of each window."""

    config = SimpleNamespace(vocab_size=8)

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        self.lengths.append(input_ids.shape[1])
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 8))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3 * CONTEXT))
def test_every_token_is_scored_once_and_with_half_a_context_before_it(
    length: int,
) -> None:
    model = Counting()
    found = Reader(model, None).document([2, *[5] * length])
    assert found == pytest.approx([math.log(8)] * length, rel=1e-6)
    assert max(model.lengths) <= CONTEXT
    assert len(model.lengths) == 1 + max(
        0, math.ceil((length - (CONTEXT - 1)) / (CONTEXT - 1 - STRIDE))
    )


def test_tokens_are_scored_where_they_stand() -> None:
    """A model that gives the token 3 a probability of one half and the seven others the rest."""

    def model(input_ids: torch.Tensor, use_cache: bool) -> Any:
        logits = torch.zeros(*input_ids.shape, 8)
        logits[..., 3] = math.log(7)
        return SimpleNamespace(logits=logits)

    ids = [2, *np.random.default_rng(0).integers(0, 8, 1300).tolist()]
    expected = [math.log(2) if i == 3 else math.log(14) for i in ids[1:]]
    assert Reader(model, None).document(ids) == pytest.approx(expected, rel=1e-5)


def test_bits_per_byte_count_bytes_of_utf_8() -> None:
    document = Document("package", "name", ("é",))
    assert bits_per_byte([np.array([math.log(2)] * 6)], [document]) == pytest.approx(3)
