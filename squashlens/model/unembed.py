"""From y to the logits of the next token, for any rows of y and in pieces: position × vocabulary may not fit.

What a family does behind its output embedding (a scale, a soft-cap) is read from the configuration and
proved against the model's own logits at first use.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import UnsoundModelError
from squashlens.model.anatomy import device_of, dtype_of, residual_site, text_config
from squashlens.model.forward import forward
from squashlens.model.hooks import without_ambient
from squashlens.model.live import probe_ids
from squashlens.model.native import is_native
from squashlens.model.proof import agree
from squashlens.model.registry import proved

PIECE = 256  # rows of logits at a time


def log_probabilities(model: Bridge, y: Float[Tensor, "branch d"]) -> Iterator[Float[Tensor, "branch outcome"]]:
    """Log-probabilities of the next token for each row of y, `PIECE` rows at a time, float64, on the device.

    Refuses a family whose logits are made from y in a way that is not understood here.
    """
    require_understood(model)
    for rows in y.split(PIECE):
        with torch.inference_mode(False), torch.no_grad():  # not around the yield: the caller's mode is his own
            found = logits_of(model, rows).double().log_softmax(dim=-1)
        yield found


def likeliest(model: Bridge, y: Float[Tensor, "branch d"]) -> Int[Tensor, " branch"]:
    """The most likely next token for each row of y, on the CPU."""
    return torch.cat([rows.argmax(dim=-1).cpu() for rows in log_probabilities(model, y)])


def require_understood(model: Bridge) -> None:
    """Refuse a model whose logits are not those computed here from its y; tried once per stamp."""
    if not proved(model, "logits from y", lambda: _understood(model)):
        raise UnsoundModelError(
            f"The logits of {type(model.original_model).__name__} do not follow from y as expected.",
            "The next token cannot be compared for this family; distances can.",
        )


def _understood(model: Bridge) -> bool:
    seen: list[Tensor] = []
    with torch.inference_mode(False), torch.no_grad(), without_ambient(model):
        truth = forward(model, probe_ids(model), [(residual_site("y", model), lambda y: seen.append(y[:, -1]))])
        found = logits_of(model, seen[0])
    return agree(found, truth, dtype_of(model))


def logits_of(model: Bridge, y: Float[Tensor, "branch d"]) -> Float[Tensor, "branch outcome"]:
    """The logits of each row of y, as `require_understood` has shown the model to make them."""
    config, plain = text_config(model), cast(Any, model.original_model)
    head = plain.head if is_native(model) else plain.get_output_embeddings()
    logits = head(y[None].to(device_of(model), dtype_of(model)))[0]
    logits = logits * (getattr(config, "logit_scale", None) or 1.0)  # Cohere
    logits = logits / (getattr(config, "logits_scaling", None) or 1.0)  # Granite
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma 2
    return logits if cap is None else torch.tanh(logits / cap) * cap
