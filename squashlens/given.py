"""Results as arguments of figures and tables: checked for the variables that are needed, before anything is drawn.

`takes` wraps a function. A result of another measurement is refused with the name of the one to call. So is one whose
dimensions were selected or averaged away, where the function needs them.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import xarray as xr

from squashlens._typing import shown
from squashlens.arguments import validated
from squashlens.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def takes(maker: str, *needed: str) -> Callable[[F], F]:
    """For a function whose first argument is what `maker` gives, or several of them by label.

    Each of `needed` has names of variables and their dimensions, in any order: ``"token null: position"``. The values
    of a DataArray are named ``values``; ``...`` allows other dimensions.
    """
    dims_of = {name: dims for one in needed for names, dims in [one.split(":")] for name in names.split()}

    def decorate(function: F) -> F:
        first = next(iter(inspect.signature(function).parameters))

        @validated
        @functools.wraps(function)
        def draw(*args: Any, **kwargs: Any) -> Any:
            found = args[0] if args else kwargs[first]
            several = {"": found} if isinstance(found, xr.Dataset | xr.DataArray) else found
            if not several:
                raise InputError(f"{first} is empty: there is no result in it.", f"Give what {maker} gives.")
            for label, one in several.items():
                require(one, f"{first}[{label!r}]" if label else first, maker, dims_of)
            return function(*args, **kwargs)

        return cast(F, draw)

    return decorate


def require(found: xr.Dataset | xr.DataArray, argument: str, maker: str, needed: Mapping[str, str]) -> None:
    """Refuse a result that lacks a variable, or a dimension of one."""
    for name, dims in needed.items():
        here = found if name == "values" and isinstance(found, xr.DataArray) else _variable(found, name)
        wanted = set(dims.split()) - {"..."}
        if here is None or not (wanted <= set(here.dims) if "..." in dims else wanted == set(here.dims)):
            what = "values" if name == "values" else repr(name)
            over = f" over ({', '.join(sorted(wanted))})" if wanted else ""
            raise InputError(
                f"{argument} is the result of something else: it has no {what}{over}.",
                f"Give the result of {maker}, as it is.",
            )
        if 0 in here.sizes.values():
            raise InputError(f"{argument} has no values in {name!r}.", f"Give the result of {maker}, as it is.")


def _variable(found: xr.Dataset | xr.DataArray, name: str) -> xr.DataArray | None:
    names = found.variables if isinstance(found, xr.Dataset) else found.coords
    return cast(xr.DataArray, found[name]) if name in names else None


def chosen(found: xr.Dataset, dim: str, value: int | None, *, last: bool = True) -> int:
    """The value to draw of a dimension: the last (or first) measured if none is given; one not measured is refused."""
    measured = [int(each) for each in found[dim].values]
    if value is None:
        return measured[-1 if last else 0]
    if value not in measured:
        raise InputError(f"{dim}={value} was not measured.", f"Measured are {listed(measured)}.")
    return value


def listed(values: Iterable[Any]) -> str:
    """A few values, the middle of many left out."""
    texts = [shown(value) for value in values]
    return ", ".join(texts if len(texts) <= 8 else [*texts[:4], "…", *texts[-2:]])


def is_relative(values: xr.DataArray) -> bool:
    """Whether distances were divided by the size of v."""
    return values.attrs.get("units") == "1"


def require_reference(audit: xr.Dataset, reference: str) -> None:
    """Refuse a reference that an audit was not compared with."""
    references = [str(name) for name in audit["reference"].values]
    if reference not in references:
        raise InputError(f"reference={shown(reference)} is not in this audit.", f"Use one of {listed(references)}.")
