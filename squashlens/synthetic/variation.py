"""Total variation between the softmaxes of two growing sequences that differ at their start (figure 9, Lemma B.2)."""

import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import positive
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.records.labels import Variable, dataset_of
from squashlens.synthetic.convergence import (
    FEWEST,
    facts,
    of_draws,
    power_law,
    slopes_of,
    tail_of,
)
from squashlens.synthetic.stack import chosen_lengths, chosen_seeds
from squashlens.theory.distances import total_variation

LARGEST = math.log(sys.float_info.max)  # the largest noise whose exponential is finite


@validated
def softmax_total_variation(
    lengths: Iterable[int],
    *,
    k: int = 200,
    noise: float = 0.1,
    seeds: int | Iterable[int] = 5,
) -> xr.Dataset:
    """Total variation δ of two softmaxes by length: x is uniform on [0, 1], and x* has noise on its first k entries.

    Each seed draws one growing sequence and one noise, uniform on [0, a]. Up to n = k every entry is perturbed. For n
    much larger than k, δ falls as 1/n: n δ tends to 2 Σ_{i≤k} (e^{x*_i} − e^{x_i}) / E e^x, whose mean over draws is
    2k ((e^a − 1)/a − 1). At smaller n, δ has the factor 1 − k/n, the share of entries that are not perturbed, which
    makes the slope less steep.

    Args:
        lengths: n, the numbers of entries. Exponents are fitted on the tail, the upper half of the range of log n, with
            at least three of them. Lengths below 10 k, or below 10 k ((e^a − 1)/a − 1) if that is larger, are left out,
            because δ does not yet fall as 1/n there.
        k: number of perturbed entries.
        noise: a, the largest noise on an entry.
        seeds: number of random draws, or their seeds.

    Returns:
        Dataset with `total_variation` over (seed, length), δ without the factor ½; `exponent` and `fit` (R²) over
        (seed); `exponent_mean`, `exponent_low`, `exponent_high` (95 %, Student's t over seeds); the same for
        δ ÷ (1 − k/n) as `leading_mean`, `leading_low`, `leading_high`; `rate`, −1, the derived value of the last three;
        `expected` over (length), the derived mean of δ, NaN for n ≤ k; and `perturbed`, k. The fit is descriptive.

    Raises:
        InputError: if the noise is not positive or its exponential exceeds double precision, or if there are fewer than
            three lengths to fit on.

    Source: Barbero et al. 2024, appendix C.3, figure 9.

    >>> ds = softmax_total_variation([100, 10_000, 30_000, 100_000])
    >>> round(ds["exponent_mean"].item(), 1)
    -1.0
    """
    positive(k, "k", "a number of entries")
    if not 0 < noise <= LARGEST:
        raise InputError(
            f"noise={noise!r} is not positive, or its exponential exceeds double precision.",
            f"Give a positive number below {LARGEST:.0f}.",
        )
    ns = chosen_lengths(lengths)
    numbers = chosen_seeds(seeds)
    n = torch.tensor(ns, dtype=torch.float64)
    # From this n on, k/n and g are below a tenth.
    settled = 10 * k * max(1.0, _mean_gain(noise))
    in_fit = tail_of(ns) & (n >= settled)
    if int(in_fit.sum()) < FEWEST:
        raise InputError(
            f"Fewer than {FEWEST} lengths of the tail are at least {settled:.6g}; δ falls as 1/n from there on.",
            "Give longer lengths, or a smaller k or noise.",
        )
    # Entries and noise have separate random streams that do not depend on n.
    longest = ns[-1]
    x = _uniform(numbers, stream=0, highest=1, n=longest)
    x_star = x.clone()
    x_star[:, :k] += _uniform(numbers, stream=1, highest=noise, n=k)[:, :longest]
    by_length = [
        total_variation(x[:, :m].softmax(dim=-1), x_star[:, :m].softmax(dim=-1))
        for m in ns
    ]
    variation = torch.stack(by_length, dim=-1)
    fitted = variation[:, in_fit]
    leading, _ = power_law(n[in_fit], fitted / (1 - k / n[in_fit]))
    expected = torch.where(n > k, expected_variation(n, k, noise), torch.nan)

    of_variation = "δ of softmax x and softmax x*"
    of_leading = "slope of log δ ÷ (1 − k/n) on log n in the tail"
    of_rate = "exponent of δ that can be derived, for n beyond k"
    of_expected = "derived mean of δ over draws, for n beyond k"
    variables: dict[str, Variable] = {
        "total_variation": (("seed", "length"), variation, of_variation, "1"),
        **slopes_of("exponent", "fit", "δ", n[in_fit], fitted),
        **of_draws("leading", leading, of_leading),
        "rate": ((), -1.0, of_rate, "1"),
        "expected": (("length",), expected, of_expected, "1"),
        "perturbed": ((), k, "entries that are perturbed", "entries"),
    }
    call: dict[str, Any] = {"lengths": ns, "k": k, "noise": noise}
    return dataset_of(
        "total variation of two growing softmaxes",
        {"seed": numbers, "length": ns},
        variables,
        facts("softmax_total_variation", None, numbers, **call),
    )


def _uniform(
    seeds: list[int], *, stream: int, highest: float, n: int
) -> Float[Tensor, "seed entry"]:
    """Numbers that are uniform on [0, highest], for each seed."""
    draws = [
        np.random.default_rng((seed, stream, 0)).uniform(0, highest, n)
        for seed in seeds
    ]
    return torch.from_numpy(np.stack(draws))


def expected_variation(
    n: Float[Tensor, " length"], k: int, noise: float
) -> Float[Tensor, " length"]:
    """The derived mean of δ over draws at n ≥ k, for x uniform on [0, 1] and noise uniform on [0, a] on k entries.

    With Z = Σ e^{x_i}, g the relative gain of Z by the noise, and r = ln(1 + g), every weight is multiplied by
    e^{noise}/(1 + g), so δ is twice the loss of weight of two groups of entries:

        all entries beyond k:                              (1 − k/n) g/(1 + g),
        those of the first k entries with noise below r:    k/n (r − 1 + e^−r)/a.

    g is replaced by its mean k/n ((e^a − 1)/a − 1), which leaves an error of order 1/k.
    """
    share = k / n
    g = share * _mean_gain(noise)
    r = g.log1p()
    return 2 * ((1 - share) * g / (1 + g) + share * (r + torch.expm1(-r)) / noise)


def _mean_gain(noise: float) -> float:
    """The mean relative gain of e^x by noise that is uniform on [0, a]: E e^noise − 1 = (e^a − 1)/a − 1."""
    return math.expm1(noise) / noise - 1
