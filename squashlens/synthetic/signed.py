"""Labels and provenance of what the synthetic lab finds."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from squashlens.results import attributes, versions
from squashlens.synthetic.stack import Stack

Variable = tuple[tuple[str, ...], Any, str, str]


def facts(
    function: str, stack: Stack | None, seeds: list[int], dtype: torch.dtype, device: str, **arguments: Any
) -> dict[str, Any]:
    """What the provenance of a synthetic result says."""
    return {
        "stack": None if stack is None else asdict(stack),
        "seeds": seeds,
        "dtype": str(dtype).removeprefix("torch."),
        "device": device,
        "versions": versions(),
        "call": {"function": function} | arguments,
    }


def dataset(
    long_name: str, coords: Mapping[str, Any], variables: Mapping[str, Variable], noted: Mapping[str, Any]
) -> xr.Dataset:
    """Named variables, each (dimensions, values, long name, units), as one signed Dataset."""
    arrays = {
        name: (
            dims,
            values.numpy() if isinstance(values, Tensor) else np.asarray(values),
            attributes(text, units, noted),
        )
        for name, (dims, values, text, units) in variables.items()
    }
    return xr.Dataset(arrays, coords=coords, attrs=attributes(long_name, "as each variable says", noted))
