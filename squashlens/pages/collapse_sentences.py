"""Sentences on collapse, for report, captions and pages: both ends of D with the slope between them, then the contrast.

One sequence is one observation: its lengths are nested. An interval over them is about this sequence, not about others.
No sentence says that D falls or grows: of series without a trend whose neighbours are alike, too many have an interval
without 0, and a step has one too. With a separator after every p-th token, lengths are compared at equal n mod p, since
a repeated token has another place in each group.
"""

import numpy as np
import xarray as xr

from squashlens.records.provenance import facts_of
from squashlens.records.sentences import listed, number, percent, plural
from squashlens.theory.statistics.laws import log_slope
from squashlens.theory.statistics.trends import FEWEST


def by_length(collapse: xr.Dataset, layer: int | None = None) -> str:
    """D at the shortest and the longest length of a layer, the last by default, and the log-log slope, if there is one.

    Each group of lengths with equal n mod p has its own.
    """
    distance = _at(collapse["distance"], layer)
    groups = distance.groupby(_place_in_group(collapse))
    fewest = int(groups.count().min())
    sloped = fewest >= FEWEST and bool((distance > 0).all())
    courses = "; ".join(_course(group, sloped=sloped) for _, group in groups)
    count = plural(len(distance), "length")
    if sloped:
        count += ", nominal 95 % interval" + ("s" if len(groups) > 1 else "")
    return f"D at layer {distance['layer'].item()} is {courses} ({count})."


def _course(distance: xr.DataArray, *, sloped: bool) -> str:
    """D at both ends, and with `sloped` the slope of the line of least squares with its interval, without −0."""
    lengths = distance["length"].values.tolist()
    values = distance.values.tolist()
    ends = f"{number(values[0])} at n = {lengths[0]}"
    if len(lengths) > 1:
        ends += f" and {number(values[-1])} at n = {lengths[-1]}"
    if not sloped:
        return ends
    fitted = log_slope(lengths, values)
    slope, low, high = (number(round(end, 3) + 0.0) for end in fitted)  # −0 + 0 is 0
    return f"{ends}, with a log-log slope of {slope} [{low}, {high}]"


def _at(values: xr.DataArray, layer: int | None) -> xr.DataArray:
    """Values at a layer, the last by default."""
    return values.isel(layer=-1) if layer is None else values.sel(layer=layer)


def _place_in_group(collapse: xr.Dataset) -> xr.DataArray:
    """Of each length n mod p, if a separator stands after every p-th token: only equal ones are compared. Otherwise 0
    for all lengths."""
    breaks = facts_of(collapse).get("sequence", {}).get("separators_after", [])
    period = 1
    if breaks and set(np.diff([0, *breaks])) == {breaks[0]}:  # all at equal distances
        period = breaks[0]
    return (collapse["length"] % period).rename(f"n mod {period}")


def against_contrast(collapse: xr.Dataset, layer: int | None = None) -> str:
    """How close v and v* are at a layer, the last by default, beside a pair whose last token differs; or nothing."""
    if "contrast" not in collapse:
        return ""
    ratio = _at(collapse["distance"] / collapse["contrast"], layer)
    if ratio.isnull().any():  # both are 0, as v⁽⁰⁾ of a common suffix
        return ""
    medians = ratio.groupby(_place_in_group(collapse)).median()
    middle = listed([number(median) for median in medians])
    (place,) = medians.dims
    if len(medians) > 1:
        middle += f", at {place} = {listed(medians[place].values.astype(str).tolist())}"
    below = f"{int((ratio < 1).sum())} of {plural(len(ratio), 'length')}"
    not_below = np.flatnonzero(ratio >= 1)
    # From where on D stays below, if it does so for some lengths.
    if len(not_below) and not_below[-1] < len(ratio) - FEWEST:
        first = ratio["length"].values[not_below[-1] + 1]
        below += f", at all from n = {first} on"
    return f"D is below the contrast, another last token, at {below} (median ratio {middle})."


def collapses(collapse: xr.Dataset) -> str:
    """Both sentences."""
    return f"{by_length(collapse)} {against_contrast(collapse)}".rstrip()


def recovers(separation: xr.Dataset) -> str:
    """Which share of lengths can be told apart at y."""
    recovered = percent(separation["recovery_y"].item())
    recovered += (
        f" of {plural(separation.sizes['length'], 'length')} can be recovered from y"
    )
    if "recovery_random_y" in separation:
        random = percent(separation["recovery_random_y"].mean().item())
        recovered += f" (random weights {random})"
    times = number(separation["step_y"].median())
    chance = percent(separation["chance"].item())
    return (
        f"{recovered}; one more token moves y by {times} times what rounding does "
        f"(median; a step that is rounded too is hardly below 1). By chance {chance} would be."
    )
