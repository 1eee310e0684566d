"""The same architecture with random weights: what a probe finds there, no training has put there."""

import copy
import warnings
from typing import Any

import torch

from squashlens._typing import Bridge
from squashlens.model.anatomy import device_of, dtype_of
from squashlens.model.memory import require_room
from squashlens.model.native import is_native
from squashlens.model.proof import require_sound


def random_twin(model: Bridge, seed: int) -> Bridge:
    """A bridge to an untrained model: the model's class on its own configuration, weights drawn with `seed`.

    The weights are those that the Hugging Face class draws for a new model (its own initialisation, for example normal
    with the configuration's `initializer_range`), in the model's dtype and on its device; a quantised model has a twin
    that is not quantised. The twin is proved as any bridge is. Hooks that stand on `model` do not stand on the twin.
    PyTorch's random state is left as it was.

    Raises: `CapacityError` where a second model does not fit.
    """
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    wrapped: Any = model.original_model
    dtype, device = dtype_of(model), device_of(model)
    count = sum(p.numel() for p in wrapped.parameters())
    remedy = "Use a larger device, or twins=0, which leaves no verdict about what is represented."
    require_room(count * dtype.itemsize, device, "A twin of the model with random weights", remedy)
    if is_native(model):
        return require_sound(_native(model, seed))
    config = copy.deepcopy(wrapped.config)
    config._attn_implementation = "eager"
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(seed)
        # Not `.to(dtype)`, which would round the rotary frequencies too.
        inner = type(wrapped)._from_config(config, dtype=dtype, attn_implementation="eager").to(device)
    inner = inner.eval().requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin = build_bridge_from_module(
            inner, type(inner).__name__, hf_config=inner.config, tokenizer=None, model_name=f"random weights {seed}"
        )
    twin.eval().requires_grad_(False)
    return require_sound(twin)


def _native(model: Bridge, seed: int) -> Bridge:
    """A model that `TransformerBridge.boot_native` draws for the configuration with this seed."""
    from transformer_lens.model_bridge.sources.native import boot

    config = copy.deepcopy(model.cfg)
    config.seed, config.init_weights = seed, True
    with torch.inference_mode(False):
        twin = boot(config, device=device_of(model), dtype=dtype_of(model), model_name=f"random weights {seed}")
    twin.eval().requires_grad_(False)
    return twin
