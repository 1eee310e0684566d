"""Check the results that figures and tables get, before anything is drawn.

The result of another measurement raises an error that names the right measurement. So does a result without a dimension
that the function needs, because it was selected or averaged away.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import xarray as xr

from squashlens._typing import short_repr
from squashlens.errors import InputError

# Dimensions of results with one value for each token, which a figure shows one at a time.
EACH = ("prompt", "to_layer")


def dims_by_name(needed: Iterable[str]) -> dict[str, str]:
    """Names of variables with dimensions, from texts such as ``"token null: position"``; ``...`` allows others, and
    ``?`` that there is no such variable.

    An array has its own name, so ``"path_bound: position"`` fits only arrays of that name; ``values`` fits any array.

    >>> dims_by_name(["token null: position", "values: ... layer"])
    {'token': ' position', 'null': ' position', 'values': ' ... layer'}
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
    """Raise an error if a result lacks a variable, or a dimension of a variable; it may be `joined` along others.

    `needed` has the texts of `dims_by_name`. `argument` and `maker` name the result and its measurement in errors.
    """
    remedy = f"Give the unchanged result of {maker}."
    for name, text in needed.items():
        values = _variable(result, name)
        if values is None and "?" in text:
            continue
        wanted = set(text.split()) - {"...", "?"}
        dims = set() if values is None else set(values.dims)
        further = dims - wanted
        if "..." in text:
            further = set()
        if further and further <= {*EACH, *joined}:
            names = sorted(map(str, further))
            selected = ", ".join(f"{dim}=0" for dim in names)
            raise InputError(
                f"{argument} is over {' and '.join(names)}, and this function takes one of each.",
                f"Select one, as with `isel({selected})`. `squashlens.figures.of` draws a panel for each.",
            )
        if values is None or further or not wanted <= dims:
            over = f" over ({', '.join(sorted(wanted))})" if wanted else ""
            raise InputError(
                f"{argument} is the result of another measurement, or was computed from one: it has no {name!r}{over}.",
                remedy,
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
    halved = long_name.replace(stored, "probability that moves")
    return (values / 2).assign_attrs({**values.attrs, "long_name": halved})
