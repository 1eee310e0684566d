"""Every family through everything: each intervention under each measurement, and each study of them."""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from tests.measurements import hooks_with

GLASSES = ("gemma", "gemma2", "gemma3", "llama", "mistral", "qwen3", "gpt2")
IDS = torch.tensor([[2, 5, 9, 11, 9, 30, 31, 9, 17, 4]])
OTHERS = torch.tensor(
    [[2, 7, 8, 12, 19, 20, 21, 22, 3, 6], [2, 40, 41, 42, 43, 44, 45, 46, 47, 48]]
)
HOOKS: dict[str, Any] = {
    "temperature of heads": sl.hooks.attention_temperature(1.7, heads=[0, 2]),
    "round keys": sl.hooks.round_activations(6, "keys"),
    "round patterns": sl.hooks.round_activations("bfloat16", "patterns", blocks=(2,)),
    **hooks_with(OTHERS.tolist()),
    # Where the last token sees it: behind windows, and before the last block.
    "zero_mlp": sl.hooks.zero_mlp((1,), positions=[8, 9]),
    "patch_mlp": sl.hooks.patch_mlp(
        OTHERS[1:].tolist(), (1,), positions=[8, 9], from_positions=[9, 8]
    ),
}
PAIRS = [(family, hook) for family in GLASSES for hook in HOOKS]
PAIRS.remove(("gpt2", "freeze_gates"))  # it has none


@pytest.fixture(scope="module")
def without(bridge_of: Any) -> Any:
    """The Jacobian norms of each family without a hook."""
    return functools.cache(
        lambda family: sl.jacobian_norms(bridge_of(family, torch.float64), IDS)
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "hook"), PAIRS)
def test_jacobians_and_bounds_are_of_the_hooked_model(
    family: str, hook: str, bridge_of: Any, without: Any
) -> None:
    """The certified bound holds for the Jacobian of the model with the hook, which is not that without it."""
    model, plainly = bridge_of(family, torch.float64), without(family)
    with sl.applied(model, HOOKS[hook]):
        truth = sl.jacobian_norms(model, IDS)
        bound = sl.certified_bound(model, IDS)
        shape = sl.path_bound(model, IDS)
    assert (bound >= truth * (1 - 1e-9)).all()
    assert (np.abs(truth - plainly) > 1e-9 * plainly.max()).any()
    assert math.isfinite(float(shape.sum()))
    again = sl.jacobian_norms(model, IDS)
    np.testing.assert_array_equal(again, plainly)
