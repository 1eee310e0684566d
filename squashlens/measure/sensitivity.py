"""The main job in one call: the path bound, its null and the true Jacobian, side by side for every token."""

from typing import Any

import numpy as np
import torch
import xarray as xr

from squashlens._typing import AttentionKind, Bos, Bridge, Norm
from squashlens.bars import bar
from squashlens.measure._session import Session
from squashlens.measure._unequal import one_by_one
from squashlens.measure.bound import path_bound
from squashlens.measure.jacobian import jacobian_norms
from squashlens.model.capture import Given
from squashlens.model.registry import measured
from squashlens.results import attributes
from squashlens.theory.trends import association, difference

ESTIMATES = ("path_bound", "null", "bound_over_null", "jacobian_frozen", "jacobian")


@measured
@one_by_one(always=True)
def sensitivity(
    model: Bridge,
    prompts: Given,
    *,
    norm: Norm = "spectral",
    query: int = -1,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.Dataset:
    """How far each token reaches y_n: what Theorem 5.1 says, what attention alone would give, what is true.

    One prompt, or several measured one by one. Variables over `position` (all dimensionless): `path_bound`
    (constants 1), `null` (the same under uniform attention), `bound_over_null`, `jacobian` (‖∂y_n/∂v⁽⁰⁾_i‖) and
    `jacobian_frozen` (the same with attention patterns held constant, as the theorem assumes). Positions behind the
    query are left out.

    Over `estimate`: `rank_agreement`, Spearman's ρ of each with the Jacobian, and `position_trend`, its ρ
    with the position. Each has the ends of its 95 % interval, `…_low` and `…_high`, and `…_p`, the p-value of no
    association, corrected by Holm for the estimates that are tested; both allow for dependence between neighbouring
    tokens (`squashlens.theory.trends`). `agreement_over_null`, with its interval, is the path bound's ρ less the
    null's. All leave out the query token and a leading BOS, whose values are of another kind. ρ is NaN with fewer
    than three tokens left, or for a constant quantity; intervals need four tokens.

    Returns:
        Dataset; of several prompts with a leading dimension `prompt`, each with the numbers of a call for it alone. A
        shorter prompt is padded: behind its own tokens, of which the coordinate `length` has the number, values are
        NaN, the token is "" and the token_id −1.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ds = sl.sensitivity(model, "How many ones are in the following sequence? 110 =", progress=False)
    >>> bool((ds["jacobian"] > 0).all()), round(ds["rank_agreement"].sel(estimate="jacobian").item(), 9)
    (True, 1.0)
    """
    session = Session.start(model, prompts, bos, "sensitivity", norm=norm, query=query)
    shared = {"query": session.query(query), "bos": "as-given"}
    ids, reach = session.ids, session.query(query) + 1
    derived = {"jacobian_frozen": ("attention",), "jacobian": ()}
    found: dict[str, xr.DataArray] = {}
    with bar(total=2 + len(derived), desc="sensitivity", unit="quantity", progress=progress) as shown:
        kinds: dict[str, AttentionKind] = {"path_bound": "model", "null": "uniform"}
        for name, attention in kinds.items():
            found[name] = path_bound(model, ids, attention=attention, **shared)
            shown.update()
        over = (found["path_bound"] / found["null"]).assign_attrs(
            attributes("path bound relative to uniform attention", "1", session.facts)
        )
        found["bound_over_null"] = over
        for name, freeze in derived.items():
            found[name] = jacobian_norms(model, ids, norm=norm, freeze=freeze, progress=progress, **shared)
            shown.update()
    dataset = xr.Dataset({n: a.rename(n) for n, a in found.items()}).isel(position=slice(reach))
    plain = slice(session.facts["bos_count"], reach - 1)
    inner = dataset.isel(position=plain)
    for name, (dims, values, text) in _ranks(inner).items():
        dataset[name] = (dims, values, attributes(text, "1", session.facts))
    dataset = dataset.assign_coords(estimate=list(ESTIMATES))
    return dataset.assign_attrs(attributes("sensitivity of the query's representation", "1", session.facts))


def _ranks(inner: xr.Dataset) -> dict[str, tuple[tuple[str, ...], Any, str]]:
    """How the estimates order the tokens: beside the Jacobian, along the prompt, and the bound beside its null."""
    table = torch.tensor(np.stack([inner[name].values for name in ESTIMATES]), dtype=torch.float64)
    truth, tokens = table[ESTIMATES.index("jacobian")], table.shape[-1]
    agreement = association(table, truth)
    itself = torch.tensor([name == "jacobian" for name in ESTIMATES])  # no test: it agrees with itself
    agreement = agreement._replace(p=agreement.p.masked_fill(itself, torch.nan)).corrected()
    trend = association(table, torch.arange(tokens, dtype=torch.float64)).corrected()
    parts = agreement.named("rank_agreement", "Spearman correlation with the Jacobian norm")
    parts |= trend.named("position_trend", "Spearman correlation with the position")
    found: dict[str, Any] = {name: (("estimate",), values.numpy(), text) for name, (values, text) in parts.items()}
    ends = difference(table[ESTIMATES.index("path_bound")], table[ESTIMATES.index("null")], truth)
    text = "rank agreement of the path bound less that of its null"
    for side, value, told in zip(("", "_low", "_high"), ends, ("", ", 2.5 %", ", 97.5 %"), strict=True):
        found[f"agreement_over_null{side}"] = ((), value, text + told)
    return found | {"compared_tokens": ((), tokens, "tokens in the correlations")}
