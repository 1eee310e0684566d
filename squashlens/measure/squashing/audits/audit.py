"""An audit of all sensitivity measures on the same prompts: how tight, how close to the truth, and at what cost.

The estimates range from the printed path bound over certified bounds to the true Jacobian, and to the replacement of
tokens.
"""

import itertools
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

from squashlens._typing import Bos, Bridge, Freezable, Target, choices_of, dtype_name, positive
from squashlens.bars import bar
from squashlens.checks.results import require_reference, takes
from squashlens.engine.anatomy import dtype_of, quantization
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure.measurement import measurement
from squashlens.measure.session import Session, require_places
from squashlens.measure.squashing.audits.attributions import captum_for
from squashlens.measure.squashing.audits.estimates import LEFT_OUT, NULL, SWAP, TRUTH, Estimate, all_estimates, chosen
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.substitution import require_choices, require_replaceable
from squashlens.theory.probes import seed_of
from squashlens.theory.statistics.ranks import bootstrap, partial_spearman, spearman

WAYS = ("raw", "partial", "over_null")
COST = "time divided by that of the exact Jacobian"


# More than ten parameters, since each is an independent option of the measurement; all have defaults.
@measurement("audit")
def audit(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    positions: Iterable[int] | None = None,
    estimates: Iterable[str] | None = None,
    n_probes: int = 16,
    n_replacements: int = 8,
    candidates: Iterable[int] | None = None,
    query: int = -1,
    from_layer: int = 0,
    to_layer: Target = "y",
    seed: int | None = None,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.Dataset:
    """Compare all sensitivity measures: how tight each is, how it ranks the tokens, and how long it takes.

    The estimates are: the printed path bound and its null; certified bounds (analytic edges for each of the eight
    freeze sets, local edges, attention edges, exact edges, two blocks composed); sketches of the Jacobian, one of them
    a certified upper bound; Jacobians (the spectral norm for each freeze set, the Frobenius norm); the substitution
    effect; and the proxies rollout, all-ones cotangent and top-logit gradient. From the embeddings to ``"y"`` they are
    also attribution methods that other libraries offer, and the metric by which Jacobian Scopes (arXiv 2601.16407)
    judges them: gradient times input, integrated gradients and occlusion (captum), AttnLRP (LXT), value-weighted
    attention, and leave-one-out KL, the change of the next token's distribution when a token's embedding is set to 0.
    captum and LXT come with ``pip install "squashlens[compare]"``.

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
        n_replacements: as in `substitution_effect`.
        candidates: as in `substitution_effect`.
        query: as in `path_bound`.
        from_layer: as in `path_bound`.
        to_layer: layer at which influence is measured: a number ℓ for v⁽ℓ⁾, or ``"y"`` (the default) for the output
            of the final norm.
        seed: random seed of certificates, sketches, replacements and bootstrap; by default as in `jacobian_norms`.
        bos: as in `path_bound`.
        progress: as in `path_bound`.

    Returns:
        Dataset. Over (estimate, prompt, position): `value`, dimensionless, in logits for attributions, in nats for
        leave-one-out KL, in the model's units for the substitution effect and value-weighted attention; `tightness`, a
        bound divided by the spectral norm of the Jacobian that it bounds (same freeze set), NaN for an estimate that is
        not a bound; `over_jacobian`, the value divided by the true spectral norm, NaN for what is not the norm of a
        derivative: attributions, leave-one-out KL and the substitution effect. Over (estimate): `cost`, the time
        divided by that of the exact spectral norm in this run. Over (estimate, reference, way): `agreement`, Spearman's
        ρ with the Jacobian, the substitution effect or leave-one-out KL over `positions`, mean over prompts. The
        coordinate `way` is ``"raw"``; ``"partial"``, which controls for the position; or ``"over_null"``, which divides
        the estimate by the null. `agreement_low` and `agreement_high` are the ends of its 95 % bootstrap interval over
        prompts, NaN for one prompt. An estimate that the model does not support, or whose library is missing, is NaN,
        and the coordinate `refused` has the reason.

    Raises:
        InputError: a model in half precision or with quantized weights, whose bounds and Jacobians describe different
            functions; unknown estimates, or positions after the query.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> found = sl.audit(model, "110 = 2", estimates=["exact", "rollout"], progress=False)
    >>> found["estimate"].values.tolist()
    ['null', 'exact edges', 'exact edges, attention frozen', 'rollout', 'Jacobian, attention frozen', 'Jacobian']
    >>> bool((found["tightness"].sel(estimate="exact edges") >= 1).all())
    True
    """
    positive(n_probes, "n_probes", "a number of directions")
    positive(n_replacements, "n_replacements", "a number of tokens")
    given = {"positions": positions, "estimates": estimates, "candidates": candidates}
    lists: dict[str, list[Any] | None] = {name: None if v is None else list(v) for name, v in given.items()}
    seed = seed_of(seed)
    session = Session.start(
        model, prompt, bos, "audit", **lists,
        n_probes=n_probes, n_replacements=n_replacements, query=query, from_layer=from_layer, to_layer=to_layer,
        seed=seed,
    )  # fmt: skip
    _require_comparable(session)
    session.spans(from_layer, to_layer)
    n = session.query(query)
    if lists["positions"] is None:
        require_replaceable(session.facts["bos_count"], n)
    places = _content(session, lists["positions"], n)
    every_estimate = all_estimates(
        query=n, from_layer=from_layer, to_layer=to_layer, n_probes=n_probes,
        n_replacements=n_replacements, candidates=lists["candidates"], seed=seed,
    )  # fmt: skip
    selected = chosen(list(every_estimate), lists["estimates"])
    if any(estimate.name == SWAP for estimate in selected):
        require_choices(session, lists["candidates"], range(session.facts["bos_count"], n + 1))
    _warm_up(session, n)
    values, seconds, refused = {}, {}, {}
    for estimate in bar(selected, desc="audit", unit="estimate", progress=progress):
        start = time.perf_counter()
        try:
            found = estimate.measure(session.model, session.ids).values
        except (UnsoundModelError, InputError) as error:  # a model that does not support one may support the others
            missing = isinstance(error, InputError) and estimate.kind != "attribution"
            if estimate.name in (TRUTH, NULL) or missing:
                raise
            found, refused[estimate.name] = np.full(session.ids.shape, np.nan), str(error)
        seconds[estimate.name] = np.nan if estimate.name in refused else time.perf_counter() - start
        values[estimate.name] = np.atleast_2d(found)[:, : n + 1]
    dataset = _assemble(session, selected, values, seconds, places, n, seed)
    return dataset.assign_coords(refused=("estimate", [refused.get(estimate.name, "") for estimate in selected]))


def _require_comparable(session: Session) -> None:
    """Raise, before any work, for a model whose bounds and Jacobians describe different functions."""
    kind = quantization(session.model)
    dtype = dtype_of(session.model)
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
    for freeze in ((), *choices_of(Freezable)):
        with suppress(UnsoundModelError):  # the estimate itself raises it again
            jacobian_norms(
                session.model, session.ids[:1], norm="frobenius", freeze=freeze, method="sketch", n_probes=1,
                query=query, bos="as-given", progress=False,
            )  # fmt: skip


def _content(session: Session, positions: Iterable[int] | None, query: int) -> list[int]:
    """The positions over which agreement is computed."""
    if positions is None:
        return list(range(session.facts["bos_count"], query))
    places = sorted({*positions})
    require_places(places, 0, query)
    return places


def _assemble(
    session: Session, estimates: list[Estimate], values: dict[str, np.ndarray], seconds: dict[str, float],
    places: list[int], query: int, seed: int,
) -> xr.Dataset:  # fmt: skip
    """The Dataset of an audit, from the values and times of its estimates."""
    names = [estimate.name for estimate in estimates]
    stacked = np.stack([values[name] for name in names])
    tight = np.full_like(stacked, np.nan)
    for place, estimate in enumerate(estimates):
        if estimate.bounds is not None:
            tight[place] = values[estimate.name] / values[estimate.bounds]
    over = stacked / values[TRUTH]
    over[[estimate.kind in ("swap", "attribution") for estimate in estimates]] = np.nan  # not norms of a derivative
    references = [name for name in (TRUTH, SWAP, LEFT_OUT) if name in values]
    null, position = _at(values[NULL], places), torch.tensor(places, dtype=torch.float64)
    table = torch.full((3, len(names), len(references), len(WAYS)), torch.nan, dtype=torch.float64)
    for (i, name), (j, reference) in itertools.product(enumerate(names), enumerate(references)):
        mine, truth = _at(values[name], places), _at(values[reference], places)
        by_prompt = torch.stack(
            [spearman(mine, truth), partial_spearman(mine, truth, position), spearman(mine / null, truth)]
        )
        table[0, i, j] = by_prompt.nanmean(dim=-1)
        table[1, i, j], table[2, i, j] = bootstrap(by_prompt, seed)
    dims = ("estimate", "prompt", "position")
    text = "Spearman correlation with the reference over content positions"
    grid = ("estimate", "reference", "way")
    _, coords = session.coords()
    coords = {name: coord for name, coord in coords.items() if name in ("token", "token_id")}
    dataset = session.dataset(
        "audit of sensitivity measures",
        {"estimate": names, "kind": ("estimate", [r.kind for r in estimates]), "reference": references,
        "way": list(WAYS),
         "bounds": ("estimate", [r.bounds or "" for r in estimates]), "prompt": np.arange(len(session.ids)),
         "position": np.arange(query + 1), "content": ("position", np.isin(np.arange(query + 1), places))},
        {
            "value": (dims, stacked, "sensitivity measure", "1, or the unit of the estimate"),
            "tightness": (dims, tight, "bound divided by the Jacobian norm that it bounds", "1"),
            "over_jacobian": (dims, over, "measure divided by the spectral Jacobian norm", "1"),
            "cost": (("estimate",), [seconds[n] / seconds[TRUTH] for n in names], COST, "1"),
            "agreement": (grid, table[0], text, "1"),
            "agreement_low": (grid, table[1], f"{text}, 2.5 % bootstrap", "1"),
            "agreement_high": (grid, table[2], f"{text}, 97.5 % bootstrap", "1"),
        },
    )  # fmt: skip
    labels = {name: np.atleast_2d(coord[1])[:, : query + 1] for name, coord in coords.items()}
    return dataset.assign_coords({name: (("prompt", "position"), values) for name, values in labels.items()})


def _at(values: np.ndarray, places: list[int]) -> torch.Tensor:
    """The values at some positions, as a tensor."""
    return torch.from_numpy(values[:, places])


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
