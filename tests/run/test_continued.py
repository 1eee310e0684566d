"""Hooks that count positions, where a pass continues a cache: right, or refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

import squashlens as sl
from squashlens.errors import InputError
from squashlens.model.hooking.standing import ambient, without_ambient

IDS = torch.tensor([[2, 5, 9, 11, 9, 30, 31, 9, 17, 4]])
OTHERS = torch.tensor(
    [[2, 7, 8, 12, 19, 20, 21, 22, 3, 6], [2, 40, 41, 42, 43, 44, 45, 46, 47, 48]]
)

ALONG_TOKENS: dict[str, Callable[[], Any]] = {
    "zero_residual": lambda: sl.hooks.zero_residual([1]),
    "zero_values": lambda: sl.hooks.zero_values([1]),
    "zero_heads": lambda: sl.hooks.zero_heads([0], positions=[1]),
    "mean_heads": lambda: sl.hooks.mean_heads([0], OTHERS, positions=[1]),
    "patch_heads": lambda: sl.hooks.patch_heads([0], OTHERS[:1], positions=[1]),
    "patch_residual": lambda: sl.hooks.patch_residual([1], OTHERS[:1]),
    "mean_residual": lambda: sl.hooks.mean_residual([1], OTHERS),
    "resample_residual": lambda: sl.hooks.resample_residual([1], OTHERS, seed=0),
    "a hook of the user's": lambda: sl.hooks.Hook(
        "mine", "blocks.{block}.hook_resid_pre", lambda v: v, positional=True
    ),
}
ALONG_KEYS: dict[str, Callable[[], Any]] = {
    "mask_tokens": lambda: sl.hooks.mask_tokens([1]),
    "mask_attention": lambda: sl.hooks.mask_attention([7, 8], [1, 2]),
    "sliding_window": lambda: sl.hooks.sliding_window(3, sink=1, heads=[0]),
    "scale_attention": lambda: sl.hooks.scale_attention(0.5, [1]),
    "zero_attention": lambda: sl.hooks.zero_attention([1]),
}
ANYWHERE: dict[str, Callable[[], Any]] = {
    "zero_heads": lambda: sl.hooks.zero_heads([0]),
    "mean_heads": lambda: sl.hooks.mean_heads([0], OTHERS, over="positions"),
    "sliding_window": lambda: sl.hooks.sliding_window(3),
    "attention_temperature": lambda: sl.hooks.attention_temperature(2.0),
    "log_scaling": lambda: sl.hooks.log_scaling(2),
    "adaptive_temperature": lambda: sl.hooks.adaptive_temperature(),
    "uniform_attention": lambda: sl.hooks.uniform_attention(),
    "round_activations": lambda: sl.hooks.round_activations("bfloat16"),
}


def in_two(model: Any, cache: Any) -> torch.Tensor:
    """Logits at the last four tokens, from a pass that continues a cache."""
    with torch.no_grad():
        model(IDS[:, :6], past_key_values=cache, use_cache=True)
        return model(IDS[:, 6:], past_key_values=cache, use_cache=True)


@pytest.mark.few(4)
@pytest.mark.parametrize("what", ALONG_TOKENS)
def test_positions_of_new_tokens_are_refused(
    what: str, bridge_of: Callable[..., Any]
) -> None:
    model = bridge_of("llama")
    with sl.applied(model, ALONG_TOKENS[what]()), torch.no_grad():
        whole = model(IDS, use_cache=False)
        torch.testing.assert_close(
            model(IDS, use_cache=True), whole
        )  # which fills a cache
        with pytest.raises(InputError):
            in_two(model, DynamicCache())
        assert len(ambient(model)) == len(
            model.blocks
        )  # the refusal stands for the hooks and is none
        with without_ambient(model):
            plain = in_two(model, DynamicCache())
    with torch.no_grad():
        torch.testing.assert_close(
            plain, model(IDS, use_cache=False)[:, 6:], rtol=1e-4, atol=1e-5
        )
        in_two(model, DynamicCache())


@pytest.mark.parametrize(
    "what", [*ALONG_KEYS, *(f"{name} (anywhere)" for name in ANYWHERE)]
)
def test_others_go_on_from_a_cache_as_in_a_whole_pass(
    what: str, bridge_of: Callable[..., Any]
) -> None:
    model = bridge_of("llama")
    before = in_two(model, DynamicCache())
    with sl.applied(
        model,
        (ALONG_KEYS | {f"{name} (anywhere)": make for name, make in ANYWHERE.items()})[
            what
        ](),
    ):
        with torch.no_grad():
            whole = model(IDS, use_cache=False)
        found = in_two(model, DynamicCache())
    torch.testing.assert_close(found, whole[:, 6:], rtol=1e-3, atol=1e-4)
    assert (found - before).abs().max() > 1e-3


@pytest.mark.parametrize("what", ALONG_KEYS)
def test_keys_that_a_window_dropped_are_not_counted(
    what: str, bridge_of: Callable[..., Any]
) -> None:
    """A cache that keeps five keys of six, and one that has room for more: keys count from elsewhere."""
    model = bridge_of("mistral")
    config = model.original_model.config
    with sl.applied(model, ALONG_KEYS[what]()):
        for cache in (
            DynamicCache(config=config),
            StaticCache(config=config, max_cache_len=16),
        ):
            with pytest.raises(InputError):
                in_two(model, cache)
        with torch.no_grad():
            whole = model(IDS, use_cache=False)
        torch.testing.assert_close(
            in_two(model, DynamicCache()).shape, whole[:, 6:].shape
        )
