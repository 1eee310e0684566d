"""Round activations inside the model: the residual stream, keys, values or attention weights, in fewer bits."""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import TypeAliasType

from squashlens._typing import choices_of, dtype_name, full_name, short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError, RangeError
from squashlens.hooks.interventions import STREAMS
from squashlens.model.hooking.hook import Hook

Stored = Literal["bfloat16", "float16"]
Format = TypeAliasType(
    "Format", Literal[Stored, "bf16", "fp16"] | torch.dtype
)  # as a user may give it
Rounded = Literal["residual", "keys", "values", "patterns"]
MOST_BITS = 52  # mantissa bits after the leading one, in float64
SITES: dict[Rounded, str] = {
    "residual": STREAMS,
    "keys": "blocks.{block}.attn.hook_k",
    "values": "blocks.{block}.attn.hook_v",
    "patterns": "blocks.{block}.attn.hook_pattern",
}


@validated
def rounding(
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
            f"rounding: round_to={short_repr(round_to)} is not a format.",
            f"Use one of {', '.join(choices_of(Stored))}, or 0 to {MOST_BITS} mantissa bits.",
        )

    def edit(tensor: Tensor) -> Tensor:
        exact = tensor.detach()
        return tensor + (rounded(exact, form) - exact)

    return Hook(f"rounding({activation} to {label})", SITES[activation], edit, blocks)


def rounded(tensor: Tensor, to: Stored | int) -> Tensor:
    """The tensor rounded to the nearest numbers that `to` can hold, ties to even, in the tensor's own dtype."""
    if isinstance(to, int):
        mantissa, exponent = torch.frexp(tensor)  # 0.5 ≤ |mantissa| < 1
        scale = 2.0 ** (to + 1)
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
