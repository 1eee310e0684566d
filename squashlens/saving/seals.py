"""Seals: marks by which a result knows which of its values and labels were measured.

xarray copies attributes through arithmetic and means, so the attributes of ``2 * result`` are those of `result`. A seal
is in the `encoding` of a variable or coordinate instead: xarray keeps the encoding where values are selected, reordered
or renamed, and drops it where new values are computed. Computed values still have the coordinates, whose seals have the
long names of all that was measured: values with one of these names or none, and without a seal, do not say that they
are the user's own.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import pandas as pd
import xarray as xr

KEY = "squashlens"  # in an encoding
MEASURED = "squashlens_measured"  # in the attributes of a file: the names of what had a seal
COMPUTED = "squashlens_computed"  # in the attributes of a file: the names of what was computed from measured values
STATED = ("long_name", "units")  # attributes of a variable that say what its values are
R = TypeVar("R", xr.DataArray, xr.Dataset)
Change = Literal["", "values", "labels", "added labels", "attributes"]  # what is not as it was measured


class Seal(NamedTuple):
    """The name and dimensions of a variable when it was measured, and the provenance of its result as text.

    `stated` is the long name and units of a variable; of a coordinate, the long names of all variables of the result.
    A coordinate along a dimension has its labels.
    """

    name: str
    provenance: str
    dims: tuple[str, ...]
    stated: tuple[Any, ...] = ()
    labels: pd.Index | None = None


def seal_of(values: xr.DataArray) -> Seal | None:
    """The seal of a variable or coordinate; None if it was computed or has other values."""
    found = values.encoding.get(KEY)
    return found if isinstance(found, Seal) else None


def text_of(result: xr.DataArray | xr.Dataset) -> Any:
    """The provenance as text; a variable that was selected from a Dataset has it in its seal. None without one."""
    seal = seal_of(result) if isinstance(result, xr.DataArray) else None
    return result.attrs.get("provenance", seal and seal.provenance)


def with_seals(result: R, provenance: Any, names: Collection[str] | None = None, inherited: Collection[str] = ()) -> R:
    """A copy of a result whose variables and coordinates, or only those with the given `names`, have seals.

    The variables that are `inherited` were computed from measured values, and have their long names or none.
    """
    found = result.copy(deep=False)
    members = _members(found)
    given = {*members} if names is None else {*names}
    variables = [name for name in members if name not in found.coords and name in (given | {*inherited})]
    long_names = tuple(dict.fromkeys(_stated(members[name])[0] for name in variables))
    for name, values in members.items():
        kept = {key: value for key, value in values.variable.encoding.items() if key != KEY}
        if name in given or (inherited and name in found.coords):
            dims = tuple(map(str, values.dims))
            if name in found.coords:
                labels = pd.Index(values.values) if dims == (name,) else None
                kept[KEY] = Seal(name, provenance, dims, long_names, labels)
            else:
                kept[KEY] = Seal(name, provenance, dims, _stated(values))
        values.variable.encoding = kept
    return found


def computed(result: xr.DataArray | xr.Dataset) -> list[str]:
    """The names of variables at labels of a measurement, but not of it, that have its long name, or none.

    Arithmetic of two variables drops their long names, so values without one may be computed too.
    """
    seals = {name: seal_of(values) for name, values in _members(result).items()}
    inherited = {
        text for name, seal in seals.items() if seal is not None and name in result.coords for text in seal.stated
    }
    return [
        name
        for name, values in _members(result).items()
        if name not in result.coords and seals[name] is None and inherited and _stated(values)[0] in {*inherited, None}
    ]


def changes(result: xr.DataArray | xr.Dataset, provenance: str, measured: Collection[str]) -> Mapping[str, Change]:
    """What each variable and coordinate, by name, has that was not measured with this provenance; empty for nothing.

    `measured` names the coordinates of the measurement. Others are left out: the user added them.
    """
    found: dict[str, Change] = {}
    members = _members(result)
    seals = {name: seal_of(values) for name, values in members.items()}
    names = [seal.name for seal in seals.values() if seal is not None]
    for name, seal in seals.items():
        label = name in result.coords
        if seal is None and label and name not in measured:
            continue
        # A new name is no other quantity's, and no quantity has two names.
        named = seal is not None and (seal.name == name or not (label or name in names or names.count(seal.name) > 1))
        if seal is None or not named or seal.provenance != provenance:
            found[name] = "labels" if label else "values"
        elif label:
            known = seal.labels is None or pd.Index(members[name].values.ravel()).isin(seal.labels).all()
            found[name] = "" if known else "added labels"
        else:
            found[name] = "" if seal.stated == _stated(members[name]) else "attributes"
    return found


def names_with_seals(result: xr.DataArray | xr.Dataset) -> list[str]:
    """The names of the variables and coordinates that were measured."""
    return [name for name, change in changes(result, text_of(result), ()).items() if not change]


def _members(result: xr.DataArray | xr.Dataset) -> dict[str, xr.DataArray]:
    """The variables and coordinates of a result by name."""
    own: Mapping[Any, Any] = result.data_vars if isinstance(result, xr.Dataset) else {result.name or "": result}
    return {str(name): values for group in (own, result.coords) for name, values in group.items()}


def _stated(values: xr.DataArray) -> tuple[Any, ...]:
    return tuple(values.attrs.get(key) for key in STATED)
