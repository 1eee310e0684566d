"""Join results of equal form along a new dimension, each with its own provenance; `concatenation` checks and aligns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from squashlens.records.facts import together
from squashlens.records.results import R, sealed, stored_facts

ARRAY = "values of the array"  # the name of an array in the Dataset that it is joined as


def joined(
    results: Mapping[Any, R], dim: str, facts: Sequence[dict[str, Any]] | None = None, *, measured: bool = True
) -> R:
    """Results of equal form joined along a new leading `dim`, labelled by the keys; each keeps its provenance.

    `facts` are what the results store, by default as they are. `measured` says whether all of them are.
    """
    parts = list(results.values())
    stored = [stored_facts(one) for one in parts] if facts is None else facts
    labels = xr.Variable(dim, np.array(list(results)))
    sets = [one if isinstance(one, xr.Dataset) else one.to_dataset(name=ARRAY) for one in parts]
    found: Any = xr.concat(
        sets, dim=labels, data_vars="all", coords="different", compat="equals", join="exact", combine_attrs="override"
    )
    arrays = [one for one in parts if isinstance(one, xr.DataArray)]
    if arrays:
        found = found[ARRAY].rename(arrays[0].name)
        found.attrs = _certified(arrays)
    else:
        found = found.assign_attrs(parts[0].attrs)
    return sealed(found, together(dim, labels.values.tolist(), stored), measured=measured)


def _certified(arrays: Sequence[xr.DataArray]) -> dict[str, Any]:
    """The attributes that all joined arrays have in common, with the certificate of all."""
    first, stated = arrays[0].attrs, {"rounding": max, "failure_probability": sum}
    common = {
        name: value
        for name, value in first.items()
        if name not in stated and all(name in one.attrs and one.attrs[name] == value for one in arrays)
    }
    if all("estimated_tightness" in one.attrs for one in arrays):
        stated["estimated_tightness"] = max
    return common | {name: of([one.attrs[name] for one in arrays]) for name, of in stated.items() if name in first}


def restated(result: R, facts: Mapping[str, Any]) -> R:
    """The same result with additional facts, signed as it is now: for what a measurement or a figure made of it."""
    return sealed(result, stored_facts(result) | dict(facts))
