"""The knockout effect: how far the output moves when later tokens cannot read a token, or its embedding is zero."""

from collections.abc import Iterable

import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Bridge, Knockout, SpansOfTokens
from squashlens.bars import bar
from squashlens.engine.agreement import agree
from squashlens.engine.anatomy import dtype_of, residual_site
from squashlens.engine.applied import applied, probe_ids
from squashlens.engine.budget import batch_memory, pass_bytes
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.hooking.hook import Hook, Unchecked, attached
from squashlens.engine.hooking.standing import without_ambient
from squashlens.engine.premises import require_attention_alone
from squashlens.engine.running.forward import forward, next_logits
from squashlens.engine.state import proved
from squashlens.errors import UnsoundModelError
from squashlens.hooks.interventions import SCORES, grid
from squashlens.measure.registration import measurement
from squashlens.measure.session import Session
from squashlens.measure.squashing.substitution import beside_the_first, choose_places, empty_effects, label_effects
from squashlens.measure.squashing.token_spans import Spans
from squashlens.records.results import MODEL_UNITS
from squashlens.theory.distances import distance, divergence, total_variation

EMBEDDING = "embed.hook_out"
WITHOUT = {"attention": "when no later token attends to the token", "embedding": "when the token's embedding is zero"}


@measurement("substitution", prompts="equal", cheaper="Fewer positions= takes less.")
def knockout_effect(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    kind: Knockout = "attention",
    positions: Iterable[int] | None = None,
    spans: SpansOfTokens = None,
    query: int = -1,
) -> xr.Dataset:
    """Distance that the output at the query moves when one token of the prompt is knocked out.

    ``effect_i = ‖y_n(x) − y_n(x without i)‖₂``. With ``kind="attention"``, every attention logit of token i for a later
    token is −∞, in all blocks and heads, and the weights of the other tokens grow to a sum of 1. Nothing of the token
    reaches the query then, and it keeps its place. With ``kind="embedding"`` the embedding of the token is 0, which
    leaves a token of no kind at its place. A derivative describes small changes; these are the largest ones.

    Args:
        model, prompt, query: as in `path_bound`.
        kind: ``"attention"``, the default, or ``"embedding"``.
        positions: positions that are knocked out, one at a time; by default all up to the query.
        spans: as in `jacobian_norms`. All tokens of a span are knocked out at once: each of them attends to itself, and
            no other token does. Cannot be used with `positions`.

    Returns:
        Dataset over (position), or (prompt, position): `effect`, in the model's units; `kl`, KL(p(x) ‖ p(x without i))
        of the next token, in nats; `total_variation` of the two, from 0 to 2. Positions up to the query that are not
        knocked out are NaN, those after it 0. Padded as in `path_bound`, and with `spans` labelled as in
        `jacobian_norms`.

    Raises:
        InputError: a position after the query; spans of several prompts, or together with positions.
        UnsoundModelError: something besides attention passes between tokens, for ``kind="attention"``; a token acts by
            its id in other ways too, for ``"embedding"``; or hooks there have no effect.

    Source: Geva et al. 2023, arXiv 2304.14767, attention knockout, which they apply to the last token and a few blocks.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> found = sl.knockout_effect(model, "What is the last digit in this sequence? 0107 =")
    >>> found["kl"].values[10:14].round(1).tolist()   # the model answers from the last digit alone
    [0.0, 0.0, 0.0, 12.8]
    """
    session = Session.start(
        model, prompt, "knockout_effect",
        kind=kind, positions=None if positions is None else [*positions], query=query, spans=spans,
    )  # fmt: skip
    if kind == "attention":
        require_attention_alone(session.model)
    elif not proved(session.model, "identity is in embeddings", lambda: _only_in_embeddings(session.model)):
        raise UnsoundModelError(
            f"A token of {type(session.model.original_model).__name__} whose embedding is zero still acts by its id, "
            "as with embeddings for each layer.",
            "Use kind='attention'.",
        )
    n, (session, groups) = session.query(query), Spans.of(session, spans)
    together = choose_places(positions, groups, 0, n)
    found = empty_effects(session, groups, together, n, ("effect", "kl", "total_variation"))
    hidden = torch.zeros(len(together) + 1, n + 1, dtype=torch.bool)  # the first row is the prompt itself
    for row, places in enumerate(together.values(), 1):
        hidden[row, places] = True
    for row, ids in enumerate(session.ids):
        y = _knock_out(session.model, ids[: n + 1], hidden, kind)
        found["effect"][row, [*together]] = distance(y[1:], y[:1].expand_as(y[1:]), "l2").cpu()
        parts = [
            (divergence(own, logs).cpu(), total_variation(own.exp().expand_as(logs), logs.exp()).cpu())
            for own, logs in beside_the_first(session.model, y)
        ]
        for name, values in zip(("kl", "total_variation"), zip(*parts, strict=True), strict=True):
            found[name][row, [*together]] = torch.cat(values)[1:]
    texts = {
        "effect": (f"distance that the output moves {WITHOUT[kind]}", MODEL_UNITS),
        "kl": (f"KL divergence of the next token {WITHOUT[kind]}", "nats"),
        "total_variation": (f"total variation of the next token {WITHOUT[kind]}", "1"),
    }
    return label_effects("knockout effect", session, found, texts)


def _knock_out(
    model: Bridge, ids: Tensor, hidden: Bool[Tensor, "variant position"], kind: Knockout
) -> Float[Tensor, "variant d"]:
    """y at the last token with the `hidden` positions of each variant knocked out."""
    kept: list[Tensor] = []
    watch = [(residual_site("y", model), lambda y: kept.append(y[:, -1].clone()))]
    size = max(1, int(batch_memory(model) / pass_bytes(model, 1, len(ids))))
    batches = bar(hidden.split(size), desc="variants", leave=False)
    with torch.inference_mode(False), torch.no_grad():
        for rows in batches:
            with applied(model, _hook(kind, rows.to(ids.device))):
                forward(model, ids.expand(len(rows), -1).clone(), watch)
    return torch.cat(kept)


def _only_in_embeddings(model: Bridge) -> bool:
    """Whether two prompts are the same to the model if the only token that differs has an embedding of zero."""
    ids = probe_ids(model)[:, :4].repeat(2, 1)
    ids[1, 1] = (ids[1, 1] + 1) % int(model.cfg.d_vocab)
    hidden = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    hidden[:, 1] = True
    hook = _hook("embedding", hidden)
    with torch.inference_mode(False), torch.no_grad(), without_ambient(model), attached(model, hook):
        one, other = next_logits(model, ids)
    return agree(one, other, dtype_of(model))


def _hook(kind: Knockout, hidden: Bool[Tensor, "variant position"]) -> Hook:
    """The hook that knocks the `hidden` positions of each prompt of a batch out."""

    def unread(scores: Tensor) -> Tensor:
        query, key = grid(scores)
        return scores.masked_fill(hidden.to(scores.device)[:, None, None] & (query > key), -torch.inf)

    def zeroed(embeddings: Tensor) -> Tensor:
        return embeddings.masked_fill(hidden[..., None], 0.0)

    site, edit = (SCORES, unread) if kind == "attention" else (EMBEDDING, zeroed)
    return Unchecked(f"knockout of {kind}", site, edit, positional=True)
