"""The estimates of an audit: printed and certified bounds, derivatives, attributions, and what changing tokens does."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import xarray as xr

from squashlens._typing import Attribution, Bridge, Freezable, Proxy, SpansOfTokens, choices_of
from squashlens.checks.arguments import and_frozen
from squashlens.engine.anatomy import n_blocks
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.differentiating.spans import differentiable, leaf_of, open_spans
from squashlens.engine.proving.registry import measured
from squashlens.engine.running.forward import logits_of, require_understood
from squashlens.errors import InputError
from squashlens.measure.session import Session
from squashlens.measure.squashing.attributions import attribution
from squashlens.measure.squashing.bound import certified_bound, composition, path_bound
from squashlens.measure.squashing.first_order import first_order
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.jacobians.rows import norms_at
from squashlens.measure.squashing.knockout import knockout_effect
from squashlens.measure.squashing.substitution import substitution_effect
from squashlens.options import Replacements
from squashlens.theory.norms import spectral_norms

TRUTH, NULL, SWAP, LEFT_OUT = "Jacobian", "null", "substitution effect", "leave-one-out KL"
KNOCKOUT, EXPECTED = "knockout KL", "expected replacement KL"
ATTRIBUTIONS: dict[str, Attribution] = {
    "gradient times input": "gradient_times_input",
    "integrated gradients": "integrated_gradients",
    "occlusion": "occlusion",
    "AttnLRP": "attn_lrp",
    "value-weighted attention": "value_weighted",
    "mean attention row": "mean_attention",
}
Combined = Literal["sum", "root", "refused"] | None
COMBINED: dict[str, Combined] = {
    "value_weighted": "sum", "mean_attention": "sum", "gradient_times_input": "root", "integrated_gradients": "root"
}  # fmt: skip
CEILING = "noise_ceiling"


@dataclass(frozen=True)
class Estimate:
    """A quantity per token: its name, kind and function, and the name of the estimate that it bounds."""

    name: str
    kind: str  # printed, bound, derivative, proxy, attribution, swap
    measure: Callable[[Bridge, Any], xr.DataArray]
    bounds: str | None = None
    combined: Combined = None  # how values of tokens give that of a span; None if `measure` takes spans


def all_estimates(
    *, query: int, n_probes: int, replacements: Replacements, seed: int, spans: SpansOfTokens = None
) -> Iterator[Estimate]:  # fmt: skip
    """All estimates, from the printed path bound to the replacement of tokens."""
    alone: dict[str, Any] = {"query": query}
    read: dict[str, Any] = alone | {"spans": spans}
    sets = [s for k in range(4) for s in itertools.combinations(choices_of(Freezable), k)]

    def bound(name: str, freeze: tuple[str, ...] = (), **options: Any) -> Estimate:
        arguments: dict[str, Any] = read | {"freeze": freeze, "edges": {"seed": seed} | options}
        measure: Any = lambda model, ids: certified_bound(model, ids, **arguments)  # noqa: E731
        return Estimate(name + _frozen_suffix(freeze), "bound", measure, TRUTH + _frozen_suffix(freeze))

    def attribute(name: str, kind: str, of: Attribution) -> Estimate:
        combined = COMBINED.get(of, "refused")
        return Estimate(name, kind, lambda model, ids: attribution(model, ids, of=of, **alone), combined=combined)

    def first(name: str, of: Literal["embedding", "predicted"]) -> Estimate:
        options: Any = {"of": of, "n_probes": n_probes, "n_replacements": replacements.n_replacements, "seed": seed}
        return Estimate(name, "attribution", lambda model, ids: first_order(model, ids, **options, **read))

    def derivative(name: str, **options: Any) -> Estimate:
        arguments: dict[str, Any] = read | options
        return Estimate(name, "derivative", lambda model, ids: jacobian_norms(model, ids, **arguments))

    yield Estimate("paper form", "printed", lambda model, ids: path_bound(model, ids, **read))
    yield Estimate(NULL, "printed", lambda model, ids: path_bound(model, ids, attention="uniform", **read))
    for freeze in sets:
        yield bound("analytic edges", freeze)
    yield bound("local edges", edges="local")
    yield bound("attention edges", edges="attention")
    yield bound("exact edges", edges="exact")
    yield bound("exact edges", ("attention",), edges="exact")
    yield bound("two blocks composed", edges="exact", n_composed=2)
    yield Estimate("rollout", "proxy", lambda model, ids: rollout(model, ids, **alone), combined="sum")
    for name, of in ATTRIBUTIONS.items():
        yield attribute(name, "attribution", of)
    yield first("first order, zero embedding", "embedding")
    yield first("first order, expected replacement", "predicted")
    top: Any = lambda model, ids: one_cotangent(model, ids, of="top_logit", **alone)  # noqa: E731
    ones: Any = lambda model, ids: one_cotangent(model, ids, of="ones", **alone)  # noqa: E731
    yield Estimate("top-logit gradient", "proxy", top, combined="root")
    yield Estimate("all-ones cotangent", "proxy", ones, combined="root")
    options = {"method": "sketch", "n_probes": n_probes, "seed": seed}
    yield derivative(f"sketch of {n_probes}, Frobenius", norm="frobenius", method=options)
    yield derivative(f"sketch of {n_probes}, spectral", method=options)
    raised = derivative(f"sketch of {n_probes}, certified", method=options | {"method": "sketch_upper"})
    yield replace(raised, kind="bound", bounds=TRUTH)
    for freeze in reversed(sets[1:]):
        yield derivative(TRUTH + _frozen_suffix(freeze), freeze=freeze)
    yield derivative("Frobenius norm", norm="frobenius")
    yield derivative(TRUTH)
    drawn: dict[str, Any] = read | {"replacements": replacements, "seed": seed}
    expected: dict[str, Any] = drawn | {"replacements": replace(replacements, candidates="predicted")}
    yield Estimate(LEFT_OUT, "swap", lambda model, ids: knockout_effect(model, ids, kind="embedding", **read)["kl"])
    yield Estimate(KNOCKOUT, "swap", lambda model, ids: knockout_effect(model, ids, **read)["kl"])
    yield Estimate(EXPECTED, "swap", lambda model, ids: with_ceiling(substitution_effect(model, ids, **expected), "kl"))
    yield Estimate(SWAP, "swap", lambda model, ids: with_ceiling(substitution_effect(model, ids, **drawn), "effect"))


def with_ceiling(effects: xr.Dataset, name: str) -> xr.DataArray:
    """One of the effects of replacements, with its noise ceiling as a coordinate."""
    ceiling = effects["noise_ceiling_kl" if name == "kl" else "noise_ceiling"]
    return effects[name].assign_coords({CEILING: ceiling})


def _frozen_suffix(parts: tuple[str, ...]) -> str:
    """The part of an estimate's name that says what is frozen."""
    return ", all frozen" if len(parts) == len(choices_of(Freezable)) else and_frozen(parts)


def choose(estimates: list[Estimate], names: Iterable[str] | None) -> list[Estimate]:
    """The estimates whose names start with one of `names`, the estimates that they bound, the Jacobian and the null."""
    if names is None:
        return estimates
    wanted = list(names)
    for name in wanted:
        if not any(estimate.name.startswith(name) for estimate in estimates):
            raise InputError(
                f"estimates= has {name!r}, and no estimate's name starts so.",
                f"Choose from: {', '.join(r.name for r in estimates)}.",
            )
    every = {estimate.name for estimate in estimates}
    starts = tuple(name for name in wanted if name not in every)
    kept = {name for name in every if name in wanted or (starts and name.startswith(starts))} | {TRUTH, NULL}
    kept |= {r.bounds for r in estimates if r.name in kept and r.bounds}
    return [r for r in estimates if r.name in kept]


@measured
def rollout(model: Bridge, prompts: PromptOrCapture, *, query: int = -1) -> xr.DataArray:
    """Attention rollout (Abnar and Zuidema 2020): row n of ``∏ ½(A + I)`` over all blocks, A averaged over heads."""
    return composition(model, prompts, query=query).sel(layer=0, drop=True).rename("rollout")


@measured
def one_cotangent(model: Bridge, prompts: PromptOrCapture, *, of: Proxy = "ones", query: int = -1) -> xr.DataArray:
    """Norm ‖uᵀJ_i‖ for one cotangent u: all ones (the gradient of Σ_c y_c), or the gradient of the largest logit."""
    session = Session.start(model, prompts, "one_cotangent", of=of, query=query)
    n, top = session.query(query), n_blocks(session.model)
    rows = []
    for ids in session.ids:
        span = open_spans(session.model, ids[None], [], [0], top)[0]
        output = span.outputs["y"]
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
