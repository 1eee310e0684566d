"""Models whose tokens see later ones are refused; what passes between tokens besides attention is found."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GptOssConfig

import squashlens as sl
from squashlens.engine.proving import premises, proof
from squashlens.errors import UnsoundModelError
from tests.cases import COMMON, EXPERTS, MORE, OTHERS, save_random

LOADED: dict[str, Any] = {
    **OTHERS,
    **EXPERTS,
    **{name: MORE[name] for name in ("qwen3", "olmo2", "neox")},
    "sinks": GptOssConfig(**COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=5),
}


DAILY = ("sinks", "mixtral", "bloom", "neox")


@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f in DAILY else pytest.mark.slow) for f in LOADED])
def test_models_with_attention_alone_load(family: str, tmp_path: Path) -> None:
    """Also with position biases, attention sinks and experts."""
    assert proof.status(sl.load(save_random(LOADED[family], tmp_path))) == "verified"


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("family", ["mixtral", "sinks", "bloom"])
def test_rounding_is_no_influence(family: str, dtype: str, tmp_path: Path) -> None:
    assert proof.status(sl.load(save_random(LOADED[family], tmp_path), dtype=dtype)) == "verified"


def violated(model: Any) -> str | None:
    """What the tests of the premises say about a model."""
    try:
        premises.require_causal(model)
    except UnsoundModelError as error:
        return str(error)
    return premises.why_not_attention_alone(model)


def earlier(out: Tensor, size: float) -> Tensor:
    """Each token gets something of the one before it."""
    return torch.cat([out[:, :1], out[:, 1:] + size * out[:, :-1]], dim=1)


def later(out: Tensor, size: float) -> Tensor:
    """Each token gets something of the one after it."""
    return torch.cat([out[:, :-1] + size * out[:, 1:], out[:, -1:]], dim=1)


def largest(out: Tensor, size: float) -> Tensor:
    """Only half of a prompt's tokens, those of the largest norm, are let through, as with experts that are full."""
    norms = out.norm(dim=-1, keepdim=True)
    return torch.where(norms >= norms.median(dim=1, keepdim=True).values, out, out * (1 - size))


LEAKS: list[tuple[str, Callable[[Tensor, float], Tensor], float, str]] = [
    ("mlp", earlier, 0.1, r"besides attention.*blocks\.2\.hook_resid_pre at position"),
    ("mlp", earlier, 1e-3, "besides attention"),
    ("mlp", later, 1e-3, "not causal"),
    ("mlp", largest, 1.0, "not causal"),
    ("self_attn.v_proj", earlier, 1e-3, r"besides attention.*blocks\.2\.hook_resid_pre"),
    ("self_attn.k_proj", earlier, 1e-2, r"besides attention.*blocks\.1\.attn\.hook_pattern"),
    ("self_attn.q_proj", earlier, 1e-2, r"besides attention.*blocks\.1\.attn\.hook_pattern"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("module", "leak", "size", "complaint"), LEAKS)
def test_what_passes_between_tokens_is_seen(
    module: str, leak: Callable[[Tensor, float], Tensor], size: float, complaint: str, folder_of: Callable[[str], Path]
) -> None:
    model = sl.load(folder_of("llama"))
    inside = model.original_model.model.layers[1].get_submodule(module)
    inside.register_forward_hook(lambda _, given, out: leak(out, size))
    assert re.search(complaint, str(violated(model)))


def test_rounding_does_not_grow(folder_of: Callable[[str], Path]) -> None:
    """As where the rounding of one block sends a token to other experts in the next."""
    model = sl.load(folder_of("llama"))
    first, second, _ = (block.mlp for block in model.original_model.model.layers)
    first.register_forward_hook(lambda _, given, out: earlier(out, 1e-7))
    second.register_forward_hook(lambda _, given, out: torch.sin(1e6 * given[0]))
    assert violated(model) is None
