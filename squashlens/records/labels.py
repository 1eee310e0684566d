"""Labels and units: how values become an xarray object."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from squashlens.records.provenance import Facts, stated, without_provenance

Variable = tuple[tuple[str, ...], Any, str, str]  # dimensions, values, long name, units
MODEL_UNITS = "model units"  # those of activations, which differ between models
AS_IT_IS = "as it is"  # the name of the model without a change in what `compare_interventions` gives


def position_coords(
    ids: np.ndarray, labels: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Dimensions and coordinates of a per-token result, from ids (prompt, position) and the text of each token.

    A single prompt has no `prompt` dimension.
    """
    tokens = np.array(labels, dtype=object)
    positions = np.arange(ids.shape[1])
    coords: dict[str, Any] = {"position": positions}
    if len(ids) == 1:
        dims = ("position",)
        tokens = tokens[0]
        ids = ids[0]
    else:
        dims = ("prompt", "position")
        coords["prompt"] = np.arange(len(ids))
    return dims, {**coords, "token": (dims, tokens), "token_id": (dims, ids)}


def attributes(long_name: str, units: str) -> dict[str, str]:
    """The attributes of one variable: what it is, and its units."""
    return {"long_name": long_name, "units": units}


def arrays_of(variables: Mapping[str, Variable]) -> dict[str, Any]:
    """Named variables as a Dataset takes them."""
    return {
        name: (dims, np.asarray(values), attributes(long_name, units))
        for name, (dims, values, long_name, units) in variables.items()
    }


def as_variable(result: xr.DataArray, name: str) -> xr.DataArray:
    """A result as a variable of a Dataset, which has a provenance of its own."""
    variable = without_provenance(result).rename(name)
    variable.attrs = attributes(result.attrs["long_name"], result.attrs["units"])
    return variable


def array_of(
    name: str, coords: Mapping[str, Any], variable: Variable, facts: Facts
) -> xr.DataArray:
    """A DataArray of one variable, given as (dimensions, values, long name, units), with its provenance."""
    dims, values, long_name, units = variable
    return xr.DataArray(
        np.asarray(values),
        coords={**coords, **stated(facts)},
        dims=dims,
        name=name,
        attrs=attributes(long_name, units),
    )


def dataset_of(
    long_name: str,
    coords: Mapping[str, Any],
    variables: Mapping[str, Variable],
    facts: Facts,
) -> xr.Dataset:
    """A Dataset of named variables, each given as (dimensions, values, long name, units).

    Its provenance is a coordinate, which xarray keeps where it is true.
    """
    return xr.Dataset(
        arrays_of(variables),
        coords={**coords, **stated(facts)},
        attrs={"long_name": long_name},
    )
