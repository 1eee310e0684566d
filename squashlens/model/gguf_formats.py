"""Rounding to the formats of GGUF files, by the package gguf, which converts models for llama.cpp."""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.errors import InputError, ModelAccessError

# The formats that the package writes as well as reads.
GgufFormat = Literal["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"]
BLOCK = 32  # numbers that share a scale


def there_and_back(
    numbers: Float[Tensor, "*many d"], to: GgufFormat
) -> Float[Tensor, "*many d"]:
    """The numbers rounded to a format, in blocks of 32 along the last axis; the dtype and device stay as they were."""
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError as error:
        raise ModelAccessError(
            f"Rounding to {to} needs the package gguf, which cannot be imported ({error}).",
            "pip install squashlens[gguf]",
        ) from error
    if numbers.shape[-1] % BLOCK:
        raise InputError(
            f"Rows of {numbers.shape[-1]} numbers are no multiple of {BLOCK}, so they have no format of GGUF files.",
            "Choose others to round, or another model.",
        )
    kind = GGMLQuantizationType[to]
    original = np.ascontiguousarray(numbers.detach().float().cpu().numpy())
    rounded = quants.dequantize(quants.quantize(original, kind), kind)
    return torch.from_numpy(rounded).reshape(numbers.shape).to(numbers)
