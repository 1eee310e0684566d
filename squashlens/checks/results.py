"""Check the results that figures and tables get, before anything is drawn.

The result of another measurement raises an error that names the right measurement. So does a result without a dimension
that the function needs, because it was selected or averaged away.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import xarray as xr

from squashlens._typing import listed, short_repr
from squashlens.errors import InputError, SquashlensError

EACH = (
    "prompt",
    "to_layer",
)  # dimensions of results with one value for each token, which a figure shows one at a time


def dims_by_name(needed: Iterable[str]) -> dict[str, str]:
    """Names of variables with dimensions, from texts such as ``"token null: position"``; ``...`` allows others, and
    ``?`` that there is no such variable.

    An array has its own name, so ``"path_bound: position"`` fits only arrays of that name; ``values`` fits any array.
    """
    return {
        name: dims
        for text in needed
        for names, dims in [text.split(":")]
        for name in names.split()
    }


@contextmanager
def told_in_words(what: str) -> Iterator[None]:
    """Errors of other libraries at values that were derived from results as an error in words, such as "drawn"."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError, NotImplementedError) as error:
        if isinstance(error, SquashlensError):
            raise
        raise InputError(
            f"These values cannot be {what}: {error}.",
            "Give results of a measurement, or a selection of them.",
        ) from error


def require_real(result: xr.Dataset | xr.DataArray) -> None:
    """Raise an error for complex numbers, of which other libraries take the real part."""
    named = result if isinstance(result, xr.Dataset) else {result.name: result}
    for name, values in named.items():
        if values.dtype.kind == "c":
            raise InputError(
                f"{str(name)!r} has complex numbers.",
                "Give real ones, such as abs(values) or values.real.",
            )


def require(
    result: xr.Dataset | xr.DataArray,
    argument: str,
    maker: str,
    needed: Mapping[str, str],
    joined: Iterable[str] = (),
) -> None:
    """Raise an error if a result lacks a variable, or a dimension of a variable; it may be `joined` along others."""
    each = (*EACH, *joined)
    names = result.variables if isinstance(result, xr.Dataset) else result.coords
    unchanged = f"Give the unchanged result of {maker}."
    for name, dims in needed.items():
        itself = isinstance(result, xr.DataArray) and name in ("values", result.name)
        here: Any = result if itself else result[name] if name in names else None
        wanted, there = (
            set(dims.split()) - {"...", "?"},
            set() if here is None else set(here.dims),
        )
        if here is None and "?" in dims:
            continue
        if here is not None and (
            wanted == there or ("..." in dims and wanted <= there)
        ):
            if 0 in here.sizes.values():
                raise InputError(f"{argument} has no values in {name!r}.", unchanged)
            continue
        if here is not None and wanted == there - {*each}:
            more = [dim for dim in each if dim in there]
            one = ", ".join(f"{dim}=0" for dim in more)
            raise InputError(
                f"{argument} is over {' and '.join(more)}, and this function takes one of each.",
                f"Select one, for instance with `isel({one})`. `squashlens.figures.of` draws a panel for each.",
            )
        what = "values" if name == "values" else repr(name)
        over = f" over ({', '.join(sorted(wanted))})" if wanted else ""
        raise InputError(
            f"{argument} is the result of another measurement, or was computed from one: it has no {what}{over}.",
            unchanged,
        )


def chosen(
    result: xr.Dataset, dim: str, value: int | None, *, last: bool = True
) -> int:
    """The value of a dimension to draw: the last (or first) measured value by default; it must have been measured."""
    measured = [int(each) for each in result[dim].values]
    if value is None:
        return measured[-1 if last else 0]
    if value not in measured:
        raise InputError(
            f"{dim}={value} was not measured.",
            f"Use a measured value: {listed([*map(str, measured)])}.",
        )
    return value


def labelled(result: xr.Dataset, **labels: Any) -> xr.Dataset:
    """The part of a result at these labels of its dimensions; an error if one was left out of it."""
    for dim, value in labels.items():
        if value not in result[dim].values:
            raise InputError(
                f"This result has no {dim} {short_repr(value)}.",
                "Give the unchanged result.",
            )
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
    text, stored = (
        str(values.attrs.get("long_name", "")),
        "total variation of the next token",
    )
    if stored not in text:
        return values
    return (values / 2).assign_attrs(
        {**values.attrs, "long_name": text.replace(stored, "probability that moves")}
    )
