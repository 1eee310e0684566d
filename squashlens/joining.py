"""Join results of one measurement along a new dimension, each with its own provenance."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from squashlens.facts import together
from squashlens.results import R, sealed, stored_facts


def joined(results: Mapping[Any, R], dim: str) -> R:
    """Results of equal form joined along a new leading `dim`, labelled by the keys; each keeps its provenance.

    For certificates, `rounding` is the largest of the arrays' values, and `failure_probability` is their sum: an upper
    bound on the probability that any number of any array is too low.
    """
    parts = list(results.values())
    labels = xr.Variable(dim, np.array(list(results)))
    facts = together(dim, labels.values.tolist(), [stored_facts(one) for one in parts])
    sets = [one if isinstance(one, xr.Dataset) else one.to_dataset(name="values") for one in parts]
    found: Any = xr.concat(
        sets, dim=labels, data_vars="all", coords="different", compat="equals", join="exact", combine_attrs="override"
    )
    arrays = [one for one in parts if isinstance(one, xr.DataArray)]
    if arrays:
        found = found["values"].rename(arrays[0].name).assign_attrs(_certified(arrays))
    else:
        found = found.assign_attrs(parts[0].attrs)
    return sealed(found, facts)


def _certified(arrays: Sequence[xr.DataArray]) -> dict[str, Any]:
    """The attributes of joined arrays: those of the first, with the certificate of all."""
    first, stated = arrays[0].attrs, {"rounding": max, "failure_probability": sum}
    return first | {name: of([one.attrs[name] for one in arrays]) for name, of in stated.items() if name in first}


def restated(result: R, facts: Mapping[str, Any]) -> R:
    """The same result with additional facts; dimensions that it got since count as measured."""
    return sealed(result, stored_facts(result) | dict(facts))
