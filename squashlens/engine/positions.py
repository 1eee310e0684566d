"""Position encodings that depend on the length of a pass, so that equal positions get different rotations.

"longrope" (Phi-3) has two sets of frequencies, one for passes up to `original_max_position_embeddings` tokens and one
for longer passes. "dynamic" has one set for every length beyond `max_position_embeddings`, and may keep the set of an
earlier, longer pass. The length of a pass is its largest position + 1.

All other encodings in transformers (linear, yarn, llama3, scaled logits of Llama 4 and Ministral, ALiBi, learned
positions) depend only on positions.
"""

from collections.abc import Collection, Iterator
from typing import Any

import torch

from squashlens._typing import Bridge
from squashlens.engine.anatomy import context_length, modules_of, text_config

LONG, DYNAMIC = "longrope", "dynamic"


def length_dependent_encodings(model: Bridge) -> list[tuple[str, int]]:
    """Kind and limit of each position encoding in the configuration that depends on the length of a pass."""
    config = text_config(model)
    given = getattr(config, "rope_parameters", None) or {}
    found = []
    for one in [given, *given.values()]:  # some models have one set of parameters for each kind of block
        kind = one.get("rope_type") if isinstance(one, dict) else None
        if isinstance(kind, str) and (kind == LONG or DYNAMIC in kind):
            limit = one.get("original_max_position_embeddings") if kind == LONG else context_length(model)
            found.append((kind, int(limit or 0)))
    return list(dict.fromkeys(found))


def longest_prompt(model: Bridge) -> int | None:
    """The largest number of tokens in a prompt; `None` if there is no limit, or if frequencies adapt to the length."""
    return None if any(DYNAMIC in kind for kind, _ in length_dependent_encodings(model)) else context_length(model)


def why_lengths_differ(model: Bridge, lengths: Collection[int]) -> str | None:
    """The reason why passes of these lengths encode positions differently; `None` if they do not."""
    for kind, limit in length_dependent_encodings(model):
        sets = {n > limit if kind == LONG else max(n, limit) for n in lengths}
        if len(sets) > 1:
            return f"its position encoding ({kind}) depends on the length of the pass beyond {limit} tokens"
    return None


def forget_lengths(model: Bridge) -> None:
    """Reset frequencies that depend on the length of a pass as in a new model, so that only the next pass counts."""
    modules = list(_rotary(model))
    if not modules or not length_dependent_encodings(model):
        return
    for module in modules:
        kinds = module.rope_type if isinstance(module.rope_type, dict) else {None: module.rope_type}
        for layer_type, kind in kinds.items():
            prefix = "" if layer_type is None else f"{layer_type}_"
            original = getattr(module, f"{prefix}original_inv_freq", None)
            now = getattr(module, f"{prefix}inv_freq", None)
            if (str(kind) == LONG or DYNAMIC in str(kind)) and original is not None and now is not None:
                with torch.inference_mode(False):
                    module.register_buffer(f"{prefix}inv_freq", original.to(now.device).clone(), persistent=False)
                setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
                setattr(module, f"{prefix}long_inv_freq", None)  # made again by the next pass that needs it


def _rotary(model: Bridge) -> Iterator[Any]:
    """The modules of the model that compute rotary embeddings."""
    for module in modules_of(model.original_model):
        if "rope_type" in vars(module) and "original_max_seq_len" in vars(module):
            yield module
