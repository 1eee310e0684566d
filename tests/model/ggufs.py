"""Write GGUF files from plain Hugging Face models, in the way of llama.cpp's converter."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, get_tensor_name_map
from gguf.constants import MODEL_ARCH_NAMES
from gguf.quants import quantize

# 60 tokens: the special ones of the tiny configurations, then single characters and one pair.
WORDS = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "▁",
    *"0123456789",
    *"abcdefghijklmnopqrstuvwxyz",
    *"ABCDEFGHIJKLMNOPQR",
    "ab",
]


# For byte-level BPE: the space has another sign, and a pair of digits is a token that no text has if digits are apart.
BYTES = [{"▁": "Ġ", "R": "11"}.get(word, word) for word in WORDS]


def write_gguf(
    model: Any,
    path: Path,
    architecture: str,
    *,
    kind: str = "F32",
    also: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    split: int = 0,
    general: str = "",
) -> Path:
    """A file of the model, or files of `split` tensors each; `also` adds or replaces entries, `tensors` weights."""
    writer = GGUFWriter(path, architecture, split_max_tensors=split)
    if general:
        writer.add_name(general)
    for key, value in (_entries(model.config, architecture) | dict(also or {})).items():
        name = f"{architecture}.{key}"
        add = {
            str: writer.add_string,
            float: writer.add_float32,
            int: writer.add_uint32,
        }
        add[type(value)](name, value)
    if architecture == "llama":
        _add_byte_level(writer)
    else:
        _add_sentencepiece(writer)
    for name, values in (_stored(model, architecture) | dict(tensors or {})).items():
        plain = values.ndim == 1 or values.shape[-1] % 32 or kind == "F32"
        form = GGMLQuantizationType.F32 if plain else GGMLQuantizationType[kind]
        writer.add_tensor(
            name,
            values if plain else quantize(values, form),
            raw_dtype=None if plain else form,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _entries(config: Any, architecture: str) -> dict[str, Any]:
    rope = config.rope_parameters
    found = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": rope.get("full_attention", rope)["rope_theta"],
    }
    if architecture == "llama":
        return found | {
            "rope.dimension_count": config.head_dim,
            "vocab_size": config.vocab_size,
        }
    found |= {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.sliding_window": config.sliding_window,
    }
    if architecture == "gemma2":
        found["attn_logit_softcapping"] = config.attn_logit_softcapping
        found["final_logit_softcapping"] = config.final_logit_softcapping
    return found


def _stored(model: Any, architecture: str) -> dict[str, np.ndarray]:
    arch = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(arch, model.config.num_hidden_layers)
    queries, keys = model.config.num_attention_heads, model.config.num_key_value_heads
    found = {}
    for name, weight in model.named_parameters():
        stem, ending = name.rsplit(".", 1)
        values = weight.detach().numpy()
        if architecture != "llama":
            values = values + ("norm" in name)
        elif "q_proj" in name or "k_proj" in name:
            values = _interleaved(values, queries if "q_proj" in name else keys)
        found[f"{names.get_name(stem)}.{ending}"] = values
    return found


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """The rows of each head in llama.cpp's order: a pair that is rotated together is next to each other."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _add_byte_level(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(BYTES)
    writer.add_token_merges(["a b", "1 1"])
    _add_special(writer)


def _add_sentencepiece(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([-float(i) for i in range(len(WORDS))])
    _add_special(writer)
    writer.add_add_space_prefix(False)


def _add_special(writer: GGUFWriter) -> None:
    special = [
        TokenType.CONTROL,
        TokenType.CONTROL,
        TokenType.CONTROL,
        TokenType.UNKNOWN,
    ]
    writer.add_token_types([*special, *[TokenType.NORMAL] * (len(WORDS) - 4)])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
