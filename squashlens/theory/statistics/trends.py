"""Spearman's ρ for series whose neighbours are dependent: intervals, p-values, and corrections for many tests.

An interval that assumes independence is too narrow: for two unrelated series of 100 values with a lag-one correlation
of 0.8, it finds an association in a third of the cases. Here the variance of ρ is that of a moving-block bootstrap
(Künsch 1989), which keeps neighbours together.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy import special  # `scipy.stats` takes a second to import
from torch import Tensor

LEVEL = 0.95
FEWEST = 4  # shortest series; Fisher's variance 1/(n − 3) needs n > 3
BLOCKS = 4  # fewest blocks of a series, however dependent its values are
PERSISTENT = 0.97  # largest r in the rule for the block length, which diverges at 1


ENDS = {"": "", "_low": ", lower end of its 95 % interval", "_high": ", upper end of its 95 % interval"}
Labelled = dict[str, tuple[tuple[str, ...], Any, str, str]]  # variables: dimensions, values, long name and units


def with_ends(name: str, dims: Iterable[Any], ends: Iterable[Any], text: str, units: str = "1") -> Labelled:
    """An estimate and the ends of its interval as variables of a result: `name`, `name_low` and `name_high`."""
    each, over = zip(ENDS.items(), ends, strict=True), tuple(dims)
    return {name + end: (over, values, text + which, units) for (end, which), values in each}


class Association(NamedTuple):
    """Spearman's ρ with the ends of its 95 % interval, and the p-value of no association."""

    rho: Float[Tensor, "*many"]
    low: Float[Tensor, "*many"]
    high: Float[Tensor, "*many"]
    p: Float[Tensor, "*many"]

    def variables(self, name: str, text: str, *dims: str) -> Labelled:
        """The parts as variables of a result: `name`, `name_low`, `name_high` and `name_p`."""
        p = {f"{name}_p": (dims, self.p, f"{text}, p-value of no association", "1")}
        return with_ends(name, dims, (self.rho, self.low, self.high), text) | p

    def corrected(self) -> "Association":
        """The same associations with p-values corrected for their number by Holm's method."""
        return self._replace(p=torch.tensor(holm(self.p.flatten().tolist())).reshape(self.p.shape))


def association(a: Float[Tensor, "*many place"], b: Float[Tensor, "*#many place"]) -> Association:
    """Spearman's ρ along the last axis, with an interval that allows for dependence between neighbours.

    1. Up to terms of order 1/n, ρ is a mean over places of influence values ψ_i (the Hájek projection of ρ). ψ_i
       includes the effect of place i on the ranks of the others.
    2. The moving-block bootstrap of a mean has a closed-form variance: the mean square of the block means of ψ times
       ℓ/n, for blocks of length ℓ. It is divided by 1 − ℓ/n, to undo the effect of centring.
    3. The block length is ``ℓ = 2 ⌈(√6 r/(1 − r²))^⅔ n^⅓⌉``, at most n/4: twice Carlstein's (1986) length for an
       autoregression. Here r is the product of the lag-one rank correlations of both series, each with Kendall's
       (1 + 3r)/n added.
    4. The interval is ``tanh(artanh ρ ± t se)`` with ``se = max(√var/(1 − ρ²), 1/√(n − 3))`` and Student's t with n/ℓ −
       1 degrees of freedom. It is never narrower than for independent values (Fisher). ρ = ±1 is replaced by the point
       half a step of ρ centred from it.

    Calibration on autoregressions with n from 12 to 300: for lag-one correlations up to 0.8, at most 8 % of unrelated
    series have a p-value below 0.05, and at least 93 % of the intervals contain a planted correlation; at 0.95, 15 %
    and 90 %. The result is NaN as in `spearman`; interval and p-value are also NaN for fewer than four places.
    """
    x, y = _rows(a, b)
    found = np.full((4, len(x)), np.nan)
    for place, (row, other) in enumerate(zip(x, y, strict=True)):
        found[:, place] = _one(row, other)
    return Association(*torch.from_numpy(found).reshape(4, *a.shape[:-1]))


def difference(
    a: Float[Tensor, " place"], b: Float[Tensor, " place"], reference: Float[Tensor, " place"]
) -> tuple[float, float, float]:
    """The difference of ρ(a, reference) and ρ(b, reference), and the ends of its 95 % interval, as in `association`.

    The influence values are subtracted, so that common parts cancel. NaN if either ρ is NaN.
    """
    (x, y), (other, _) = _rows(a, reference), _rows(b, reference)
    first, second = _one(x[0], y[0])[0], _one(other[0], y[0])[0]
    n = x.shape[-1]
    if n < FEWEST or math.isnan(first + second):
        return math.nan, math.nan, math.nan
    length = max(_block(x[0], y[0]), _block(other[0], y[0]))
    half = _quantile(n, length) * _error(_influence(x[0], y[0]) - _influence(other[0], y[0]), length)
    return first - second, first - second - half, first - second + half


def holm(p: Sequence[float]) -> list[float]:
    """P-values corrected for the number of tests in `p` by Holm's method (1979); NaN does not count as a test."""
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(np.asarray(p)[known], kind="stable")]
    steps = np.asarray(p)[order] * np.arange(len(order), 0, -1)
    corrected = np.full(len(p), np.nan)
    corrected[order] = np.minimum(1, np.maximum.accumulate(steps))
    return corrected.tolist()


def _rows(a: Tensor, b: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Both tensors as float64 rows of equal shape."""
    x, y = (given.detach().cpu().double() for given in torch.broadcast_tensors(a, b))
    rows = math.prod(x.shape[:-1])
    return x.reshape(rows, x.shape[-1]).numpy(), y.reshape(rows, y.shape[-1]).numpy()


def _one(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float]:
    """ρ, both ends of its interval, and the p-value, for one pair of series."""
    n, nothing = len(x), (math.nan, math.nan, math.nan)
    if n < 3 or np.isnan(x).any() or np.isnan(y).any() or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan, *nothing
    rho = float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])
    if n < FEWEST:
        return rho, *nothing
    length, most = _block(x, y), 1 - 6 / (n**3 - n)
    inside = min(max(rho, -most), most)
    error = max(_error(_influence(x, y), length) / (1 - inside**2), (n - 3) ** -0.5)
    z, half = math.atanh(inside), _quantile(n, length) * error
    low, high = min(rho, math.tanh(z - half)), max(rho, math.tanh(z + half))
    return rho, low, high, float(2 * special.stdtr(_freedom(n, length), -abs(z) / error))


def _ranks(row: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values get their mean rank."""
    _, place, times = np.unique(row, return_inverse=True, return_counts=True)
    return (times.cumsum() - (times - 1) / 2)[place]


def _influence(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The influence value of each place on ρ: its product of ranks, and its effect on the ranks of the others."""
    n = len(x)
    u, v = ((_ranks(row) - (n + 1) / 2) / n for row in (x, y))
    values = (u * v + _above(u, v) + _above(v, u)) / (u.std() * v.std())
    return values - values.mean()


def _above(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """For each place, the mean over all places of v if u is larger there than here, and of v/2 if u is equal."""
    order = np.argsort(u, kind="stable")
    sums = np.append(np.cumsum(v[order][::-1])[::-1], 0.0) / len(u)
    return (sums[np.searchsorted(u[order], u, "left")] + sums[np.searchsorted(u[order], u, "right")]) / 2


def _block(x: np.ndarray, y: np.ndarray) -> int:
    """The block length: how many neighbours are kept together."""
    n, r = len(x), 1.0
    for row in (x, y):
        centred = _ranks(row) - (n + 1) / 2
        lag_one = (centred[1:] @ centred[:-1]) / (centred @ centred)
        r *= min(1.0, lag_one + (1 + 3 * lag_one) / n)
    r = min(max(r, 0.0), PERSISTENT)
    return max(1, min(2 * math.ceil((math.sqrt(6) * r / (1 - r * r)) ** (2 / 3) * n ** (1 / 3)), n // BLOCKS))


def _error(influence: np.ndarray, length: int) -> float:
    """The standard error of a mean, from block means."""
    n, sums = len(influence), np.append(0.0, np.cumsum(influence))
    means = (sums[length:] - sums[:-length]) / length
    return math.sqrt(float(np.square(means).mean()) * length / (n - length))


def _freedom(n: int, length: int) -> float:
    return max(1.0, n / length - 1)


def _quantile(n: int, length: int) -> float:
    return float(special.stdtrit(_freedom(n, length), (1 + LEVEL) / 2))
