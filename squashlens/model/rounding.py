"""Rounding inside the model: what a stream, keys, values or weights keep when they are stored in fewer bits.

The forward pass goes on with the rounded numbers; the derivative is that of the model without rounding, whose own is 0
nearly everywhere ("straight through").
"""

from typing import Literal

import torch
from torch import Tensor

from squashlens._typing import choices_of, full_name, one_of, shown
from squashlens.arguments import validated
from squashlens.errors import InputError, RangeError
from squashlens.model.hooks import Hook
from squashlens.model.interventions import STREAMS

Stored = Literal["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
Short = Literal["bf16", "fp16"]
Rounded = Literal["residual", "keys", "values", "patterns"]
MOST_BITS = 52  # behind the leading one, in float64
SITES: dict[Rounded, str] = {
    "residual": STREAMS,
    "keys": "blocks.{block}.attn.hook_k",
    "values": "blocks.{block}.attn.hook_v",
    "patterns": "blocks.{block}.attn.hook_pattern",
}


@validated
def rounding(to: Stored | Short | int, what: Rounded = "residual", blocks: tuple[int, ...] | None = None) -> Hook:
    """Round `what` in each of `blocks` to a format, or to so many bits behind the leading one.

    The residual stream where it enters a block; keys and values as they are projected, before any rotation; patterns as
    the softmax leaves them. With a number of mantissa bits the exponent's range stays: 7 are bfloat16's, 10 float16's.
    A number beyond a format's range is refused, at the pass that meets it.
    """
    one_of(what, Rounded, "what")
    form: Stored | int = full_name(to)
    if isinstance(form, bool) or not (form in choices_of(Stored) or (isinstance(form, int) and 0 <= form <= MOST_BITS)):
        raise InputError(
            f"rounding: to={shown(to)} is not a format.",
            f"Use one of {', '.join(choices_of(Stored))}, or 0 to {MOST_BITS} mantissa bits.",
        )

    def edit(tensor: Tensor) -> Tensor:
        return tensor + (rounded(tensor.detach(), form) - tensor.detach())

    label = f"{form} bits" if isinstance(form, int) else form
    return Hook(f"rounding({what} to {label})", SITES[what], edit, blocks)


def rounded(tensor: Tensor, to: Stored | int) -> Tensor:
    """The nearest numbers that `to` can hold, ties to even, in the tensor's own dtype.

    >>> rounded(torch.tensor([1.03, 1000.0, 0.3]), 3).tolist()
    [1.0, 1024.0, 0.3125]
    """
    if isinstance(to, int):
        mantissa, exponent = torch.frexp(tensor)  # 0.5 ≤ |mantissa| < 1
        scale = 2.0 ** (to + 1)
        return torch.ldexp((mantissa * scale).round() / scale, exponent)
    return stored(tensor, getattr(torch, to))


def stored(tensor: Tensor, form: torch.dtype) -> Tensor:
    """What is left of numbers that are kept in `form`, in their own dtype; refused where they are beyond its range."""
    if not within(tensor, form):  # some formats would have infinity there, some NaN, some their largest number
        largest = torch.where(tensor.isfinite(), tensor.abs(), 0.0).max().item()
        raise RangeError(
            f"{largest:.4g} is beyond the range of {str(form).removeprefix('torch.')}.",
            "Use bfloat16, or a number of mantissa bits, which keeps the range.",
        )
    with torch._C.DisableTorchFunction():  # a certificate replaces the casts of a model, which are not meant
        return tensor.to(form).to(tensor.dtype)


def within(tensor: Tensor, form: torch.dtype) -> bool:
    """Whether all finite numbers are in the range of `form`."""
    return bool((tensor.abs().nan_to_num(0.0, posinf=0.0) <= torch.finfo(form).max).all())
