"""What the report says, as functions of the data: right also when a claim is false or undecided.

A rank correlation over n tokens counts as decided only where chance would rarely reach it: under no
association ρ has variance 1/(n − 1), so |ρ| √(n − 1) must exceed 1.96.
"""

import math

import numpy as np
import xarray as xr

CLEAR = 1.96


def decided(rho: float, n: int) -> bool:
    """Whether a rank correlation over n tokens stands out from chance at the 5 % level."""
    return bool(n >= 3 and math.isfinite(rho) and abs(rho) * math.sqrt(n - 1) > CLEAR)


def asked(ds: xr.Dataset, answer: xr.DataArray) -> str:
    """The prompt's size, where it is read, and what the model would say next."""
    n = ds.sizes["position"]
    first, share = str(answer["token"].values[0]), float(answer.values[0])
    certain = f"{share:.3f}" if share < 0.9995 else "above 0.999"
    return (
        f"The prompt has {n} tokens and is read at its last one, “{ds['token'].values[-1]}”. "
        f"The model's most likely next token is “{first}” (probability {certain})."
    )


def agreement(ds: xr.Dataset) -> str:
    """Whether the path bound ranks tokens as the true Jacobian does, and whether the null does as well."""
    n = int(ds["compared_tokens"])
    rho, null = _rho(ds, "rank_agreement", "path_bound"), _rho(ds, "rank_agreement", "null")
    if n < 3 or not math.isfinite(rho):
        return f"With {n} tokens to compare, nothing can be said about how bound and Jacobian rank them."
    threshold = CLEAR / math.sqrt(n - 1)
    basis = f"(Spearman ρ = {rho:.2f} over {n} tokens; chance alone stays within ±{threshold:.2f})"
    if not decided(rho, n):
        verdict = f"Whether the path bound ranks tokens as the true Jacobian does is undecided here {basis}."
    elif rho > 0:
        verdict = f"The path bound ranks tokens much as the true Jacobian does {basis}."
    else:
        verdict = f"The path bound ranks tokens against the true Jacobian {basis}."
    if not math.isfinite(null):
        return verdict
    if round(null, 2) == round(rho, 2):
        compare = f"The uniform null, which knows nothing of this model's attention, does just as well ({null:.2f})."
    elif null > rho:
        compare = f"The uniform null, which knows nothing of this model's attention, does better ({null:.2f})."
    else:
        compare = f"The uniform null, which knows nothing of this model's attention, reaches {null:.2f}."
    return f"{verdict} {compare}"


def position(ds: xr.Dataset) -> str:
    """Whether early tokens are favoured, by the truth, by the bound, and by more than the null explains."""
    n = int(ds["compared_tokens"])
    rows = {name: _rho(ds, "position_trend", name) for name in ("jacobian", "path_bound", "null", "bound_over_null")}
    if n < 3 or not any(math.isfinite(r) for r in rows.values()):
        return f"With {n} tokens to compare, no trend along the prompt can be told."
    truth, bound, ratio = rows["jacobian"], rows["path_bound"], rows["bound_over_null"]
    return (
        f"Along the prompt the true sensitivity {_trend(truth, n)} and the path bound {_trend(bound, n)}; "
        f"under uniform attention alone the bound {_trend(rows['null'], n)}. Measured against that null, "
        f"it {_trend(ratio, n)}: {_beyond_null(ratio, n)}"
    )


def _trend(rho: float, n: int) -> str:
    if not math.isfinite(rho):
        return "is constant"
    if not decided(rho, n):
        return f"shows no clear trend (ρ = {rho:.2f})"
    return f"{'falls' if rho < 0 else 'rises'} (ρ = {rho:.2f})"


def _beyond_null(rho: float, n: int) -> str:
    if not decided(rho, n):
        return "on this prompt attention favours neither early nor late tokens beyond what causality does."
    if rho < 0:
        return "on this prompt attention favours early tokens beyond what causality alone does."
    return "on this prompt attention favours late tokens more than causality alone does."


def is_it_a_bound(ds: xr.Dataset) -> str:
    """Whether the printed form, all constants 1, lies above the Jacobian here, and what that means."""
    bound, truth = ds["path_bound"].values, ds["jacobian"].values
    n, below = len(truth), int((bound < truth).sum())
    ratios = bound[truth > 0] / truth[truth > 0]
    if not len(ratios):
        return "The true Jacobian is zero at every token, so bound and truth cannot be compared."
    spread = f"bound ÷ Jacobian runs from {ratios.min():.3g} to {ratios.max():.3g}, median {np.median(ratios):.3g}"
    if below:
        return (
            f"The printed form is not a bound for this model: with all constants 1 it lies below the true "
            f"Jacobian at {below} of {n} tokens ({spread})."
        )
    return (
        f"With all constants 1 the printed form lies above the true Jacobian at all {n} tokens ({spread}); "
        "nothing guarantees that, since it leaves out value and output weights, norm gains and the softmax."
    )


def freezing(ds: xr.Dataset) -> str:
    """What the theorem's assumption, attention independent of the input, changes."""
    frozen, truth = ds["jacobian_frozen"].values, ds["jacobian"].values
    both = (frozen > 0) & (truth > 0)
    if not both.any():
        return "No token has a sensitivity to compare with and without frozen attention."
    factors = frozen[both] / truth[both]
    middle, low, high = np.median(factors), factors.min(), factors.max()
    if abs(math.log(middle)) < 0.01:
        effect = "leaves the typical token's sensitivity as it is"
    else:
        direction = "lowers" if middle < 1 else "raises"
        effect = f"{direction} the typical token's sensitivity, by a median factor of {middle:.3g}"
    return f"Holding attention constant, as the theorem assumes, {effect} ({low:.3g} to {high:.3g} by token)."


def extremes(ds: xr.Dataset) -> str:
    """Which tokens matter most and least to the last representation."""
    truth = ds["jacobian"]
    top, bottom = int(truth.values.argmax()), int(truth.values.argmin())
    low, high = float(truth[bottom]), float(truth[top])
    factor = f"{high / low:.3g} times" if low > 0 else "infinitely"
    return (
        f"The last representation is most sensitive to {_name(ds, top)} and least to {_name(ds, bottom)}, "
        f"{factor} less ({high:.3g} against {low:.3g})."
    )


def spread(shares: xr.DataArray) -> str:
    """Where the paths into the query come from, at the bottom of the stack."""
    bottom, n = shares.sel(layer=0), shares.sizes["position"]
    order = bottom.values.argsort()[::-1]
    kept = float(bottom[-1])
    most = int(order[0])
    holders = int(np.searchsorted(np.cumsum(bottom.values[order]), 0.9 - 1e-12) + 1)
    return (
        f"Composed over all blocks, {100 * float(bottom[most]):.3g} % of the paths start at {_name(shares, most)}, "
        f"and {100 * kept:.3g} % never leave the last token; 90 % start at {holders} of the {n} tokens."
    )


def _rho(ds: xr.Dataset, variable: str, estimate: str) -> float:
    return float(ds[variable].sel(estimate=estimate))


def _name(result: xr.Dataset | xr.DataArray, place: int) -> str:
    return f"“{result['token'].values[place]}” at position {int(result['position'].values[place])}"
