"""Stop hooks that count positions in a pass that continues a cache.

Such a pass gets only the new tokens. Attention logits and patterns still have an axis of keys that begins with the
first token of the prompt, if the cache keeps every key. All other tensors (streams, values, head outputs) begin with
the first new token, so an edit at position 0 would act on every generated token.
"""

from collections.abc import Sequence
from typing import Any

from squashlens.errors import InputError

AXIS_OF_KEYS = (".hook_attn_scores", ".hook_pattern")


class WholePassesOnly:
    """A PyTorch hook before the whole model that stops a pass in which hooks would count positions wrongly.

    Args:
        hooks: name and hook point of each hook that counts positions.
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
                        f"{wrong[0]} counts positions from the start of the prompt, but this pass continues a cache "
                        "and gets only the new tokens.",
                        "Run the whole prompt in every pass: use_past_kv_cache=False in `model.generate`, use_cache="
                        "False in other calls.",
                    )


def _keeps_every_key(cache: Any) -> bool:
    """Whether each block's cache has exactly one key for every token so far: no window, and no reserved space."""
    kept = [layer for layer in getattr(cache, "layers", ()) if getattr(layer, "keys", None) is not None]
    return all(layer.keys.shape[-2] == int(layer.get_seq_length()) for layer in kept)
