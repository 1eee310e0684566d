"""What people take for sensitivity because it is cheap: one forward pass, or one backward pass. None is a norm."""

import torch
import xarray as xr

from squashlens._typing import Bos, Bridge, Proxy, Target
from squashlens.measure._rows import norms_at
from squashlens.measure._session import Session
from squashlens.measure.bound import composition
from squashlens.model.capture import Given
from squashlens.model.registry import measured
from squashlens.model.spans import differentiable, leaf_of, open_spans
from squashlens.model.unembed import logits_of, require_understood
from squashlens.theory.norms import spectral_norms


@measured
def rollout(model: Bridge, prompts: Given, *, query: int = -1, bos: Bos = "family") -> xr.DataArray:
    """Attention rollout: row n of ``∏ ½(A + I)``, A averaged over heads. Abnar and Zuidema 2020."""
    return composition(model, prompts, query=query, bos=bos).sel(layer=0, drop=True).rename("rollout")


@measured
def one_cotangent(
    model: Bridge,
    prompts: Given,
    *,
    of: Proxy = "ones",
    query: int = -1,
    source: int = 0,
    target: Target = "y",
    bos: Bos = "family",
) -> xr.DataArray:
    """‖uᵀJ_i‖ for one cotangent u: all ones (the gradient of Σ_c y_c), or the gradient of the most likely logit."""
    session = Session.start(model, prompts, bos, "one_cotangent", of=of, query=query, source=source, target=target)
    n, top = session.query(query), session.spans(source, target)[target]
    rows = []
    for ids in session.ids:
        span = open_spans(session.model, ids[None], [], [source], top)[source]
        output = span.outputs[target]
        direction = torch.ones_like(output[:, 0]) if of == "ones" else _top_logit(session, output[:, n])
        rows.append(norms_at(output, n, span.leaf, "frobenius", direction, 1, spectral_norms)[0])
    return session.label(torch.stack(rows), of, f"norm of one vector–Jacobian product ({of})", "1")


def _top_logit(session: Session, y: torch.Tensor) -> torch.Tensor:
    require_understood(session.model)
    with differentiable():
        leaf = leaf_of(y)
        logits = logits_of(session.model, leaf)
        (gradient,) = torch.autograd.grad(logits.max(), leaf)
    return gradient
