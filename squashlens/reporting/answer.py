"""The short answer of the report: what a prompt loses, where, and how sure that is, in five lines."""

import numpy as np
import xarray as xr

from squashlens.records.results import facts_of
from squashlens.reporting.sentences import agreement
from squashlens.theory.distances import NOISE_FLOORS

THIRDS = ("first", "middle", "last")
HALF = ("float16", "bfloat16")


def short_answer(measured: xr.Dataset, found: xr.Dataset) -> tuple[tuple[str, str], ...]:
    """Five lines, each with a heading: from the result of `sensitivity`, and the Dataset of the prompt's map."""
    return (
        ("What is lost", _what(measured)),
        ("Where in the prompt", _where(measured)),
        ("Where in the model", _depth(found)),
        ("At the end", _end(found)),
        ("How sure", _how_sure(measured)),
    )


def _what(measured: xr.Dataset) -> str:
    """How few tokens have half of the sensitivity, and the least."""
    values = measured["jacobian"].values
    if not values.sum() > 0:
        return "The last representation is sensitive to no token: all Jacobian norms are 0."
    order = np.sort(values)[::-1]
    half = int(np.searchsorted(np.cumsum(order), values.sum() / 2) + 1)
    least, most = int(values.argmin()), int(values.argmax())
    spread = values.max() / values.min() if values.min() > 0 else np.inf
    factor = f"{spread:.3g} times" if np.isfinite(spread) else "infinitely"
    return (
        f"{half} of {len(values)} tokens {'has' if half == 1 else 'have'} half of the summed sensitivity (Jacobian "
        "norm). The last representation "
        f"is {factor} less sensitive to “{measured['token'].values[least]}” at position {least} than to "
        f"“{measured['token'].values[most]}” at position {most}, the largest."
    )


def _where(measured: xr.Dataset) -> str:
    """The third of the prompt with the lowest median sensitivity, and what uniform attention would give there."""
    n = int(measured["compared_tokens"])
    inside = slice(measured.sizes["position"] - 1 - n, measured.sizes["position"] - 1)  # without BOS and the last token
    if n < 3:
        return f"With {n} tokens between the first and the last, parts of the prompt cannot be compared."
    parts = [part for part in np.array_split(np.arange(measured.sizes["position"])[inside], 3)]
    norms = [float(np.median(measured["jacobian"].values[part])) for part in parts]
    ratios = [float(np.median(measured["bound_over_null"].values[part])) for part in parts]
    lowest = int(np.argmin(norms))
    each = ", ".join(f"{value:.3g}" for value in norms)
    return (
        f"Between the first and the last token, the median norm in the first, middle and last third is {each}: lowest "
        f"in the {THIRDS[lowest]} third. There, the path bound is {ratios[lowest]:.3g} times the null, the path bound "
        "under uniform attention (median)."
    )


def _depth(found: xr.Dataset) -> str:
    """From which layer on the last token's own stream has more than half of the sensitivity."""
    rows = found["jacobian"].isel(query=-1)
    layers, own = rows["layer"].values, rows.values[:, -1]
    sums = rows.sum("position").values
    if not (sums > 0).all():
        return "The Jacobian is 0 at some layer, so that layers cannot be compared."
    shares = own / sums
    # At layer L only the final norm follows, so that the last token has all of it in every model.
    beyond = [int(layer) for layer, share in zip(layers[:-1], shares[:-1], strict=True) if share > 0.5]
    start = f"The last token's own stream has {100 * shares[0]:.3g} % of the summed sensitivity at layer {layers[0]}"
    if not beyond or beyond[0] == layers[0]:
        return f"{start}, and {100 * shares[-2]:.3g} % at layer {layers[-2]}, before the last block."
    return (
        f"{start}, and more than half from layer {beyond[0]} of {layers[-1]} on: what reaches the answer from earlier "
        f"tokens has mostly been read by block {beyond[0] - 1}."
    )


def _end(found: xr.Dataset) -> str:
    """The distance of v and v* at the last layer, beside the noise floor and the size of v."""
    top = found.isel(layer=-1)
    far, noise, size = (float(top[name]) for name in ("collapse_distance", "collapse_noise", "last_token_rms"))
    if not np.isfinite(far):
        return "The prompt with its last token repeated is longer than the model's context, so v* was not measured."
    verdict = (
        f"This is at most {NOISE_FLOORS} noise floors, so that rounding alone may cause it."
        if far <= NOISE_FLOORS * noise
        else f"This is {far / size:.3g} times the root mean square of v."
        if size > 0
        else "v is 0."
    )
    return (
        f"Repeating the last token moves the last residual stream by D = {far:.3g} (L∞, layer {int(top['layer'])}), "
        f"{far / noise:.3g} times the noise floor. {verdict}"
    )


def _how_sure(measured: xr.Dataset) -> str:
    """What the numbers hold for."""
    dtype = facts_of(measured).get("dtype")
    exact = (
        f"The norms were computed in {dtype}, in which small ones are several times too large"
        if dtype in HALF
        else "The norms are exact to first order, for this prompt and this model"
    )
    return f"{exact}; a derivative does not say what replacing a token does. {agreement(measured)}"
