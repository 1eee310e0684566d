"""Sentences on collapse, for report, captions and pages: a law first, then the contrast, and no pair of end points.

One sequence is one observation: its lengths are nested. An interval over them is about this sequence, not about others.
With a separator after every p-th token, lengths are compared at equal n mod p, since a repeated token has another place
in each group.
"""

import numpy as np
import torch
import xarray as xr

from squashlens.records.results import facts_of
from squashlens.records.sentences import listed, number, percent, plural
from squashlens.theory.statistics.laws import log_slope
from squashlens.theory.statistics.trends import FEWEST, association


def falls(collapse: xr.Dataset, layer: int | None = None) -> str:
    """How D at a layer, the last by default, changes with length: the log-log slope, and the level at the end."""
    drawn, lengths = _at(collapse["distance"], layer), collapse["length"].values
    groups, where = _compared(collapse)
    subject, over = f"D at layer {drawn['layer'].item()}", f"over {plural(len(lengths), 'length')}{where}"
    if min(map(len, groups)) < FEWEST or not (drawn > 0).all():
        return f"{subject} is {listed([number(np.median(drawn[group])) for group in groups])} (median {over})."
    verbs, slopes, ratios = zip(*(_change(lengths[group], drawn.values[group]) for group in groups), strict=True)
    verb = "does not change alike at all places of a group" if {"falls", "grows"} <= {*verbs} else max(verbs, key=len)
    return (
        f"{subject} {verb} with length: log-log slope {listed(slopes)} {over} (95 % interval); "
        f"its median over the longer half is {listed(ratios)} times that over the shorter half."
    )


def _change(lengths: np.ndarray, curve: np.ndarray) -> tuple[str, str, str]:
    """A verb, the slope with its interval, and the longer half divided by the shorter half.

    A verb needs an interval without 0, a rank correlation of the same sign, and halves that do not say the opposite.
    """
    ends, half = log_slope(lengths.tolist(), curve.tolist()), len(curve) // 2
    ratio = float(np.median(curve[half:]) / np.median(curve[:half]))
    rank = float(association(torch.from_numpy(curve), torch.from_numpy(lengths)).rho)
    down, up = (np.min(sign * np.array([*ends, rank])) > 0 and sign * (ratio - 1) >= 0 for sign in (-1, 1))
    verb = "falls" if down else "grows" if up else "has no clear trend"
    return verb, "{} [{}, {}]".format(*map(number, ends)), number(ratio)


def _at(values: xr.DataArray, layer: int | None) -> xr.DataArray:
    return values.isel(layer=-1) if layer is None else values.sel(layer=layer)


def _compared(collapse: xr.Dataset) -> tuple[list[np.ndarray], str]:
    """Which lengths are compared with each other: all, or those of equal n mod p, and how that is said."""
    breaks, lengths = facts_of(collapse).get("sequence", {}).get("separators_after", []), collapse["length"].values
    period = breaks[0] if breaks and breaks == [*range(breaks[0], breaks[-1] + 1, breaks[0])] else 1
    rests = sorted({*(lengths % period).tolist()})
    where = f", at n mod {period} = {listed([*map(str, rests)])}" if len(rests) > 1 else ""
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
    after = int(np.flatnonzero(np.append(True, ratio >= 1))[-1])  # the last length at which it is not
    onset = f", at all from n = {collapse['length'].values[after]} on" if 0 < after <= len(ratio) - FEWEST else ""
    return (
        f"D is below the contrast, another last token, at {int((ratio < 1).sum())} of {plural(len(ratio), 'length')}"
        f"{onset} (median ratio {middle})."
    )


def collapses(collapse: xr.Dataset) -> str:
    """Both sentences."""
    return f"{falls(collapse)} {against_contrast(collapse)}".rstrip()


def recovers(separation: xr.Dataset) -> str:
    """Which share of lengths can be told apart at y."""
    share, chance = (percent(float(separation[name])) for name in ("recovery_y", "chance"))
    random = separation["recovery_random_y"].mean() if "recovery_random_y" in separation else None
    beside = "" if random is None else f" (random weights {percent(float(random))})"
    return (
        f"{share} of {plural(separation.sizes['length'], 'length')} can be recovered from y{beside}; one more token "
        f"moves y by {number(separation['step_y'].median())} times what rounding does "
        f"(median; a step that is rounded too is hardly below 1). By chance {chance} would be."
    )
