"""Round activations inside the model in fewer bits, or keys and values as a quantized cache of llama.cpp holds them."""

from typing import Literal, cast

import torch
from torch import Tensor
from typing_extensions import TypeAliasType

from squashlens._typing import (
    Bridge,
    choices_of,
    distinct,
    dtype_name,
    full_name,
    short_repr,
)
from squashlens.checks.arguments import validated
from squashlens.errors import InputError, RangeError
from squashlens.hooks.interventions import PATTERN, STREAMS, VALUES
from squashlens.model.anatomy import text_config
from squashlens.model.gguf_formats import GgufFormat, there_and_back
from squashlens.model.hooking.hook import Hook, Recipe

Stored = Literal["bfloat16", "float16"]
Format = TypeAliasType(
    "Format", Literal[Stored, "bf16", "fp16"] | torch.dtype
)  # as a user may give it
Rounded = Literal["residual", "keys", "values", "patterns"]
CacheFormat = Literal["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
Cached = Literal["keys", "values"]
TURNED_KEYS = "blocks.{block}.attn.hook_rot_k"
MOST_BITS = 52  # mantissa bits after the leading one, in float64
SITES: dict[Rounded, str] = {
    "residual": STREAMS,
    "keys": "blocks.{block}.attn.hook_k",
    "values": VALUES,
    "patterns": PATTERN,
}


@validated
def round_activations(
    round_to: Format | int,
    activation: Rounded = "residual",
    blocks: tuple[int, ...] | None = None,
) -> Hook:
    """Round activations to a number format, or to a number of mantissa bits, in each of `blocks`.

    The forward pass continues with the rounded numbers. The derivative is that of the model without rounding ("straight
    through"), because the derivative of rounding is 0 almost everywhere.

    Args:
        round_to: a format (``"bfloat16"``, ``"float16"``, the short forms ``"bf16"`` and ``"fp16"``, or a dtype such as
            `torch.bfloat16`); or a number of mantissa bits after the leading one, 0 to 52, which keeps the range of
            the exponent. bfloat16 has 7 of them, and float16 has 10.
        activation: ``"residual"``, the residual stream at the input of a block; ``"keys"`` or ``"values"``, as
            projected, before any rotary embedding; ``"patterns"``, the output of the softmax.
        blocks: blocks to act in; all by default.

    Raises:
        RangeError: in the forward pass, if a number exceeds the range of the format.
    """
    form = full_name(round_to)
    if isinstance(form, int):
        known = 0 <= form <= MOST_BITS
        label = f"{form} bits"
    else:
        known = form in choices_of(Stored)
        label = form
    if not known:
        raise InputError(
            f"round_activations: round_to={short_repr(round_to)} is not a format.",
            f"Use one of {', '.join(choices_of(Stored))}, or 0 to {MOST_BITS} mantissa bits.",
        )

    def edit(tensor: Tensor) -> Tensor:
        # Only the first term has a derivative, which is 1.
        exact = tensor.detach()
        return tensor + (rounded(exact, form) - exact)

    return Hook(
        f"round_activations({activation} to {label})", SITES[activation], edit, blocks
    )


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
        InputError: an empty `what`; keys of a family whose bridge does not show them after the rotary embedding, or
            heads whose width is no multiple of 32.

    >>> import squashlens as sl
    >>> sl.hooks.quantize_keys_values("q8_0")
    quantize_keys_values(q8_0, keys and values)
    """
    distinct(what, "what")

    def edit(tensor: Tensor) -> Tensor:
        # Only the first term has a derivative, which is 1.
        quantized = there_and_back(tensor, cast(GgufFormat, to.upper()))
        return tensor + (quantized - tensor.detach())

    name = f"quantize_keys_values({to}, {' and '.join(what)})"

    def make(model: Bridge) -> list[Hook]:
        sites = {"keys": site_of_keys(model), "values": SITES["values"]}
        return [Hook(name, sites[cached], edit, blocks) for cached in what]

    return Recipe(name, make)


def site_of_keys(model: Bridge) -> str:
    """The hook point of keys as a cache holds them: after the rotary embedding, if the model has one."""
    is_rotary = bool(getattr(text_config(model), "rope_parameters", None))
    if not is_rotary:
        return SITES["keys"]
    if TURNED_KEYS.replace("{block}", "0") not in model.hook_dict:
        raise InputError(
            f"The bridge of {type(model.original_model).__name__} does not show keys after their rotary embedding.",
            'Round the values alone: what=("values",).',
        )
    return TURNED_KEYS


def rounded(tensor: Tensor, to: Stored | int) -> Tensor:
    """The tensor rounded to the nearest numbers that `to` can hold, ties to even, in the tensor's own dtype."""
    if isinstance(to, int):
        mantissa, exponent = torch.frexp(tensor)  # 0.5 ≤ |mantissa| < 1
        scale = 2.0 ** (to + 1)  # one more bit, since the mantissa begins with ½ here
        return torch.ldexp((mantissa * scale).round() / scale, exponent)
    return stored(tensor, getattr(torch, to))


def stored(tensor: Tensor, form: torch.dtype) -> Tensor:
    """The tensor after a cast to `form` and back to its own dtype; an error if numbers exceed the range of `form`."""
    finite = tensor.abs().nan_to_num(0.0, posinf=0.0)
    # Beyond its range formats differ: infinity, NaN, or the largest number.
    if bool((finite > torch.finfo(form).max).any()):
        raise RangeError(
            f"{finite.max().item():.4g} is beyond the range of {dtype_name(form)}.",
            "Use bfloat16, or a number of mantissa bits: both keep the range of the exponent.",
        )
    # A certificate replaces the model's own casts; this cast is not one of them.
    with torch._C.DisableTorchFunction():
        return tensor.to(form).to(tensor.dtype)
