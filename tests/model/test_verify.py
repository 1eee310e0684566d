"""`load` hands out what it has proved, and refuses families that fail; what passes beside attention is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import FalconH1Config, Gemma3TextConfig, GptOssConfig, StableLmConfig

import squashlens as sl
from squashlens.errors import UnsoundModelError
from squashlens.model import live, premises, verify
from squashlens.model.agreement import TOLERANCE
from squashlens.model.applied import probe_ids
from tests.cases import (
    COMMON,
    CONFIGS,
    EXPERTS,
    FAMILIES,
    MORE,
    NO_HEAD_DIM,
    OTHERS,
    SLIDING,
    draw,
    foreign,
    loaded,
    random_model,
    save_random,
)

MAMBA: dict[str, Any] = dict(
    mamba_d_ssm=16,
    mamba_n_heads=4,
    mamba_d_head=4,
    mamba_d_state=8,
    mamba_chunk_size=4,
    mamba_n_groups=1,
)
FAULTY: dict[str, Any] = {
    # its bridge computes other logits
    "stablelm": StableLmConfig(**NO_HEAD_DIM),
    # attention to later tokens
    "gemma3": Gemma3TextConfig(
        **COMMON,
        query_pre_attn_scalar=4,
        layer_types=SLIDING,
        use_bidirectional_attention=True,
    ),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("family", FAULTY)
def test_faulty_families_are_refused(family: str, tmp_path: Path) -> None:
    config = FAULTY[family]
    with pytest.raises(UnsoundModelError):
        sl.load(save_random(config, tmp_path / "own"))
    with pytest.raises(UnsoundModelError):
        sl.path_bound(foreign(random_model(config)), torch.tensor([2, 5, 6]))
    unverified = sl.load(tmp_path / "own", verify=False)
    assert verify.status(unverified) == "unverified"


def test_rounding_that_weights_magnify_does_not_part_a_bridge_from_its_model(
    tmp_path: Path,
) -> None:
    """Phi-3's own softmax is in float32 even in float64, and the bridge's is not; another softmax is still refused."""
    _, model = loaded(
        OTHERS["phi3"], tmp_path, lambda plain: draw(plain, 4, 10.0), torch.float64
    )
    assert verify.status(model) == "verified"
    plain, attn, ids = (
        verify.rebuild_plain(model),
        model.blocks[1].attn,
        probe_ids(model),
    )
    with torch.no_grad():
        truth = plain(ids, output_attentions=True).attentions[2]
    seen = sl.capture(model, ids).patterns[2]
    assert float((seen - truth).abs().max()) > TOLERANCE[torch.float64], (
        "and so it has to be looked at twice"
    )
    softmax = attn._softmax_dropout_pattern
    attn._softmax_dropout_pattern = lambda scores: softmax(scores * (1 + 1e-6))
    with pytest.raises(UnsoundModelError):
        verify.prove(model, plain)


@pytest.mark.few(1)
@pytest.mark.parametrize("own", [True, False])
def test_a_mixer_beside_attention_rules_out_paths_and_nothing_else(
    own: bool, tmp_path: Path
) -> None:
    config = FalconH1Config(**COMMON, **MAMBA, lm_head_multiplier=0.5)
    ids = torch.tensor([2, 5, 6, 9])
    model = (
        sl.load(save_random(config, tmp_path)) if own else foreign(random_model(config))
    )
    for attention in ("model", "uniform"):
        with pytest.raises(UnsoundModelError):
            sl.path_bound(model, ids, attention=attention)
    with pytest.raises(UnsoundModelError):
        sl.token_influence(model, ids)
    bound = sl.certified_bound(model, ids)
    norms = sl.jacobian_norms(model, ids)
    assert (bound >= norms).all()
    assert "path_bound" not in sl.token_influence(model, ids, method="exact")
    collapse = sl.collapse(model, sl.prompts.repeated(model, 5, 4))
    assert (collapse["distance"].sel(layer=3) > 0).all()
    assert "probability_l1" in collapse, "logits follow from y, with their multiplier"


def test_a_head_that_was_untied_is_named_until_the_configuration_says_so() -> None:
    model = sl.load("tiny-gemma")
    ids = sl.prompts.tokenize(model, "110 =")
    before = sl.top_tokens(model, ids, k=99).sortby("token_id")
    plain: Any = model.original_model
    plain.lm_head.weight = torch.nn.Parameter(plain.lm_head.weight.detach().flip(0))
    with pytest.raises(UnsoundModelError):
        sl.top_tokens(model, ids)
    plain.config.tie_word_embeddings = False
    after = sl.top_tokens(model, ids, k=99).sortby("token_id")
    np.testing.assert_allclose(after.values, before.values[::-1], rtol=1e-4)


class Adapted(torch.nn.Module):
    """A linear layer with an adapter beside it, as peft puts it in place of the layer."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = torch.nn.Linear(layer.in_features, 2, bias=False)
        self.lora_B = torch.nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


@pytest.mark.parametrize("late", [False, True])
def test_adapters_that_are_not_merged_are_refused(late: bool) -> None:
    """Put into the plain model before the bridge, or into a bridge that was measured before."""
    plain = random_model(CONFIGS["llama"])
    if not late:
        mlp = plain.model.layers[1].mlp
        mlp.down_proj = Adapted(mlp.down_proj)
    bridge = live.bridge_around(plain, None, "adapted")
    if late:
        sl.path_bound(bridge, torch.tensor([2, 5, 6]))
        out = bridge.blocks[1].mlp.out
        out._modules["_original_component"] = Adapted(out.original_component).eval()
    with pytest.raises(UnsoundModelError):
        sl.path_bound(bridge, torch.tensor([2, 5, 6]))


@pytest.mark.few(1)
@pytest.mark.parametrize("spoil", ["weight", "pattern"])
def test_the_proof_sees_small_faults(
    spoil: str, folder_of: Callable[[str], Path]
) -> None:
    """A bridge with one weight changed, or one head's pattern, is not the plain model."""
    model = sl.load(folder_of("gemma"))
    plain = random_model(CONFIGS["gemma"])
    verify.prove(model, plain)  # the same seed gives the same weights
    if spoil == "weight":
        with torch.no_grad():
            plain.model.layers[1].mlp.down_proj.weight[0, 0] += 0.05
        with pytest.raises(UnsoundModelError):
            verify.prove(model, plain)
    else:
        hook = sl.hooks.Hook(
            "spoil",
            "blocks.{block}.attn.hook_pattern",
            lambda p: p.flip(1),
            blocks=(2,),
        )
        with sl.applied(model, hook), pytest.raises(UnsoundModelError):
            verify.prove(model, plain)


def test_ambient_hooks_do_not_disturb_the_proof_and_stay() -> None:
    bridge = foreign(random_model(CONFIGS["llama"]))
    bridge.add_hook("blocks.1.attn.hook_pattern", lambda p, hook: p * 0)

    def torch_hook(module: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
        return out * 2

    mlp = bridge.original_model.model.layers[0].mlp.down_proj
    mlp.register_forward_hook(torch_hook)
    assert verify.status(bridge) == "unverified"
    doubled = sl.path_bound(bridge, torch.tensor([2, 5, 6]))
    assert verify.status(bridge) == "verified as it stands"
    named = sl.results.provenance(doubled)["ambient_hooks"]
    assert len(named) == 2
    assert "lambda" in named[0]
    assert "torch_hook" in named[1]
    assert torch_hook in mlp._forward_hooks.values()
    bridge.reset_hooks()
    mlp._forward_hooks.clear()
    plain = sl.path_bound(bridge, torch.tensor([2, 5, 6]))
    assert not np.array_equal(doubled, plain)


def test_what_transformers_leaves_on_a_model_is_no_hook_of_the_user(
    bridge_of: Callable[..., Any],
) -> None:
    """`run_with_cache` makes transformers install hooks that collect attentions, which stay on the modules."""
    model, ids = bridge_of("llama"), torch.tensor([2, 5, 6, 7])
    before = sl.jacobian_norms(model, ids)
    model.run_with_cache(ids[None])
    after = sl.jacobian_norms(model, ids)
    assert any(m._forward_hooks for m in model.original_model.modules())
    assert sl.results.provenance(after) == sl.results.provenance(before)
    assert sl.results.provenance(after)["ambient_hooks"] == []
    np.testing.assert_array_equal(after, before)


LOADED: dict[str, Any] = {
    **OTHERS,
    **EXPERTS,
    **CONFIGS,
    **{name: MORE[name] for name in ("qwen3", "olmo2", "neox")},
    "sinks": GptOssConfig(
        **COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=5
    ),
}
DTYPES = ("float32", "bfloat16", "float16", "float64")
DAILY = ("sinks", "mixtral", "bloom", "gemma2")
RUN = list(zip(DAILY, DTYPES, strict=True))
RUN += [(family, "float32") for family in LOADED]
RUN += [(family, dtype) for family in (*FAMILIES, *DAILY[:3]) for dtype in DTYPES[1:]]


@pytest.mark.few(4)
@pytest.mark.parametrize(("family", "dtype"), RUN)
def test_good_families_are_verified(family: str, dtype: str, tmp_path: Path) -> None:
    """Also with position biases, attention sinks and experts; and rounding is no influence."""
    model = sl.load(save_random(LOADED[family], tmp_path), dtype=dtype)
    assert verify.status(model) == "verified"
    bound = sl.path_bound(model, torch.tensor([2, 5, 6]))
    assert sl.results.provenance(bound)["dtype"] == dtype


def earlier(out: Tensor, size: float) -> Tensor:
    """Each token gets something of the one before it."""
    return torch.cat([out[:, :1], out[:, 1:] + size * out[:, :-1]], dim=1)


def later(out: Tensor, size: float) -> Tensor:
    """Each token gets something of the one after it."""
    return torch.cat([out[:, :-1] + size * out[:, 1:], out[:, -1:]], dim=1)


def largest(out: Tensor, size: float) -> Tensor:
    """Only half of a prompt's tokens, those of the largest norm, are let through, as with experts that are full."""
    norms = out.norm(dim=-1, keepdim=True)
    return torch.where(
        norms >= norms.median(dim=1, keepdim=True).values, out, out * (1 - size)
    )


LEAKS: list[tuple[str, Callable[[Tensor, float], Tensor], float]] = [
    ("mlp", earlier, 0.1),
    ("mlp", earlier, 1e-3),
    ("mlp", later, 1e-3),
    ("mlp", largest, 1.0),
    ("self_attn.v_proj", earlier, 1e-3),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("module", "leak", "size"), LEAKS)
def test_what_passes_between_tokens_is_seen(
    module: str,
    leak: Callable[[Tensor, float], Tensor],
    size: float,
    folder_of: Callable[[str], Path],
) -> None:
    model = sl.load(folder_of("llama"))
    inside = model.original_model.model.layers[1].get_submodule(module)
    inside.register_forward_hook(lambda _, given, out: leak(out, size))
    if leak is earlier:
        premises.require_causal(model)
        assert premises.why_not_attention_alone(model) is not None
    else:
        with pytest.raises(UnsoundModelError):
            premises.require_causal(model)
