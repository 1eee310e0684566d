"""Which lengths are marked, against what every token sees; and windows lifted, against a model without them."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.collapse.distance import edge
from squashlens.sequences import GrowingSequence
from tests.cases import COMMON, CONFIG, CONFIGS, few, loaded, random_model

WINDOW = 5  # of the families in `tests.cases`
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
    traces: Any = sl.figures.of(found).data
    assert [list(one.x) for one in traces if "leaves a window" in str(one.name)] == [
        [3, 4]
    ]


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


def test_windows_of_all_blocks_bound_the_reach_of_each_layer_and_a_later_one_reaches_further(
    tmp_path: Path,
) -> None:
    """D_ℓ is rounding from ℓ (w − 1) + 1 repeats on, not at layer ℓ + 1; L (w − 1) further back no token is seen."""
    blocks, window = 6, 4
    kinds: dict[str, Any] = {
        "num_hidden_layers": blocks,
        "layer_types": ["sliding_attention"] * blocks,
    }
    config = CONFIG["gemma3_text"](
        **COMMON | kinds, sliding_window=window, query_pre_attn_scalar=4
    )
    plain, model = loaded(config, tmp_path)
    found = sl.collapse(model, sl.prompts.build(model, [7] * 22, prefix=[2]), norm="l2")
    relative = found["distance"] / found["rms"]
    for layer in range(1, blocks + 1):
        reach = layer * (window - 1)
        assert (relative.sel(layer=layer, length=slice(reach + 1, None)) < 1e-5).all()
        assert (
            relative.sel(layer=slice(layer + 1, None), length=reach + 1) > 1e-4
        ).all()
    with torch.no_grad():
        ids = torch.randint(3, 60, (1, 30), generator=torch.Generator().manual_seed(0))
        for back, equal in (
            (blocks * (window - 1), False),
            (blocks * (window - 1) + 1, True),
        ):
            other = ids.clone()
            other[0, -1 - back] = 3 if ids[0, -1 - back] != 3 else 4
            assert (
                torch.equal(plain(ids).logits[:, -1], plain(other).logits[:, -1])
                == equal
            )


def test_windows_come_back_after_an_error_and_must_exist(bridge_of: Any) -> None:
    model = bridge_of("mistral")
    with pytest.raises(ValueError, match="stop"), sl.hooks.lift_windows(model):
        raise ValueError("stop")
    assert model.original_model.config.sliding_window == WINDOW
    with (
        pytest.raises(InputError),
        sl.hooks.lift_windows(bridge_of("gpt2")),
    ):
        pass
