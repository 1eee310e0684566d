"""The first-order effect ‖J Δe‖: what a derivative says of the very change that an effect measures."""

import math
from typing import Literal, NamedTuple

import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge, SpansOfTokens
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.differentiating.spans import differentiable, vjps
from squashlens.engine.proving.registry import measured
from squashlens.measure.session import Session, streams_at
from squashlens.measure.squashing.attributions import EMBEDDING, Outputs
from squashlens.measure.squashing.substitution import choose_places, draw_variants
from squashlens.measure.squashing.token_spans import Spans
from squashlens.records.results import MODEL_UNITS
from squashlens.theory.probes import normals

AT_ONCE = 256  # tokens whose embeddings are looked up in one forward pass


class Change(NamedTuple):
    """Other tokens at some places, which are those of one token or span; without tokens, embeddings of zero."""

    of: int
    places: list[int]
    tokens: list[int]


# More than eight arguments, since it is the first order of two effects, with the options of both.
@measured
def first_order(
    model: Bridge,
    prompts: PromptOrCapture,
    *,
    of: Literal["embedding", "predicted"] = "embedding",
    n_probes: int = 64,
    n_replacements: int = 8,
    query: int = -1,
    spans: SpansOfTokens = None,
    seed: int = 0,
) -> xr.DataArray:
    """The distance ``‖Σ_i J_i Δe_i‖₂`` that y moves at the query to first order, for a change Δe of the embeddings.

    ``of="embedding"`` has ``Δe_i = −e_i``, the first order of `knockout_effect` of this kind. ``of="predicted"`` has
    the embeddings of the tokens that `substitution_effect` draws with ``candidates="predicted"``, and is a mean over
    the draws. With a Gaussian G of k = `n_probes` rows, ``‖G J Δe‖₂ / √k`` estimates each distance: its square is
    unbiased, and its relative standard deviation is about 1/√(2k). Places that are not changed are NaN.
    """
    session = Session.start(
        model, prompts, "first_order",
        of=of, n_probes=n_probes, n_replacements=n_replacements, query=query, seed=seed, spans=spans,
    )  # fmt: skip
    n, (session, groups) = session.query(query), Spans.of(session, spans)
    first = 0 if of == "embedding" else max(session.facts["bos_count"], 1)
    together = choose_places(None, groups, first, n)
    if of == "embedding":
        drawn = [[Change(place, inside, []) for place, inside in together.items()]] * len(session.ids)
    else:
        drawn = [
            [
                Change(place, together[place], [branch.tokens[at - branch.at] for at in together[place]])
                for place, branch in zip(owners.tolist()[1:], branches[1:], strict=True)  # the first is the prompt
            ]
            for owners, branches in draw_variants(session, together, None, n_replacements, n, seed)
        ]
    count = session.positions if groups is None else len(groups.names)
    found = torch.zeros(len(session.ids), count, dtype=torch.float64)
    found[:, : n + 1 if groups is None else None] = torch.nan
    for row, ids, variants in zip(found, session.ids, drawn, strict=True):
        moved = _moved(session.model, ids, variants, n, n_probes, seed)
        owners = torch.tensor([variant.of for variant in variants])
        for place in together:
            row[place] = moved[owners == place].mean()
    text = {"embedding": "its embedding is zero", "predicted": "an expected token replaces it"}[of]
    long_name = f"first order of the distance that the output moves when {text}"
    return session.label(found, "first_order", long_name, MODEL_UNITS)


def _moved(
    model: Bridge, ids: Int[Tensor, " position"], variants: list[Change], query: int, n_probes: int, seed: int
) -> Float[Tensor, " variant"]:
    """The first-order distance of each variant of a prompt; one without tokens has embeddings of zero."""
    outputs = Outputs(model, ids[None], query)
    own = outputs.embeddings[0]
    with differentiable():
        leaf = outputs.embeddings.clone().requires_grad_()
        y = outputs.y(leaf)
    cotangents = normals(seed)(n_probes, y.shape[-1]).to(y)[:, None]
    rows = torch.cat([found for (found,) in vjps(y, [leaf], cotangents, outputs.batch)])[:, 0]
    others = _embeddings(model, sorted({token for variant in variants for token in variant.tokens}))
    moved = []
    for variant in variants:
        step = -own[variant.places]
        if variant.tokens:
            step = step + torch.stack([others[token] for token in variant.tokens])
        moved.append(torch.einsum("kpd,pd->k", rows[:, variant.places].double(), step.double()).norm())
    return torch.stack(moved).cpu() / math.sqrt(n_probes)


def _embeddings(model: Bridge, tokens: list[int]) -> dict[int, Float[Tensor, " d"]]:
    """The embedding of each token, as it enters the model."""
    found: dict[int, Tensor] = {}
    for start in range(0, len(tokens), AT_ONCE):
        some = tokens[start : start + AT_ONCE]
        ids = torch.tensor([some], device=next(model.parameters()).device)
        found |= dict(zip(some, streams_at(model, ids, [EMBEDDING])[EMBEDDING][0], strict=True))
    return found
