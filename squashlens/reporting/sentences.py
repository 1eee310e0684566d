"""Sentences of the report on one prompt, computed from the results, whether a claim holds, fails or is undecided.

`squashlens.reporting.sentences` has the words for correlations. Intervals and p-values are part of the results.
"""

import math
from dataclasses import dataclass

import numpy as np
import xarray as xr

from squashlens.records.results import facts_of
from squashlens.theory.distances import NOISE_FLOORS
from squashlens.theory.spread import has_sink

WORDS = ((0.9, "very strong"), (0.7, "strong"), (0.4, "moderate"), (0.1, "weak"), (0.0, "negligible"))
NEGLIGIBLE = 0.1
TEST = 0.05


@dataclass(frozen=True)
class Rank:
    """A rank correlation ρ with the ends of its interval and its corrected p-value."""

    rho: float
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, ds: xr.Dataset, name: str, **place: object) -> "Rank":
        """The rank correlation in the four variables of a result that start with `name`."""
        return cls(*(float(ds[f"{name}{end}"].sel(place)) for end in ("", "_low", "_high", "_p")))

    @property
    def measured(self) -> bool:
        """Whether ρ, its interval and its p-value are all finite."""
        return all(math.isfinite(value) for value in (self.rho, self.low, self.high, self.p))

    @property
    def decided(self) -> bool:
        """Whether the direction of the correlation is known."""
        return self.measured and (self.low > 0 or self.high < 0) and self.p < TEST

    @property
    def absent(self) -> bool:
        """Whether the whole interval is negligible."""
        return self.measured and max(abs(self.low), abs(self.high)) < NEGLIGIBLE

    @property
    def strength(self) -> str:
        """Words for both ends of the interval, the weaker first; one word if they are the same."""
        ends = sorted((abs(self.low), abs(self.high)))
        least, most = (next(word for edge, word in WORDS if end >= edge) for end in ends)
        return least if least == most else f"{least} to {most}"

    @property
    def numbers(self) -> str:
        """ρ, its interval and its p-value as text, with what left the direction open if the interval excludes 0."""
        rho, low, high = (near_edge(value, 0.0, 2) for value in (self.rho, self.low, self.high))
        p = "p below 0.001" if self.p < 0.001 else f"p = {near_edge(self.p, TEST, 3)}"
        text = f"Spearman ρ = {rho}, 95 % interval {low} to {high}, {p}"
        excludes = self.low > 0 or self.high < 0
        return f"{text} after correction for the tests made together" if excludes and self.p >= TEST else text

    def trend(self, rises: str = "rises") -> str:
        """A verb phrase for the trend: its direction and strength, or that it is unclear, with the numbers."""
        if math.isnan(self.rho):
            return "is constant"
        if not self.measured:
            return f"has too few values for a trend (ρ = {self.rho:.2f})"
        if self.absent:
            return f"has at most a negligible trend ({self.numbers})"
        if not self.decided:
            return f"shows no clear trend ({self.numbers})"
        return f"{rises if self.rho > 0 else 'falls'} ({self.strength} trend, {self.numbers})"


def near_edge(value: float, edge: float, digits: int) -> str:
    """A number with so many decimals, and with more where it would otherwise read as on another side of the edge.

    >>> near_edge(0.004, 0.0, 2), near_edge(0.0496, 0.05, 2), near_edge(-0.001, 0.0, 2), near_edge(0.3, 0.0, 2)
    ('0.004', '0.0496', '-0.001', '0.30')
    """
    texts = (f"{value:.{more}f}" for more in range(digits, 30))
    return next((text for text in texts if _side(float(text), edge) == _side(value, edge)), f"{value:.{digits}g}")


def _side(value: float, edge: float) -> int:
    return (value > edge) - (value < edge)


def prompt_summary(ds: xr.Dataset, answer: xr.DataArray) -> str:
    """The number of tokens, the token at which the prompt is measured, and the model's next token."""
    n = ds.sizes["position"]
    first, share = str(answer["token"].values[0]), float(answer.values[0])
    certain = f"{share:.3f}" if share < 0.9995 else "above 0.999"
    return (
        f"The prompt has {n} tokens and is measured at its last token, “{ds['token'].values[-1]}”. "
        f"The model's most likely next token is “{first}” (probability {certain})."
    )


def agreement(ds: xr.Dataset) -> str:
    """How well the path bound ranks tokens as the true Jacobian does, and whether it does so better than the null."""
    n, rank = int(ds["compared_tokens"]), Rank.of(ds, "rank_agreement", estimate="path_bound")
    if not rank.measured:
        return f"The rank correlation of path bound and Jacobian cannot be computed (tokens compared: {n})."
    basis = f"({rank.numbers}, {n} tokens)"
    if rank.absent:
        verdict = f"The path bound does not rank tokens as the true Jacobian does: agreement is negligible {basis}."
    elif not rank.decided:
        verdict = f"Whether the path bound ranks tokens as the true Jacobian does is undecided here {basis}."
    elif rank.rho > 0:
        verdict = f"The path bound and the true Jacobian rank tokens with {rank.strength} agreement {basis}."
    else:
        verdict = (
            f"The path bound ranks tokens opposite to the true Jacobian, with {rank.strength} disagreement {basis}."
        )
    return f"{verdict} {_agreement_over_null(ds)}".rstrip()


def _agreement_over_null(ds: xr.Dataset) -> str:
    null = float(ds["rank_agreement"].sel(estimate="null"))
    gap, low, high = (float(ds[f"agreement_over_null{side}"]) for side in ("", "_low", "_high"))
    if not (math.isfinite(null) and math.isfinite(low) and math.isfinite(high)):
        return ""
    of_null = f"The uniform null, which does not use this model's attention, reaches ρ = {null:.2f}"
    numbers = "(difference {}, 95 % interval {} to {})".format(
        *(near_edge(value, 0.0, 2) for value in (gap, low, high))
    )
    if low == high == 0:  # no interval, since both rank the tokens in the same order or agree equally at each
        return f"{of_null}; the path bound agrees exactly as well."
    if low > 0:
        return f"{of_null}; the path bound agrees better {numbers}."
    if high < 0:
        return f"{of_null}; the path bound agrees worse {numbers}."
    return f"{of_null}; whether the path bound agrees better is undecided {numbers}."


def position(ds: xr.Dataset) -> str:
    """How Jacobian, path bound and null change along the prompt, and whether attention favours early or late tokens."""
    n = int(ds["compared_tokens"])
    names = ("jacobian", "path_bound", "null", "bound_over_null")
    truth, bound, null, ratio = (Rank.of(ds, "position_trend", estimate=name) for name in names)
    if not any(rank.measured for rank in (truth, bound, null, ratio)):
        return f"Along the prompt no trend can be computed (tokens compared: {n})."
    return (
        f"From the first to the last of {n} compared tokens, the true sensitivity {truth.trend()} and the path bound "
        f"{bound.trend()}. The null, with uniform attention, {null.trend()}. The path bound divided by the null "
        f"{ratio.trend()}: {_beyond_null(ratio)}"
    )


def _beyond_null(rank: Rank) -> str:
    if math.isnan(rank.rho) or rank.absent:
        return "on this prompt attention favours neither early nor late tokens beyond what causality does."
    if not rank.decided:
        return "whether attention favours early or late tokens beyond what causality does is undecided on this prompt."
    if rank.rho < 0:
        return "on this prompt attention favours early tokens beyond what causality alone does."
    return "on this prompt attention favours late tokens more than causality alone does."


def is_it_a_bound(ds: xr.Dataset) -> str:
    """Whether the path bound with all constants 1 lies above the Jacobian here, and what that means."""
    bound, truth = ds["path_bound"].values, ds["jacobian"].values
    n, below = len(truth), int((bound < truth).sum())
    ratios = bound[truth > 0] / truth[truth > 0]
    if not len(ratios):
        return "The true Jacobian is zero at every token, so bound and truth cannot be compared."
    spread = f"bound ÷ Jacobian runs from {ratios.min():.3g} to {ratios.max():.3g}, median {np.median(ratios):.3g}"
    if below:
        return (
            f"With all constants set to 1, the path bound is not a bound for this model: it lies below the true "
            f"Jacobian norm at {below} of {n} tokens ({spread})."
        )
    return (
        f"With all constants set to 1, the path bound lies above the true Jacobian norm at all {n} tokens ({spread}). "
        "Nothing guarantees that, because it leaves out value and output weights, norm gains and the softmax."
    )


def freezing(ds: xr.Dataset) -> str:
    """How the theorem's assumption that attention does not depend on the input changes the Jacobian."""
    frozen, truth = ds["jacobian_frozen"].values, ds["jacobian"].values
    both = (frozen > 0) & (truth > 0)
    if not both.any():
        return "No token has a positive sensitivity both with and without frozen attention."
    factors = frozen[both] / truth[both]
    middle, low, high = np.median(factors), factors.min(), factors.max()
    if abs(math.log(middle)) < 0.01:
        effect = "does not change the typical token's sensitivity"
    else:
        direction = "lowers" if middle < 1 else "raises"
        effect = f"{direction} the typical token's sensitivity, by a median factor of {middle:.3g}"
    return f"Holding attention constant, as the theorem assumes, {effect} ({low:.3g} to {high:.3g} by token)."


def spread(shares: xr.DataArray) -> str:
    """Where the paths to the query start, at layer 0."""
    bottom, n = shares.sel(layer=0), shares.sizes["position"]
    if has_sink(bottom.values):
        return _beside_sink(bottom)
    kept, most, holders = float(bottom[-1]), int(bottom.values.argmax()), _holders(bottom.values)
    return (
        f"Composed over all blocks, {100 * float(bottom[most]):.3g} % of the paths start at {_name(shares, most)}, "
        f"and {100 * kept:.3g} % never leave the last token; 90 % start at {holders} of the {n} tokens."
    )


def _holders(shares: np.ndarray) -> int:
    """The number of tokens that have 90 % of shares that sum to 1."""
    return int(np.searchsorted(np.cumsum(np.sort(shares)[::-1]), 0.9 - 1e-12) + 1)


def _beside_sink(starts: xr.DataArray) -> str:
    """Where the paths start that do not start at the first token, which has nearly all."""
    values = starts.values.astype(float)
    others = values[1:] / values[1:].sum()
    most = int(others.argmax())
    return (
        f"Composed over all blocks, {100 * values[0] / values.sum():.4g} % of the paths start at {_name(starts, 0)}, "
        f"the first token. Of the other paths, {100 * others[most]:.3g} % start at {_name(starts, most + 1)} and "
        f"{100 * others[-1]:.3g} % never leave the last token; 90 % start at {_holders(others)} of the "
        f"{len(others)} other tokens."
    )


def beside_sink(ds: xr.Dataset) -> str:
    """The sinks and their shares, and what trends and agreement leave out; empty without a sink or a leading BOS."""
    sinks = np.flatnonzero(ds["sink"].values == 1) if "sink" in ds else []
    if not len(sinks):
        left = ds.sizes["position"] - 1 - int(ds["compared_tokens"])
        out = f"Trends and agreement leave out {_name(ds, 0)} and the last token." if left == 1 else ""
        return f"No token is an attention sink. {out}" if out else ""
    values = {name: ds[name].values for name in ("path_bound", "null", "jacobian")}
    shares = [100 * each[sinks].sum() / each.sum() if each.sum() > 0 else math.nan for each in values.values()]
    names = ", ".join(_name(ds, int(place)) for place in sinks)
    one = len(sinks) == 1
    return (
        f"{names} {'is an attention sink: it has' if one else 'are attention sinks: they have'} {shares[0]:.4g} % of "
        f"the summed path bound, {shares[1]:.3g} % of the null, and {shares[2]:.3g} % of the summed Jacobian norms. "
        f"Trends and agreement are those of the other tokens before the last, {int(ds['compared_tokens'])} in all."
    )


def _name(result: xr.Dataset | xr.DataArray, place: int) -> str:
    return f"“{result['token'].values[place]}” at position {int(result['position'].values[place])}"


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
    norms = certainty_of_norms(measured)
    return f"{norms}; a derivative does not say what replacing a token does. {agreement(measured)}"


def certainty_of_norms(measured: xr.Dataset) -> str:
    """A clause on how far the Jacobian norms may be off: exact, estimated with intervals, or in half precision."""
    dtype = facts_of(measured).get("dtype")
    if dtype in HALF:
        return f"The norms were computed in {dtype}, in which small ones are several times too large"
    if "jacobian_low" not in measured:
        return "The norms are exact to first order, for this prompt and this model"
    low, high = (measured[f"jacobian_{end}"].values for end in ("low", "high"))
    known = low > 0
    if not known.any():
        return "The norms are estimates from random products of the Jacobian"
    apart = f"; the ends of their intervals are up to a factor of {(high[known] / low[known]).max():.2g} apart"
    return f"The norms are estimates from random products of the Jacobian{apart}"
