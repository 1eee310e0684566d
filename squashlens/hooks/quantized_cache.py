"""Keys and values as a quantized cache of llama.cpp holds them."""

from typing import Literal

from torch import Tensor

from squashlens._typing import Bridge
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.model.anatomy import text_config
from squashlens.model.gguf_formats import GgufFormat, there_and_back
from squashlens.model.hooking.hook import Hook, Recipe

CacheFormat = Literal["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
Cached = Literal["keys", "values"]
UPPER: dict[CacheFormat, GgufFormat] = {
    "q8_0": "Q8_0",
    "q5_1": "Q5_1",
    "q5_0": "Q5_0",
    "q4_1": "Q4_1",
    "q4_0": "Q4_0",
}
VALUES = "blocks.{block}.attn.hook_v"
KEYS = "blocks.{block}.attn.hook_k"
TURNED_KEYS = "blocks.{block}.attn.hook_rot_k"


@validated
def quantize_keys_values(
    to: CacheFormat,
    what: tuple[Cached, ...] = ("keys", "values"),
    blocks: tuple[int, ...] | None = None,
) -> Recipe:
    """Round keys and values as a quantized cache does (llama.cpp's ``--cache-type-k q8_0``), and compute on with them.

    A cache holds keys after their rotary embedding. Each head's key or value is cut into blocks of 32 numbers; the
    package gguf rounds. The derivative is that of the model without rounding ("straight through").

    Args:
        to: the format of the cache.
        what: ``"keys"`` and ``"values"``, the default, or one of them.
        blocks: blocks to act in; all by default.

    Raises:
        InputError: keys of a family whose bridge does not show them after the rotary embedding, or heads whose width is
            no multiple of 32.

    >>> import squashlens as sl
    >>> sl.hooks.quantize_keys_values("q8_0")
    quantize_keys_values(q8_0, keys and values)
    """

    def edit(tensor: Tensor) -> Tensor:
        stored = there_and_back(tensor, UPPER[to])
        return tensor + (stored - tensor.detach())

    name = f"quantize_keys_values({to}, {' and '.join(what)})"

    def make(model: Bridge) -> list[Hook]:
        sites = {"keys": site_of_keys(model), "values": VALUES}
        return [Hook(name, sites[cached], edit, blocks) for cached in what]

    return Recipe(name, make)


def site_of_keys(model: Bridge) -> str:
    """The hook point of keys as a cache holds them: after the rotary embedding, if the model has one."""
    is_rotary = bool(getattr(text_config(model), "rope_parameters", None))
    if not is_rotary:
        return KEYS
    if TURNED_KEYS.replace("{block}", "0") not in model.hook_dict:
        raise InputError(
            f"The bridge of {type(model.original_model).__name__} does not show keys after their rotary embedding.",
            'Round the values alone: what=("values",).',
        )
    return TURNED_KEYS
