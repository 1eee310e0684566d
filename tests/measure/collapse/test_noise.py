"""The noise floor: an upper bound on what rounding does to D, never 0 by luck, and what rests on it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.measure.collapse.metric import Metric
from squashlens.run.captures.pairs import Replay, Streams, prepare_growing
from tests.cases import CONFIGS, random_model
from tests.references import run_of

QUESTION = "How many ones are in the following sequence?"
ORDERS = {"linf": np.inf, "l1": 1, "l2": 2}
FEW = [1, 2, 3, 4, 6, 9, 13, 18, 24, 31, 40]


def by_hand(
    v: np.ndarray, star: np.ndarray, again: Any, norm: str, scale: str
) -> np.ndarray:
    """‖v − ṽ‖ + ‖v* − ṽ*‖ in numpy, each at least half a unit in the last place."""
    total = np.zeros(v.shape[:2])
    for one, other in zip((v, star), again, strict=True):
        moved = np.linalg.norm(one.astype(float) - other, ord=ORDERS[norm], axis=-1)
        last = np.linalg.norm(
            np.spacing(np.abs(one)).astype(float) / 2, ord=ORDERS[norm], axis=-1
        )
        total += np.maximum(moved, last)
    if scale == "absolute":
        return total
    r, again_r = (
        np.sqrt(np.mean(x.astype(float) ** 2, axis=-1)) for x in (v, again[0])
    )
    distance = np.linalg.norm(
        again[0].astype(float) - again[1], ord=ORDERS[norm], axis=-1
    )
    return total / r + distance / again_r * np.abs(r - again_r) / r


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("norm", "scale"), [("linf", "relative"), ("l1", "absolute"), ("l2", "relative")]
)
def test_the_floor_is_the_distance_of_the_vectors(
    tiny: Any, norm: Any, scale: Any
) -> None:
    sequence = sl.prompts.repeated(tiny, "1", 40, prefix=QUESTION, separator=",")
    ds = sl.collapse(tiny, sequence, noise_lengths=3, norm=norm, scale=scale)
    lengths = ds["replayed"].values.tolist()
    together = prepare_growing(run_of(tiny), sequence, None, "shared").pairs()
    places = [n - 1 for n in lengths]
    v, star = (side.values[:, places].numpy() for side in together)
    alone = prepare_growing(run_of(tiny), sequence, lengths, "separate").pairs()
    expected = by_hand(v, star, [side.values.numpy() for side in alone], norm, scale)
    np.testing.assert_allclose(
        np.concatenate([ds["noise_floor"], ds["noise_floor_y"].values[None]]), expected
    )
    again = sl.collapse(
        tiny, sequence, lengths=lengths, norm=norm, scale=scale, passes="separate"
    )["distance"]
    assert (
        np.abs(ds["distance"].sel(length=lengths).values - again.values)
        <= ds["noise_floor"].values
    ).all()
    assert ds["noise_floor"].min() > 0


@pytest.mark.parametrize("scale", ["absolute", "relative"])
@pytest.mark.parametrize("norm", ["linf", "l1", "l2"])
def test_no_replay_moves_d_further(norm: Any, scale: Any) -> None:
    """Errors of any size and direction, also one that moves both vectors alike and leaves D as it was."""
    metric, random = Metric(norm, scale), torch.Generator().manual_seed(0)
    v, star, e, f = torch.randn(4, 1, 200, 8, generator=random)
    for size in (1e-6, 1e-2, 3.0):
        again = (v + size * e, star + size * f)
        moved = (metric.gap(v, star) - metric.gap(*again)).abs()
        assert (moved <= noise(metric, (v, star), again) * (1 + 1e-12)).all()
    alike = (v + e, star + e)
    absolute = Metric(norm, "absolute")
    torch.testing.assert_close(absolute.gap(v, star), absolute.gap(*alike))
    assert (noise(absolute, (v, star), alike) > absolute.gap(e, 0 * e)).all()


def noise(metric: Metric, pair: Any, again: Any) -> torch.Tensor:
    sides = [Streams(side, {}, "shared", "eager") for side in pair]
    return metric.noise(
        sides[0], sides[1], Replay(tuple(range(pair[0].shape[1])), *again, roundings=0)
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("passes", "dtype"),
    [("shared", "float32"), ("separate", "float32"), ("shared", "bfloat16")],
)
def test_rounding_is_no_difference(passes: Any, dtype: str, bridge_of: Any) -> None:
    """GPT-2 without position embeddings on one token repeated: v and v* are equal in exact arithmetic."""
    model = bridge_of("gpt2", getattr(torch, dtype))
    ones = sl.prompts.build(model, [7] * 40, prefix=[])
    weight = model.original_model.transformer.wpe.weight
    weight = getattr(weight, "_original_component", weight)
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.zero_()
        how: Any = {"passes": passes, "lengths": None if passes == "shared" else FEW}
        ds = sl.collapse(model, ones, **how, noise_lengths=4)
    finally:
        with torch.no_grad():
            weight.copy_(before)
    assert ds["distance"].max() > 0 or dtype == "bfloat16"
    assert (ds["noise_floor"] > 0).all()
    assert (ds["distance"].max("length") <= 3 * ds["noise_floor"].max("replayed")).all()


def test_rounding_has_no_parts(bridge_of: Any) -> None:
    """Under a window of 3 layer ℓ is exact from 2 ℓ repeats on: what is left of D there comes from nowhere."""
    model = bridge_of("llama")
    ones = sl.prompts.build(model, [7] * 14, prefix=[2, 5])
    with sl.applied(model, sl.hooks.sliding_window(3)):
        ds = sl.collapse_mechanism(model, ones)
        unknown = sl.collapse_mechanism(model, ones, lengths=[1, 9], noise_lengths=0)
    for block in range(3):
        assert (
            ds["share"]
            .sel(block=block, length=slice(2 * block + 3, None))
            .isnull()
            .all()
        )
        assert (
            ds["share"].sel(block=block, length=slice(1, 2 * block + 1)).notnull().all()
        )
    np.testing.assert_allclose(
        ds["share"].sum("part").where(ds["share"].notnull().all("part"), 1), 1
    )
    assert unknown["share"].isnull().all()


@pytest.mark.slow
def test_float64_models_round_in_float32_inside(tmp_path: Path) -> None:
    """Without queries repeated tokens collapse exactly, and what is left is the softmax's and the norms' rounding."""
    plain = random_model(CONFIGS["llama"])
    with torch.no_grad():
        for layer in plain.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    plain.save_pretrained(tmp_path)
    model = sl.load(tmp_path, dtype="float64", device="cpu")
    sequence = sl.prompts.build(model, [20] * 24, prefix=[])
    with sl.applied(
        model,
        sl.hooks.Hook(
            "as it is",
            "blocks.{block}.attn.hook_pattern",
            lambda pattern: pattern * 1.0,
        ),
    ):
        ds = sl.collapse(
            model, sequence, lengths=[1, 2, 3, 5, 8, 13, 24], noise_lengths=4
        )
    assert ds["distance"].max() > 0
    assert (ds["distance"].max("length") <= 3 * ds["noise_floor"].max("replayed")).all()
