"""Compute next-token logits from rows of y, in pieces, since position × vocabulary may not fit into memory.

Scales and soft caps after the output embedding are read from the configuration, and compared with the model's own
logits at the first use.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.agreement import agree
from squashlens.engine.anatomy import device_of, dtype_of, residual_site, text_config
from squashlens.engine.hooking.hook import without_ambient
from squashlens.engine.native import is_native
from squashlens.engine.proving.effective import probe_ids
from squashlens.engine.proving.registry import proved
from squashlens.engine.running.forward import next_logits
from squashlens.errors import UnsoundModelError

MOST, ROOM = 256, 2**28  # rows of logits at a time, and bytes that they may take: a vocabulary may have 262,144 tokens
COPIES = 4 * 8  # bytes of a row for each token: logits, log-probabilities and what is computed from them, in float64


def log_probabilities(model: Bridge, y: Float[Tensor, "branch d"]) -> Iterator[Float[Tensor, "branch outcome"]]:
    """Log-probabilities of the next token for each row of y, some rows at a time, float64, on the device.

    Raises an error if the logits of the model do not follow from y in a known way.
    """
    require_understood(model)
    for rows in y.split(max(1, min(MOST, ROOM // (COPIES * int(model.cfg.d_vocab))))):
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):  # not around the yield, which must not change the caller's mode
            found = logits_of(model, rows).double().log_softmax(dim=-1)
        yield found


def most_likely(model: Bridge, y: Float[Tensor, "branch d"]) -> Int[Tensor, " branch"]:
    """The most likely next token for each row of y, on the CPU."""
    return torch.cat([rows.argmax(dim=-1).cpu() for rows in log_probabilities(model, y)])


def require_understood(model: Bridge) -> None:
    """Raise an error if the model's logits are not those computed here from y; tested once for each model state."""
    if not proved(model, "logits from y", lambda: _understood(model)):
        raise UnsoundModelError(
            f"The logits of {type(model.original_model).__name__} do not follow from y as expected.",
            "Use distances, which need no logits; next tokens cannot be compared for this model.",
        )


def _understood(model: Bridge) -> bool:
    seen: list[Tensor] = []
    with torch.inference_mode(False), torch.no_grad(), without_ambient(model):
        truth = next_logits(model, probe_ids(model), [(residual_site("y", model), lambda y: seen.append(y[:, -1]))])
        found = logits_of(model, seen[0])
    return agree(found, truth, dtype_of(model))


def logits_of(model: Bridge, y: Float[Tensor, "branch d"]) -> Float[Tensor, "branch outcome"]:
    """The logits of each row of y; `require_understood` tests that the model computes the same."""
    config, plain = text_config(model), cast(Any, model.original_model)
    head = plain.head if is_native(model) else plain.get_output_embeddings()
    logits = head(y[None].to(device_of(model), dtype_of(model)))[0]
    logits = logits * (getattr(config, "logit_scale", None) or 1.0)  # Cohere
    logits = logits / (getattr(config, "logits_scaling", None) or 1.0)  # Granite
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma 2
    return logits if cap is None else torch.tanh(logits / cap) * cap
