"""Hooks that count positions, in a pass that continues a cache.

Such a pass is given the new tokens alone. Tensors of attention logits and patterns still have an axis of keys that
begins with the first token of the prompt, if the cache keeps every key. All others (streams, values, head outputs)
begin with the first new token: an edit at position 0 would act on every token that is generated.
"""

from collections.abc import Sequence
from typing import Any

from squashlens.errors import InputError

AXIS_OF_KEYS = (".hook_attn_scores", ".hook_pattern")


class WholePasses:
    """A PyTorch hook before the whole model, which refuses a pass that hooks would count positions in wrongly.

    `hooks` has the name and the site of each hook that counts positions.
    """

    def __init__(self, hooks: Sequence[tuple[str, str]]) -> None:
        self.along_tokens = [name for name, site in hooks if not site.endswith(AXIS_OF_KEYS)]
        self.along_keys = [name for name, site in hooks if site.endswith(AXIS_OF_KEYS)]

    def __call__(self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for cache in (*args, *kwargs.values()):
            if hasattr(cache, "get_seq_length") and int(cache.get_seq_length()):
                wrong = [*self.along_tokens, *([] if _keeps_every_key(cache) else self.along_keys)]
                if wrong:
                    raise InputError(
                        f"{wrong[0]} counts positions from the start of the prompt, and this pass continues a cache: "
                        "it is given the new tokens alone.",
                        "Run the whole prompt in every pass: use_past_kv_cache=False in `model.generate`, use_cache="
                        "False in other calls.",
                    )


def _keeps_every_key(cache: Any) -> bool:
    """Whether the keys of each block are those of every token so far: not of a window's alone, and no room ahead."""
    kept = [layer for layer in getattr(cache, "layers", ()) if getattr(layer, "keys", None) is not None]
    return all(layer.keys.shape[-2] == int(layer.get_seq_length()) for layer in kept)
