"""Every family through everything: each intervention under each measurement, and each study of them."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from tests.cases import DISTINCT
from tests.grouped import flat

GLASSES = ("gemma", "gemma2", "gemma3", "llama", "mistral", "qwen3", "gpt2")
IDS = torch.tensor([[2, 5, 9, 11, 9, 30, 31, 9, 17, 4]])
OTHERS = torch.tensor([[2, 7, 8, 12, 19, 20, 21, 22, 3, 6], [2, 40, 41, 42, 43, 44, 45, 46, 47, 48]])
HOOKS = {
    "mask_tokens": sl.hooks.mask_tokens([3, 5], heads=[1]),
    "mask_attention": sl.hooks.mask_attention([9, 8], [1, 2], blocks=(1, 2)),
    "sliding_window": sl.hooks.sliding_window(4, sink=1),
    "temperature": sl.hooks.attention_temperature(1.7, heads=[0, 2]),
    "uniform": sl.hooks.uniform_attention(blocks=(1,)),
    "zero_pattern": sl.hooks.zero_pattern([4], blocks=(0, 2)),
    "zero_values": sl.hooks.zero_values([4, 6], blocks=(1,)),
    "zero_residual": sl.hooks.zero_residual([4], blocks=(1,)),
    "mean_residual": sl.hooks.mean_residual([4, 5], OTHERS, blocks=(1, 2)),
    "resample_residual": sl.hooks.resample_residual([3], OTHERS, blocks=(1,), seed=1),
    "scale_attention": sl.hooks.scale_attention(2.5, [3, 5], heads=[1, 2]),
    "zero_heads": sl.hooks.zero_heads([1], blocks=(0, 2)),
    "mean_heads": sl.hooks.mean_heads([0, 3], OTHERS, positions=[4, 6, 9]),
    "patch_heads": sl.hooks.patch_heads([2], OTHERS[:1], blocks=(1,)),
    "patch_residual": sl.hooks.patch_residual([4, 6], OTHERS[1:], blocks=(1,), from_positions=[5, 3]),
    "round residual": sl.hooks.rounding(6, "residual"),
    "round keys": sl.hooks.rounding(6, "keys"),
    "round patterns": sl.hooks.rounding("bfloat16", "patterns", blocks=(2,)),
    "freeze": sl.hooks.freeze_norms(),
}


# Every hook, and every family that is built in another way, in the default run; every pair of them in the slow one.
USUAL = [family for family in GLASSES if family in DISTINCT]
PAIRS = [
    pytest.param(family, hook, marks=() if family == USUAL[number % len(USUAL)] else pytest.mark.slow)
    for family in GLASSES
    for number, hook in enumerate(HOOKS)
]


@pytest.fixture(scope="module")
def without() -> dict[str, Any]:
    """The Jacobian norms of each family without a hook."""
    return {}


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "hook"), PAIRS)
def test_jacobians_and_bounds_are_of_the_hooked_model(
    family: str, hook: str, bridge_of: Any, without: dict[str, Any]
) -> None:
    """The certified bound holds for the Jacobian of the model with the hook, which is not that without it."""
    model = bridge_of(family, torch.float64)
    options: Any = {}
    if family not in without:
        without[family] = flat.jacobian_norms(model, IDS, **options)
    plainly = without[family]
    with sl.applied(model, HOOKS[hook]):
        truth = flat.jacobian_norms(model, IDS, **options)
        bound = flat.certified_bound(model, IDS, edges="exact", **options)
        shape = flat.path_bound(model, IDS, **options)
    assert (bound >= truth * (1 - 1e-9)).all()
    assert (np.abs(truth - plainly) > 1e-9 * plainly.max()).any()
    assert math.isfinite(float(shape.sum()))
    again = flat.jacobian_norms(model, IDS, **options)
    np.testing.assert_array_equal(again, plainly)
