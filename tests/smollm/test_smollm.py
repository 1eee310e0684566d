"""A real SmolLM2 135M, against plain transformers: a second family of real models."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.model.loading.packaged import PACKAGED

pytestmark = pytest.mark.smollm
NAME = "smollm2-135m"
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


def test_its_chat_template_is_kept(smollm: Any) -> None:
    chat = smollm.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert chat == f"{system}<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert sl.prompts.tokenize(smollm, "<|im_start|>user").tolist() == [[1, 4093]], (
        "a token of its own"
    )
