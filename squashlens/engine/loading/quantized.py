"""Store the weights of a model's blocks in eight bits, and name the format in results.

Every matrix W of the blocks is replaced by diag(s) Q, with Q in int8 and one scale s for each output channel:

    s_r = max_c |W_rc| / 127.5        Q_rc = round(W_rc / s_r) within −128 … 127        |W_rc − s_r Q_rc| ≤ s_r / 2

This is how torchao rounds. The rounded model differs from the checkpoint by up to half a step in every weight.
Activations are not rounded: y = s · (Q x) in the run's dtype. Q is constant, so Jacobians are exact for the rounded
model. Embeddings, the output head, norms and biases are not quantized.
"""

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from squashlens._typing import Bridge, Quantized, one_of
from squashlens.engine.anatomy import PLAIN, quantization
from squashlens.errors import InputError, ModelAccessError

# The number format in the name of a tensor type: Int8Tensor, Float8Tensor, Int8Params.
_FORMAT = re.compile(r"(u?int|float)\d+")


def require_quantizer(kind: Quantized | None, dtype: torch.dtype) -> None:
    """Raise an error, before loading, for an unknown kind, a dtype that Q x overflows, or a missing torchao."""
    if kind is None:
        return
    one_of(kind, Quantized, "quantize")
    if dtype == torch.float16:
        raise InputError(
            f"quantize={kind!r} overflows float16: it multiplies by whole numbers up to 128 before it scales.",
            "Use dtype=torch.bfloat16 or torch.float32.",
        )
    try:
        import torchao.quantization  # noqa: F401
    except ImportError as error:
        raise ModelAccessError(
            f"quantize={kind!r} needs torchao, which cannot be imported ({error}).", "pip install squashlens[quant]"
        ) from error


def round_weights(model: Any, kind: Quantized) -> None:
    """Round every matrix between the embeddings and the output head of a Hugging Face model, in place.

    Raises an error for weights in layers that cannot be rounded, such as GPT-2's Conv1D and the experts of a mixture.
    """
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    name, head = type(model).__name__, model.get_output_embeddings()
    if getattr(model.config, "quantization_config", None) is not None:
        raise InputError(
            f"{name} is already quantized, and quantize={kind!r} would round it again.", "Leave quantize= out."
        )
    layers = {module for module in model.modules() if isinstance(module, nn.Linear) and module is not head}
    for layer in layers:
        if layer.weight.dtype == torch.float64:  # torchao does not round float64; the run stays in float64
            layer.weight.data = layer.weight.data.float()
    # Leave the process-wide settings of torch's compiler alone: nothing here is compiled.
    quantize_(model, Int8WeightOnlyConfig(set_inductor_config=False), filter_fn=lambda module, _: module in layers)
    left = next(_not_rounded(model, head), None)
    if left is not None:
        raise ModelAccessError(
            f"quantize={kind!r} can only round linear layers, and {left} of {name} is not in one.",
            "Load it without quantize=. If it does not fit, use dtype=torch.bfloat16.",
        )


def _not_rounded(model: nn.Module, head: nn.Module | None) -> Iterator[str]:
    """Matrices that were not rounded, each with the type of its layer."""
    for place, module in model.named_modules():
        if module is head or isinstance(module, nn.Embedding):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1 and type(parameter) in PLAIN:
                yield f"{place}.{name} ({type(module).__name__})"


def stored_as(model: Bridge) -> str | None:
    """The format of quantized weights, such as ``"int8"``, or `None`; also for a model that was quantized elsewhere."""
    names = {type(p).__name__.lower() for p in model.parameters() if type(p) not in PLAIN}
    formats = {match.group() for name in names if (match := _FORMAT.search(name))}
    return ", ".join(sorted(formats)) or quantization(model)
