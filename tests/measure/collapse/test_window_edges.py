"""Which lengths are marked, against what every token sees; and windows lifted, against a model without them."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.measure.collapse.distance import edge
from squashlens.sequences import GrowingSequence
from tests.cases import CONFIGS, few, random_model

IDS = torch.tensor([[2, 5, 9, 11, 9, 30, 31, 9, 17, 4, 8, 8, 3]])


def seen(ids: tuple[int, ...], place: int, window: int) -> list[int]:
    """The tokens that a place attends to, in any order."""
    return sorted(ids[i] for i in range(place + 1) if place - i < window)


@pytest.mark.parametrize("suffix", [(), (7, 8)])
@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("content", [(9,) * 8, (9, 4, 9, 9, 4, 4, 9, 4)])
def test_a_length_is_marked_where_the_pair_sees_other_tokens(
    content: tuple[int, ...], window: int, suffix: tuple[int, ...]
) -> None:
    sequence = GrowingSequence("s", content, (9, 4), prefix=(2, 5, 6), suffix=suffix)
    for length in range(1, len(content) + 1):
        v, star = sequence.pair(length).v, sequence.pair(length).v_star
        places = range(len(v) - 1 - len(suffix), len(v))
        full = [
            p for p in places if p - window + 1 >= 0
        ]  # shorter prompts lose nothing
        gone = [
            p - window + 1
            for p in full
            if seen(v, p, window) != seen(star, p + 1, window)
        ]
        assert edge(sequence, length, {window}) == min(gone, default=-1)
        assert edge(sequence, length, set()) == -1
    both = [edge(sequence, 6, {w}) for w in (3, 5)]
    assert edge(sequence, 6, {3, 5}) == min(
        [place for place in both if place >= 0], default=-1
    )


def ones() -> GrowingSequence:
    return GrowingSequence("ones", (9,) * 9, (9, 4), prefix=(2, 5))


def test_the_first_tokens_leave_one_after_the_other(bridge_of: Any) -> None:
    found = sl.collapse(bridge_of("mistral"), ones())
    # A prompt of n + 2 tokens: position 0 leaves at 5 tokens, position 1 at 6; later ones are repeats.
    assert dict(
        zip(
            found["length"].values.tolist(),
            found["window_edge"].values.tolist(),
            strict=True,
        )
    ) == {n: {3: 0, 4: 1}.get(n, -1) for n in range(1, 10)}


@pytest.mark.parametrize("family", few(["gemma3", "mistral", "gemma2"]))
def test_lifted_windows_give_the_model_without_windows(
    family: str, bridge_of: Any
) -> None:
    model, config = bridge_of(family), copy.deepcopy(CONFIGS[family])
    config.sliding_window = 1000
    with torch.no_grad():
        before, expected = model(IDS), random_model(config)(IDS).logits
        with sl.hooks.lift_windows(model):
            torch.testing.assert_close(model(IDS), expected, rtol=1e-4, atol=1e-4)
            found = sl.collapse(model, ones())
            lifted = sl.results.provenance(found)["fingerprint"]
        assert (expected - before).abs().max() > 1e-3
        assert torch.equal(model(IDS), before)
    assert (found["window_edge"] == -1).all()
    kept = sl.collapse(model, ones())
    assert sl.results.provenance(kept)["fingerprint"] != lifted
    np.testing.assert_allclose(
        kept["distance"].sel(length=[1, 2]),
        found["distance"].sel(length=[1, 2]),
        rtol=1e-3,
    )
    assert (
        abs(kept["distance"].sel(length=3) / found["distance"].sel(length=3) - 1).isel(
            layer=-1
        )
        > 1e-3
    )
