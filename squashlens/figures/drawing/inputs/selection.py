"""One prompt of a result that may have several, and the positions of its tokens."""

from typing import TypeVar

import numpy as np
import xarray as xr

from squashlens.errors import InputError

R = TypeVar("R", xr.Dataset, xr.DataArray)
TOKENS = "position: token"  # title of an axis of positions


def of_one_prompt(result: R) -> R:
    """The result for the tokens of one prompt, by increasing position and without padding."""
    if "prompt" in result.dims:
        raise InputError(
            f"This result has {result.sizes['prompt']} prompts, and the figure shows one.",
            "Select one, for instance with `result.isel(prompt=0)`.",
        )
    positions = np.asarray(result["position"].values)
    if positions.dtype.kind not in "iuf" or not np.array_equal(positions, np.round(positions)):
        raise InputError(
            "The coordinate 'position' of this result does not have whole numbers.",
            "Keep the positions that the measurement gave.",
        )
    order = np.argsort(positions, kind="stable")
    if "n_tokens" in result.coords:
        order = order[positions[order] < int(result["n_tokens"].item())]
    return result.isel(position=order)


def tokens_of(result: xr.Dataset | xr.DataArray) -> dict[int, str]:
    """The token at each position of a result."""
    places, tokens = (np.asarray(result[name].values) for name in ("position", "token"))
    return {int(place): str(token) for place, token in zip(places, tokens, strict=True)}
