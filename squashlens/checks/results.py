"""Check the results that figures and tables get, before anything is drawn.

The result of another measurement raises an error that names the right measurement. So does a result without a dimension
that the function needs, because it was selected or averaged away.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import xarray as xr

from squashlens._typing import listed, short_repr
from squashlens.errors import InputError

# Dimensions of results with one value for each token, which a figure shows one at a time.
EACH = ("prompt", "to_layer")


def dims_by_name(needed: Iterable[str]) -> dict[str, str]:
    """Names of variables with dimensions, from texts such as ``"token null: position"``; ``...`` allows others, and
    ``?`` that there is no such variable.

    An array has its own name, so ``"path_bound: position"`` fits only arrays of that name; ``values`` fits any array.
    """
    dims_of = {}
    for text in needed:
        names, _, dims = text.partition(":")
        dims_of |= dict.fromkeys(names.split(), dims)
    return dims_of


def require(
    result: xr.Dataset | xr.DataArray,
    argument: str,
    maker: str,
    needed: Mapping[str, str],
    joined: Iterable[str] = (),
) -> None:
    """Raise an error if a result lacks a variable, or a dimension of a variable; it may be `joined` along others."""
    one_at_a_time = (*EACH, *joined)
    remedy = f"Give the unchanged result of {maker}."
    for name, text in needed.items():
        values = _variable(result, name)
        if values is None and "?" in text:
            continue
        wanted = set(text.split()) - {"...", "?"}
        if values is None or not wanted <= set(values.dims):
            raise InputError(_missing(argument, name, wanted), remedy)
        further = set(values.dims) - wanted
        if further and "..." not in text:
            if not further <= set(one_at_a_time):
                raise InputError(_missing(argument, name, wanted), remedy)
            raise _over_several(
                argument, [dim for dim in one_at_a_time if dim in further]
            )
        if values.size == 0:
            raise InputError(f"{argument} has no values in {name!r}.", remedy)


def _variable(result: xr.Dataset | xr.DataArray, name: str) -> xr.DataArray | None:
    """A variable or coordinate of a result, or an array itself; None if there is none of this name."""
    if isinstance(result, xr.DataArray):
        if name in ("values", result.name):
            return result
        return result.coords.get(name)
    return result[name] if name in result.variables else None


def _missing(argument: str, name: str, dims: Iterable[str]) -> str:
    """What a result lacks, in words."""
    what = "values" if name == "values" else repr(name)
    over = f" over ({', '.join(sorted(dims))})" if dims else ""
    return f"{argument} is the result of another measurement, or was computed from one: it has no {what}{over}."


def _over_several(argument: str, dims: list[str]) -> InputError:
    """The error for dimensions of which a function takes one label."""
    first = ", ".join(f"{dim}=0" for dim in dims)
    return InputError(
        f"{argument} is over {' and '.join(dims)}, and this function takes one of each.",
        f"Select one, for instance with `isel({first})`. `squashlens.figures.of` draws a panel for each.",
    )


def chosen(
    result: xr.Dataset, dim: str, value: int | None, *, last: bool = True
) -> int:
    """The value of a dimension to draw: the last (or first) measured value by default; it must have been measured."""
    measured = result[dim].values.astype(int).tolist()
    if value is None:
        return measured[-1 if last else 0]
    if value not in measured:
        remedy = f"Use a measured value: {listed([str(label) for label in measured])}."
        raise InputError(f"{dim}={value} was not measured.", remedy)
    return value


def labelled(result: xr.Dataset, **labels: Any) -> xr.Dataset:
    """The part of a result at these labels of its dimensions; an error if one was left out of it."""
    for dim, value in labels.items():
        if value not in result[dim].values:
            cause = f"This result has no {dim} {short_repr(value)}."
            raise InputError(cause, "Give the unchanged result.")
    return result.sel(labels)


def is_relative(values: xr.DataArray) -> bool:
    """Whether distances were divided by the size of v."""
    return values.attrs.get("units") == "1"


def relative_distance(collapse: xr.Dataset) -> xr.DataArray:
    """The distances of v and v* in units of rms(v), whichever their scale."""
    distance = collapse["distance"]
    if is_relative(distance):
        return distance
    ratio = distance / collapse["rms"]
    long_name = distance.attrs.get("long_name", "distance of v and v*")
    return ratio.assign_attrs(long_name=f"{long_name} ÷ rms of v", units="1")


def moved_probability(values: xr.DataArray) -> xr.DataArray:
    """For readers, the probability that moves, from 0 to 1, in place of the next token's total variation; others as is.

    It is half of that, which results store as the paper has it: the L1 norm of the difference, from 0 to 2.
    """
    stored = "total variation of the next token"
    long_name = str(values.attrs.get("long_name", ""))
    if stored not in long_name:
        return values
    told = long_name.replace(stored, "probability that moves")
    return (values / 2).assign_attrs({**values.attrs, "long_name": told})
