"""One prompt out of a result that may be of several."""

import xarray as xr

from squashlens.errors import InputError


def of_one_prompt(result: xr.Dataset) -> xr.Dataset:
    """A result over the tokens of one prompt, without the padding of a longer one beside it; several are refused."""
    if "prompt" in result.dims:
        raise InputError(
            f"This result is of {result.sizes['prompt']} prompts, and a figure shows one.",
            "Select it, for instance with `ds.isel(prompt=0)`.",
        )
    return result.isel(position=slice(int(result["length"]))) if "length" in result.coords else result
