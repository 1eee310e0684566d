"""Tiny random models of several families, built from seeded configurations, and where they are kept."""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING as CONFIG
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM, PreTrainedModel

import squashlens as sl

COMMON: dict[str, Any] = dict(
    vocab_size=60,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    max_position_embeddings=64,
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=2,
)
NO_HEAD_DIM = {k: v for k, v in COMMON.items() if k != "head_dim"}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]

CONFIGS: dict[str, Any] = {
    "gemma": CONFIG["gemma"](**COMMON | {"num_key_value_heads": 1}),
    "gemma2": CONFIG["gemma2"](
        **COMMON, sliding_window=5, query_pre_attn_scalar=4, layer_types=SLIDING
    ),
    "gemma3": CONFIG["gemma3_text"](
        **COMMON, sliding_window=5, query_pre_attn_scalar=4, layer_types=SLIDING
    ),
    "llama": CONFIG["llama"](**COMMON),
    "mistral": CONFIG["mistral"](**COMMON, sliding_window=5),
    "qwen2": CONFIG["qwen2"](**NO_HEAD_DIM),
    "gpt2": CONFIG["gpt2"](
        vocab_size=60,
        n_embd=16,
        n_layer=3,
        n_head=4,
        n_positions=64,
        bos_token_id=2,
        eos_token_id=1,
    ),
}
FAMILIES = tuple(CONFIGS)
CONTENT = (7, 8, 7, 7, 9, 9, 8, 7)

# Further ways to build a block: norms on queries and keys, norms behind the branches only, branches side by side.
NEOX: dict[str, Any] = dict(
    vocab_size=60,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=64,
    bos_token_id=2,
)
MORE: dict[str, Any] = {
    "qwen3": CONFIG["qwen3"](**COMMON),
    "olmo2": CONFIG["olmo2"](**NO_HEAD_DIM),
    "phi": CONFIG["phi"](**NO_HEAD_DIM),
    "neox": CONFIG["gpt_neox"](**NEOX, use_parallel_residual=True),
    "neox_sequential": CONFIG["gpt_neox"](**NEOX, use_parallel_residual=False),
}

# Mixtures of experts; the last one has learned sinks.
ROUTED: dict[str, Any] = dict(num_experts_per_tok=2, moe_intermediate_size=8)
EXPERTS: dict[str, Any] = {
    "mixtral": CONFIG["mixtral"](**COMMON, num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": CONFIG["qwen2_moe"](
        **NO_HEAD_DIM, **ROUTED, num_experts=4, shared_expert_intermediate_size=8
    ),
    "qwen3_moe": CONFIG["qwen3_moe"](**COMMON, **ROUTED, num_experts=4),
    "gpt_oss": CONFIG["gpt_oss"](
        **COMMON,
        sliding_window=5,
        layer_types=SLIDING,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
}

# Families that nothing here was written for.
SMALL: dict[str, Any] = dict(vocab_size=60, bos_token_id=2, eos_token_id=1)
FALCON: dict[str, Any] = SMALL | dict(
    hidden_size=16, num_hidden_layers=3, num_attention_heads=4
)
OTHERS: dict[str, Any] = {
    "phi3": CONFIG["phi3"](**NO_HEAD_DIM),
    "cohere": CONFIG["cohere"](**NO_HEAD_DIM, use_qk_norm=True),
    "granite": CONFIG["granite"](
        **NO_HEAD_DIM,
        attention_multiplier=0.3,
        residual_multiplier=0.7,
        embedding_multiplier=2.0,
        logits_scaling=2.0,
    ),
    "mixtral": EXPERTS["mixtral"],
    "falcon": CONFIG["falcon"](**FALCON, alibi=False),
    "falcon_alibi": CONFIG["falcon"](**FALCON, alibi=True, parallel_attn=False),
    "bloom": CONFIG["bloom"](**SMALL, hidden_size=16, n_layer=3, n_head=4),
    "mpt": CONFIG["mpt"](
        vocab_size=60, d_model=16, n_layers=3, n_heads=4, max_seq_len=64
    ),
}

# Language models inside multimodal models, with the vocabulary of the bundled tokenizer.
TOWER: dict[str, Any] = COMMON | {"vocab_size": 99}
IMAGES: dict[str, Any] = dict(
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    image_size=28,
    patch_size=14,
)
WINDOWED: dict[str, Any] = dict(
    sliding_window=5,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
)
MULTIMODAL: dict[str, Any] = {
    "gemma3": CONFIG["gemma3"](
        text_config=TOWER | WINDOWED | {"query_pre_attn_scalar": 4},
        vision_config=IMAGES,
        mm_tokens_per_image=1,
    ),
    "mistral3": CONFIG["mistral3"](
        text_config=TOWER | {"model_type": "mistral"},
        vision_config=IMAGES | {"model_type": "pixtral", "head_dim": 8},
        image_token_index=10,
    ),
    "llama4": CONFIG["llama4"](
        text_config=TOWER
        | dict(
            intermediate_size_mlp=24,
            num_local_experts=2,
            num_experts_per_tok=1,
            moe_layers=[1],
            no_rope_layers=[1, 1, 0],
        ),
        vision_config=IMAGES
        | {
            "vision_output_dim": 16,
            "projector_input_dim": 16,
            "projector_output_dim": 16,
        },
    ),
    "qwen3_5": CONFIG["qwen3_5"](
        text_config=TOWER
        | dict(
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=4,
            linear_value_head_dim=4,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [1, 1, 0],
                "partial_rotary_factor": 1.0,
            },
        ),
        vision_config=dict(
            depth=1,
            hidden_size=16,
            intermediate_size=16,
            num_heads=2,
            out_hidden_size=16,
            num_position_embeddings=16,
        ),
    ),
    "gemma4": CONFIG["gemma4"](
        text_config=TOWER
        | dict(
            num_hidden_layers=4,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"] * 2,
            global_head_dim=8,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=99,
            num_kv_shared_layers=2,
            use_double_wide_mlp=True,
            final_logit_softcapping=5.0,
        ),
        vision_config=IMAGES | {"head_dim": 8, "num_key_value_heads": 2},
        audio_config=None,
    ),
}

# Position encodings that depend on the length of a pass.
LIMIT = 16  # tokens of a pass from which on longrope has its other frequencies
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1],
    "long_factor": [3.0, 9.0],
    "original_max_position_embeddings": LIMIT,
    "factor": 4.0,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
VARIABLE: dict[str, Any] = {
    "phi3": CONFIG["phi3"](
        **NO_HEAD_DIM | {"original_max_position_embeddings": LIMIT},
        rope_parameters=LONG,
    ),
    "llama": CONFIG["llama"](**COMMON, rope_parameters=LONG),
    "dynamic": CONFIG["llama"](
        **COMMON | {"max_position_embeddings": 32}, rope_parameters=DYNAMIC
    ),
}

# One family for each way to build a block: windows, caps and norms on both sides; grouped heads and gates; LayerNorm,
# biases and learned positions; norms on queries and keys; norms behind the branches only; branches side by side.
DISTINCT = ("gemma2", "llama", "gpt2", "qwen3", "olmo2", "neox")


def few(families: Iterable[str]) -> list[Any]:
    """These families; those that are built like a distinct one run with the slow tests."""
    return [
        pytest.param(name, marks=() if name in DISTINCT else pytest.mark.slow)
        for name in families
    ]


FREEZABLE = ("attention", "norms", "gates")
FREEZE_SETS: list[Any] = [
    s for k in range(4) for s in itertools.combinations(FREEZABLE, k)
]


def with_freeze_sets(families: Iterable[str]) -> list[Any]:
    """Every set with a distinct family in turn, and two with nothing frozen and with everything; all pairs if slow."""
    found, families = [], list(families)
    distinct = [family for family in families if family in DISTINCT]
    for family in families:
        usual: list[Any] = [(), FREEZABLE] if family in ("gemma2", "gpt2") else []
        usual += (
            FREEZE_SETS[distinct.index(family) :: len(distinct)]
            if family in distinct
            else []
        )
        for freeze in FREEZE_SETS:
            marks = () if freeze in usual else pytest.mark.slow
            found.append(
                pytest.param(
                    family, freeze, id=f"{family}-{'+'.join(freeze)}", marks=marks
                )
            )
    return found


def random_model(config: Any, seed: int = 0) -> PreTrainedModel:
    """A model with every parameter drawn afresh: gains and biases too, weights larger than at initialisation."""
    torch.manual_seed(seed)
    auto = (
        AutoModelForMultimodalLM
        if config.get_text_config() is not config
        else AutoModelForCausalLM
    )
    model = auto.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            small = "norm" in name or "ln_" in name or parameter.ndim == 1
            parameter.add_(0.1 * torch.randn_like(parameter))
            if not small:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def draw(plain: PreTrainedModel, seed: int, scale: float) -> None:
    """Weights of a certain size; gains about 1, biases small."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            noise = torch.randn(
                parameter.shape, generator=generator, dtype=parameter.dtype
            )
            if parameter.ndim == 1:
                parameter.copy_((0.0 if "bias" in name else 1.0) + 0.3 * noise)
            else:
                parameter.copy_(scale * noise / parameter.shape[-1] ** 0.5)


def loaded(
    config: Any,
    folder: Path,
    change: Callable[[Any], None] = lambda plain: None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Any, Any]:
    """A changed random model, as its plain self and as a bridge in a dtype."""
    import squashlens as sl

    plain = random_model(config)
    with torch.no_grad():
        change(plain)
    plain.save_pretrained(folder)
    return plain, sl.load(folder, dtype=dtype, device="cpu")


def save_random(config: Any, folder: Path, seed: int = 0) -> Path:
    """A random model as a Hugging Face folder, without a tokenizer."""
    random_model(config, seed).save_pretrained(folder)
    return folder


def foreign(inner: Any) -> Any:
    """A bridge booted by TransformerLens, not by us."""
    from transformer_lens.model_bridge.sources._bridge_builder import (
        build_bridge_from_module,
    )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_bridge_from_module(
            inner, type(inner).__name__, hf_config=inner.config, tokenizer=None
        )


def sequence_for(model: Any, family: str, content: Any = CONTENT, **form: Any) -> Any:
    """A sequence for a family's random model, after BOS if the family has one, and two more tokens."""
    return sl.prompts.build(
        model, content, prefix=[*([] if family == "qwen2" else [2]), 5, 11], **form
    )


def with_broken_attention(model: Any, block: int) -> Any:
    """A copy of a bridge with noise in the attention of one block alone."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    for parameter in other.blocks[block].attn.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            parameter += 8 * parameter.std() * noise
    return other
