"""Weights in int8 against a twin without torchao: the same model with each matrix rounded by the formula."""

import copy
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module
from transformers import MixtralConfig

import squashlens as sl
from squashlens.engine.anatomy import dtype_of
from squashlens.engine.loading.quantized import require_quantizer, round_weights
from squashlens.engine.state import fingerprint_of as fingerprint
from squashlens.errors import InputError, ModelAccessError
from tests.cases import COMMON, CONFIGS, few, random_model, save_random
from tests.references import jacobian_by_jacrev, path_sum, plain_outputs, raw

quantization = pytest.importorskip("torchao.quantization", reason="torchao is missing: pip install squashlens[quant]")

IDS = torch.tensor([[2, 7, 11, 30, 7, 7, 59, 8, 14, 3]])
WHOLE = ("gemma", "gemma2", "gemma3", "llama", "mistral", "qwen2", "qwen3", "olmo2", "phi")


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers and the scale of each row, in float32 as torchao has them, which multiplies by 1/s."""
    scale = weight.float().abs().amax(dim=1, keepdim=True) / 127.5
    return (weight.float() * (1.0 / scale)).round().clamp(-128, 127), scale


def twin_of(plain: Any) -> Any:
    """A copy with every matrix between embeddings and output head rounded, its weights ordinary numbers."""
    twin = copy.deepcopy(plain)
    for name, module in twin.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            whole, scale = rounded(module.weight)
            module.weight.data = (whole.double() * scale.double()).to(module.weight.dtype)
    return twin


@pytest.fixture(scope="module")
def int8_of(folder_of: Callable[[str], Path]) -> Callable[..., Any]:
    return cache(lambda name, dtype=torch.float32: sl.load(folder_of(name), device="cpu", dtype=dtype, quantize="int8"))


@pytest.mark.parametrize("name", few(WHOLE))
def test_weights_are_rounded_as_the_formula_says(name: str, plain_of: Any) -> None:
    plain = plain_of(name)
    found = copy.deepcopy(plain).requires_grad_(False)
    round_weights(found, "int8")
    untouched = 0
    for (place, before), after in zip(plain.named_parameters(), found.parameters(), strict=True):
        if type(after) is nn.Parameter:
            untouched += 1
            assert before.ndim == 1 or "embed" in place or "lm_head" in place
            assert torch.equal(before, after)
            continue
        whole, scale = rounded(before.detach())
        assert torch.equal(after.qdata, whole.to(torch.int8))
        assert torch.equal(after.scale, scale)
        off = (before - after.qdata * after.scale).abs() / scale
        assert 0.3 < off.max() <= 0.5 + 1e-4
    assert 0 < untouched < len(list(plain.parameters()))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", few(WHOLE))
def test_logits_equal_those_of_rounded_weights(name: str, int8_of: Any, plain_of: Any) -> None:
    plain = plain_of(name)
    with torch.no_grad():
        found = int8_of(name)(IDS, use_cache=False)
        truth, unrounded = twin_of(plain)(IDS).logits, plain(IDS).logits
    size = unrounded.abs().max().item()
    torch.testing.assert_close(found, truth, rtol=0, atol=2e-5 * size)
    assert (found - unrounded).abs().max() > 1e-3 * size  # the rounding can be seen at all


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["gemma2", "llama", "qwen3"])
def test_bound_and_jacobian_are_those_of_the_rounded_model(name: str, int8_of: Any, plain_of: Any) -> None:
    model, plain = int8_of(name, torch.float64), copy.deepcopy(plain_of(name)).double()
    twin = twin_of(plain)
    assert dtype_of(model) == torch.float64
    jacobian = jacobian_by_jacrev(twin, IDS, -1).detach()
    found = sl.jacobian_norms(model, IDS)
    np.testing.assert_allclose(found.values, torch.linalg.svdvals(jacobian)[:, 0].numpy(), rtol=1e-5)
    other = torch.linalg.svdvals(jacobian_by_jacrev(plain, IDS, -1).detach())[:, 0].numpy()
    assert np.abs(found.values / other - 1).max() > 1e-3
    patterns = [p[0].mean(dim=0).detach().numpy() for p in plain_outputs(twin, IDS).attentions]
    bound = sl.path_bound(model, IDS)
    np.testing.assert_allclose(bound.values, path_sum(patterns, IDS.shape[1] - 1, gain=2.0), rtol=1e-5)


@pytest.mark.parametrize(("config", "name"), [("Int8WeightOnlyConfig", "int8"), ("Float8WeightOnlyConfig", "float8")])
def test_models_quantized_elsewhere_are_proved_and_named(config: str, name: str) -> None:
    inner: Any = random_model(CONFIGS["llama"]).requires_grad_(False)
    blocks = inner.model.layers
    quantization.quantize_(blocks, getattr(quantization, config)())
    bridge = build_bridge_from_module(inner, "LlamaForCausalLM", hf_config=inner.config, tokenizer=None, model_name="x")
    facts = sl.results.provenance(sl.path_bound(bridge.eval(), IDS))
    assert (facts["quantized"], facts["proof"], facts["dtype"]) == (name, "verified as it stands", "float32")


def test_the_fingerprint_sees_every_part_of_a_weight(folder_of: Any) -> None:
    models = [sl.load(folder_of("llama"), device="cpu", quantize="int8") for _ in range(2)]
    before, same = map(fingerprint, models)
    assert before == same
    weight: Any = models[0].original_model.model.layers[1].mlp.down_proj.weight
    seen = {before}
    for part, change in ((weight.qdata, 1), (weight.scale, 0.5)):
        kept = part[3, 0].clone()
        part[3, 0] += change
        seen.add(fingerprint(models[0]))
        part[3, 0] = kept
    assert len(seen) == 3
    assert fingerprint(models[0]) == before


def test_half_precision(tmp_path: Path, folder_of: Any) -> None:
    model = sl.load(folder_of("gemma2"), device="cpu", dtype=torch.bfloat16, quantize="int8")
    assert dtype_of(model) == torch.bfloat16
    facts = sl.results.provenance(sl.jacobian_norms(model, IDS))
    assert (facts["dtype"], facts["quantized"]) == ("bfloat16", "int8")
    with pytest.raises(InputError, match="overflows float16"):
        sl.load(folder_of("gemma2"), dtype=torch.float16, quantize="int8")


def test_models_that_cannot_be_rounded_whole_are_refused(folder_of: Any, tmp_path: Path) -> None:
    mixture = MixtralConfig(**COMMON, num_local_experts=2, num_experts_per_tok=1)
    refused = [
        (folder_of("gpt2"), r"transformer\.h\.0\.attn\.c_attn\.weight \(Conv1D\) of GPT2LMHeadModel is not in one"),
        (folder_of("neox"), "must split weights of GPTNeoXForCausalLM, and weights in int8 cannot"),
        (save_random(mixture, tmp_path / "mixture"), r"model\.layers\.0\.mlp\..* of MixtralForCausalLM is not in one"),
    ]
    for folder, message in refused:
        with pytest.raises(ModelAccessError, match=message + r"[^.]*\. Load it without quantize="):
            sl.load(folder, device="cpu", quantize="int8")


def test_what_is_missing_is_said_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="quantize='int4' is not a choice.* 'int8'"):
        raw(require_quantizer)("int4", torch.float32)
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(ModelAccessError, match=r"needs torchao.*pip install squashlens\[quant\]"):
        sl.load("no/such-model", quantize="int8")
    require_quantizer(None, torch.float32)
