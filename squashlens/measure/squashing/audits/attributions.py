"""Attribution methods of other libraries, and leave-one-out, as scores of tokens at the query.

captum and LXT come with the extra `compare`. All methods attribute the largest logit at the query, starting from the
token embeddings, which is how their users call them. None of them is a norm of the Jacobian.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Attribution, Bos, Bridge
from squashlens.engine.anatomy import n_blocks, pattern_site, residual_site
from squashlens.engine.budget import cotangents_on_graph
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.differentiating.spans import differentiable
from squashlens.engine.hooking.standing import require_no_backward_hooks
from squashlens.engine.proving.registry import measured
from squashlens.engine.running.forward import forward, log_probabilities, logits_of, require_understood
from squashlens.errors import InputError
from squashlens.measure.session import Session
from squashlens.measure.squashing.audits.relevance import relevances
from squashlens.theory.distances import divergence

EMBEDDING = "embed.hook_out"
UNITS = {"leave_one_out": "nats", "value_weighted": "model units"}


@measured
def attribution(
    model: Bridge, prompts: PromptOrCapture, *, of: Attribution, query: int = -1, bos: Bos = "family"
) -> xr.DataArray:
    """Scores of tokens by an attribution method; zero after the query.

    With x_i the token embedding of token i, s the largest logit at the query, and all other embeddings as they are:

    - ``"gradient_times_input"``: ``‖x_i ⊙ ∂s/∂x_i‖₂`` (`captum.attr.InputXGradient`).
    - ``"integrated_gradients"``: the same with the gradient averaged over a straight path from zero embeddings, in
      captum's 50 steps (`captum.attr.IntegratedGradients`; Sundararajan et al. 2017).
    - ``"occlusion"``: ``|s(x) − s(x with x_i = 0)|`` (`captum.attr.Occlusion`; Zeiler and Fergus 2014).
    - ``"attn_lrp"``: ``|Σ_c R_ic|``, relevances of AttnLRP (LXT; Achtibat et al. 2024).
    - ``"value_weighted"``: ``‖Σ_h α_ni^h W_O^h v_i^h‖₂``, mean over blocks (Kobayashi et al. 2020).
    - ``"leave_one_out"``: KL(p(x) ‖ p(x with x_i = 0)) of the next token (Liu et al. 2026, Jacobian Scopes).

    The root of the sum of squares over coordinates is how inseq and Jacobian Scopes summarize attributions of captum.

    Raises:
        InputError: the library of the method is not installed.
        UnsoundModelError: the method is not defined for this model; the message says why.
    """
    session = Session.start(model, prompts, bos, "attribution", of=of, query=query)
    n = session.query(query)
    if of not in UNITS:
        require_understood(session.model)
    rows = torch.zeros(session.ids.shape, dtype=torch.float64)
    for row, ids in zip(rows, session.ids, strict=True):
        row[: n + 1] = SCORES[of](session.model, ids[None], n).double().cpu()[: n + 1]
    return session.label(rows, of, f"attribution of the largest logit ({of})", UNITS.get(of, "logits"))


def captum_for(what: str) -> Any:
    """captum's attribution methods, or an error that says how to install them."""
    try:
        return import_module("captum.attr")
    except ImportError:
        raise InputError(
            f"{what} needs captum, which is not installed.", 'Install it: pip install "squashlens[compare]".'
        ) from None


class _Outputs:
    """The model as a function of the token embeddings of one prompt."""

    def __init__(self, model: Bridge, ids: Int[Tensor, "1 position"], query: int) -> None:
        require_no_backward_hooks(model)
        self.model, self.ids, self.query = model, ids, query
        self.embeddings = self._seen()
        self.batch = cotangents_on_graph(model, 1, ids.shape[1])
        self.target: int | None = None

    def _seen(self) -> Tensor:
        kept: list[Tensor] = []
        with torch.no_grad():
            forward(self.model, self.ids, [(EMBEDDING, lambda tensor: kept.append(tensor.detach().clone()))])
        return kept[0]

    def y(self, embeddings: Float[Tensor, "variant position d"]) -> Float[Tensor, "variant d"]:
        """The output of the final norm at the query, for each variant of the embeddings."""
        kept: list[Tensor] = []
        watch: list[tuple[str, Callable[[Tensor], Tensor | None]]] = [
            (EMBEDDING, lambda tensor: embeddings.to(tensor)),
            (residual_site("y", self.model), lambda tensor: kept.append(tensor[:, self.query])),
        ]
        forward(self.model, self.ids.expand(len(embeddings), -1).clone(), watch)
        return kept[0]

    def score(self, embeddings: Float[Tensor, "variant position d"]) -> Float[Tensor, " variant"]:
        """The logit that is largest for the prompt itself."""
        logits = logits_of(self.model, self.y(embeddings))
        if self.target is None:
            self.target = int(logits[0].argmax())
        return logits[:, self.target]

    def through(self, attribute: Callable[..., Tensor]) -> Float[Tensor, "position d"]:
        """What a method of captum attributes to each coordinate of the embeddings."""
        with differentiable():
            self.score(self.embeddings)  # fixes the target before a method asks for other inputs
            return attribute(self.embeddings.clone().requires_grad_())[0].detach()


def _gradient_times_input(model: Bridge, ids: Tensor, query: int) -> Tensor:
    captum, outputs = captum_for("Gradient times input"), _Outputs(model, ids, query)
    return outputs.through(captum.InputXGradient(outputs.score).attribute).norm(dim=-1)


def _integrated_gradients(model: Bridge, ids: Tensor, query: int) -> Tensor:
    captum, outputs = captum_for("Integrated gradients"), _Outputs(model, ids, query)
    method = captum.IntegratedGradients(outputs.score)
    return outputs.through(lambda x: method.attribute(x, internal_batch_size=outputs.batch)).norm(dim=-1)


def _occlusion(model: Bridge, ids: Tensor, query: int) -> Tensor:
    captum, outputs = captum_for("Occlusion"), _Outputs(model, ids, query)
    method, window = captum.Occlusion(outputs.score), (1, outputs.embeddings.shape[-1])
    with torch.no_grad():
        outputs.score(outputs.embeddings)
        found = method.attribute(outputs.embeddings, window, perturbations_per_eval=outputs.batch)
    return found[0, :, 0].abs()  # a token's coordinates are set to 0 together, and have the same number


def _attn_lrp(model: Bridge, ids: Tensor, query: int) -> Tensor:
    return relevances(model, ids, query).abs()


def _value_weighted(model: Bridge, ids: Tensor, query: int) -> Tensor:
    blocks = range(n_blocks(model))
    kept: dict[str, Tensor] = {}

    def keep(site: str) -> tuple[str, Callable[[Tensor], None]]:
        return site, lambda tensor: kept.update({site: tensor.detach()})

    values = [f"blocks.{block}.attn.hook_v" for block in blocks]
    with torch.no_grad():
        forward(model, ids, [keep(site) for block in blocks for site in (pattern_site(block), values[block])])
        norms = torch.zeros(ids.shape[1], dtype=torch.float64)
        for block in blocks:
            weights, value = kept[pattern_site(block)][0, :, query], kept[values[block]][0]
            each = weights.shape[0] // value.shape[1]
            written = value.repeat_interleave(each, dim=1).transpose(0, 1) @ model.blocks[block].attn.W_O.detach()
            norms += (weights[:, :, None] * written).sum(dim=0).norm(dim=-1).double().cpu() / len(blocks)
    return norms


def _leave_one_out(model: Bridge, ids: Tensor, query: int) -> Tensor:
    outputs = _Outputs(model, ids, query)
    with torch.no_grad():
        own = next(log_probabilities(model, outputs.y(outputs.embeddings)))
        found = []
        for places in torch.arange(query + 1).split(outputs.batch):
            variants = outputs.embeddings.repeat(len(places), 1, 1)
            variants[torch.arange(len(places)), places] = 0
            for logs in log_probabilities(model, outputs.y(variants)):
                found.append(divergence(own.expand_as(logs), logs).cpu())
    return torch.cat(found)


SCORES: dict[str, Callable[[Bridge, Tensor, int], Tensor]] = {
    "gradient_times_input": _gradient_times_input,
    "integrated_gradients": _integrated_gradients,
    "occlusion": _occlusion,
    "attn_lrp": _attn_lrp,
    "value_weighted": _value_weighted,
    "leave_one_out": _leave_one_out,
}
