"""What the report says beside its figures of one prompt: bound and Jacobian, their ranks, and the paths by layer."""

import numpy as np
import xarray as xr

from squashlens.records.sentences import Rank, beside, number, sentence, times
from squashlens.reporting.first_screen import name_at

ENOUGH = 15  # tokens from which on ranks are compared


def ranks(measured: xr.Dataset) -> str:
    """Whether path bound and Jacobian rank the tokens alike; empty for too few tokens."""
    if int(measured["compared_tokens"]) < ENOUGH:
        return ""
    rank = Rank.of(measured, "rank_agreement", estimate="path_bound")
    null = float(measured["rank_agreement"].sel(estimate="null"))
    return (
        f"{sentence(rank.agreement('path bound and Jacobian norm'))}; the null, which does not use this model's "
        f"attention, reaches ρ = {number(null)}. BOS and the last token are left out."
    )


def is_it_a_bound(measured: xr.Dataset) -> str:
    """Whether the path bound with all constants 1 lies above the Jacobian norms of this prompt."""
    bound, truth = measured["path_bound"].values, measured["jacobian"].values
    ratios = bound[truth > 0] / truth[truth > 0]
    if not len(ratios):
        return "The Jacobian is zero at every token, so that bound and truth cannot be compared."
    least, most, below = times(ratios.min()), times(ratios.max()), int((bound < truth).sum())
    return (
        f"With all constants 1 the path bound is {least} to {most} the Jacobian norm, below it at {below} of "
        f"{len(truth)} tokens. Nothing guarantees either: it leaves out value and output weights, norm gains and the "
        "softmax."
    )


def freezing(measured: xr.Dataset) -> str:
    """How constant attention, which the theorem assumes, changes the Jacobian norms."""
    frozen, truth = measured["jacobian_frozen"].values, measured["jacobian"].values
    both = (frozen > 0) & (truth > 0)
    if not both.any():
        return ""
    factors = frozen[both] / truth[both]
    return (
        "With attention held constant, as the theorem assumes, the median token's sensitivity is "
        f"{beside(float(np.median(factors)), 1.0)}."
    )


def sinks(measured: xr.Dataset) -> str:
    """The attention sinks and their shares; empty without one."""
    places = np.flatnonzero(measured["sink"].values == 1) if "sink" in measured else []
    if not len(places):
        return ""
    values = (measured[name].values for name in ("path_bound", "null", "jacobian"))
    bound, null, norm = (100 * each[places].sum() / each.sum() if each.sum() > 0 else np.nan for each in values)
    names = ", ".join(name_at(measured, int(place)) for place in places)
    return (
        f"Attention sinks: {names}, with {bound:.4g} % of the path bound, {null:.3g} % of the null and {norm:.3g} % of "
        "the Jacobian norms."
    )


def depth(found: xr.Dataset) -> str:
    """From which layer on the last token's own stream has more than half of the sensitivity."""
    rows = found["jacobian"].isel(query=-1)
    sums = rows.sum("position").values
    if not (sums > 0).all():
        return ""
    layers, shares = rows["layer"].values, rows.values[:, -1] / sums
    # At layer L only the final norm follows, so that the last token has all of it in every model.
    beyond = next((int(layer) for layer, share in zip(layers[:-1], shares[:-1], strict=True) if share > 0.5), None)
    start = f"The last token's own stream has {100 * shares[0]:.3g} % of the summed sensitivity at layer {layers[0]}"
    if beyond is None or beyond == layers[0]:
        return f"{start}."
    return f"{start}, and more than half from layer {beyond} of {layers[-1]} on."
