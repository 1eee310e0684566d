"""Sentences on collapse, for report, captions and pages: a law first, then the contrast, and no pair of end points.

One sequence is one observation: its lengths are nested. So nothing here has an interval over lengths.
"""

import numpy as np
import xarray as xr

from squashlens.records.sentences import number, percent

FLAT = 0.1  # slope below which a curve neither falls nor rises
FEWEST = 4  # lengths from which on a law is fitted


def falls(collapse: xr.Dataset) -> str:
    """How D at the last layer changes with the length: the slope on logarithmic axes, and its level at the end."""
    last, lengths = collapse["distance"].isel(layer=-1).values, collapse["length"].values
    if len(lengths) < FEWEST or not (last > 0).all():
        return f"D at the last layer is {number(np.median(last))} (median over {len(lengths)} lengths)."
    slope, half = float(collapse["length_slope"][-1]), len(last) // 2
    verb = "falls" if slope < -FLAT else "grows" if slope > FLAT else "neither falls nor grows"
    ratio = float(np.median(last[half:]) / np.median(last[:half]))
    return (
        f"D at the last layer {verb} with length: log-log slope {number(slope)} over {len(lengths)} lengths; its "
        f"median over the longer half is {number(ratio)} times that over the shorter half."
    )


def against_contrast(collapse: xr.Dataset, layer: int | None = None) -> str:
    """How close v and v* are at a layer, the last one by default, beside a pair whose last token differs; empty without
    such a pair."""
    if "contrast" not in collapse:
        return ""
    ratios = collapse["distance"] / collapse["contrast"]
    ratio = (ratios.isel(layer=-1) if layer is None else ratios.sel(layer=layer)).values
    nearer, middle = int((ratio < 1).sum()), number(np.median(ratio))
    return f"D is below the contrast, another last token, at {nearer} of {len(ratio)} lengths (median ratio {middle})."


def collapses(collapse: xr.Dataset) -> str:
    """Both sentences."""
    return f"{falls(collapse)} {against_contrast(collapse)}".rstrip()


def recovers(separation: xr.Dataset) -> str:
    """Which share of lengths can be told apart at y, for a run or several."""
    runs = separation["run"].values if "run" in separation.dims else [None]
    said = [f"By chance {percent(float(separation['chance'].max()))} would be."]
    for run in runs:
        one, where = (separation, "") if run is None else (separation.sel(run=run), f" in {run}")
        share, n, step = percent(float(one["recovery_y"])), one.sizes["length"], number(one["step_y"].median())
        random = one["recovery_random_y"].mean() if "recovery_random_y" in one else None
        beside = "" if random is None else f" (random weights {percent(float(random))})"
        said.append(
            f"{share} of {n} lengths are recovered from y{where}{beside}; one more token moves y by {step} times what "
            "rounding does (median)."
        )
    return " ".join([*said[1:], said[0]])
