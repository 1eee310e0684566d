"""The estimates that the audit compares, each with its name and call.

They are bounds, Jacobians, proxies, attribution methods of other libraries, and replacements.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import xarray as xr

from squashlens._typing import Attribution, Bos, Bridge, Freezable, Proxy, Target, choices_of
from squashlens.checks.arguments import and_frozen
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.differentiating.spans import differentiable, leaf_of, open_spans
from squashlens.engine.proving.registry import measured
from squashlens.engine.running.forward import logits_of, require_understood
from squashlens.errors import InputError
from squashlens.measure.session import Session
from squashlens.measure.squashing.audits.attributions import attribution
from squashlens.measure.squashing.bound import composition, path_bound
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.jacobians.rows import norms_at
from squashlens.measure.squashing.substitution import substitution_effect
from squashlens.theory.norms import spectral_norms

TRUTH, NULL, SWAP, LEFT_OUT = "Jacobian", "null", "substitution effect", "leave-one-out KL"
ATTRIBUTIONS: dict[str, Attribution] = {
    "gradient times input": "gradient_times_input",
    "integrated gradients": "integrated_gradients",
    "occlusion": "occlusion",
    "AttnLRP": "attn_lrp",
    "value-weighted attention": "value_weighted",
}


@dataclass(frozen=True)
class Estimate:
    """A quantity per token: its name and kind, the function that measures it, and the estimate that it bounds, if
    any."""

    name: str
    kind: str  # printed, bound, derivative, proxy, attribution, swap
    measure: Callable[[Bridge, Any], xr.DataArray]
    bounds: str | None = None


def all_estimates(
    *, query: int, from_layer: int, to_layer: Target, n_probes: int, n_replacements: int, candidates: list[int] | None,
    seed: int,
) -> Iterator[Estimate]:  # fmt: skip
    """All estimates, from the printed path bound to the replacement of tokens."""
    read: dict[str, Any] = {"query": query, "bos": "as-given"}
    walk: dict[str, Any] = read | {"from_layer": from_layer, "to_layer": to_layer}
    quiet: dict[str, Any] = walk | {"progress": False}
    sets = [s for k in range(4) for s in itertools.combinations(choices_of(Freezable), k)]

    def bound(name: str, freeze: tuple[str, ...] = (), **options: Any) -> Estimate:
        arguments: dict[str, Any] = quiet | options | {"freeze": freeze, "seed": seed}
        measure: Any = lambda model, ids: path_bound(model, ids, constants="measured", **arguments)  # noqa: E731
        return Estimate(name + _named(freeze), "bound", measure, TRUTH + _named(freeze))

    def attributed(name: str, kind: str, of: Attribution) -> Estimate:
        return Estimate(name, kind, lambda model, ids: attribution(model, ids, of=of, **read))

    def derivative(name: str, **options: Any) -> Estimate:
        arguments: dict[str, Any] = quiet | options
        return Estimate(name, "derivative", lambda model, ids: jacobian_norms(model, ids, **arguments))

    yield Estimate("paper form", "printed", lambda model, ids: path_bound(model, ids, **walk))
    yield Estimate(NULL, "printed", lambda model, ids: path_bound(model, ids, attention="uniform", **walk))
    for freeze in sets:
        yield bound("analytic edges", freeze)
    yield bound("local edges", edges="local")
    yield bound("attention edges", edges="attention")
    yield bound("exact edges", edges="exact")
    yield bound("exact edges", ("attention",), edges="exact")
    yield bound("two blocks composed", edges="exact", n_composed=2)
    if to_layer == "y":
        if from_layer == 0:
            yield Estimate("rollout", "proxy", lambda model, ids: rollout(model, ids, **read))
            for name, of in ATTRIBUTIONS.items():
                yield attributed(name, "attribution", of)
        yield Estimate(
            "top-logit gradient", "proxy", lambda model, ids: one_cotangent(model, ids, of="top_logit", **walk)
        )
    yield Estimate("all-ones cotangent", "proxy", lambda model, ids: one_cotangent(model, ids, of="ones", **walk))
    options = {"method": "sketch", "n_probes": n_probes, "seed": seed}
    yield derivative(f"sketch of {n_probes}, Frobenius", norm="frobenius", **options)
    yield derivative(f"sketch of {n_probes}, spectral", **options)
    raised = derivative(f"sketch of {n_probes}, certified", **options | {"method": "sketch_upper"})
    yield replace(raised, kind="bound", bounds=TRUTH)
    for freeze in reversed(sets[1:]):
        yield derivative(TRUTH + _named(freeze), freeze=freeze)
    yield derivative("Frobenius norm", norm="frobenius")
    yield derivative(TRUTH)
    swapped = read | {
        "to_layer": to_layer, "n_replacements": n_replacements, "seed": seed, "progress": False,
        "candidates": candidates,
    }  # fmt: skip
    if from_layer == 0 and to_layer == "y":
        yield attributed(LEFT_OUT, "swap", "leave_one_out")
    yield Estimate(SWAP, "swap", lambda model, ids: substitution_effect(model, ids, **swapped)["effect"])


def _named(parts: tuple[str, ...]) -> str:
    """The part of an estimate's name that says what is frozen."""
    return ", all frozen" if len(parts) == len(choices_of(Freezable)) else and_frozen(parts)


def chosen(estimates: list[Estimate], names: Iterable[str] | None) -> list[Estimate]:
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
    kept = {r.name for r in estimates if r.name.startswith(tuple(wanted))} | {TRUTH, NULL}
    kept |= {r.bounds for r in estimates if r.name in kept and r.bounds}
    return [r for r in estimates if r.name in kept]


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
