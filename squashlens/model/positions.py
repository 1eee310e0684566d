"""Position encodings that depend on how long a pass is: one token, at one position, is rotated by another angle.

"longrope" (Phi-3) has two sets of frequencies, one for passes up to `original_max_position_embeddings` tokens and one
for longer passes. "dynamic" has a set for every length beyond `max_position_embeddings`, and may keep that of a longer
pass before. The length of a pass is its largest position + 1.

All others of transformers (linear, yarn, llama3, scaled logits of Llama 4 and Ministral, ALiBi, learned positions)
depend on positions alone.
"""

from collections.abc import Collection, Iterator
from typing import Any

from squashlens._typing import Bridge
from squashlens.model.anatomy import context_length, text_config

LONG, DYNAMIC = "longrope", "dynamic"


def declared(model: Bridge) -> list[tuple[str, int]]:
    """Kind and limit of each encoding, named by the configuration, that depends on the length of the pass."""
    config = text_config(model)
    given = getattr(config, "rope_parameters", None) or {}
    found = []
    for one in [given, *given.values()]:  # some families have one set of parameters for each kind of block
        kind = one.get("rope_type") if isinstance(one, dict) else None
        if isinstance(kind, str) and (kind == LONG or DYNAMIC in kind):
            limit = one.get("original_max_position_embeddings") if kind == LONG else context_length(model)
            found.append((kind, int(limit or 0)))
    return list(dict.fromkeys(found))


def longest_prompt(model: Bridge) -> int | None:
    """Tokens that a prompt may have; `None` where the model sets no limit, or has frequencies for every length."""
    return None if any(DYNAMIC in kind for kind, _ in declared(model)) else context_length(model)


def why_lengths_differ(model: Bridge, lengths: Collection[int]) -> str | None:
    """Why passes of these lengths encode positions differently, by the configuration; `None` if they do not."""
    for kind, limit in declared(model):
        sets = {n > limit if kind == LONG else max(n, limit) for n in lengths}
        if len(sets) > 1:
            return f"its position encoding ({kind}) depends on the length of the pass beyond {limit} tokens"
    return None


def forget_lengths(model: Bridge) -> None:
    """Let "dynamic" frequencies follow from the next pass alone, whatever was run before, as in a fresh model."""
    if not any(DYNAMIC in kind for kind, _ in declared(model)):
        return
    for module in _rotary(model):
        kinds = module.rope_type if isinstance(module.rope_type, dict) else {None: module.rope_type}
        for layer_type, kind in kinds.items():
            prefix = "" if layer_type is None else f"{layer_type}_"
            original = getattr(module, f"{prefix}original_inv_freq", None)
            now = getattr(module, f"{prefix}inv_freq", None)
            if DYNAMIC in str(kind) and original is not None and now is not None:
                module.register_buffer(f"{prefix}inv_freq", original.to(now.device), persistent=False)
                setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


def _rotary(model: Bridge) -> Iterator[Any]:
    """The model's own rotary embeddings."""
    for module in model.original_model.modules():
        if "rope_type" in vars(module) and "original_max_seq_len" in vars(module):
            yield module
