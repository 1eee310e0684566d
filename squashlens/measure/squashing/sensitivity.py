"""The path bound, its null and the true Jacobian norm of every token, in one call and one result."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr

from squashlens._typing import AttentionKind, Bos, Bridge, Norm, Pieces
from squashlens.bars import bar
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.proving.proof import require_sound
from squashlens.measure.measurement import measurement
from squashlens.measure.session import Session
from squashlens.measure.squashing.bound import path_bound
from squashlens.measure.squashing.jacobians.jacobian import jacobian_norms
from squashlens.measure.squashing.jacobians.sketch import PROBES, resolved
from squashlens.measure.squashing.spans import Spans, recorded
from squashlens.measure.unequal import one_by_one
from squashlens.records.results import as_variable, attributes, sealed
from squashlens.theory.probes import seed_of
from squashlens.theory.statistics.trends import association, difference

ESTIMATES = ("path_bound", "null", "bound_over_null", "jacobian_frozen", "jacobian")
ENDS = ("low", "high")


@measurement("attribution")
@one_by_one(always=True)
def sensitivity(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    norm: Norm = "spectral",
    method: Literal["auto", "exact", "sketch"] = "auto",
    seed: int | None = None,
    query: int = -1,
    spans: Pieces | Mapping[str, Sequence[int]] | None = None,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.Dataset:
    """Sensitivity of y_n to each token: the path bound of Theorem 5.1, its null, and the true Jacobian norms.

    The result also says how well the bound and the null rank the tokens, compared with the Jacobian. Several prompts
    are measured one by one.

    Args:
        model: as in `path_bound`.
        prompt: as in `path_bound`.
        norm: norm of the Jacobian: ``"spectral"`` (the default), the largest singular value, or ``"frobenius"``, the
            root of the sum of squares.
        method: way to compute the Jacobian norms, as in `jacobian_norms`; both have the same directions.
        seed: as in `jacobian_norms`.
        query: as in `path_bound`.
        spans: as in `jacobian_norms` and `path_bound`; the correlations are then over spans, without any that has the
            query token or BOS.
        bos: as in `path_bound`.
        progress: as in `path_bound`.

    Returns:
        Dataset. Over (position) up to the query, all dimensionless: `path_bound`, with the constants 1; `null`, the
        same under uniform attention; `bound_over_null`, their ratio; `jacobian`, ‖∂y_n/∂v⁽⁰⁾_i‖; `jacobian_frozen`, the
        same with attention patterns held constant, as the theorem assumes. Sketched ones also have `…_low` and
        `…_high`, intervals that hold for all tokens together with 95 % probability. Over (estimate), with these five as
        coordinate: `rank_agreement`, Spearman's ρ with the Jacobian, and `position_trend`, Spearman's ρ with the
        position. Each has `…_low` and `…_high`, the ends of a 95 % interval, and `…_p`, the p-value of no association,
        Holm-corrected for the estimates tested; both allow for dependence between neighbouring tokens
        (`squashlens.theory.statistics.trends`). Scalars: `agreement_over_null`, ρ of the path bound minus ρ of the
        null, with `_low` and `_high`; `compared_tokens`, the number of tokens in the correlations. Correlations leave
        out the query token and a leading BOS, whose values are of another kind. ρ is NaN for a constant quantity or
        with fewer than three tokens; intervals need four tokens.

        Several prompts have a leading dimension `prompt`, and each has the numbers of a call for it alone. After a
        prompt's own tokens, whose number is the coordinate `length`, values are NaN, `token` is "" and `token_id` is
        −1. With `spans`, values are those of spans, labelled as in `jacobian_norms`.

    Raises:
        InputError: a query or span outside the prompt, or spans of several prompts.

    Source: Barbero et al. 2024, Theorem 5.1.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ds = sl.sensitivity(model, "How many ones are in the following sequence? 110 =", progress=False)
    >>> bool((ds["jacobian"] > 0).all()), round(ds["rank_agreement"].sel(estimate="jacobian").item(), 9)
    (True, 1.0)
    """
    model = require_sound(model)
    method = resolved(method, model, PROBES)
    seed = seed_of(seed, certifies=False)
    session = Session.start(
        model, prompt, bos, "sensitivity", norm=norm, method=method, seed=seed, query=query, **recorded(spans)
    )
    groups = Spans.of(session, spans)
    named = None if groups is None else dict(zip(map(str, range(len(groups.names))), groups.positions, strict=True))
    shared: dict[str, Any] = {"query": session.query(query), "bos": "as-given", "spans": named}
    ids, reach = session.ids, session.query(query) + 1
    derived = {"jacobian_frozen": ("attention",), "jacobian": ()}
    found: dict[str, xr.DataArray] = {}
    with bar(total=2 + len(derived), desc="sensitivity", unit="quantity", progress=progress) as progress_bar:
        kinds: dict[str, AttentionKind] = {"path_bound": "model", "null": "uniform"}
        for name, attention in kinds.items():
            found[name] = path_bound(model, ids, attention=attention, **shared)
            progress_bar.update()
        found["bound_over_null"] = (found["path_bound"] / found["null"]).assign_attrs(
            attributes("path bound relative to uniform attention", "1")
        )
        for name, freeze in derived.items():
            norms = jacobian_norms(
                model, ids, norm=norm, freeze=freeze, method=method, seed=seed, progress=progress, **shared
            )
            found[name] = norms.drop_vars(ENDS, errors="ignore")
            found |= {f"{name}_{end}": norms[end].drop_vars(ENDS) for end in ENDS if end in norms.coords}
            progress_bar.update()
    dataset = xr.Dataset({n: as_variable(a, n) for n, a in found.items()})
    first, facts = session.facts["bos_count"], session.facts
    if groups is None:
        dataset = dataset.isel(position=slice(reach))
        inner = dataset.isel(position=slice(first, reach - 1))
    else:
        kept = groups.places(0, reach, some=True)
        facts = {**facts, "spans": [groups.positions[k] for k in kept]}
        dataset = dataset.assign_coords(groups.coords()).isel(position=kept)
        inner = dataset.isel(position=[kept.index(k) for k in groups.places(first, reach - 1)])
    for name, (dims, values, text) in _ranks(inner, norm).items():
        dataset[name] = (dims, values, attributes(text, "1"))
    dataset = dataset.assign_coords(estimate=list(ESTIMATES))
    return sealed(dataset.assign_attrs(long_name="sensitivity of the query's representation"), facts)


def _ranks(inner: xr.Dataset, norm: Norm) -> dict[str, tuple[tuple[str, ...], Any, str]]:
    """Rank correlations of the estimates with the Jacobian and the position, and the bound's gain over its null."""
    table = torch.tensor(np.stack([inner[name].values for name in ESTIMATES]), dtype=torch.float64)
    truth, tokens = table[ESTIMATES.index("jacobian")], table.shape[-1]
    agreement = association(table, truth)
    itself = torch.tensor([name == "jacobian" for name in ESTIMATES])  # agrees with itself, so it is not tested
    agreement = agreement._replace(p=agreement.p.masked_fill(itself, torch.nan)).corrected()
    trend = association(table, torch.arange(tokens, dtype=torch.float64)).corrected()
    parts = agreement.named("rank_agreement", f"Spearman correlation with the {norm} norm of the Jacobian")
    parts |= trend.named("position_trend", f"Spearman correlation with the position, of the Jacobian's {norm} norm")
    found: dict[str, Any] = {name: (("estimate",), values.numpy(), text) for name, (values, text) in parts.items()}
    ends = difference(table[ESTIMATES.index("path_bound")], table[ESTIMATES.index("null")], truth)
    text = f"rank agreement of the path bound with the {norm} norm of the Jacobian minus that of its null"
    for side, value, end in zip(("", "_low", "_high"), ends, ("", ", 2.5 %", ", 97.5 %"), strict=True):
        found[f"agreement_over_null{side}"] = ((), value, text + end)
    return found | {"compared_tokens": ((), tokens, "tokens in the correlations")}
