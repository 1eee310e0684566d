"""Seals: marks by which a result knows which of its values and labels were measured.

xarray copies attributes through arithmetic and means, so the attributes of ``2 * result`` are those of `result`. A seal
is in the `encoding` of a variable or coordinate instead: xarray keeps the encoding where values are selected, reordered
or renamed, and drops it where new values are computed.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import xarray as xr

KEY = "squashlens"  # in an encoding
MEASURED = "squashlens_measured"  # in the attributes of a file: the names of what had a seal
R = TypeVar("R", xr.DataArray, xr.Dataset)


class Seal(NamedTuple):
    """The name and dimensions of a variable when it was measured, and the provenance of its result as text."""

    name: str
    provenance: str
    dims: tuple[str, ...]


def seal_of(values: xr.DataArray) -> Seal | None:
    """The seal of a variable or coordinate; None if it was computed or has other values."""
    found = values.encoding.get(KEY)
    return found if isinstance(found, Seal) else None


def text_of(result: xr.DataArray | xr.Dataset) -> Any:
    """The provenance as text; a variable that was selected from a Dataset has it in its seal. None without one."""
    seal = seal_of(result) if isinstance(result, xr.DataArray) else None
    return result.attrs.get("provenance", seal and seal.provenance)


def with_seals(result: R, provenance: Any, names: Collection[str] | None = None) -> R:
    """A copy of a result whose variables and coordinates, or only those with the given `names`, have seals."""
    found = result.copy(deep=False)
    for name, values in _members(found).items():
        kept = {key: value for key, value in values.variable.encoding.items() if key != KEY}
        given = names is None or name in names
        values.variable.encoding = kept | ({KEY: Seal(name, provenance, tuple(map(str, values.dims)))} if given else {})
    return found


def unchanged(result: xr.DataArray | xr.Dataset, provenance: str, measured: Collection[str]) -> Mapping[str, bool]:
    """Whether each variable and coordinate, by name, is one that was measured with this provenance.

    `measured` names the coordinates of the measurement. Others are left out: the user added them.
    """
    found: dict[str, bool] = {}
    seals = {name: seal_of(values) for name, values in _members(result).items()}
    names = [seal.name for seal in seals.values() if seal is not None]
    for name, seal in seals.items():
        label = name in result.coords
        if seal is None and label and name not in measured:
            continue
        # A new name is no other quantity's, and no quantity has two names.
        named = seal is not None and (seal.name == name or not (label or name in names or names.count(seal.name) > 1))
        found[name] = named and seal is not None and seal.provenance == provenance
    return found


def names_with_seals(result: xr.DataArray | xr.Dataset) -> list[str]:
    """The names of the variables and coordinates that were measured."""
    return [name for name, same in unchanged(result, text_of(result), ()).items() if same]


def _members(result: xr.DataArray | xr.Dataset) -> dict[str, xr.DataArray]:
    """The variables and coordinates of a result by name."""
    own: Mapping[Any, Any] = result.data_vars if isinstance(result, xr.Dataset) else {result.name or "": result}
    return {str(name): values for group in (own, result.coords) for name, values in group.items()}
