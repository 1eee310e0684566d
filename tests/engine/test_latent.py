"""Latent attention (MLA), whose values have another width than keys, has the hook points of other families."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import squashlens as sl
from squashlens.errors import InputError
from tests import families

IDS = torch.tensor([[2, 5, 6, 9, 11, 5, 8, 7]])
KEYS, VALUES = (families.SIZES[name] for name in ("qk_nope_head_dim", "v_head_dim"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("deepseek")
    families.built("deepseek_v3").save_pretrained(made)
    return made


def plain(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def test_values_and_outputs_of_heads_are_edited_as_in_the_plain_model(folder: Path) -> None:
    model, own = sl.load(folder, device="cpu"), plain(folder)
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
        before = own(IDS, use_cache=False).logits
        for hook, module, register, edit in (
            (sl.hooks.zero_values([3], blocks=(1,)), attention.kv_b_proj, "register_forward_hook", zero),
            (("blocks.1.attn.hook_z", zero_head), attention.o_proj, "register_forward_pre_hook", without_head),
        ):
            handle = getattr(module, register)(edit)
            truth = own(IDS, use_cache=False).logits
            handle.remove()
            assert (truth - before).abs().max() > 1e-3, "the edit by hand must matter"
            with sl.applied(model, hook):
                torch.testing.assert_close(model(IDS, use_cache=False), truth, rtol=1e-5, atol=1e-5)


def test_what_needs_values_works(folder: Path) -> None:
    model = sl.load(folder, device="cpu")
    found = sl.mechanism(model, sl.prompts.repeated(model, 5, 6))
    assert (found["observed"] <= found["bound"]).all()
    norms = sl.jacobian_norms(model, IDS[0])
    for edges in ("analytic", "exact"):
        assert (sl.certified_bound(model, IDS[0], edges=edges) >= norms).all()
    assert sl.profile(model, IDS[0], method="none")["value_norm"].notnull().all()
    assert sl.squash_map(model, IDS[0])


def test_a_bridge_made_elsewhere_shows_heads_before_positions(folder: Path) -> None:
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    inner = plain(folder)
    bridge: Any = build_bridge_from_module(inner, "DeepseekV3ForCausalLM", hf_config=inner.config, tokenizer=None)
    assert (sl.path_bound(bridge, IDS[0]) > 0).all()
    with (
        pytest.raises(InputError, match="heads before positions.*load"),
        sl.applied(bridge, sl.hooks.zero_values([3])),
    ):
        pass
