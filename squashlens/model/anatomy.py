"""What a loaded model is made of: its size, its windows, where its residual stream can be read."""

from typing import Any

import torch

from squashlens._typing import Bridge, Target
from squashlens.errors import InputError, UnsoundModelError
from squashlens.model.native import described, is_native

PLAIN = (torch.nn.Parameter, torch.Tensor)
FULL, SLIDING = "full_attention", "sliding_attention"


def n_blocks(model: Bridge) -> int:
    return len(model.blocks)


def width(model: Bridge) -> int:
    """d, the number of coordinates of the residual stream."""
    return int(model.cfg.d_model)


def projected(model: Bridge) -> int:
    """Coordinates of one token's queries and keys in a block."""
    heads = int(model.cfg.n_heads)
    return (heads + int(getattr(model.cfg, "n_key_value_heads", None) or heads)) * int(model.cfg.d_head)


def text_config(model: Bridge) -> Any:
    """The Hugging Face configuration of the language model, or what stands for it in a native model."""
    if is_native(model):
        return described(model)
    config: Any = model.original_model.config
    return config.get_text_config()


def context_length(model: Bridge) -> int | None:
    """The longest sequence the model was built for, `None` where the configuration sets no limit."""
    config = text_config(model)
    return next((v for a in ("max_position_embeddings", "n_positions") if (v := getattr(config, a, None))), None)


def device_of(model: Bridge) -> torch.device:
    return next(model.parameters()).device


def dtype_of(model: Bridge) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if p.is_floating_point())


def quantisation(model: Bridge) -> str | None:
    """How the weights are quantised, `None` where they are plain floating-point numbers."""
    declared = getattr(text_config(model), "quantization_config", None) or getattr(
        model.original_model, "quantization_method", None
    )
    if declared is not None:
        method = (
            declared.get("quant_method") if isinstance(declared, dict) else getattr(declared, "quant_method", declared)
        )
        return str(getattr(method, "value", method))
    strange = {type(p).__name__ for p in model.parameters() if not p.is_floating_point() or type(p) not in PLAIN}
    return ", ".join(sorted(strange)) or None


def windows(model: Bridge) -> list[int | None]:
    """Each block's native attention window in tokens, the query itself included; `None`: no window.

    Refuses a block whose attention is neither full nor a sliding window.
    """
    config = text_config(model)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = [SLIDING if window else FULL] * n_blocks(model)
    strange = set(kinds) - {FULL, SLIDING}
    if strange:
        raise UnsoundModelError(
            f"{config.model_type} has blocks of kind {', '.join(sorted(strange))}, whose null is not defined here.",
            "Use attention='model', or a model with full or sliding-window attention.",
        )
    return [window if kind == SLIDING else None for kind in kinds]


def check_layer(layer: object, model: Bridge, argument: str) -> int:
    """Refuse a layer outside 0…L, where layer ℓ is the residual stream v⁽ℓ⁾ entering block ℓ."""
    top = n_blocks(model)
    if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer <= top:
        raise InputError(
            f"{argument}={layer!r} is not a layer of this model.",
            f"Layers run from 0 (the embeddings) to {top} (the last residual); 'y' is after the final norm.",
        )
    return layer


def residual_sites(model: Bridge) -> list[str]:
    """Where v⁽⁰⁾ … v⁽ᴸ⁾ and y are read."""
    return [residual_site(layer, model) for layer in (*range(n_blocks(model) + 1), "y")]


def residual_site(layer: Target, model: Bridge) -> str:
    """The hook point where v⁽ℓ⁾ (ℓ = 0…L) or y is read and replaced."""
    if layer == "y":
        return "ln_final.hook_out"
    top = n_blocks(model)
    return f"blocks.{layer}.hook_resid_pre" if layer < top else f"blocks.{top - 1}.hook_resid_post"


def pattern_site(block: int) -> str:
    return f"blocks.{block}.attn.hook_pattern"
