"""Every type of decoder in transformers, built small and random, and what the measurements do with each.

`python -m tests.families` writes `squashlens/families.csv`, which `squashlens families` and the docs show.
"""

import csv
import inspect
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformer_lens.factories.architecture_adapter_factory import (
    SUPPORTED_ARCHITECTURES,
)
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import squashlens as sl
from squashlens.errors import SquashlensError
from tests.cases import MULTIMODAL, random_model

# Small sizes under the names that configurations use. A configuration takes those that its class has.
NAMES_BY_SIZE: dict[Any, str] = {
    60: "vocab_size vocab_size_per_layer_input",
    16: "hidden_size n_embd d_model word_embed_proj_dim",
    24: """intermediate_size ffn_dim d_ff ffn_hidden_size n_inner decoder_ffn_dim
        intermediate_size_mlp""",
    3: "num_hidden_layers num_layers n_layer n_layers decoder_layers",
    4: """num_attention_heads num_heads n_head n_heads head_dim num_experts
        num_local_experts n_routed_experts qk_rope_head_dim qk_nope_head_dim
        rotary_dim linear_key_head_dim linear_value_head_dim mamba_n_heads
        mamba_num_heads query_pre_attn_scalar decoder_attention_heads kv_channels""",
    2: """num_key_value_heads bos_token_id num_experts_per_tok linear_num_key_heads
        linear_num_value_heads mamba_expand index_n_heads""",
    64: "max_position_embeddings n_positions max_seq_len",
    0: "pad_token_id num_kv_shared_layers",
    1: """eos_token_id n_shared_experts first_k_dense_replace n_group topk_group
        mamba_n_groups n_groups""",
    8: """moe_intermediate_size shared_expert_intermediate_size kv_lora_rank
        q_lora_rank mamba_d_head mamba_d_state mamba_chunk_size mamba_head_dim
        ssm_state_size chunk_size state_size global_head_dim
        hidden_size_per_layer_input index_head_dim index_topk""",
    6: "v_head_dim",
    5: "sliding_window",
    32: "mamba_d_ssm",
    None: "ffn_dim_multiplier",
    10000.0: "rope_theta",
}
SIZES: dict[str, Any] = {}
for size, names in NAMES_BY_SIZE.items():
    SIZES |= dict.fromkeys(names.split(), size)
# What released models of a family have, and their configuration leaves out unless it is asked for.
FEATURES: dict[str, Any] = dict(
    use_qk_norm=True,
    clip_qkv=1.0,
    mup_enabled=True,
    norm_topk_prob=True,
    use_sliding_window=True,
    max_window_layers=1,
    embedding_multiplier=2.0,
    logits_scaling=2.0,
    residual_multiplier=0.7,
    attention_multiplier=0.3,
    floor_scale=4,
)
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]


LARGEST = 500_000  # parameters
MLA = {"num_key_value_heads": 4, "head_dim": 4}
MIXED = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
CONV = {"layer_types": ["conv", "full_attention", "conv"]}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 16,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
OWN: dict[str, dict[str, Any]] = {
    "deepseek_v2": MLA,
    "deepseek_v3": MLA,
    "glm4_moe_lite": MLA,
    "youtu": MLA,
    "gpt_neo": {
        "attention_types": [[["global", "local"], 1], [["global"], 1]],
        "window_size": 5,
    },
    "cohere2": {"layer_types": ALTERNATING},
    "exaone4": {"layer_types": ALTERNATING},
    "afmoe": {"layer_types": ALTERNATING},
    "olmo3": {"layer_types": ALTERNATING},
    "gemma2": CAPS,
    "vaultgemma": CAPS,
    "gemma3_text": {"layer_types": ALTERNATING},
    "gemma4_text": {
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "top_k_experts": 2,
        "final_logit_softcapping": 5.0,
    },
    "llama": {"rope_parameters": LLAMA3},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "glm_moe_dsa": MLA,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": CONV,
    "lfm2_moe": CONV | {"num_dense_layers": 1},
    "mamba2": {"num_heads": 4, "head_dim": 8, "expand": 2, "state_size": 8},
    "qwen3_next": MIXED,
    "qwen3_5_text": MIXED,
    "qwen3_5_moe_text": MIXED,
}
ROOT = Path(__file__).parents[1]
FILE = ROOT / "squashlens/families.csv"
IDS = torch.tensor([2, 5, 6, 9, 11, 5, 8, 7])


def classes() -> dict[str, str]:
    """The class of each type for which transformers has a causal language model, or one inside a multimodal model."""
    towers = {
        name: f"{type(config).__name__.removesuffix('Config')}ForConditionalGeneration"
        for name, config in MULTIMODAL.items()
    }
    return dict(sorted((MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | towers).items()))


def configuration(kind: str) -> Any:
    """A small configuration of a type."""
    if kind in MULTIMODAL:
        return MULTIMODAL[kind]
    made = CONFIG_MAPPING[kind]
    known = set(inspect.signature(made.__init__).parameters) | set(
        getattr(made, "__annotations__", {})
    )
    known |= set(getattr(made, "attribute_map", {}))
    return made(
        **{name: value for name, value in (SIZES | FEATURES).items() if name in known}
        | OWN.get(kind, {})
    )


def built(kind: str, seed: int = 0) -> Any:
    """A small random model of a type; raises an error if it would be large."""
    config = configuration(kind)
    if kind not in MULTIMODAL:
        with torch.device("meta"):
            size = sum(
                p.numel() for p in AutoModelForCausalLM.from_config(config).parameters()
            )
        if size > LARGEST:
            raise MemoryError(f"{size} parameters")
    return random_model(config, seed)


def _mask(model: Any) -> None:
    before = model(IDS[None], use_cache=False)
    with sl.applied(model, sl.hooks.mask_tokens([3])):
        assert not torch.allclose(model(IDS[None], use_cache=False), before)


def _path_bound(model: Any) -> None:
    sl.path_bound(model, IDS)
    with sl.applied(model, sl.hooks.uniform_attention()):
        flat = sl.path_bound(model, IDS)
    assert (
        abs(flat / sl.path_bound(model, IDS, attention="uniform") - 1).max() < 1e-5
    ), "the null is this model's own"


TRIED: dict[str, Callable[[Any], object]] = {
    "path_bound": _path_bound,
    "certified": lambda model: sl.certified_bound(model, IDS),
    "jacobian_norms": lambda model: sl.jacobian_norms(model, IDS),
    "collapse": lambda model: sl.collapse(model, sl.prompts.repeated(model, 5, 4)),
    "collapse_mechanism": lambda model: sl.collapse_mechanism(
        model, sl.prompts.repeated(model, 5, 4)
    ),
    "substitution_effect": lambda model: sl.substitution_effect(model, IDS),
    "token_influence": lambda model: sl.token_influence(model, IDS, method="auto"),
    "mask_tokens": _mask,
    "freeze_norms": lambda model: sl.jacobian_norms(model, IDS, freeze="norms"),
}


def row(kind: str, folder: Path) -> dict[str, str]:
    """What works for a type, and why the rest is refused. An error that is not ours is raised."""
    found = {
        "type": kind,
        "class": classes()[kind],
        **dict.fromkeys(TRIED, "no"),
        "why not": "",
    }
    if found["class"] not in SUPPORTED_ARCHITECTURES:
        return found | {"why not": "load: TransformerLens has no bridge for it"}
    try:
        model = built(kind)
        with torch.no_grad():
            model(input_ids=IDS[None], use_cache=False)
    except Exception as error:  # the many errors of configurations
        return found | {
            "why not": f"not tried: no small configuration ({type(error).__name__})"
        }
    model.save_pretrained(folder)
    reasons: dict[str, list[str]] = {}
    try:
        loaded = sl.load(folder, device="cpu")
    except SquashlensError as error:
        return found | {"why not": f"load: {_plainly(error, folder)}"}
    for name, tried in TRIED.items():
        try:
            tried(loaded)
            found[name] = "yes"
        except SquashlensError as error:
            reasons.setdefault(_plainly(error, folder), []).append(name)
    return found | {
        "why not": "; ".join(
            f"{', '.join(names)}: {why}" for why, names in reasons.items()
        )
    }


def _plainly(error: SquashlensError, folder: Path) -> str:
    """The first sentence of a cause, without the numbers of this machine."""
    cause = (
        error.cause.replace(str(folder), "it")
        .partition(". ")[0]
        .partition(" is tensor")[0]
        .rstrip(".")
    )
    cause = (
        re.sub(r"\(.*$", "", cause) if cause.startswith("it cannot be run") else cause
    )  # words of a library
    return re.sub(r"(?<![\w.])\d[\d.e+-]*", "#", " ".join(cause.split()))


def main() -> None:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in classes():
            with tempfile.TemporaryDirectory() as folder:
                found.append(row(kind, Path(folder)))
            print(found[-1], flush=True)
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(
            file, ["type", "class", *TRIED, "why not"], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
