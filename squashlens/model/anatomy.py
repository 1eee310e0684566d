"""The parts of a loaded model: its sizes, windows and position encodings, and the hook points of its residual stream.

Two position encodings depend on the length of a pass, its largest position + 1: "longrope" (Phi-3) has other
frequencies beyond `original_max_position_embeddings` tokens, and "dynamic" has others for every length beyond
`max_position_embeddings`, or those of an earlier, longer pass. All other encodings in transformers depend on positions
only.

TransformerLens's own models (`TransformerBridge.boot_native`, and compiled tracr programs) have no Hugging Face
configuration; questions about it are answered here from the bridge's `cfg`. Their attention is not that of
transformers, so patterns are always computed.
"""

import inspect
import re
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Bridge, Target
from squashlens.errors import InputError, UnsoundModelError

PLAIN = (torch.nn.Parameter, torch.Tensor)
FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
LONG = "longrope"
DYNAMIC = "dynamic"
NATIVE = "transformer_lens.model_bridge.sources.native.model"


def is_native(model: Bridge) -> bool:
    """Whether a bridge wraps a `NativeModel` of TransformerLens."""
    return type(model.original_model).__module__ == NATIVE


def text_config(model: Bridge) -> Any:
    """The Hugging Face configuration of the language model, or its equivalent for a native model."""
    if not is_native(model):
        config: Any = model.original_model.config
        return config.get_text_config()
    cfg = model.cfg
    activation = cfg.act_fn
    if not activation:
        activation = "silu" if cfg.gated_mlp else "gelu"
    return SimpleNamespace(
        model_type="native",
        max_position_embeddings=int(cfg.n_ctx),
        hidden_act=str(activation).lower(),
        # A soft cap of TransformerLens is off unless positive.
        attn_logit_softcapping=max(0.0, float(cfg.attn_scores_soft_cap)) or None,
        final_logit_softcapping=max(0.0, float(cfg.output_logits_soft_cap)) or None,
    )


def n_tokens(model: Bridge) -> int:
    """The number of tokens that have an embedding, whatever tokenizer the bridge has."""
    config: Any = getattr(getattr(model, "original_model", None), "config", None)
    if not hasattr(config, "get_text_config"):  # a native model, or a tokenizer alone
        return int(model.cfg.d_vocab)
    return int(config.get_text_config().vocab_size)


def n_outcomes(model: Bridge) -> int:
    """The number of outcomes of the next-token distribution: the vocabulary, or the outputs of a native model."""
    inner: Any = model.original_model
    return int(inner.head.out_features) if is_native(model) else n_tokens(model)


def outputs_are_tokens(model: Bridge) -> bool:
    """Whether the outputs of a model are its input tokens; a compiled program may have other outputs."""
    return n_outcomes(model) == n_tokens(model)


def unseen_roundings(model: Bridge) -> int:
    """How often every pass of a float64 model rounds to float32, in norms and softmaxes; 0 for other dtypes."""
    return 2 * n_blocks(model) + 1 if dtype_of(model) == torch.float64 else 0


def n_blocks(model: Bridge) -> int:
    """L, the number of blocks."""
    return len(model.blocks)


def width(model: Bridge) -> int:
    """d, the number of coordinates of the residual stream."""
    return int(model.cfg.d_model)


def projected(model: Bridge) -> int:
    """The number of coordinates of one token's queries and keys in a block."""
    heads = int(model.cfg.n_heads)
    # Several heads may share a key.
    key_heads = int(getattr(model.cfg, "n_key_value_heads", None) or heads)
    return (heads + key_heads) * int(model.cfg.d_head)


def context_length(model: Bridge) -> int | None:
    """The largest number of tokens in a prompt, `None` if the configuration has no limit."""
    config = text_config(model)
    limit = getattr(config, "max_position_embeddings", None)
    return limit or getattr(config, "n_positions", None)


def device_of(model: Bridge) -> torch.device:
    """The device of the first parameter."""
    return next(model.parameters()).device


def dtype_of(model: Bridge) -> torch.dtype:
    """The dtype of the first floating-point parameter."""
    return next(p.dtype for p in model.parameters() if p.is_floating_point())


def last_logits(model: Bridge) -> dict[str, slice]:
    """Options of a pass that computes the last position's logits only, if possible: others need much memory.

    The option is a slice. For the number 1 Gemma 4 would also shorten the blocks that share keys and values, and a
    tensor would be moved by accelerate to the first device of a model that is spread over several.
    """
    known = inspect.signature(model.original_model.forward).parameters
    return {"logits_to_keep": slice(-1, None)} if "logits_to_keep" in known else {}


def quantization(model: Bridge) -> str | None:
    """The number format of quantized weights, such as ``"int8"``, else the method's name; None if they are plain."""
    # Classes of quantized weights, which often have the number format in their name.
    kinds: set[str] = set()
    for parameter in model.parameters():
        if not parameter.is_floating_point() or type(parameter) not in PLAIN:
            kinds.add(type(parameter).__name__.lower())
    formats = {*re.findall(r"u?int\d+|float\d+", " ".join(kinds))}
    if formats:
        return ", ".join(sorted(formats))
    method = getattr(text_config(model), "quantization_config", None)
    if method is None:
        method = getattr(model.original_model, "quantization_method", None)
    # The method is an entry of a dict or of an object, as a text or a member of an enum.
    if isinstance(method, dict):
        method = method.get("quant_method")
    method = getattr(method, "quant_method", method)
    if method is not None:
        return str(getattr(method, "value", method))
    return ", ".join(sorted(kinds)) or None


def windows(model: Bridge, positions: int | None = None) -> list[int | None]:
    """Each block's attention window in tokens, which counts the query; `None` for full attention.

    Raises for other kinds of attention. Attention in chunks counts as full in a prompt of at most one chunk, if the
    prompt's number of `positions` is given.
    """
    config = text_config(model)
    chunk = getattr(config, "attention_chunk_size", None)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = [SLIDING if window else FULL] * n_blocks(model)
    if names := getattr(config, "attention_layers", None):  # of GPT-Neo
        window = config.window_size
        kinds = [FULL if name == "global" else SLIDING for name in names]
    known = {FULL, SLIDING}
    if positions is not None and chunk and positions <= chunk:
        known.add(CHUNKED)
    unknown = set(kinds) - known
    if unknown:
        raise UnsoundModelError(
            f"{config.model_type} has blocks of kind {', '.join(sorted(unknown))}, without a uniform baseline.",
            "Use attention='model', or a model with full or sliding-window attention.",
        )
    return [window if kind == SLIDING else None for kind in kinds]


def known_windows(model: Bridge, positions: int | None = None) -> list[int | None]:
    """Each block's window as `windows` gives it; if a block has another kind of attention, None (full) for all."""
    try:
        return windows(model, positions)
    except UnsoundModelError:
        return [None] * n_blocks(model)


def check_layer(layer: object, model: Bridge, argument: str) -> int:
    """The layer, after a check that it is from 0 to L; layer ℓ is the residual stream v⁽ℓ⁾ that enters block ℓ."""
    top = n_blocks(model)
    if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer <= top:
        raise InputError(
            f"{argument}={layer!r} is not a layer of this model.",
            f"Use a layer from 0 (the embeddings) to {top} (the last residual stream); 'y' is after the final norm.",
        )
    return layer


def residual_sites(model: Bridge) -> list[str]:
    """The hook points of v⁽⁰⁾ … v⁽ᴸ⁾ and y."""
    return [residual_site(layer, model) for layer in (*range(n_blocks(model) + 1), "y")]


def residual_site(layer: Target, model: Bridge) -> str:
    """The hook point where v⁽ℓ⁾ (ℓ = 0…L) or y is read or replaced."""
    if layer == "y":
        return "ln_final.hook_out"
    top = n_blocks(model)
    if layer == top:
        return f"blocks.{top - 1}.hook_resid_post"
    return f"blocks.{layer}.hook_resid_pre"


def learned_sink(model: Bridge, block: int) -> Tensor | None:
    """The logits of a block's learned sink, one for each head (gpt-oss): a key that has no value. None without one."""
    attention = model.blocks[block]._modules.get("attn")
    return getattr(getattr(attention, "original_component", None), "sinks", None)


def pattern_site(block: int) -> str:
    """The hook point of a block's attention patterns."""
    return f"blocks.{block}.attn.hook_pattern"


def length_dependent_encodings(model: Bridge) -> list[tuple[str, int]]:
    """Kind and limit, in tokens, of each position encoding that depends on the length of a pass; see the module.

    Phi-3 with 4,096 original positions has ``[("longrope", 4096)]``; most models have none.
    """
    parameters = getattr(text_config(model), "rope_parameters", None) or {}
    encodings: list[tuple[str, int]] = []
    # Some models have one set of parameters for each kind of block.
    for rope in (parameters, *parameters.values()):
        kind = rope.get("rope_type") if isinstance(rope, dict) else None
        if kind == LONG:
            limit = int(rope["original_max_position_embeddings"])
            encodings.append((kind, limit))
        elif DYNAMIC in str(kind):
            encodings.append((str(kind), context_length(model) or 0))
    return encodings


def longest_prompt(model: Bridge) -> int | None:
    """The largest number of tokens in a prompt; `None` if there is no limit, or if frequencies adapt to the length."""
    for kind, _ in length_dependent_encodings(model):
        if DYNAMIC in kind:
            return None
    return context_length(model)


def why_lengths_differ(model: Bridge, lengths: Collection[int]) -> str | None:
    """The reason why passes of these lengths encode positions differently; `None` if they do not."""
    for kind, limit in length_dependent_encodings(model):
        # One encoding up to the limit, and one for each length beyond it; "longrope" has one for all of those.
        encodings = {max(n, limit) for n in lengths}
        if kind == LONG:
            encodings = {n > limit for n in lengths}
        if len(encodings) > 1:
            return f"its position encoding ({kind}) depends on the length of the pass beyond {limit} tokens"
    return None


def forget_lengths(model: Bridge) -> None:
    """Reset frequencies that depend on the length of a pass as in a new model, so that only the next pass counts."""
    if not length_dependent_encodings(model):
        return
    for module in model.original_model.modules():
        if "original_max_seq_len" not in vars(module):  # it has no rotary frequencies
            continue
        # One kind of encoding for all blocks, or a dict by the kind of block.
        kinds: Any = module.rope_type
        if not isinstance(kinds, dict):
            kinds = {"": kinds}
        for layer_type, kind in kinds.items():
            if str(kind) == LONG or DYNAMIC in str(kind):
                _reset(module, f"{layer_type}_" if layer_type else "")


def _reset(module: Any, prefix: str) -> None:
    """Give a module its first frequencies again.

    A module with frequencies for several kinds of blocks has them under names with a `prefix` such as
    ``"full_attention_"``; with a single kind the prefix is empty.
    """
    original = getattr(module, f"{prefix}original_inv_freq", None)
    current = getattr(module, f"{prefix}inv_freq", None)
    if original is None or current is None:
        return
    with torch.inference_mode(False):
        fresh = original.to(current.device).clone()
    module.register_buffer(f"{prefix}inv_freq", fresh, persistent=False)
    setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
    # The next pass that needs the frequencies of long prompts computes them again.
    setattr(module, f"{prefix}long_inv_freq", None)
