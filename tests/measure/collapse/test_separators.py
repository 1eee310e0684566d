"""Ablations of separators against plain models changed by hand, and the identities among them."""

from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from tests.cases import FAMILIES, few, sequence_for
from tests.references import distances_equal, model_with_streams, model_without

CONTENT = [7, 8, 7, 7, 9, 9, 8, 7, 7, 8, 8, 9, 7]


def separated(model: Any, family: str, **form: Any) -> Any:
    return sequence_for(model, family, CONTENT, separator=13, **form)


@pytest.mark.parametrize(
    "suffix",
    [pytest.param([], marks=pytest.mark.slow), [20, 21]],
    ids=["bare", "suffix"],
)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_hooks_equal_models_changed_by_hand(
    family: str, suffix: list[int], bridge_of: Any, plain_of: Any
) -> None:
    """Masks: a model that picks out every other key by itself. Values and weights: a model with zeros there."""
    model, plain = bridge_of(family), plain_of(family)
    sequence = separated(model, family, suffix=suffix)
    kinds = {"mask": "keys", "zero_values": "values", "zero_attention": "weights"}
    ds = sl.separator_ablation(
        model, sequence, kinds=list(kinds), lengths=[2, 3, 13], noise_lengths=0
    )
    for hook, what in kinds.items():
        for block in (0, 1, 2):
            for length in (2, 3, 13):
                changed = model_without(
                    plain, sequence.separator_places(length), block, what
                )
                here = ds.sel(hook=hook, from_block=block, length=length)
                distances_equal(here, changed, sequence.pair(length), "distance_from")
    plainly = ds["distance"].sel(edit="separators")
    for hook in kinds:
        changed_by = np.abs(
            ds["distance_from"].sel(hook=hook, from_block=0) - plainly
        ).sel(layer=3)
        assert changed_by.max() > 1e-3


@pytest.mark.few(1)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_streams_in_their_place_equal_models_changed_by_hand(
    family: str, bridge_of: Any, plain_of: Any
) -> None:
    """Wiped, the mean over eight prompts, one of them: PyTorch hooks on the plain model put the same rows there."""
    model, plain = bridge_of(family), plain_of(family)
    sequence = separated(model, family)
    rng = Random("reference 4")
    others = [sequence.unrelated(rng) for _ in range(8)]
    kinds = ["zero_residual", "mean_residual", "resample_residual"]
    ds = sl.separator_ablation(
        model,
        sequence,
        kinds=kinds,
        seed=4,
        from_blocks=[0, 2],
        noise_lengths=0,
    )
    places = sequence.separator_places(13)
    with torch.no_grad():
        states = [
            plain(
                torch.tensor([other.pair(13).v]),
                use_cache=False,
                output_hidden_states=True,
            ).hidden_states
            for other in others
        ]
    streams = torch.stack(
        [torch.stack(list(state[:3]))[:, 0, list(places)] for state in states]
    )
    drawn = streams[Random("resample 4").randrange(8)]
    rows = {
        "zero_residual": torch.zeros_like(drawn),
        "mean_residual": streams.mean(dim=0),
        "resample_residual": drawn,
    }
    found = []
    for kind in kinds:
        for block in (0, 2):
            for length in (4, 9, 13):
                changed = model_with_streams(
                    plain, sequence.separator_places(length), block, rows[kind]
                )
                here = ds.sel(hook=kind, from_block=block, length=length)
                distances_equal(here, changed, sequence.pair(length), "distance_from")
                found.append(here["distance_from"].sel(layer=3).item())
    assert len(set(np.round(found, 4))) > 9


@pytest.mark.few(1)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_masking_everywhere_is_deleting_with_positions_kept(
    family: str, bridge_of: Any
) -> None:
    """If no block ever sees the separators' keys they are not there, but their places are; windows included."""
    model = bridge_of(family)
    ds = sl.separator_ablation(
        model,
        separated(model, family),
        kinds=["mask", "delete_keep_positions"],
        from_blocks=[0],
    )
    masked = ds["distance_from"].sel(hook="mask", from_block=0)
    gapped = ds["distance"].sel(edit="delete_keep_positions")
    np.testing.assert_allclose(masked, gapped, atol=1e-5 * 20)
    others = [ds["distance"].sel(edit=name, layer=3) for name in ("none", "separators")]
    assert all(np.abs(gapped.sel(layer=3) - other).max() > 1e-3 for other in others)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "family", few(["gemma", "gemma2", "gemma3", "mistral", "gpt2"])
)
def test_edits_are_other_prompts(family: str, bridge_of: Any, plain_of: Any) -> None:
    model, plain = bridge_of(family), plain_of(family)
    sequence = separated(model, family)
    ds = sl.separator_ablation(
        model,
        sequence,
        kinds=["delete", "substitute", "extra_digits", "random_places"],
        substitute=17,
        seed=3,
    )
    start = list(sequence.prefix)
    for length in (3, 5, 13):
        digits = CONTENT[:length]
        by_hand = {
            "none": spell(digits, [], 0),
            "delete": spell(digits, [], 0),
            "separators": spell(digits, [3, 6, 9, 12], 13),
            "substitute": spell(digits, [3, 6, 9, 12], 17),
            "extra_digits": spell(digits, [3, 6, 9, 12], None),
            "random_places": spell(digits, drawn_places(length, "places 3"), 13),
        }
        for edit, body in by_hand.items():
            here, v = ds.sel(edit=edit, length=length), (*start, *body)
            distances_equal(here, plain, sl.prompts.Pair(v, (*v, v[-1])))
            assert here["tokens"].item() == len(v)


def drawn_places(length: int, seed: str, every: int = 3) -> list[int]:
    """As many places before the last of `length` digits as the periodic separators have there."""
    return sorted(
        Random(f"{seed} {length}").sample(range(1, length), (length - 1) // every)
    )


def spell(digits: list[int], breaks: list[int], separator: int | None) -> list[int]:
    body = []
    for number, digit in enumerate(digits, start=1):
        body.append(digit)
        if number in breaks and number < len(digits):
            body.append(digit if separator is None else separator)
    return body


@pytest.mark.slow
def test_retained_is_one_above_zero_below(tiny: Any) -> None:
    ones = sl.prompts.repeated(
        tiny, "1", 24, prefix="Can you copy the following number?", separator=","
    )
    ds = sl.separator_ablation(tiny, ones)
    assert ds["length"].values.tolist() == [*range(2, 25, 2)]
    assert ds["from_block"].values.tolist() == [0, 2, 4]
    for block in (0, 2, 4):
        below = ds["retained_from"].sel(from_block=block, layer=slice(0, block))
        assert ((below == 1) | below.isnull()).all()
    separators = ds["retained"].sel(edit="separators")
    assert ((separators == 1) | separators.isnull()).all()
    none = ds["retained"].sel(edit="none")
    assert ((none == 0) | none.isnull()).all()
    effect = np.abs(
        ds["distance"].sel(edit="separators") - ds["distance"].sel(edit="none")
    )
    unclear = effect <= 3 * ds["noise_floor"]
    np.testing.assert_array_equal(
        ds["retained"].sel(edit="substitute").isnull(), unclear
    )
    assert 0 < unclear.mean() < 1
    masked = ds.sel(hook="mask", from_block=0)
    expected = (masked["distance_from"] - ds["distance"].sel(edit="none")) / (
        ds["distance"].sel(edit="separators") - ds["distance"].sel(edit="none")
    )
    np.testing.assert_allclose(
        masked["retained_from"].where(~unclear), expected.where(~unclear)
    )


def test_gap_and_attention_make_the_whole_effect(tiny: Any) -> None:
    commas = sl.prompts.repeated(tiny, "1", 12, separator=",")
    ds = sl.separator_ablation(
        tiny, commas, kinds=["delete_keep_positions", "mask"], from_blocks=[0]
    )
    assert ds["place_in_group"].values.tolist() == [1, 2, 3] * 4
    none = ds["distance"].sel(edit="none", layer=6)
    known = (
        ds["gap_factor"].sel(layer=6).notnull()
        & ds["attention_factor"].sel(layer=6).notnull()
    )
    assert known.sum() >= 9
    # A gap is what masking in every block leaves: nothing else of the commas reaches the pair.
    masked = ds["distance_from"].sel(hook="mask", from_block=0, layer=6)
    np.testing.assert_allclose(
        masked[known] / none[known], ds["gap_factor"].sel(layer=6)[known], rtol=1e-3
    )
    early = ds["gap_factor"].sel(
        length=[1, 2, 3], layer=6
    )  # no separator yet: v of 3 and v* have none
    assert (early[:2].isnull() | (np.abs(early[:2] - 1) < 1e-3)).all()
