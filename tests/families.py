"""Every type of decoder in transformers, built small and random, and what the measurements do with each."""

import inspect
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.cases import random_model

# Small sizes under the names that configurations use. A configuration takes those that its class has.
SIZES: dict[str, Any] = dict(
    vocab_size=60, hidden_size=16, n_embd=16, d_model=16, intermediate_size=24, ffn_dim=24, d_ff=24, ffn_hidden_size=24,
    n_inner=24, num_hidden_layers=3, num_layers=3, n_layer=3, n_layers=3, decoder_layers=3, num_attention_heads=4,
    num_heads=4, n_head=4, n_heads=4, num_key_value_heads=2, head_dim=4, max_position_embeddings=64, n_positions=64,
    max_seq_len=64, pad_token_id=0, eos_token_id=1, bos_token_id=2, num_experts=4, num_local_experts=4,
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=8,
    n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, kv_lora_rank=8, q_lora_rank=8,
    qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=6, sliding_window=5, rotary_dim=4, word_embed_proj_dim=16,
    linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=4, linear_value_head_dim=4,
    mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=8,
    mamba_expand=2, mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8, n_groups=1, chunk_size=8, state_size=8,
    query_pre_attn_scalar=4, global_head_dim=8, hidden_size_per_layer_input=8, vocab_size_per_layer_input=60,
    decoder_attention_heads=4, decoder_ffn_dim=24, ffn_dim_multiplier=None, index_n_heads=2, index_head_dim=8,
    index_topk=8, num_kv_shared_layers=0, intermediate_size_mlp=24, rope_theta=10000.0, kv_channels=4,
)  # fmt: skip


LARGEST = 500_000  # parameters


def types() -> list[str]:
    """The types of decoders: those for which transformers has a causal language model."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def configuration(kind: str) -> Any:
    """A small configuration of a type."""
    made = CONFIG_MAPPING[kind]
    known = set(inspect.signature(made.__init__).parameters) | set(getattr(made, "__annotations__", {}))
    known |= set(getattr(made, "attribute_map", {}))
    return made(**{name: value for name, value in SIZES.items() if name in known} | OWN.get(kind, {}))


MLA = {"num_key_value_heads": 4, "head_dim": 4}
OWN: dict[str, dict[str, Any]] = {
    "deepseek_v2": MLA, "deepseek_v3": MLA, "glm4_moe_lite": MLA, "youtu": MLA, "axk1": MLA, "minicpm3": MLA,
    "longcat_flash": MLA,
    "gpt_neo": {"attention_types": [[["global", "local"], 1], [["global"], 1]], "window_size": 5},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 4, "head_dim": 8, "expand": 2, "state_size": 8},
}  # fmt: skip


def built(kind: str, seed: int = 0) -> Any:
    """A small random model of a type."""
    config = configuration(kind)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    assert size < LARGEST, f"{kind} has {size} parameters"
    return random_model(config, seed)
