"""Weights kept in eight bits: how a model's blocks come to be so, and how a result says that they are.

Every matrix W of the blocks becomes diag(s) Q with Q in int8 and one scale s for each output channel,

    s_r = max_c |W_rc| / 127.5        Q_rc = round(W_rc / s_r) within −128 … 127        |W_rc − s_r Q_rc| ≤ s_r / 2

as torchao rounds, so what is run is another model than the checkpoint, off by half a step in every weight. Activations
are not rounded: y = s · (Q x) in the run's dtype. With Q fixed it is as differentiable as any, and so Jacobians are
exact for the rounded model. Embeddings, the output head, norms and biases stay as they are.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from squashlens._typing import Bridge, Quantised, one_of
from squashlens.errors import InputError, ModelAccessError
from squashlens.model.anatomy import PLAIN, quantisation

# What a type's name says of how it keeps numbers: Int8Tensor, Float8Tensor, Int8Params.
_FORMAT = re.compile(r"(u?int|float)\d+")


def require_quantiser(kind: Quantised | None, dtype: torch.dtype) -> None:
    """Refuse an unknown kind, a dtype that cannot hold Q x, or a missing torchao, before anything is loaded."""
    if kind is None:
        return
    one_of(kind, Quantised, "quantise")
    if dtype == torch.float16:
        raise InputError(
            f"quantise={kind!r} multiplies by whole numbers up to 128 and scales afterwards, which overflows float16.",
            "Use dtype=torch.bfloat16 or torch.float32.",
        )
    try:
        import torchao.quantization  # noqa: F401
    except ImportError as error:
        raise ModelAccessError(
            f"quantise={kind!r} needs torchao, which cannot be imported ({error}).", "pip install squashlens[quant]"
        ) from error


def round_weights(model: Any, kind: Quantised) -> None:
    """Round every matrix between the embeddings and the output head of a plain model, in place.

    Refuses a model of which a matrix would be left as it is: one that keeps weights in layers of its own (GPT-2's
    Conv1D, the experts of a mixture), one that came quantised, and one with weights that are not on a device yet.
    """
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    name, head = type(model).__name__, model.get_output_embeddings()
    if getattr(model.config, "quantization_config", None) is not None:
        raise InputError(f"{name} came quantised, and quantise={kind!r} would round it again.", "Leave quantise= out.")
    if any(p.is_meta for p in model.parameters()):
        raise ModelAccessError(
            f"Some weights of {name} are offloaded, and quantise={kind!r} rounds those on a device only.",
            "Give a device or a device_map= that holds them all.",
        )
    layers = {module for module in model.modules() if isinstance(module, nn.Linear) and module is not head}
    for layer in layers:
        if layer.weight.dtype == torch.float64:  # which torchao does not round; the run stays in float64
            layer.weight.data = layer.weight.data.float()
    # The settings of torch's compiler are the whole process's, and nothing here is compiled.
    quantize_(model, Int8WeightOnlyConfig(set_inductor_config=False), filter_fn=lambda module, _: module in layers)
    left = next(_left(model, head), None)
    if left is not None:
        raise ModelAccessError(
            f"quantise={kind!r} rounds linear layers, and {left} of {name} is none.",
            "Load it without quantise=, with dtype=torch.bfloat16 if it does not fit.",
        )


def _left(model: nn.Module, head: nn.Module | None) -> Iterator[str]:
    """Matrices that are still plain and should not be, each with the kind of layer that holds it."""
    for place, module in model.named_modules():
        if module is head or isinstance(module, nn.Embedding):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1 and type(parameter) in PLAIN:
                yield f"{place}.{name} ({type(module).__name__})"


def stored_as(model: Bridge) -> str | None:
    """How weights are kept where they are not plain numbers of the run's dtype, wherever that was done: ``"int8"``."""
    names = {type(p).__name__.lower() for p in model.parameters() if type(p) not in PLAIN}
    formats = {found.group() for name in names if (found := _FORMAT.search(name))}
    return ", ".join(sorted(formats)) or quantisation(model)


@contextmanager
def torchao_hushed() -> Iterator[None]:
    """Where torchao is installed transformers imports it, and it says which CUDA kernels do not fit this machine.

    Weights in int8 use none of them.
    """
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
