"""An audit of all sensitivity measures on the same prompts: how tight, how close to the truth, and at what cost.

The estimates range from the printed path bound over certified bounds to the true Jacobian, and to the replacement of
tokens.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

from squashlens._typing import Attribution, Bridge, Freezable, Proxy, choices_of, dtype_name, positive
from squashlens.bars import bar
from squashlens.checks.arguments import and_frozen, grouped
from squashlens.checks.results import require_reference, takes
from squashlens.engine.anatomy import dtype_of, quantization, residual_site, width
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.differentiating.spans import differentiable, leaf_of
from squashlens.engine.proving.registry import measured
from squashlens.engine.running.forward import logits_of, require_understood
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure.session import Session, measurement, require_places, streams_at
from squashlens.measure.squashing.attributions import attribution, captum_for
from squashlens.measure.squashing.bound import certified_bound, composition, path_bound
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.jacobians.products import Products, Pullback
from squashlens.measure.squashing.knockout import knockout_effect
from squashlens.measure.squashing.substitution import require_choices, require_replaceable, substitution_effect
from squashlens.options import Replaced, Replacements
from squashlens.theory.probes import seed_of
from squashlens.theory.statistics.ranks import mean_interval, partial_spearman, spearman
from squashlens.theory.statistics.trends import with_ends

TRUTH, NULL, SWAP, LEFT_OUT = "Jacobian", "null", "substitution effect", "leave-one-out KL"
KNOCKOUT, EXPECTED = "knockout KL", "expected replacement KL"
REFERENCES = (TRUTH, SWAP, LEFT_OUT, KNOCKOUT, EXPECTED)
ATTRIBUTIONS: dict[str, Attribution] = {
    "gradient times input": "gradient_times_input",
    "integrated gradients": "integrated_gradients",
    "occlusion": "occlusion",
    "AttnLRP": "attn_lrp",
    "value-weighted attention": "value_weighted",
}


WAYS = ("raw", "partial", "over_null")
COST = "time divided by that of the exact Jacobian"


@dataclass(frozen=True)
class Estimate:
    """A quantity per token: its name, kind and function, and the name of the estimate that it bounds."""

    name: str
    kind: str  # printed, bound, derivative, proxy, attribution, swap
    measure: Callable[[Bridge, Any], np.ndarray]
    bounds: str | None = None


@measurement("audit")
def audit(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    positions: Iterable[int] | None = None,
    estimates: Iterable[str] | None = None,
    n_probes: int = 16,
    replacements: Replaced = Replacements(),
    query: int = -1,
    seed: int | None = None,
) -> xr.Dataset:
    """Compare all sensitivity measures: how tight each is, how it ranks the tokens, and how long it takes.

    The estimates are: the printed path bound and its null; certified bounds (analytic edges for each of the eight
    freeze sets, local edges, attention edges, exact edges, two blocks composed); sketches of the Jacobian, one of them
    a certified upper bound; Jacobians (the spectral norm for each freeze set, the Frobenius norm); the proxies rollout,
    all-ones cotangent and top-logit gradient; and attributions: gradient times input, integrated gradients and
    occlusion (captum), AttnLRP (LXT), and value-weighted attention. They are compared with what changing a token does:
    the substitution effect, and the KL divergence of the next token under `knockout_effect` (*knockout KL*, and
    *leave-one-out KL* for a zero embedding, by which Jacobian Scopes, arXiv 2601.16407, judges methods) and under
    replacement by a token that the model expects (*expected replacement KL*). captum and LXT come with
    ``pip install "squashlens[compare]"``. All are of y at the query, and of the embeddings.

    Args:
        model: the model to measure, in float32 or float64: a `TransformerBridge` from `load` or your own.
        prompt: the prompt as text or token ids of shape (position), several of equal length, or a `capture` of them.
            Useful confidence intervals need at least about twenty prompts.
        positions: positions over which agreement is computed, as indices into the tokens; by default all except BOS
            and the query. Leave out the words of the task, since they differ in kind from its digits.
        estimates: estimates to include, given as the starts of their names; all by default. ``["analytic"]`` includes
            the eight bounds with analytic edges and the Jacobians that they bound. The Jacobian and the null are always
            included.
        n_probes: number of random directions of each sketch; 16 by default.
        replacements: as in `substitution_effect`.
        query: as in `path_bound`.
        seed: random seed of certificates, sketches and replacements; by default as in `jacobian_norms`.

    Returns:
        Dataset. Over (estimate, prompt, position): `value`, dimensionless, in logits for attributions, in nats for
        KL divergences, in the model's units for the substitution effect and value-weighted attention; `tightness`, a
        bound divided by the spectral norm of the Jacobian that it bounds (same freeze set), NaN for others;
        `over_jacobian`, the value divided by the true spectral norm, NaN for attributions and effects. Over (estimate):
        `cost`, the time divided by that of the exact spectral norm in this run. Over (estimate, reference, way):
        `agreement`, Spearman's ρ with the Jacobian or one of the effects over `positions`, mean over prompts, with
        `way` ``"raw"``; ``"partial"``, which controls for the position; or ``"over_null"``, which divides the estimate
        by the null; and `agreement_over_jacobian`, the mean over prompts of its difference from the exact Jacobian's
        agreement in the same prompt. Both have `_low` and `_high`, the ends of 95 % intervals over prompts, NaN for
        one prompt. An estimate that the model does not support, or whose library is missing, is NaN, and the coordinate
        `refused` has the reason.

    Raises:
        InputError: a model in half precision or with quantized weights, whose bounds and Jacobians describe different
            functions; unknown estimates, or positions after the query.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> found = sl.audit(model, "110 = 2", estimates=["exact", "rollout"])
    >>> found["estimate"].values.tolist()
    ['null', 'exact edges', 'exact edges, attention frozen', 'rollout', 'Jacobian, attention frozen', 'Jacobian']
    >>> bool((found["tightness"].sel(estimate="exact edges") >= 1).all())
    True
    """
    replacements = grouped(replacements, Replacements)
    positive(n_probes, "n_probes", "a number of directions")
    if isinstance(replacements.candidates, str):
        raise InputError(
            f"candidates={replacements.candidates!r} is one of the estimates.", "Leave it out, or give token ids."
        )
    positive(replacements.n_replacements, "n_replacements", "a number of tokens")
    chosen = None if positions is None else [*positions]
    names = None if estimates is None else [*estimates]
    seed = seed_of(seed)
    session = Session.start(
        model, prompt, "audit", positions=chosen, estimates=names,
        n_probes=n_probes, replacements=replacements, query=query, seed=seed,
    )  # fmt: skip
    _require_comparable(session.model)
    n, first = session.query(query), session.facts["bos_count"]
    if chosen is None:
        require_replaceable(first, n)
    places = sorted({*(range(first, n) if chosen is None else chosen)})
    require_places(places, 0, n)
    selected = choose(list(all_estimates(n, n_probes, replacements, seed)), names)
    if any(estimate.name == SWAP for estimate in selected):
        require_choices(session, replacements.candidates, range(first, n + 1))
    _warm_up(session, n)
    values, seconds, refused = {}, {}, {}
    for estimate in bar(selected, desc="audit", unit="estimate"):
        start = time.perf_counter()
        try:
            found = estimate.measure(session.model, session.ids)
        except (UnsoundModelError, InputError) as error:  # a model that does not support one may support the others
            missing = isinstance(error, InputError) and estimate.kind != "attribution"
            if estimate.name in (TRUTH, NULL) or missing:
                raise
            found, refused[estimate.name] = np.full(session.ids.shape, np.nan), str(error)
        seconds[estimate.name] = np.nan if estimate.name in refused else time.perf_counter() - start
        values[estimate.name] = np.atleast_2d(found)[:, : n + 1]
    return _assemble(session, selected, values, seconds, refused, places, n)


def _require_comparable(model: Bridge) -> None:
    """Raise, before any work, for a model whose bounds and Jacobians describe different functions."""
    kind, dtype = quantization(model), dtype_of(model)
    if kind is not None or dtype.itemsize < 4:
        what = f"quantized ({kind})" if kind is not None else dtype_name(dtype)
        raise InputError(
            f"The model is {what}, so that its Jacobian is not the exact one, to which the bounds apply.",
            "Load the model in float32, without quantization.",
        )


def _warm_up(session: Session, query: int) -> None:
    """Run all checks that happen once per model before any estimate is timed."""
    with suppress(InputError):  # the row of a method says that its library is missing
        captum_for("The audit")
    once = {"method": "sketch", "n_probes": 1}
    for freeze in ((), *choices_of(Freezable)):
        with suppress(UnsoundModelError):  # the estimate itself raises it again
            jacobian_norms(session.model, session.ids[:1], norm="frobenius", freeze=freeze, method=once, query=query)


def _assemble(
    session: Session, estimates: list[Estimate], values: dict[str, np.ndarray], seconds: dict[str, float],
    refused: dict[str, str], places: list[int], query: int,
) -> xr.Dataset:  # fmt: skip
    """The Dataset of an audit, from the values and times of its estimates."""
    names = [estimate.name for estimate in estimates]
    stacked = np.stack([values[name] for name in names])
    tight = stacked / np.stack([values[one.bounds] if one.bounds else np.nan * stacked[0] for one in estimates])
    over = stacked / values[TRUTH]
    over[[estimate.kind in ("swap", "attribution") for estimate in estimates]] = np.nan  # not norms of a derivative
    references = [name for name in REFERENCES if name in values]
    inner = {name: torch.from_numpy(each[:, places]) for name, each in values.items()}
    null, position = inner[NULL], torch.tensor(places, dtype=torch.float64)
    each = torch.full((len(names), len(references), len(WAYS), len(session.ids)), torch.nan, dtype=torch.float64)
    for (i, name), (j, reference) in itertools.product(enumerate(names), enumerate(references)):
        mine, truth = inner[name], inner[reference]
        each[i, j] = torch.stack(
            [spearman(mine, truth), partial_spearman(mine, truth, position), spearman(mine / null, truth)]
        )
    table = torch.stack([each.nanmean(dim=-1), *(end.clamp(-1, 1) for end in mean_interval(each))])
    ahead = each - each[names.index(TRUTH)]  # in pairs: what all methods find hard in a prompt cancels
    paired = torch.stack([ahead.nanmean(dim=-1), *mean_interval(ahead)])
    dims, grid = ("estimate", "prompt", "position"), ("estimate", "reference", "way")
    text = "Spearman correlation with the reference over content positions, mean over prompts"
    at = np.arange(query + 1)
    tokens = {name: np.atleast_2d(session.coords()[1][name][1])[:, : query + 1] for name in ("token", "token_id")}
    coords = {
        "estimate": names, "kind": ("estimate", [one.kind for one in estimates]), "reference": references,
        "way": list(WAYS), "bounds": ("estimate", [one.bounds or "" for one in estimates]),
        "prompt": np.arange(len(session.ids)), "position": at, "content": ("position", np.isin(at, places)),
        **{name: (("prompt", "position"), label) for name, label in tokens.items()},
        "refused": ("estimate", [refused.get(name, "") for name in names]),
    }  # fmt: skip
    return session.dataset(
        "audit of sensitivity measures", coords,
        {
            "value": (dims, stacked, "sensitivity measure", "1, or the unit of the estimate"),
            "tightness": (dims, tight, "bound divided by the Jacobian norm that it bounds", "1"),
            "over_jacobian": (dims, over, "measure divided by the spectral Jacobian norm", "1"),
            "cost": (("estimate",), [seconds[n] / seconds[TRUTH] for n in names], COST, "1"),
            **with_ends("agreement", grid, table, text),
            **with_ends("agreement_over_jacobian", grid, paired, f"{text}, minus that of the Jacobian"),
        },
    )  # fmt: skip


@takes(
    "squashlens.audit",
    "tightness over_jacobian: estimate prompt position",
    "agreement: estimate reference way",
    "content: position",
    "cost: estimate",
)
def audit_table(audit: xr.Dataset, reference: str = TRUTH) -> pd.DataFrame:
    """The table of an audit, with one row for each estimate.

    Its columns are `tightness` and `over_jacobian` (medians over content positions), `least` (the smallest tightness,
    at least 1 for every bound that holds), `raw`, `partial` and `over_null` (agreement with `reference`) and `cost`.
    """
    require_reference(audit, reference)
    inner = audit.isel(position=audit["content"].values)
    over = ("prompt", "position")
    columns = {
        "tightness": inner["tightness"].median(over),
        "least": audit["tightness"].min(over),
        "over_jacobian": inner["over_jacobian"].median(over),
        **{way: audit["agreement"].sel(reference=reference, way=way) for way in WAYS},
        "cost": audit["cost"],
    }
    return pd.DataFrame({name: column.values for name, column in columns.items()}, index=audit["estimate"].values)


def all_estimates(query: int, n_probes: int, replacements: Replacements, seed: int) -> Iterator[Estimate]:
    """All estimates, from the printed path bound to the replacement of tokens."""
    sets = [s for k in range(4) for s in itertools.combinations(choices_of(Freezable), k)]

    def made(
        name: str, kind: str, measure: Any, bounds: str | None = None, /, *, of: str = "", **options: Any
    ) -> Estimate:
        def values(model: Bridge, ids: Any) -> np.ndarray:
            found = measure(model, ids, query=query, **options)
            return (found[of] if of else found).values

        return Estimate(name, kind, values, bounds)

    def bound(name: str, freeze: tuple[str, ...] = (), **edges: Any) -> Estimate:
        frozen = _frozen_suffix(freeze)
        how = {"seed": seed} | edges
        return made(name + frozen, "bound", certified_bound, TRUTH + frozen, freeze=freeze, edges=how)

    yield made("paper form", "printed", path_bound)
    yield made(NULL, "printed", path_bound, attention="uniform")
    for freeze in sets:
        yield bound("analytic edges", freeze)
    yield bound("local edges", edges="local")
    yield bound("attention edges", edges="attention")
    yield bound("exact edges", edges="exact")
    yield bound("exact edges", ("attention",), edges="exact")
    yield bound("two blocks composed", edges="exact", n_composed=2)
    yield made("rollout", "proxy", rollout)
    for name, method in ATTRIBUTIONS.items():
        yield made(name, "attribution", partial(attribution, of=method))
    yield made("top-logit gradient", "proxy", partial(one_cotangent, of="top_logit"))
    yield made("all-ones cotangent", "proxy", one_cotangent)
    sketch = {"method": "sketch", "n_probes": n_probes, "seed": seed}
    yield made(f"sketch of {n_probes}, Frobenius", "derivative", jacobian_norms, norm="frobenius", method=sketch)
    yield made(f"sketch of {n_probes}, spectral", "derivative", jacobian_norms, method=sketch)
    certified = sketch | {"method": "sketch_upper"}
    yield made(f"sketch of {n_probes}, certified", "bound", jacobian_norms, TRUTH, method=certified)
    for freeze in reversed(sets[1:]):
        yield made(TRUTH + _frozen_suffix(freeze), "derivative", jacobian_norms, freeze=freeze)
    yield made("Frobenius norm", "derivative", jacobian_norms, norm="frobenius")
    yield made(TRUTH, "derivative", jacobian_norms)
    expected = replace(replacements, candidates="predicted")
    yield made(LEFT_OUT, "swap", knockout_effect, of="kl", kind="embedding")
    yield made(KNOCKOUT, "swap", knockout_effect, of="kl")
    yield made(EXPECTED, "swap", substitution_effect, of="kl", replacements=expected, seed=seed)
    yield made(SWAP, "swap", substitution_effect, of="effect", replacements=replacements, seed=seed)


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
                f"Choose from: {', '.join(estimate.name for estimate in estimates)}.",
            )
    chosen = [one for one in estimates if one.name.startswith(tuple(names))]
    kept = {TRUTH, NULL} | {name for one in chosen for name in (one.name, one.bounds)}
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
