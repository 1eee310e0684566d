"""Select one prompt of a result that may have several."""

from typing import TypeVar

import xarray as xr

from squashlens.errors import InputError

R = TypeVar("R", xr.Dataset, xr.DataArray)


def of_one_prompt(result: R) -> R:
    """The result for the tokens of one prompt, without padding; an error if it has several prompts."""
    if "prompt" in result.dims:
        raise InputError(
            f"This result has {result.sizes['prompt']} prompts, and the figure shows one.",
            "Select one, for instance with `result.isel(prompt=0)`.",
        )
    return result.isel(position=slice(int(result["length"].item()))) if "length" in result.coords else result
