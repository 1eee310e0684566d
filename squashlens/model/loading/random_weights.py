"""The same architecture with random weights: the baseline for a probe, since training put nothing there."""

import copy
from typing import Any

import torch

from squashlens._typing import Bridge
from squashlens.model.anatomy import device_of, dtype_of, is_native
from squashlens.model.live import bridge_around
from squashlens.model.loading.gguf import ORIGIN
from squashlens.model.memory import require_room
from squashlens.model.verify import require_sound


@torch.inference_mode(False)
def with_random_weights(model: Bridge, seed: int) -> Bridge:
    """Make an untrained model of the same class and configuration, with weights drawn with `seed`.

    The Hugging Face class draws the weights by its own initialisation, in the model's dtype and on its device. The
    untrained model is not quantized, even if `model` is, and has none of its hooks. It is verified like any bridge.
    """
    wrapped: Any = model.original_model
    size = sum(p.numel() for p in wrapped.parameters()) * dtype_of(model).itemsize
    require_room(
        size,
        device_of(model),
        "A second model with random weights",
        "Use a larger device, or n_random_models=0, which gives no verdict about what is represented.",
    )
    made = _native(model, seed) if is_native(model) else _drawn(model, seed)
    return require_sound(made)


def _drawn(model: Bridge, seed: int) -> Bridge:
    """An untrained Hugging Face model whose weights are drawn with this seed."""
    wrapped: Any = model.original_model
    config = copy.deepcopy(wrapped.config)
    config._attn_implementation = "eager"
    for entry in ("quantization_config", ORIGIN):
        if hasattr(config, entry):
            delattr(config, entry)
    # On the CPU, whatever the default device is: `torch.manual_seed` would seed the generators of GPUs too.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        # Not `.to(dtype)`: that would round the rotary frequencies too.
        inner = type(wrapped)._from_config(
            config, dtype=dtype_of(model), attn_implementation="eager"
        )
    inner = inner.to(device_of(model)).eval().requires_grad_(False)
    return bridge_around(inner, None, f"random weights {seed}")


def _native(model: Bridge, seed: int) -> Bridge:
    """An untrained `NativeModel` of TransformerLens, whose weights are drawn with this seed."""
    from transformer_lens.model_bridge.sources.native import boot

    config = copy.deepcopy(model.cfg)
    config.seed = seed
    config.init_weights = True
    name = f"random weights {seed}"
    where = {"device": device_of(model), "dtype": dtype_of(model)}
    return boot(config, model_name=name, **where).eval().requires_grad_(False)
