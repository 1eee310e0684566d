"""Hooks where a pass continues a cache: those that count positions are refused, and others act as in a whole pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import squashlens as sl
from squashlens.errors import InputError

IDS = torch.tensor([[2, 5, 9, 11, 9, 30, 31, 9, 17, 4]])
OTHERS = torch.tensor(
    [[2, 7, 8, 12, 19, 20, 21, 22, 3, 6], [2, 40, 41, 42, 43, 44, 45, 46, 47, 48]]
)
COUNTING: dict[str, Callable[[], Any]] = {
    "zero_residual": lambda: sl.hooks.zero_residual([1]),
    "mean_heads": lambda: sl.hooks.mean_heads([0], OTHERS, positions=[1]),
    "patch_residual": lambda: sl.hooks.patch_residual([1], OTHERS[:1]),
    "mask_tokens": lambda: sl.hooks.mask_tokens([1]),
    "a hook of the user's": lambda: sl.hooks.Hook(
        "mine", "blocks.{block}.hook_resid_pre", lambda v: v, positional=True
    ),
}
ANYWHERE: dict[str, Callable[[], Any]] = {
    "zero_heads": lambda: sl.hooks.zero_heads([0]),
    "mean_heads": lambda: sl.hooks.mean_heads([0], OTHERS, over="positions"),
    "sliding_window": lambda: sl.hooks.sliding_window(3),
    "log_scaling": lambda: sl.hooks.log_scaling(2),
    "round_activations": lambda: sl.hooks.round_activations("bfloat16"),
}


def in_two(model: Any) -> torch.Tensor:
    """Logits at the last four tokens, from a pass that continues a cache."""
    cache = DynamicCache()
    with torch.no_grad():
        model(IDS[:, :6], past_key_values=cache, use_cache=True)
        return model(IDS[:, 6:], past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("what", COUNTING)
def test_positions_of_new_tokens_are_refused(
    what: str, bridge_of: Callable[..., Any]
) -> None:
    model = bridge_of("llama")
    before = in_two(model)
    with sl.applied(model, COUNTING[what]()), torch.no_grad():
        model(IDS, use_cache=True)  # which fills a cache, and continues none
        with pytest.raises(InputError):
            in_two(model)
    assert torch.equal(in_two(model), before)


@pytest.mark.parametrize("what", ANYWHERE)
def test_others_go_on_from_a_cache_as_in_a_whole_pass(
    what: str, bridge_of: Callable[..., Any]
) -> None:
    model = bridge_of("llama")
    before = in_two(model)
    with sl.applied(model, ANYWHERE[what]()), torch.no_grad():
        whole = model(IDS, use_cache=False)
        found = in_two(model)
    torch.testing.assert_close(found, whole[:, 6:], rtol=1e-3, atol=1e-4)
    assert (found - before).abs().max() > 1e-3
