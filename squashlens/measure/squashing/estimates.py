"""The estimates of an audit: printed and certified bounds, derivatives, attributions, and what changing tokens does."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Attribution, Bridge, Freezable, Proxy, SpansOfTokens, choices_of
from squashlens.checks.arguments import and_frozen
from squashlens.engine.anatomy import residual_site, width
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.differentiating.spans import differentiable, leaf_of, vjps
from squashlens.engine.running.forward import logits_of, require_understood
from squashlens.engine.state import measured
from squashlens.errors import InputError
from squashlens.measure.session import Session, streams_at
from squashlens.measure.squashing.attributions import EMBEDDING, Outputs, attribution
from squashlens.measure.squashing.bound import certified_bound, composition, path_bound
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.jacobians.products import Products, Pullback
from squashlens.measure.squashing.knockout import knockout_effect
from squashlens.measure.squashing.substitution import choose_places, draw_variants, substitution_effect
from squashlens.measure.squashing.token_spans import Spans
from squashlens.records.results import MODEL_UNITS
from squashlens.theory.probes import normals

TRUTH, NULL, SWAP, LEFT_OUT = "Jacobian", "null", "substitution effect", "leave-one-out KL"
KNOCKOUT, EXPECTED = "knockout KL", "expected replacement KL"
Combined = Literal["sum", "root", "refused"]  # how values of tokens give that of a span
ATTRIBUTIONS: dict[str, tuple[Attribution, Combined]] = {
    "gradient times input": ("gradient_times_input", "root"),
    "integrated gradients": ("integrated_gradients", "root"),
    "occlusion": ("occlusion", "refused"),
    "AttnLRP": ("attn_lrp", "refused"),
    "value-weighted attention": ("value_weighted", "sum"),
    "mean attention row": ("mean_attention", "sum"),
}
CEILING = "noise_ceiling"
AT_ONCE = 256  # tokens whose embeddings are looked up in one forward pass


@dataclass(frozen=True)
class Estimate:
    """A quantity per token: its name, kind and function, and the name of the estimate that it bounds."""

    name: str
    kind: str  # printed, bound, derivative, proxy, attribution, swap
    measure: Callable[[Bridge, Any], xr.DataArray]
    bounds: str | None = None
    combined: Combined | None = None  # None if `measure` takes spans


def all_estimates(
    query: int,
    n_probes: int,
    candidates: Sequence[int] | None,
    n_replacements: int,
    seed: int,
    spans: SpansOfTokens = None,
) -> Iterator[Estimate]:
    """All estimates, from the printed path bound to the replacement of tokens."""
    sets = [s for k in range(4) for s in itertools.combinations(choices_of(Freezable), k)]

    def made(
        name: str, kind: str, measure: Any, bounds: str | None = None, /, *, of: str = "",
        combined: Combined | None = None, **options: Any,
    ) -> Estimate:  # fmt: skip
        given = options | ({"query": query} if combined else {"query": query, "spans": spans})

        def values(model: Bridge, ids: Any) -> xr.DataArray:
            found = measure(model, ids, **given)
            return with_ceiling(found, of) if of else found

        return Estimate(name, kind, values, bounds, combined)

    def bound(name: str, freeze: tuple[str, ...] = (), **edges: Any) -> Estimate:
        frozen = _frozen_suffix(freeze)
        how: dict[str, Any] = {"seed": seed} | edges
        return made(name + frozen, "bound", certified_bound, TRUTH + frozen, freeze=freeze, **how)

    yield made("paper form", "printed", path_bound)
    yield made(NULL, "printed", path_bound, attention="uniform")
    yield bound("exact edges")
    yield bound("exact edges", ("attention",))
    yield bound("two blocks composed", n_composed=2)
    yield made("rollout", "proxy", rollout, combined="sum")
    for name, (method, combined) in ATTRIBUTIONS.items():
        yield made(name, "attribution", partial(attribution, of=method), combined=combined)
    change: dict[str, Any] = {"n_probes": n_probes, "n_replacements": n_replacements, "seed": seed}
    yield made("first order, zero embedding", "attribution", partial(first_order, of="embedding"), **change)
    yield made("first order, expected replacement", "attribution", partial(first_order, of="predicted"), **change)
    yield made("top-logit gradient", "proxy", partial(one_cotangent, of="top_logit"), combined="root")
    yield made("all-ones cotangent", "proxy", one_cotangent, combined="root")
    sketch: Any = {"method": "sketch", "n_probes": n_probes, "seed": seed}
    yield made(f"sketch of {n_probes}, Frobenius", "derivative", jacobian_norms, norm="frobenius", **sketch)
    yield made(f"sketch of {n_probes}, spectral", "derivative", jacobian_norms, **sketch)
    certified = sketch | {"method": "sketch_upper"}
    yield made(f"sketch of {n_probes}, certified", "bound", jacobian_norms, TRUTH, **certified)
    for freeze in reversed(sets[1:]):
        yield made(TRUTH + _frozen_suffix(freeze), "derivative", jacobian_norms, freeze=freeze)
    yield made("Frobenius norm", "derivative", jacobian_norms, norm="frobenius")
    yield made(TRUTH, "derivative", jacobian_norms)
    drawn: Any = {"n_replacements": n_replacements, "seed": seed}
    yield made(LEFT_OUT, "swap", knockout_effect, of="kl", kind="embedding")
    yield made(KNOCKOUT, "swap", knockout_effect, of="kl")
    yield made(EXPECTED, "swap", substitution_effect, of="kl", candidates="predicted", **drawn)
    yield made(SWAP, "swap", substitution_effect, of="effect", candidates=candidates, **drawn)


def with_ceiling(effects: xr.Dataset, name: str) -> xr.DataArray:
    """One of several effects; those of replacements have their noise ceiling as a coordinate."""
    ceiling = effects.get("noise_ceiling_kl" if name == "kl" else "noise_ceiling")
    return effects[name] if ceiling is None else effects[name].assign_coords({CEILING: ceiling})


def _frozen_suffix(parts: tuple[str, ...]) -> str:
    """The part of an estimate's name that says what is frozen."""
    return ", all frozen" if len(parts) == len(choices_of(Freezable)) else and_frozen(parts)


def choose(estimates: list[Estimate], names: list[str] | None) -> list[Estimate]:
    """The estimates whose names start with one of `names`, the estimates that they bound, the Jacobian and the null."""
    if names is None:
        return estimates
    for name in names:
        if not any(estimate.name.startswith(name) for estimate in estimates):
            raise InputError(
                f"estimates= has {name!r}, and no estimate's name starts so.",
                f"Choose from: {', '.join(one.name for one in estimates)}.",
            )
    every = {estimate.name for estimate in estimates}
    starts = tuple(name for name in names if name not in every)
    kept = {name for name in every if name in names or (starts and name.startswith(starts))} | {TRUTH, NULL}
    kept |= {one.bounds for one in estimates if one.name in kept and one.bounds}
    return [one for one in estimates if one.name in kept]


@measured
def rollout(model: Bridge, prompts: PromptOrCapture, *, query: int = -1) -> xr.DataArray:
    """Attention rollout (Abnar and Zuidema 2020): row n of ``∏ ½(A + I)`` over all blocks, A averaged over heads."""
    return composition(model, prompts, query=query).sel(layer=0, drop=True).rename("rollout")


@measured
def one_cotangent(model: Bridge, prompts: PromptOrCapture, *, of: Proxy = "ones", query: int = -1) -> xr.DataArray:
    """Norm ‖uᵀJ_i‖ for one cotangent u: all ones (the gradient of Σ_c y_c), or the gradient of the largest logit."""
    session = Session.start(model, prompts, "one_cotangent", of=of, query=query)
    n = session.query(query)
    rows = []
    for ids in session.ids:
        one = replace(session, ids=ids[None])
        direction = torch.ones(1, width(session.model)) if of == "ones" else _top_logit(one, n)
        rows.append(Products(Pullback(one, [0]), n).frobenius(direction)[0])
    return session.label(torch.stack(rows), of, f"norm of one vector–Jacobian product ({of})", "1")


def _top_logit(session: Session, query: int) -> torch.Tensor:
    """The gradient of the largest logit at y."""
    require_understood(session.model)
    site = residual_site("y", session.model)
    y = streams_at(session.model, session.ids, [site], at=query)[site]
    with differentiable():
        leaf = leaf_of(y)
        (gradient,) = torch.autograd.grad(logits_of(session.model, leaf).max(), leaf)
    return gradient


class Change(NamedTuple):
    """Other tokens at some places, which are those of one token or span; without tokens, embeddings of zero."""

    of: int
    places: list[int]
    tokens: list[int]


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
