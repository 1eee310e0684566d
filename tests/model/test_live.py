"""Hooks inside attention that bridges leave to the models' own code, compared with edits by hand in plain models."""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

import squashlens as sl
from squashlens.errors import InputError, UnsoundModelError
from squashlens.model.live import delegating
from tests import families
from tests.cases import foreign
from tests.references import block_jacobian

IDS = torch.tensor([[2, 5, 6, 9, 11, 5, 8, 7, 20, 30]])
DELEGATED = ["gemma4_text", "llama4_text", "opt", "gptj", "gpt_neo"]
KEY = 3
# DeepSeek V3, whose values have another width than keys.
LATENT_IDS = IDS[:, :8]
KEYS, VALUES = (families.SIZES[name] for name in ("qk_nope_head_dim", "v_head_dim"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def folder(kind: str) -> Path:
        made = tmp_path_factory.mktemp(kind)
        families.built(kind).save_pretrained(made)
        return made

    return folder


def plain(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()


def without_key(logits: Tensor) -> Tensor:
    """Logits of attention that hide one key from later tokens; those of a router as they are."""
    if logits.ndim != 4:
        return logits
    hidden = torch.zeros(logits.shape[-2:], dtype=torch.bool)
    hidden[KEY + 1 :, KEY] = True
    return logits.masked_fill(hidden, -torch.inf)


@pytest.mark.parametrize("kind", DELEGATED)
def test_masks_act_as_in_the_plain_model(
    kind: str, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, own = sl.load(saved(kind), device="cpu"), plain(saved(kind))
    assert delegating(model)
    softmax = F.softmax
    with torch.no_grad():
        before = own(IDS, use_cache=False).logits
        with sl.applied(model, sl.hooks.mask_tokens([KEY])):
            found = model(IDS, use_cache=False)
        monkeypatch.setattr(
            F, "softmax", lambda logits, **how: softmax(without_key(logits), **how)
        )
        truth = own(IDS, use_cache=False).logits
    assert (truth - before).abs().max() > 0.01
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gemma4_text", "llama4_text", "opt"])
def test_edited_patterns_act_as_in_the_plain_model(
    kind: str, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads exchange their patterns in block 1, through TransformerLens alone."""
    model, own = sl.load(saved(kind), device="cpu"), plain(saved(kind))
    home: Any = sys.modules[type(own).__module__]
    eager = home.eager_attention_forward

    def exchanged(
        module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **more: Any
    ) -> Any:
        output, weights = eager(module, query, key, value, *args, **more)
        if module.layer_idx == 1:
            each = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
            output = (weights.flip(1) @ each).transpose(1, 2)
        return output, weights

    exchange = ("blocks.1.attn.hook_pattern", lambda pattern, hook: pattern.flip(1))
    with torch.no_grad():
        before = own(IDS, use_cache=False).logits
        monkeypatch.setattr(home, "eager_attention_forward", exchanged)
        truth = own(IDS, use_cache=False).logits
        monkeypatch.setattr(home, "eager_attention_forward", eager)
        found = model.run_with_hooks(IDS, fwd_hooks=[exchange])
    assert (truth - before).abs().max() > 0.01
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)


def test_blocks_that_share_keys_and_values_are_differentiated_together(
    saved: Callable[[str], Path],
) -> None:
    """A block of the shared ones has the derivative by an earlier stream, which a product of blocks would miss."""
    model, own = (
        sl.load(saved("gemma4"), device="cpu"),
        plain(saved("gemma4")).model.language_model,
    )
    rows = block_jacobian(own, IDS, 0, "y", [-1])[0]
    truth = torch.linalg.matrix_norm(rows.transpose(0, 1), ord=2).double()
    found = torch.tensor(sl.jacobian_norms(model, IDS[0]).values)
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)
    assert (
        sl.jacobian_norms(model, IDS[0], method="sketch_upper").values
        >= (1 - 1e-5) * truth.numpy()
    ).all()
    for call in (sl.path_bound, sl.certified_bound):
        with pytest.raises(UnsoundModelError):
            call(model, IDS[0])


@pytest.mark.parametrize("kind", ["gemma4_text", "llama4_text", "olmo"])
def test_norms_without_hook_points_or_weights_are_not_frozen_in_part(
    kind: str, saved: Callable[[str], Path]
) -> None:
    model = sl.load(saved(kind), device="cpu")
    with pytest.raises(UnsoundModelError):
        sl.jacobian_norms(model, IDS[0], freeze="norms")


def test_values_and_outputs_of_heads_are_edited_as_in_the_plain_model(
    saved: Callable[[str], Path],
) -> None:
    model, own = (
        sl.load(saved("deepseek_v3"), device="cpu"),
        plain(saved("deepseek_v3")),
    )
    attention = own.model.layers[1].self_attn

    def zero(module: Any, given: Any, out: Tensor) -> Tensor:
        split = out.unflatten(-1, (-1, KEYS + VALUES)).clone()
        split[..., 3, :, KEYS:] = 0
        return split.flatten(2)

    def without_head(module: Any, given: tuple[Tensor]) -> tuple[Tensor]:
        heads = given[0].unflatten(-1, (-1, VALUES)).clone()
        heads[:, :, 2] = 0
        return (heads.flatten(2),)

    def zero_head(heads: Tensor) -> Tensor:
        return torch.where(torch.arange(heads.shape[2])[:, None] == 2, 0.0, heads)

    with torch.no_grad():
        before = own(LATENT_IDS, use_cache=False).logits
        for hook, module, register, edit in (
            (
                sl.hooks.zero_values([3], blocks=(1,)),
                attention.kv_b_proj,
                "register_forward_hook",
                zero,
            ),
            (
                ("blocks.1.attn.hook_z", zero_head),
                attention.o_proj,
                "register_forward_pre_hook",
                without_head,
            ),
        ):
            handle = getattr(module, register)(edit)
            truth = own(LATENT_IDS, use_cache=False).logits
            handle.remove()
            assert (truth - before).abs().max() > 1e-3, "the edit by hand must matter"
            with sl.applied(model, hook):
                torch.testing.assert_close(
                    model(LATENT_IDS, use_cache=False), truth, rtol=1e-5, atol=1e-5
                )


def test_a_bridge_made_elsewhere_shows_heads_before_positions(
    saved: Callable[[str], Path],
) -> None:
    bridge = foreign(plain(saved("deepseek_v3")))
    assert (sl.path_bound(bridge, LATENT_IDS[0]) > 0).all()
    with (
        pytest.raises(InputError),
        sl.applied(bridge, sl.hooks.zero_values([3])),
    ):
        pass
