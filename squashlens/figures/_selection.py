"""Select one prompt of a result that may have several."""

import xarray as xr

from squashlens.errors import InputError


def of_one_prompt(result: xr.Dataset) -> xr.Dataset:
    """The result for the tokens of one prompt, without padding; an error if it has several prompts."""
    if "prompt" in result.dims:
        raise InputError(
            f"This result has {result.sizes['prompt']} prompts, and the figure shows one.",
            "Select one, for instance with `result.isel(prompt=0)`.",
        )
    return result.isel(position=slice(int(result["length"]))) if "length" in result.coords else result
