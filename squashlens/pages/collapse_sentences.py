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
    drawn, lengths = _at(collapse["distance"], layer), collapse["length"].values
    groups, _ = _compared(collapse)
    sloped = min(map(len, groups)) >= FEWEST and bool((drawn > 0).all())
    courses = [
        _course(lengths[group], drawn.values[group], sloped=sloped) for group in groups
    ]
    intervals = f", nominal 95 % interval{'s' * (len(groups) > 1)}" if sloped else ""
    return f"D at layer {drawn['layer'].item()} is {'; '.join(courses)} ({plural(len(lengths), 'length')}{intervals})."


def _course(lengths: np.ndarray, distances: np.ndarray, *, sloped: bool) -> str:
    """D at both ends, and with `sloped` the slope of the line of least squares with its interval, without −0."""
    ends = " and ".join(
        f"{number(distances[end])} at n = {lengths[end]}"
        for end in sorted({0, len(lengths) - 1})
    )
    if not sloped:
        return ends
    slope, low, high = (
        number(round(end, 3) + 0.0)
        for end in log_slope(lengths.tolist(), distances.tolist())
    )
    return f"{ends}, with a log-log slope of {slope} [{low}, {high}]"


def _at(values: xr.DataArray, layer: int | None) -> xr.DataArray:
    return values.isel(layer=-1) if layer is None else values.sel(layer=layer)


def _compared(collapse: xr.Dataset) -> tuple[list[np.ndarray], str]:
    """Which lengths are compared with each other: all, or those of equal n mod p, and how that is said."""
    breaks, lengths = (
        facts_of(collapse).get("sequence", {}).get("separators_after", []),
        collapse["length"].values,
    )
    period = (
        breaks[0]
        if breaks and breaks == [*range(breaks[0], breaks[-1] + 1, breaks[0])]
        else 1
    )
    rests = sorted({*(lengths % period).tolist()})
    where = (
        f", at n mod {period} = {listed([*map(str, rests)])}" if len(rests) > 1 else ""
    )
    return [np.flatnonzero(lengths % period == rest) for rest in rests], where


def against_contrast(collapse: xr.Dataset, layer: int | None = None) -> str:
    """How close v and v* are at a layer, the last by default, beside a pair whose last token differs; or nothing."""
    if "contrast" not in collapse:
        return ""
    ratio = _at(collapse["distance"] / collapse["contrast"], layer).values
    if np.isnan(ratio).any():  # both are 0, as v⁽⁰⁾ of a common suffix
        return ""
    groups, where = _compared(collapse)
    middle = f"{listed([number(np.median(ratio[group])) for group in groups])}{where}"
    after = int(
        np.flatnonzero(np.append(True, ratio >= 1))[-1]
    )  # the last length at which it is not
    onset = (
        f", at all from n = {collapse['length'].values[after]} on"
        if 0 < after <= len(ratio) - FEWEST
        else ""
    )
    return (
        f"D is below the contrast, another last token, at {int((ratio < 1).sum())} of {plural(len(ratio), 'length')}"
        f"{onset} (median ratio {middle})."
    )


def collapses(collapse: xr.Dataset) -> str:
    """Both sentences."""
    return f"{by_length(collapse)} {against_contrast(collapse)}".rstrip()


def recovers(separation: xr.Dataset) -> str:
    """Which share of lengths can be told apart at y."""
    share, chance = (
        percent(float(separation[name])) for name in ("recovery_y", "chance")
    )
    random = (
        separation["recovery_random_y"].mean()
        if "recovery_random_y" in separation
        else None
    )
    beside = "" if random is None else f" (random weights {percent(float(random))})"
    return (
        f"{share} of {plural(separation.sizes['length'], 'length')} can be recovered from y{beside}; one more token "
        f"moves y by {number(separation['step_y'].median())} times what rounding does "
        f"(median; a step that is rounded too is hardly below 1). By chance {chance} would be."
    )
