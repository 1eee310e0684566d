"""Every way to say how far a token reaches, side by side: how tight, how like the truth, at what cost.

The rungs of one ladder, from the printed bound to the true Jacobian and past it to what a swap of tokens does.
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

from squashlens._typing import Bos, Bridge, Freezable, Target, choices_of, positive, shown
from squashlens.bars import bar
from squashlens.errors import InputError, UnsoundModelError
from squashlens.given import require_reference, takes
from squashlens.measure._session import Session
from squashlens.measure.jacobian import jacobian_norms
from squashlens.measure.rungs import NULL, SWAP, TRUTH, Rung, chosen, ladder
from squashlens.measure.substitution import require_choices
from squashlens.model.anatomy import dtype_of, quantisation
from squashlens.model.capture import Given
from squashlens.model.registry import measured
from squashlens.theory.ranks import bootstrap, partial_spearman, spearman

WAYS = ("raw", "partial", "over_null")


@measured
def audit(
    model: Bridge,
    prompts: Given,
    *,
    content: Iterable[int] | None = None,
    rungs: Iterable[str] | None = None,
    probes: int = 16,
    replacements: int = 8,
    among: Iterable[int] | None = None,
    query: int = -1,
    source: int = 0,
    target: Target = "y",
    seed: int = 0,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.Dataset:
    """Each rung's values, and three questions: is it tight, does it order tokens as the truth does, at what cost?

    Rungs: the printed bound and its null; measured bounds (analytic edges for each of the eight freeze sets, attention
    edges, exact edges, two blocks at a time); sketches, one of them raised to a bound; Jacobians (spectral for each
    freeze set, Frobenius); the substitution effect; the proxies rollout, one all-ones cotangent, top-logit gradient.

    Refuses half precision and quantised weights, of which bounds and Jacobian are not about the same function.

    Variables:
        value: (rung, prompt, position), dimensionless; the substitution effect in the model's units.
        tightness: a bound ÷ the spectral Jacobian that it bounds (same freeze set); NaN for what bounds nothing.
        over_jacobian: value ÷ the true spectral Jacobian; NaN for the swap, which is a distance.
        cost: seconds ÷ those of the exact spectral Jacobian, in this run.
        agreement: (rung, reference, way), Spearman's ρ with the Jacobian or the substitution effect over `content`,
            mean over prompts: ``raw``; ``partial``, position held; ``over_null``, the rung divided by the null.
        agreement_low, agreement_high: 95 % bootstrap over prompts, seeded; NaN for one prompt.
        A rung that cannot be had of a model is NaN throughout, with the reason in the coordinate `refused`.

    Args:
        prompts: one or several of equal length; intervals want twenty or more.
        content: positions that agreement is taken over; all but BOS and the query if not given. Leave the words
            of the task out: they differ in kind from its digits.
        rungs: names to keep, the Jacobian and null always among them; all if not given. A name that starts with
            what is given is kept, so ``["analytic"]`` keeps eight, and the Jacobians that they bound.
        probes: directions of the sketch.
        replacements, among: for `substitution_effect`.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> found = sl.audit(model, "110 = 2", rungs=["exact", "rollout"], progress=False)
    >>> found["rung"].values.tolist()
    ['null', 'exact edges', 'exact edges, attention frozen', 'rollout', 'Jacobian, attention frozen', 'Jacobian']
    >>> bool((found["tightness"].sel(rung="exact edges") >= 1).all())
    True
    """
    positive(probes, "probes", "a number of directions")
    positive(replacements, "replacements", "a number of tokens")
    given = {"content": content, "rungs": rungs, "among": among}
    lists: dict[str, list[Any] | None] = {name: None if v is None else list(v) for name, v in given.items()}
    session = Session.start(
        model, prompts, bos, "audit", **lists,
        probes=probes, replacements=replacements, query=query, source=source, target=target, seed=seed,
    )  # fmt: skip
    _require_comparable(session)
    session.spans(source, target)
    n = session.query(query)
    places = _content(session, lists["content"], n)
    all_rungs = ladder(
        query=n, source=source, target=target, probes=probes,
        replacements=replacements, among=lists["among"], seed=seed,
    )  # fmt: skip
    taken = chosen(list(all_rungs), lists["rungs"])
    if any(rung.name == SWAP for rung in taken):
        require_choices(session, lists["among"], range(session.facts["bos_count"], n + 1))
    _warm_up(session, n)
    values, seconds, refused = {}, {}, {}
    for rung in bar(taken, desc="audit", unit="rung", progress=progress):
        start = time.perf_counter()
        try:
            found = rung.measure(session.model, session.ids).values
        except UnsoundModelError as error:  # a family without this rung has the others
            if rung.name in (TRUTH, NULL):
                raise
            found, refused[rung.name] = np.full(session.ids.shape, np.nan), str(error)
        seconds[rung.name] = np.nan if rung.name in refused else time.perf_counter() - start
        values[rung.name] = np.atleast_2d(found)[:, : n + 1]
    dataset = _assemble(session, taken, values, seconds, places, n, seed)
    return dataset.assign_coords(refused=("rung", [refused.get(rung.name, "") for rung in taken]))


def _require_comparable(session: Session) -> None:
    """Refuse, before any work, a model of which bounds and Jacobians are not about the same function."""
    kind = quantisation(session.model)
    dtype = dtype_of(session.model)
    if kind is not None or dtype.itemsize < 4:
        what = f"quantised ({kind})" if kind is not None else str(dtype).removeprefix("torch.")
        raise InputError(
            f"The model is {what}: its Jacobian is not that of its weights, which is what the bounds are for.",
            "Load it in float32, without quantisation.",
        )


def _warm_up(session: Session, query: int) -> None:
    """What is done once per model, proofs and probes, is done before anything is timed."""
    for freeze in ((), *choices_of(Freezable)):
        with suppress(UnsoundModelError):  # the rung itself will say so
            jacobian_norms(
                session.model, session.ids[:1], norm="frobenius", freeze=freeze, method="sketch", probes=1,
                query=query, bos="as-given", progress=False,
            )  # fmt: skip


def _content(session: Session, content: Iterable[int] | None, query: int) -> list[int]:
    if content is None:
        return list(range(session.facts["bos_count"], query))
    places = sorted(set(content))
    if not places or any(isinstance(p, bool) or not isinstance(p, int) or not 0 <= p <= query for p in places):
        raise InputError(f"content={shown(places)} are not positions up to the query.", f"Use 0 to {query}.")
    return places


def _assemble(
    session: Session, rungs: list[Rung], values: dict[str, np.ndarray], seconds: dict[str, float],
    places: list[int], query: int, seed: int,
) -> xr.Dataset:  # fmt: skip
    names = [rung.name for rung in rungs]
    stacked = np.stack([values[name] for name in names])
    tight = np.full_like(stacked, np.nan)
    for place, rung in enumerate(rungs):
        if rung.bounds is not None:
            tight[place] = values[rung.name] / values[rung.bounds]
    over = stacked / values[TRUTH]
    over[[rung.kind == "swap" for rung in rungs]] = np.nan  # a distance, not a norm of a derivative
    references = [name for name in (TRUTH, SWAP) if name in values]
    null, position = _at(values[NULL], places), torch.tensor(places, dtype=torch.float64)
    table = torch.full((3, len(names), len(references), len(WAYS)), torch.nan, dtype=torch.float64)
    for (i, name), (j, reference) in itertools.product(enumerate(names), enumerate(references)):
        mine, truth = _at(values[name], places), _at(values[reference], places)
        by_prompt = torch.stack(
            [spearman(mine, truth), partial_spearman(mine, truth, position), spearman(mine / null, truth)]
        )
        table[0, i, j] = by_prompt.nanmean(dim=-1)
        table[1, i, j], table[2, i, j] = bootstrap(by_prompt, seed)
    dims = ("rung", "prompt", "position")
    text = "Spearman correlation with the reference over content positions"
    grid = ("rung", "reference", "way")
    _, coords = session.coords()
    coords = {name: coord for name, coord in coords.items() if name in ("token", "token_id")}
    dataset = session.dataset(
        "audit of sensitivity measures",
        {"rung": names, "kind": ("rung", [r.kind for r in rungs]), "reference": references, "way": list(WAYS),
         "bounds": ("rung", [r.bounds or "" for r in rungs]), "prompt": np.arange(len(session.ids)),
         "position": np.arange(query + 1), "content": ("position", np.isin(np.arange(query + 1), places))},
        {
            "value": (dims, stacked, "sensitivity measure", "1, or the model's for a swap"),
            "tightness": (dims, tight, "bound over the Jacobian it bounds", "1"),
            "over_jacobian": (dims, over, "measure over the spectral Jacobian", "1"),
            "cost": (("rung",), [seconds[n] / seconds[TRUTH] for n in names], "time over the exact Jacobian's", "1"),
            "agreement": (grid, table[0], text, "1"),
            "agreement_low": (grid, table[1], f"{text}, 2.5 % bootstrap", "1"),
            "agreement_high": (grid, table[2], f"{text}, 97.5 % bootstrap", "1"),
        },
    )  # fmt: skip
    labels = {name: np.atleast_2d(coord[1])[:, : query + 1] for name, coord in coords.items()}
    return dataset.assign_coords({name: (("prompt", "position"), values) for name, values in labels.items()})


def _at(values: np.ndarray, places: list[int]) -> torch.Tensor:
    return torch.from_numpy(values[:, places])


@takes(
    "squashlens.audit",
    "tightness over_jacobian: rung prompt position",
    "agreement: rung reference way",
    "content: position",
    "cost: rung",
)
def audit_table(audit: xr.Dataset, reference: str = TRUTH) -> pd.DataFrame:
    """An audit as a table of one row a rung: medians over content positions, agreement with `reference`, cost.

    Columns: `tightness` and `over_jacobian` (medians), `least` (the least tightness anywhere, 1 or more for every
    bound), `raw`, `partial`, `over_null` (agreement), `cost`.
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
    return pd.DataFrame({name: column.values for name, column in columns.items()}, index=audit["rung"].values)
