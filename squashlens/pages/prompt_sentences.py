"""What the report says beside its figure of path bounds and Jacobian norms."""

import numpy as np
import xarray as xr

from squashlens.pages.first_screen import name_at
from squashlens.records.provenance import facts_of
from squashlens.records.sentences import number

ENOUGH = 15  # tokens from which on ranks are compared
HALF = ("float16", "bfloat16")


def ranks(measured: xr.Dataset) -> str:
    """How alike path bound and Jacobian rank the tokens; empty for too few tokens."""
    tokens = int(measured["compared_tokens"])
    if tokens < ENOUGH:
        return ""
    rho, low, high = (
        number(measured[f"rank_agreement{end}"].sel(estimate="path_bound"))
        for end in ("", "_low", "_high")
    )
    null = number(measured["rank_agreement"].sel(estimate="null"))
    return (
        f"Spearman's ρ of path bound and Jacobian norm over {tokens} tokens is {rho}, 95 % interval {low} to {high}; "
        f"that of the null, which does not use this model's attention, is {null}. BOS and the last token are left out."
    )


def sinks(measured: xr.Dataset) -> str:
    """The attention sinks and their shares; empty without one."""
    places = np.flatnonzero(measured["sink"].values == 1) if "sink" in measured else []
    if not len(places):
        return ""
    values = (measured[name].values for name in ("path_bound", "null", "jacobian"))
    bound, null, norm = (
        100 * each[places].sum() / each.sum() if each.sum() > 0 else np.nan
        for each in values
    )
    names = ", ".join(name_at(measured, int(place)) for place in places)
    norms = (
        f"{norm:.3g}" if "jacobian_low" not in measured else f"about {norm:.0f}"
    )  # estimated
    return (
        f"Attention sinks: {names}, with {bound:.4g} % of the path bound, {null:.3g} % of the null and {norms} % of "
        "the Jacobian norms."
    )


def certainty_of_norms(measured: xr.Dataset) -> str:
    """A clause on how far the Jacobian norms may be off: exact, estimated with intervals, or in half precision."""
    dtype = facts_of(measured).get("dtype")
    if dtype in HALF:
        return f"The norms were computed in {dtype}, in which small ones are several times too large"
    if "jacobian_low" not in measured:
        return "The norms are exact to first order, for this prompt and this model"
    low, high = (measured[f"jacobian_{end}"].values for end in ("low", "high"))
    factors = high[low > 0] / low[low > 0]
    said = "The norms are estimates from random products of the Jacobian"
    if not factors.size:
        return said
    return f"{said}; the ends of their intervals are up to a factor of {factors.max():.2g} apart"
