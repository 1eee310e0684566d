"""The numbers of a result as other tools take them: a table of tokens and columns for each prompt, and its name."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from squashlens.errors import InputError


class Numbers(NamedTuple):
    """The numbers of one prompt: (token, column). A column is the whole result, or for instance one of its layers."""

    tokens: list[str]
    ids: list[int]
    columns: list[str]
    values: np.ndarray


def by_token(result: xr.DataArray | xr.Dataset) -> xr.DataArray:
    """The result without dimensions of size 1, or an error if it is not one number or column for each token."""
    if isinstance(result, xr.Dataset):
        names = [str(name) for name, one in result.data_vars.items() if "position" in one.dims]
        raise InputError(
            f"result= is a Dataset, with values by position in: {', '.join(names) or 'no variable'}.",
            f"Give one variable, for instance `result[{names[0]!r}]`." if names else "Give the result of `path_bound`.",
        )
    dims = ", ".join(map(str, result.dims))
    labels = [result.coords.get("token"), result.coords.get("token_id")]
    if "position" not in result.dims or any(one is None or "position" not in one.dims for one in labels):
        raise InputError(
            f"result= has no values for tokens: its dimensions are ({dims}).",
            "Give one number for each token, such as the result of `path_bound`.",
        )
    if not np.issubdtype(result.dtype, np.number) or np.iscomplexobj(result) or not result.size:
        raise InputError(
            f"result= has {result.size} values of dtype {result.dtype}.", "Give a result with real numbers."
        )
    found = result.squeeze([dim for dim in result.dims if dim != "position" and result.sizes[dim] == 1])
    if len(set(found.dims) - {"prompt", "position"}) > 1:
        raise InputError(
            f"result= has the dimensions ({dims}).",
            f"Keep position and one more, for instance with `result.isel({other_dim(found)}=0)`.",
        )
    return found


def other_dim(found: xr.DataArray) -> str:
    """The first dimension besides prompt and position, or an empty text."""
    return next((str(dim) for dim in found.dims if dim not in ("prompt", "position")), "")


def prompts_of(found: xr.DataArray) -> list[Numbers]:
    """The numbers of each prompt, without padding."""
    other, several = other_dim(found), [found]
    if "prompt" in found.dims:
        several = [found.isel(prompt=number) for number in range(found.sizes["prompt"])]
    columns = [f"{other} {value}" for value in found[other].values] if other else [name_of(found)]
    return [_numbers(one, columns) for one in several]


def _numbers(one: xr.DataArray, columns: list[str]) -> Numbers:
    if "n_tokens" in one.coords:
        one = one.isel(position=slice(int(one["n_tokens"])))
    values = one.transpose("position", ...).values.astype(np.float64).reshape(one.sizes["position"], len(columns))
    if np.isinf(values).any() or np.isnan(values).all():
        raise InputError("result= has infinite values, or only NaN.", "Give a result with finite numbers.")
    ids = [int(number) for number in one["token_id"].values]
    return Numbers([str(token) for token in one["token"].values], ids, columns, values)


def name_of(found: xr.DataArray) -> str:
    """The long name of a result, with what was selected from it: "share of attention paths into the query, layer 3"."""
    chosen = [f"{name} {one.item()}" for name, one in found.coords.items() if not one.ndim and name != "n_tokens"]
    return ", ".join([str(found.attrs.get("long_name") or found.name or "values"), *chosen])


def model_of(facts: Mapping[str, Any]) -> str:
    """The model's name, or several names."""
    names = facts.get("model") or ""
    return ", ".join(map(str, names)) if isinstance(names, list) else str(names)
