"""Sentences of the report on one prompt, computed from the results, whether a claim holds, fails or is undecided.

`squashlens.reporting.strength` has the words for correlations. Intervals and p-values are part of the results.
"""

import math

import numpy as np
import xarray as xr

from squashlens.reporting.strength import Rank, beside
from squashlens.theory.spread import first_share, has_sink


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
    numbers = "(difference {}, 95 % interval {} to {})".format(*(beside(value, 0.0, 2) for value in (gap, low, high)))
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
    """The shares of the first token, which comparisons leave out; empty if it has at most 90 % of the bound."""
    if not has_sink(ds["path_bound"].values):
        return ""
    shares = [100 * first_share(ds[name].values) for name in ("path_bound", "null", "jacobian")]
    return (
        f"The first token, {_name(ds, 0)}, has {shares[0]:.4g} % of the summed path bound, "
        f"{shares[1]:.3g} % of the null, and {shares[2]:.3g} % of the summed Jacobian norms. Trends and agreement are "
        "those of the other tokens, which the scale of the path bound fits."
    )


def _name(result: xr.Dataset | xr.DataArray, place: int) -> str:
    return f"“{result['token'].values[place]}” at position {int(result['position'].values[place])}"
