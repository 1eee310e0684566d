"""Find the buffers of rotary embeddings that depend on the last pass, as for "dynamic" and "longrope" frequencies.

transformers writes the frequencies of the last pass into a buffer. They follow from the configuration and the length of
the pass, so the fingerprint leaves them out, unless something else has changed them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from squashlens.engine.agreement import same_frequencies

_LENGTH = "max_seq_len_cached"


def names_from_last_pass(module: nn.Module) -> frozenset[str]:
    """Names of the attributes and buffers of a module that follow from its configuration and its last pass."""
    found: set[str] = set()
    for prefix, layer_type, kind in _kinds(module):
        names = {f"{prefix}inv_freq", f"{prefix}long_inv_freq", f"{prefix}{_LENGTH}"}
        if _follow(module, prefix, layer_type, kind):
            found |= names
        found |= {_LENGTH, f"{prefix}{_LENGTH}"}
    return frozenset(found)


def _kinds(module: nn.Module) -> list[tuple[str, str | None, str]]:
    """Name prefix, layer type and kind of each rotary embedding of a module that depends on the length of a pass."""
    kind = vars(module).get("rope_type")
    kinds = kind.items() if isinstance(kind, dict) else [(None, kind)]
    return [
        ("" if layer_type is None else f"{layer_type}_", layer_type, name)
        for layer_type, name in kinds
        if isinstance(name, str) and ("dynamic" in name or name == "longrope")
    ]


def _follow(module: Any, prefix: str, layer_type: str | None, kind: str) -> bool:
    """Whether the frequencies are the original ones, or those that the configuration gives for some length."""
    now, original = module._buffers.get(f"{prefix}inv_freq"), getattr(module, f"{prefix}original_inv_freq", None)
    if not isinstance(now, Tensor) or not isinstance(original, Tensor):
        return False
    if kind == "longrope":
        long = _frequencies(module, kind, layer_type, _limit(module, layer_type) + 1)
        kept = vars(module).get(f"{prefix}long_inv_freq")
        return (kept is None or same_frequencies(kept, long)) and (
            same_frequencies(now, original) or same_frequencies(now, long)
        )
    length = int(getattr(module, f"{prefix}{_LENGTH}", getattr(module, _LENGTH, 0)))
    return same_frequencies(now, original) or same_frequencies(now, _frequencies(module, kind, layer_type, length))


def _limit(module: Any, layer_type: str | None) -> int:
    given = module.config.rope_parameters
    return int((given if layer_type is None else given[layer_type])["original_max_position_embeddings"])


def _frequencies(module: Any, kind: str, layer_type: str | None, length: int) -> Tensor:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    options = {} if layer_type is None else {"layer_type": layer_type}
    return ROPE_INIT_FUNCTIONS[kind](module.config, torch.device("cpu"), seq_len=length, **options)[0]
