"""The main job in one call: the path bound, its null and the true Jacobian, side by side for every token."""

import numpy as np
import pandas as pd
import xarray as xr

from squashlens._typing import Bos, Bridge, Norm
from squashlens.errors import InputError
from squashlens.measure._session import Session
from squashlens.measure.bound import path_bound
from squashlens.measure.jacobian import jacobian_norms
from squashlens.model.capture import Given
from squashlens.results import attributes

ESTIMATES = ("path_bound", "null", "bound_over_null", "jacobian_frozen", "jacobian")


def sensitivity(
    model: Bridge,
    prompt: Given,
    *,
    norm: Norm = "spectral",
    query: int = -1,
    bos: Bos = "family",
    progress: bool = True,
) -> xr.Dataset:
    """How far each token reaches y_n: what Theorem 5.1 says, what attention alone would give, what is true.

    One prompt. Variables over `position` (all dimensionless): `path_bound` (constants 1), `null` (the same
    under uniform attention), `bound_over_null`, `jacobian` (‖∂y_n/∂v⁽⁰⁾_i‖) and `jacobian_frozen` (the same
    with attention patterns held constant, as the theorem assumes). Positions behind the query are left out.

    Over `estimate`: `rank_agreement`, Spearman's ρ of each with the Jacobian, and `position_trend`, its ρ
    with the position. Both leave out the query token and a leading BOS, whose values are of another kind;
    NaN with fewer than three tokens left, or a constant quantity.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ds = sl.sensitivity(model, "How many ones are in the following sequence? 110 =", progress=False)
    >>> bool((ds["jacobian"] > 0).all()), ds["rank_agreement"].sel(estimate="jacobian").item()
    (True, 1.0)
    """
    session = Session.start(model, prompt, bos, "sensitivity", norm=norm, query=query)
    if len(session.ids) != 1:
        raise InputError("sensitivity compares quantities on one prompt.", "Call it for each prompt.")
    shared = {"query": session.query(query), "bos": "as-given"}
    ids, reach = session.ids, session.query(query) + 1
    bound = path_bound(model, ids, **shared)
    null = path_bound(model, ids, attention="uniform", **shared)
    parts = {
        "path_bound": bound,
        "null": null,
        "bound_over_null": (bound / null).assign_attrs(
            attributes("path bound relative to uniform attention", "1", session.facts)
        ),
        "jacobian_frozen": jacobian_norms(model, ids, norm=norm, freeze="attention", progress=progress, **shared),
        "jacobian": jacobian_norms(model, ids, norm=norm, progress=progress, **shared),
    }
    dataset = xr.Dataset({n: a.rename(n) for n, a in parts.items()}).isel(position=slice(reach))
    plain = slice(session.facts["bos_count"], reach - 1)
    inner = dataset.isel(position=plain)
    table = pd.DataFrame({name: inner[name].values for name in ESTIMATES})
    table["position"] = np.arange(len(table))
    ranks = table.corr(method="spearman", min_periods=3)
    dataset["rank_agreement"] = ("estimate", ranks["jacobian"].loc[list(ESTIMATES)].to_numpy())
    dataset["position_trend"] = ("estimate", ranks["position"].loc[list(ESTIMATES)].to_numpy())
    dataset["compared_tokens"] = ((), len(table))
    dataset = dataset.assign_coords(estimate=list(ESTIMATES))
    texts = {
        "rank_agreement": "Spearman correlation with the Jacobian norm",
        "position_trend": "Spearman correlation with the position",
        "compared_tokens": "tokens in the correlations",
    }
    for name, text in texts.items():
        dataset[name].attrs = attributes(text, "1", session.facts)
    return dataset.assign_attrs(attributes("sensitivity of the query's representation", "1", session.facts))
