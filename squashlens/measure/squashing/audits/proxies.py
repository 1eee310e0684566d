"""Cheap proxies for sensitivity, from one forward or one backward pass. None of them is a norm of the Jacobian."""

import torch
import xarray as xr

from squashlens._typing import Bos, Bridge, Proxy, Target
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.differentiating.spans import differentiable, leaf_of, open_spans
from squashlens.engine.proving.registry import measured
from squashlens.engine.running.unembed import logits_of, require_understood
from squashlens.measure.session import Session
from squashlens.measure.squashing.bound import composition
from squashlens.measure.squashing.jacobians.rows import norms_at
from squashlens.theory.norms import spectral_norms


@measured
def rollout(model: Bridge, prompts: PromptOrCapture, *, query: int = -1, bos: Bos = "family") -> xr.DataArray:
    """Attention rollout (Abnar and Zuidema 2020): row n of ``∏ ½(A + I)`` over all blocks, A averaged over heads."""
    return composition(model, prompts, query=query, bos=bos).sel(layer=0, drop=True).rename("rollout")


@measured
def one_cotangent(
    model: Bridge,
    prompts: PromptOrCapture,
    *,
    of: Proxy = "ones",
    query: int = -1,
    from_layer: int = 0,
    to_layer: Target = "y",
    bos: Bos = "family",
) -> xr.DataArray:
    """Norm ‖uᵀJ_i‖ for one cotangent u: all ones (the gradient of Σ_c y_c), or the gradient of the largest logit."""
    session = Session.start(
        model, prompts, bos, "one_cotangent", of=of, query=query, from_layer=from_layer, to_layer=to_layer
    )
    n, top = session.query(query), session.spans(from_layer, to_layer)[to_layer]
    rows = []
    for ids in session.ids:
        span = open_spans(session.model, ids[None], [], [from_layer], top)[from_layer]
        output = span.outputs[to_layer]
        direction = torch.ones_like(output[:, 0]) if of == "ones" else _top_logit(session, output[:, n])
        rows.append(norms_at(output, n, span.leaf, "frobenius", direction, 1, spectral_norms)[0])
    return session.label(torch.stack(rows), of, f"norm of one vector–Jacobian product ({of})", "1")


def _top_logit(session: Session, y: torch.Tensor) -> torch.Tensor:
    """The gradient of the largest logit at y."""
    require_understood(session.model)
    with differentiable():
        leaf = leaf_of(y)
        logits = logits_of(session.model, leaf)
        (gradient,) = torch.autograd.grad(logits.max(), leaf)
    return gradient
