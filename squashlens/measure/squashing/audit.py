"""An audit of all sensitivity measures on the same prompts: how tight, how close to the truth, and at what cost.

The estimates range from the printed path bound over certified bounds to the true Jacobian, and to the replacement of
tokens.
"""

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor

from squashlens._typing import Bridge, Freezable, SpansOfTokens, choices_of, dtype_name, positive
from squashlens.bars import bar
from squashlens.checks.arguments import validated
from squashlens.checks.results import require, require_reference, takes
from squashlens.engine.anatomy import dtype_of, n_blocks, quantization
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure.registration import measurement
from squashlens.measure.session import Session, require_places
from squashlens.measure.squashing.attributions import captum_for
from squashlens.measure.squashing.estimates import (
    CEILING,
    EXPECTED,
    KNOCKOUT,
    LEFT_OUT,
    NULL,
    SWAP,
    TRUTH,
    Estimate,
    all_estimates,
    choose,
)
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.jacobians.sketch import Estimation, resolved
from squashlens.measure.squashing.substitution import require_choices, require_replaceable
from squashlens.measure.squashing.token_spans import Spans
from squashlens.measure.squashing.walks import patterns_of, shares_beyond_uniform
from squashlens.records.facts import of_several
from squashlens.records.results import facts_of, signed
from squashlens.theory.probes import seed_of
from squashlens.theory.spread import are_sinks
from squashlens.theory.statistics.ranks import mean_interval, partial_spearman, spearman
from squashlens.theory.statistics.trends import Labelled, with_ends

REFERENCES = (TRUTH, SWAP, LEFT_OUT, KNOCKOUT, EXPECTED)
WAYS = ("raw", "partial", "over_null")
GRID = ("estimate", "reference", "way")
RHO = "Spearman correlation with the reference over content positions"
CEILING_TEXT = "rank correlation that the expected effects would have with the measured ones"
COST = "time divided by that of the exact Jacobian"


@measurement("audit")
def audit(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    positions: Iterable[int] | SpansOfTokens = None,
    estimates: Iterable[str] | None = None,
    n_probes: int = 16,
    candidates: Sequence[int] | None = None,
    n_replacements: int = 8,
    query: int = -1,
    seed: int | None = None,
) -> xr.Dataset:
    """Compare all sensitivity measures: how tight each is, how it ranks the tokens, and how long it takes.

    The estimates are: the printed path bound and its null; certified bounds (analytic edges for each of the eight
    freeze sets, local edges, attention edges, exact edges, two blocks composed); sketches of the Jacobian, one of them
    a certified upper bound; Jacobians (the spectral norm for each freeze set, the Frobenius norm); the proxies rollout,
    all-ones cotangent and top-logit gradient; the first order ‖J Δe‖ of two of the changes below; and attribution
    methods that other libraries offer: gradient times input, integrated gradients and occlusion (captum), AttnLRP
    (LXT), value-weighted attention and the mean attention row. They are compared with what changing a token does: the
    substitution effect, and the KL divergence of the next token under `knockout_effect` (*knockout KL*, and
    *leave-one-out KL* for a zero embedding, by which Jacobian Scopes, arXiv 2601.16407, judges methods) and under
    replacement by a token that the model expects (*expected replacement KL*). Jacobians without a sketch in their names
    are computed as `jacobian_norms` does by default: exactly, or in a model where that takes long by a sketch of 64;
    the provenance says which (`jacobian`). captum and LXT come with ``pip install "squashlens[compare]"``. All are of y
    at the query, and of the embeddings.

    Args:
        model: the model to measure, in float32 or float64: a `TransformerBridge` from `load` or your own.
        prompt: the prompt as text or token ids of shape (position), several of equal length, or a `capture` of them.
            Useful confidence intervals need at least about twenty prompts.
        positions: positions over which agreement is computed, as indices into the tokens; by default all except BOS,
            the query and the tokens that `attention_sinks` finds. Leave out the words of the task, since they differ
            in kind from its digits. Spans of a single prompt, as `jacobian_norms` takes them, are measured in place of
            tokens: ``"words"``, ``"sentences"``, …; or positions by name. Spans with BOS or the query are left out,
            those with a sink are not compared. Derivatives, bounds and effects are of all tokens of a span at once.
            Attention weights are summed over it, and gradients have their root of the sum of squares.
        estimates: estimates to include, given as names or starts of names; all by default. ``["analytic"]`` includes
            the eight bounds with analytic edges and the Jacobians that they bound. The Jacobian and the null are always
            included.
        n_probes: number of random directions of each sketch; 16 by default.
        candidates, n_replacements: as in `substitution_effect`, with token ids.
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
        `refused` has the reason. `prompt_agreement` has the correlation in each prompt, `noise_ceiling` over
        (reference, prompt) is as in `substitution_effect`, NaN for effects without random draws, and `seconds` is over
        (estimate). `squashlens.results.pooled` joins audits of different prompts.

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
    positive(n_probes, "n_probes", "a number of directions")
    positive(n_replacements, "n_replacements", "a number of tokens")
    named = isinstance(positions, str | Mapping)
    spans = cast(SpansOfTokens, positions if named else None)
    chosen = None if named or positions is None else [*cast("Iterable[int]", positions)]
    names = None if estimates is None else [*estimates]
    seed = seed_of(seed)
    session = Session.start(
        model, prompt, "audit", positions=spans if named else chosen, estimates=names,
        n_probes=n_probes, candidates=candidates, n_replacements=n_replacements, query=query, seed=seed,
    )  # fmt: skip
    _require_comparable(session.model)
    norms = resolved(Estimation(), session.model, ("exact", "sketch"))
    session = session.knowing(jacobian=norms.method, jacobian_probes=norms.n_probes)
    n, first = session.query(query), session.facts["bos_count"]
    if chosen is None:
        require_replaceable(first, n)
    places = _content(session, chosen, n)
    _, groups = Spans.of(session, spans)
    if groups is not None:
        groups = groups.inside(first, n)
        places = [k for k, inside in enumerate(groups.positions) if {*inside} <= {*places}]
    every = [*all_estimates(n, n_probes, candidates, n_replacements, seed, groups and groups.named())]
    selected = choose(every, names)
    if any(estimate.name == SWAP for estimate in selected):
        require_choices(session, candidates, range(first, n + 1))
    _warm_up(session, n)
    values, seconds, refused, ceilings = {}, {}, {}, {}
    size = n + 1 if groups is None else len(groups.names)
    for estimate in bar(selected, desc="audit", unit="estimate"):
        start = time.perf_counter()
        try:
            found = estimate.measure(session.model, session.ids)
            values[estimate.name] = _of_places(estimate, np.atleast_2d(found.values), groups)[:, :size]
            if CEILING in found.coords:
                ceilings[estimate.name] = np.atleast_1d(found[CEILING].values)
        except (UnsoundModelError, InputError) as error:  # a model that does not support one may support the others
            missing = isinstance(error, InputError) and estimate.kind != "attribution"
            if estimate.name in (TRUTH, NULL) or missing:
                raise
            values[estimate.name], refused[estimate.name] = np.full((len(session.ids), size), np.nan), str(error)
        seconds[estimate.name] = np.nan if estimate.name in refused else time.perf_counter() - start
    labelled = session if groups is None else groups.labelling(session)
    return _assemble(labelled, selected, values, seconds, refused, ceilings, places)


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
    once: Any = {"method": "sketch", "n_probes": 1}
    for freeze in ((), *choices_of(Freezable)):
        with suppress(UnsoundModelError):  # the estimate itself raises it again
            jacobian_norms(session.model, session.ids[:1], norm="frobenius", freeze=freeze, query=query, **once)


def _content(session: Session, chosen: list[int] | None, query: int) -> list[int]:
    """The positions over which agreement is computed."""
    if chosen is None:
        rows = [Session.without_prompt(session.model, ids, "audit") for ids in session.ids]
        blocks = range(n_blocks(session.model))
        shares = [shares_beyond_uniform(row, patterns_of(row, "model", blocks)) for row in rows]
        sinks = torch.stack([are_sinks(share) for share in shares]).any(dim=0)
        return [place for place in range(session.facts["bos_count"], query) if not sinks[place]]
    places = sorted({*chosen})
    require_places(places, 0, query)
    return places


def _of_places(estimate: Estimate, values: np.ndarray, groups: Spans | None) -> np.ndarray:
    """The values of spans, from those of tokens where the estimate does not take spans itself."""
    if groups is None or estimate.combined is None:
        return values
    if estimate.combined == "refused":
        raise InputError("It has no value for several tokens together.", "Measure tokens.")
    combine = groups.sums if estimate.combined == "sum" else groups.root_sum_squares
    return combine(torch.from_numpy(values)).numpy()


def _assemble(
    session: Session, estimates: list[Estimate], values: dict[str, np.ndarray], seconds: dict[str, float],
    refused: dict[str, str], ceilings: dict[str, np.ndarray], places: list[int],
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
    dims, size = ("estimate", "prompt", "position"), stacked.shape[-1]
    nothing = np.full(len(session.ids), np.nan)
    ceiling = np.stack([ceilings.get(name, nothing) for name in references])
    held = session.coords()[1]
    tokens = {name: np.atleast_2d(held[name][1])[:, :size] for name in ("token", "token_id")}
    at = held.get("position", np.arange(size))[:size]
    coords = {
        "estimate": names, "kind": ("estimate", [one.kind for one in estimates]), "reference": references,
        "way": list(WAYS), "bounds": ("estimate", [one.bounds or "" for one in estimates]),
        "prompt": np.arange(len(session.ids)), "position": at,
        "content": ("position", np.isin(np.arange(size), places)),
        **{name: (("prompt", "position"), label) for name, label in tokens.items()},
        **{name: label for name, label in held.items() if name == "span_size"},
        "refused": ("estimate", [refused.get(name, "") for name in names]),
    }  # fmt: skip
    return session.dataset(
        "audit of sensitivity measures", coords,
        {
            "value": (dims, stacked, "sensitivity measure", "1, or the unit of the estimate"),
            "tightness": (dims, tight, "bound divided by the Jacobian norm that it bounds", "1"),
            "over_jacobian": (dims, over, "measure divided by the spectral Jacobian norm", "1"),
            "cost": (("estimate",), [seconds[n] / seconds[TRUTH] for n in names], COST, "1"),
            "seconds": (("estimate",), [seconds[n] for n in names], "time that the estimate took", "s"),
            "prompt_agreement": ((*GRID, "prompt"), each, RHO, "1"),
            CEILING: (("reference", "prompt"), ceiling, CEILING_TEXT, "1"),
            **_means(each, each[names.index(TRUTH)], "agreement_over_jacobian", "the Jacobian"),
        },
    )  # fmt: skip


def _means(each: Tensor, base: Tensor, gain: str, of_base: str) -> Labelled:
    """Mean agreement over prompts, with ends from -1 to 1, and its mean difference from that of `base`."""
    ahead = each - base  # in pairs: what all methods find hard in a prompt cancels
    text = f"{RHO}, mean over prompts"
    means = with_ends("agreement", GRID, [end.clamp(-1, 1) for end in mean_interval(each)], text)
    return means | with_ends(gain, GRID, mean_interval(ahead), f"{text}, minus that of {of_base}")


@validated
def pooled(audits: Sequence[xr.Dataset], *, base: str = TRUTH) -> xr.Dataset:
    """The agreement of estimates over the prompts of several audits, such as one audit of each of many texts.

    Args:
        audits: results of `squashlens.audit`, or of this function, with the same estimates; prompts may have different
            lengths, or spans.
        base: the estimate from which differences are taken; the exact Jacobian by default.

    Returns:
        Dataset. Over (estimate, reference, way): `agreement`, Spearman's ρ with the reference, mean over prompts, and
        `gain`, its mean difference from that of `base` in the same prompt; both with `_low` and `_high`, the ends of
        their 95 % intervals over prompts (Student's t). Over prompts: `prompt_agreement`, `noise_ceiling` of the
        references, `seconds` of the estimates, and `places`, the numbers of tokens or spans that were compared.

    Raises:
        InputError: no audits, results of other measurements, audits of different models or with different estimates, or
            a `base` that is not among these.
    """
    for one in audits:
        require(one, "audits", "squashlens.audit", {"prompt_agreement": "estimate prompt reference way"})
    if not audits or any(not one["estimate"].equals(audits[0]["estimate"]) for one in audits):
        raise InputError("The audits have different estimates, or there is none.", "Give the same estimates= to each.")
    facts = of_several([facts_of(one) for one in audits])
    if isinstance(facts.get("fingerprint"), list):
        raise InputError("The audits are of different models.", "Pool the audits of each model.")
    names = audits[0]["estimate"].values.tolist()
    if base not in names:
        raise InputError(f"base={base!r} is not an estimate.", f"Choose from: {', '.join(names)}.")
    counts = [one["places"] if "places" in one else one["content"].sum() for one in audits]

    def of_prompts(values: Sequence[xr.DataArray], dims: tuple[str, ...]) -> np.ndarray:
        """The values of all prompts; what was measured once for an audit holds for each of its prompts."""
        parts = [v.values if "prompt" in v.dims else v.expand_dims(prompt=a["prompt"], axis=-1).values
                 for v, a in zip(values, audits, strict=True)]  # fmt: skip
        return np.concatenate([part.reshape(*part.shape[: len(dims)], -1) for part in parts], axis=-1)

    each = torch.from_numpy(of_prompts([one["prompt_agreement"] for one in audits], GRID))
    variables: Labelled = {
        **_means(each, each[names.index(base)], "gain", base),
        "prompt_agreement": ((*GRID, "prompt"), each.numpy(), RHO, "1"),
        "seconds": (("estimate", "prompt"), of_prompts([a["seconds"] for a in audits], ("estimate",)), "time", "s"),
        CEILING: (("reference", "prompt"), of_prompts([a[CEILING] for a in audits], ("reference",)), CEILING_TEXT, "1"),
        "places": (("prompt",), of_prompts(counts, ()), "tokens or spans that were compared", "1"),
    }
    coords = {name: audits[0][name].values for name in GRID} | {
        "kind": ("estimate", audits[0]["kind"].values), "prompt": np.arange(each.shape[-1])
    }  # fmt: skip
    return signed("agreement of estimates over prompts", coords, variables, facts)


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
