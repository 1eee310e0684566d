"""The numbers of one variable as rows of a table, with its coordinates as columns."""

from collections.abc import Collection

import pandas as pd
import xarray as xr

PLACE = "place without dimension"  # stands for the dimension of a single number


def rows_of(values: xr.DataArray, taken: Collection[str] = ("variable", "value")) -> pd.DataFrame:
    """One row for each entry: its coordinates, then its `value`. A coordinate with a `taken` name gets an underscore.

    Whole numbers and truth values among the coordinates keep their kind where they are put below rows without them.
    """
    renamed = {name: f"{name}_" for name in (*values.dims, *values.coords) if name in taken}
    found = values.rename(renamed).rename("value")
    if not found.ndim:
        found = found.expand_dims(PLACE)
    frame = found.to_dataframe().reset_index().drop(columns=PLACE, errors="ignore")
    kinds = {"b": "boolean", "i": "Int64", "u": "UInt64"}
    for name in frame.columns.drop("value"):
        kind = frame[name].dtype.kind
        if kind in kinds:
            frame[name] = frame[name].astype(kinds[kind])
    return frame.reindex(columns=[*frame.columns.drop("value"), "value"])


def as_dataset(result: xr.DataArray | xr.Dataset) -> xr.Dataset:
    """A result as a Dataset; an array without a name, or called like one of its coordinates, becomes `value`."""
    if isinstance(result, xr.Dataset):
        return result
    return result.to_dataset(name="value" if result.name is None or result.name in result.coords else result.name)
