"""Laws of growth and decay: the slope of a curve on logarithmic axes, and how influence falls with distance.

The law of decay is ``γ + β (r + 1)^(−p)`` at distance r, fitted by least squares. Each distance counts with its number
of pairs of query and token. For a given p the fit is linear in γ and β, so only p is searched.

Queries that are near each other are not independent. Contiguous groups of queries are resampled, so only sums over
each group have to be kept: memory grows with the prompt's length, not with its square. `influence_by_distance` says how
often the middle 95 % of the laws held the true one, in simulations of 48 and 128 queries, with factors whose standard
deviation is 0.3, and 300 prompts in each of 32 settings.
"""

from collections.abc import Sequence
from math import nan
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num
from scipy import special
from torch import Tensor

GROUPS = 16  # contiguous groups of queries
FEWEST = 4  # fewest groups of queries that have an interval
RESAMPLES = 200
CELLS = (
    2**17
)  # numbers of the resamples that are fitted together: as many as a CPU's cache holds
SLOWEST = 0.01  # smallest exponent that is tried
FASTEST = 16.0  # largest exponent that is tried
POINTS = 400  # exponents between them from which the search starts
NEAR = 1e-3  # relative distance from an end of that range at which an exponent counts as being there
GOLDEN = (5**0.5 - 1) / 2
STEPS = 60  # of a golden-section search that ends at rounding
FEW_STEPS = 12  # of one that ends at 10⁻⁴ of the exponent
MOST_DEPENDENT = 0.99  # largest correlation of neighbouring residuals of `log_slope`


def log_slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """The least-squares slope s of log y = s log x + c, and its 95 % interval: y grows as x to the power s.

    The interval is about this one curve. Its neighbours are dependent: residuals are taken for an autoregression with
    their own lag-one correlation plus 1/√n, at most 0.99, since estimates of it are too small, and Student's t has
    n − 3 degrees of freedom. Of shuffled distances of random sequences 3 % have an interval without 0, of ratios of the
    distances of two such sequences, which have no trend, 5 % (at most 8 % of a kind), and of autoregressions of 24
    values with correlations of 0, 0.5 and 0.8 3, 5 and 13 %; of 12 values at 0.8 18 %, and at 0.95 up to 28 %; of 64
    values at 0.9 9 %. A step from 1 to 3 has one at 28 % of its places in 64 values, and at 44 % in 12: a slope is no
    law. NaN with a zero or one point; no interval below four.

    >>> round(log_slope([1, 2, 4], [9, 4.5, 2.25])[0], 12)
    -1.0
    """
    if len(x) < 2 or not (np.asarray(y) > 0).all():
        return nan, nan, nan
    n = len(x)
    logs = np.log(x)
    line = np.polyfit(logs, np.log(y), 1)
    slope = float(line[0])
    residual = np.log(y) - np.polyval(line, logs)
    total = max(residual @ residual, np.finfo(float).tiny)  # 0 for an exact power law
    r = residual[1:] @ residual[:-1] / total + n**-0.5
    r = min(max(r, 0), MOST_DEPENDENT)
    # what neighbours do not explain
    innovations = residual[1:] - r * residual[:-1]
    innovations = np.append((1 - r * r) ** 0.5 * residual[0], innovations)
    variance = innovations @ innovations / max(n - 3, 1)
    # the variance of the slope is xᵀ R x ÷ (xᵀx)² times that of a value, with R_ij = r^|i−j|/(1 − r²)
    centred = logs - logs.mean()
    powers = r ** np.abs(np.arange(1 - n, n))
    dependence = np.correlate(centred, centred, "full") @ powers / (1 - r * r)
    error = (variance * dependence) ** 0.5 / (centred @ centred)
    half = float(special.stdtrit(n - 3, 0.975) * error)
    return slope, slope - half, slope + half


class Law(NamedTuple):
    """The floor γ, the amplitude β and the exponent p of ``γ + β (r + 1)^(−p)``."""

    floor: Float[Tensor, "*many"]
    amplitude: Float[Tensor, "*many"]
    exponent: Float[Tensor, "*many"]

    @property
    def at_end(self) -> Bool[Tensor, "*many"]:
        """Whether the exponent is at an end of the range that is tried, so that no power law describes the values."""
        at_slowest = self.exponent <= SLOWEST * (1 + NEAR)
        at_fastest = self.exponent >= FASTEST * (1 - NEAR)
        return at_slowest | at_fastest


class FittedLaw(NamedTuple):
    """A law with the lower and upper ends of the middle 95 % of resamples of each of its parts."""

    law: Law
    low: Law
    high: Law


class ByDistance:
    """Sums of values at each distance ``r = query − position``, for contiguous groups of queries."""

    def __init__(
        self, n: int, series: int, queries: Int[Tensor, " query"], first: int
    ) -> None:
        """`series` values for each pair of tokens of a prompt of n; tokens before `first` are left out."""
        groups = min(GROUPS, len(queries))
        self.first = first
        self.queries = queries
        self.sums = torch.zeros(groups, series, n, dtype=torch.float64)
        self.pairs = torch.zeros(groups, series, n, dtype=torch.float64)

    def add(
        self,
        series: int,
        queries: Int[Tensor, " row"],
        rows: Float[Tensor, "row position"],
    ) -> None:
        """Add the values of one series, given by its number, for some of the queries at all positions."""
        positions = torch.arange(self.sums.shape[-1])
        # Entry (row, r) is the position q − r, whose number is also the distance from q to position r.
        position = queries[:, None] - positions
        is_pair = (position >= self.first) & (queries[:, None] >= self.first)
        values = rows.double().gather(1, position.clamp(min=0))
        # contiguous groups of the same number of queries, or one less
        place = torch.searchsorted(self.queries, queries)
        group = place * len(self.sums) // len(self.queries)
        self.sums[:, series].index_add_(0, group, torch.where(is_pair, values, 0.0))
        self.pairs[:, series].index_add_(0, group, is_pair.double())

    def joined(self, others: "list[ByDistance]") -> "ByDistance":
        """The sums of this prompt and `others`, or of several models, together."""
        _, series, n = self.sums.shape
        together = ByDistance(n, series, self.queries, self.first)
        for part in (self, *others):
            together.sums += part.sums
            together.pairs += part.pairs
        return together

    def means(self) -> Float[Tensor, "series distance"]:
        """The mean over queries at each distance; NaN where there is no pair."""
        return self.sums.sum(dim=0) / self.pairs.sum(dim=0)

    def laws(self, generator: torch.Generator) -> FittedLaw:
        """The fitted laws of all series, with the lower and upper ends of the middle 95 % of resamples."""
        law = fit(self.means(), self.pairs.sum(dim=0))
        groups = len(self.sums)
        if groups < FEWEST:
            unknown = Law(*torch.full_like(torch.stack(law), torch.nan))
            return FittedLaw(law, unknown, unknown)
        drawn = torch.randint(groups, (RESAMPLES, groups), generator=generator)
        # (resample, group): how often the group was drawn
        counts = torch.nn.functional.one_hot(drawn, groups).sum(dim=1).double()
        sums = torch.einsum("sg,gkr->skr", counts, self.sums)
        pairs = torch.einsum("sg,gkr->skr", counts, self.pairs)
        size = max(1, CELLS // self.pairs[0].numel())
        resampled: list[Float[Tensor, "part resample series"]] = []
        for start in range(0, RESAMPLES, size):
            some_pairs = pairs[start : start + size]
            means = sums[start : start + size] / some_pairs
            resampled.append(torch.stack(fit(means, some_pairs, steps=FEW_STEPS)))
        parts = torch.cat(resampled, dim=1)  # (part of the law, resample, series)
        low = Law(*torch.nanquantile(parts, 0.025, dim=1))
        high = Law(*torch.nanquantile(parts, 0.975, dim=1))
        return FittedLaw(law, low, high)


def fit(
    means: Float[Tensor, "*many distance"],
    pairs: Num[Tensor, "*#many distance"],
    steps: int = STEPS,
) -> Law:
    """The power law nearest to the means by least squares, each distance counted with its number of pairs.

    NaN for fewer than four distances, without a mean at distance 1, or if all values beyond distance 0 are equal.
    """
    known = means.isfinite()
    weights = torch.where(known, pairs.double().expand_as(means), 0.0)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    values = means.double().nan_to_num(0.0)
    mean = (weights * values).sum(dim=-1)
    deviations = weights * (values - mean[..., None])
    logs = torch.log(torch.arange(1, means.shape[-1] + 1, dtype=torch.float64))

    def gain(exponent: Float[Tensor, "*many"]) -> Float[Tensor, "*many"]:
        """How much of the sum of squares the best law with this exponent explains."""
        _, variance, covariance = _moments(weights, deviations, logs, exponent)
        return _explained(variance, covariance)

    # Golden-section search between the neighbours of the best exponent that was tried.
    low, high = _around_the_best(weights, deviations, logs)
    for _ in range(steps):
        span = GOLDEN * (high - low)
        left = high - span
        right = low + span
        left_is_better = gain(left) > gain(right)
        low = torch.where(left_is_better, low, left)
        high = torch.where(left_is_better, right, high)
    exponent = (low + high) / 2
    mean_power, variance, covariance = _moments(weights, deviations, logs, exponent)
    amplitude = covariance / variance
    floor = mean - amplitude * mean_power
    enough = (weights > 0).sum(dim=-1) >= FEWEST
    beyond_0 = torch.where(weights[..., 1:] > 0, values[..., 1:], torch.nan)
    differs = (beyond_0 != beyond_0[..., :1]) & ~beyond_0.isnan()  # from distance 1
    is_law = enough & differs.any(dim=-1) & ~beyond_0[..., 0].isnan()
    parts = torch.stack([floor, amplitude, exponent])
    return Law(*torch.where(is_law, parts, torch.nan))


def _around_the_best(
    weights: Float[Tensor, "*many distance"],
    deviations: Float[Tensor, "*many distance"],
    logs: Float[Tensor, " distance"],
) -> tuple[Float[Tensor, "*many"], Float[Tensor, "*many"]]:
    """The neighbours of the exponent that explains most, of `POINTS` that are evenly spaced on a logarithmic axis."""
    first, last = torch.tensor([SLOWEST, FASTEST]).log10().tolist()
    tried = torch.logspace(first, last, POINTS).double()
    basis = torch.exp(-tried[:, None] * logs)  # (r + 1)^(−p), (exponent, distance)
    variance = weights @ basis.square().mT - (weights @ basis.mT) ** 2
    best = _explained(variance, deviations @ basis.mT).argmax(dim=-1)
    below = (best - 1).clamp(min=0)
    above = (best + 1).clamp(max=POINTS - 1)
    return tried[below], tried[above]


def _moments(
    weights: Float[Tensor, "*many distance"],
    deviations: Float[Tensor, "*many distance"],
    logs: Float[Tensor, " distance"],
    exponent: Float[Tensor, "*many"],
) -> tuple[Tensor, Tensor, Tensor]:
    """The weighted mean and variance of ``(r + 1)^(−p)``, and its covariance with the values."""
    powers = torch.exp(-exponent[..., None] * logs)
    mean = (weights * powers).sum(dim=-1)
    variance = (weights * (powers - mean[..., None]).square()).sum(dim=-1)
    covariance = (deviations * powers).sum(dim=-1)
    return mean, variance, covariance


def _explained(variance: Tensor, covariance: Tensor) -> Tensor:
    """How much the best γ and β take from the weighted sum of squares of the values: covariance² ÷ variance."""
    return torch.where(variance > 0, covariance**2 / variance, 0.0)
