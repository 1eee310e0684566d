"""How influence falls with distance: means over queries, and a power law that is fitted again to resampled queries.

The law is ``γ + β (r + 1)^(−p)`` at distance r, fitted by least squares. Each distance counts with its number of pairs
of query and token. For a given p the fit is linear in γ and β, so only p is searched.

Queries that are near each other are not independent. Contiguous groups of queries are resampled, so only sums over
each group have to be kept: memory grows with the prompt's length, not with its square. `influence_by_distance` says how
often the middle 95 % of the laws held the true one, in simulations of 48 and 128 queries, with factors whose standard
deviation is 0.3, and 300 prompts in each of 32 settings.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

GROUPS = 16  # contiguous groups of queries
FEWEST = 4  # fewest groups of queries that have an interval
RESAMPLES = 200
CELLS = (
    2**17
)  # numbers of the resamples that are fitted together: as many as a CPU's cache holds
SLOWEST, FASTEST, POINTS = 0.01, 16.0, 400  # exponents that are tried
NEAR = 1e-3  # relative distance from an end of that range at which an exponent counts as being there
GOLDEN = (5**0.5 - 1) / 2
STEPS, FEW = (
    60,
    12,
)  # of a golden-section search: to rounding, and to 10⁻⁴ of the exponent


class Law(NamedTuple):
    """The floor γ, the amplitude β and the exponent p of ``γ + β (r + 1)^(−p)``."""

    floor: Float[Tensor, "*many"]
    amplitude: Float[Tensor, "*many"]
    exponent: Float[Tensor, "*many"]

    @property
    def at_end(self) -> Bool[Tensor, "*many"]:
        """Whether the exponent is at an end of the range that is tried, so that no power law describes the values."""
        return (self.exponent <= SLOWEST * (1 + NEAR)) | (
            self.exponent >= FASTEST * (1 - NEAR)
        )


class ByDistance:
    """Sums of values at each distance ``r = query − position``, for contiguous groups of queries."""

    def __init__(
        self, n: int, series: int, queries: Int[Tensor, " query"], first: int
    ) -> None:
        """`series` values for each pair of tokens of a prompt of n; tokens before `first` are left out."""
        groups = min(GROUPS, len(queries))
        self.first, self.queries = first, queries
        self.sums = torch.zeros(groups, series, n, dtype=torch.float64)
        self.pairs = torch.zeros(groups, series, n, dtype=torch.float64)

    def add(
        self,
        series: int,
        queries: Int[Tensor, " row"],
        rows: Float[Tensor, "row position"],
    ) -> None:
        """Add the values of some of the queries at all positions."""
        places = torch.arange(self.sums.shape[-1])
        distance = queries[:, None] - places
        there = (distance >= self.first) & (
            queries[:, None] >= self.first
        )  # of the position q − r
        values = torch.where(there, rows.double().gather(1, distance.clamp(min=0)), 0.0)
        group = (
            torch.searchsorted(self.queries, queries)
            * len(self.sums)
            // len(self.queries)
        )
        self.sums[:, series].index_add_(0, group, values)
        self.pairs[:, series].index_add_(0, group, there.double())

    def joined(self, others: "list[ByDistance]") -> "ByDistance":
        """The sums of several prompts or models together."""
        found = ByDistance(
            self.sums.shape[-1], self.sums.shape[1], self.queries, self.first
        )
        found.sums = torch.stack([one.sums for one in (self, *others)]).sum(dim=0)
        found.pairs = torch.stack([one.pairs for one in (self, *others)]).sum(dim=0)
        return found

    def means(self) -> Float[Tensor, "series distance"]:
        """The mean over queries at each distance; NaN where there is no pair."""
        return self.sums.sum(dim=0) / self.pairs.sum(dim=0)

    def laws(self, generator: torch.Generator) -> tuple[Law, Law, Law]:
        """The fitted laws of all series, with the lower and upper ends of the middle 95 % of resamples."""
        found = fit(self.means(), self.pairs.sum(dim=0))
        groups = len(self.sums)
        if groups < FEWEST:
            none = Law(*(torch.full_like(part, torch.nan) for part in found))
            return found, none, none
        drawn = torch.randint(groups, (RESAMPLES, groups), generator=generator)
        counts = torch.nn.functional.one_hot(drawn, groups).sum(dim=1).double()
        sums = torch.einsum("sg,gkr->skr", counts, self.sums)
        pairs = torch.einsum("sg,gkr->skr", counts, self.pairs)
        size = max(1, CELLS // self.pairs[0].numel())
        some = zip(sums.split(size), pairs.split(size), strict=True)
        again = [
            torch.cat(part)
            for part in zip(*(fit(s / p, p, steps=FEW) for s, p in some), strict=True)
        ]
        ends = [
            Law(*(torch.nanquantile(part, level, dim=0) for part in again))
            for level in (0.025, 0.975)
        ]
        return found, ends[0], ends[1]


def fit(
    means: Float[Tensor, "*many distance"],
    pairs: Num[Tensor, "*#many distance"],
    steps: int = STEPS,
) -> Law:
    """The power law nearest to the means by least squares, each distance counted with its number of pairs.

    NaN for fewer than four distances, or if all values beyond distance 0 are equal.
    """
    pairs = pairs.double().expand_as(means)
    weights = torch.where(means.isfinite(), pairs, 0.0)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    values = means.double().nan_to_num(0.0)
    mean = (weights * values).sum(dim=-1)
    apart = weights * (values - mean[..., None])
    logs = torch.log(torch.arange(1, means.shape[-1] + 1, dtype=torch.float64))
    tried = torch.logspace(
        torch.log10(torch.tensor(SLOWEST)).item(),
        torch.log10(torch.tensor(FASTEST)).item(),
        POINTS,
    )
    tried = tried.double()
    basis = torch.exp(-tried[:, None] * logs)  # (exponent, distance)
    x = weights @ basis.mT
    best = _explained(weights @ basis.square().mT - x**2, apart @ basis.mT).argmax(
        dim=-1
    )
    low, high = tried[(best - 1).clamp(min=0)], tried[(best + 1).clamp(max=POINTS - 1)]
    for _ in range(
        steps
    ):  # golden-section search between the neighbours of the best exponent that was tried
        span = GOLDEN * (high - low)
        left, right = high - span, low + span
        gains = [
            _explained(*_moments(weights, apart, logs, one)[1:])
            for one in (left, right)
        ]
        better = gains[0] > gains[1]
        low, high = torch.where(better, low, left), torch.where(better, right, high)
    exponent = (low + high) / 2
    x, xx, xy = _moments(weights, apart, logs, exponent)
    amplitude = xy / xx
    floor = mean - amplitude * x
    enough = (weights > 0).sum(dim=-1) >= FEWEST
    inner = torch.where(weights[..., 1:] > 0, values[..., 1:], torch.nan)
    first = inner[..., :1]
    varied = ((inner - first).abs().nan_to_num(0.0) > 0).any(dim=-1)
    known = enough & varied
    return Law(
        *(torch.where(known, part, torch.nan) for part in (floor, amplitude, exponent))
    )


def _moments(
    weights: Tensor, apart: Tensor, logs: Tensor, exponent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The weighted mean and variance of each series' power, and its covariance with the values."""
    basis = torch.exp(-exponent[..., None] * logs)
    x = (weights * basis).sum(dim=-1)
    return (
        x,
        (weights * (basis - x[..., None]).square()).sum(dim=-1),
        (apart * basis).sum(dim=-1),
    )


def _explained(xx: Tensor, xy: Tensor) -> Tensor:
    """How much the best γ and β take from the weighted sum of squares of the values."""
    return torch.where(xx > 0, xy**2 / xx, 0.0)
