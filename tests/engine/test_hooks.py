"""Ablation hooks seen from close by: which weights and values they leave, and that every hook point is probed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPTNeoXConfig

import squashlens as sl
from squashlens.engine.proving import effective
from squashlens.errors import UnsoundModelError
from tests.cases import save_random

IDS = torch.tensor([[2, 5, 9, 11, 9, 30, 31, 9]])


def test_long_lists_are_named_in_short() -> None:
    assert sl.hooks.mask_tokens((3, 7)).name == "mask_tokens(3, 7)"
    assert sl.hooks.mask_tokens(range(0, 90, 3)).name.startswith("mask_tokens(0 … 87, 30 in all, ")
    assert sl.hooks.mask_tokens(range(0, 90, 3)).name != sl.hooks.mask_tokens([*range(0, 84, 3), 85, 87]).name


def test_every_point_is_probed_once_also_one_above_another(bridge_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook on every residual stream: the upper ones must not make the lower ones look dead."""
    model, probed = bridge_of("gpt2"), []
    honest = effective._probe
    monkeypatch.setattr(
        effective, "_probe", lambda m, sites, *rest: (probed.append(len(sites)), honest(m, sites, *rest))
    )
    everywhere = sl.hooks.Hook("same", "blocks.{block}.hook_resid_mid", lambda t: t)
    for _ in range(2):
        with sl.applied(model, everywhere):
            pass
    assert probed == [3]


MARK = "_output_capturing_hooks_installed"  # transformers' own


def test_a_point_that_never_fires_is_refused(tmp_path: Any) -> None:
    """GPT-NeoX has a hook point for rotated queries that nothing ever passes."""
    config = GPTNeoXConfig(
        vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, bos_token_id=2,
    )  # fmt: skip
    model = sl.load(save_random(config, tmp_path), progress=False)
    lost = sl.hooks.Hook("lost", "blocks.{block}.attn.hook_rot_q", lambda t: t)
    with pytest.raises(UnsoundModelError, match="have no effect"), sl.applied(model, lost):
        pass
    assert model.hook_dict["blocks.0.attn.hook_rot_q"].fwd_hooks == []


def test_what_transformers_leaves_on_a_model_is_no_hook_of_the_user(bridge_of: Callable[..., Any]) -> None:
    """`run_with_cache` makes transformers install hooks that collect attentions, which stay on the modules."""
    model, ids = bridge_of("llama"), torch.tensor([2, 5, 6, 7])
    before = sl.jacobian_norms(model, ids)
    model.run_with_cache(ids[None])
    after = sl.jacobian_norms(model, ids)
    assert any(m._forward_hooks for m in model.original_model.modules())
    assert sl.results.provenance(after) == sl.results.provenance(before)
    assert sl.results.provenance(after)["ambient_hooks"] == []
    np.testing.assert_array_equal(after, before)


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_our_passes_leave_nothing_of_transformers(family: str, folder_of: Callable[..., Any]) -> None:
    model, ids = sl.load(folder_of(family), device="cpu", progress=False), torch.tensor([2, 5, 6, 7])
    modules = list(model.original_model.modules())
    sl.path_bound(model, ids, progress=False)
    assert not any(transformers_hooks(m) or hasattr(m, MARK) for m in modules)
    out = model.original_model(ids[None], output_attentions=True)
    installed = sum(map(transformers_hooks, modules))
    assert all(pattern is not None for pattern in out.attentions)
    sl.jacobian_norms(model, ids, progress=False)
    assert sum(map(transformers_hooks, modules)) == installed  # those of somebody else stay


def transformers_hooks(module: torch.nn.Module) -> int:
    return sum("output_capturing" in f.__module__ for f in module._forward_hooks.values())
