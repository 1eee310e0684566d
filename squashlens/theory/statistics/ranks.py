"""Rank correlation: Spearman's ρ, partial Spearman's ρ, and a bootstrap interval of a mean."""

import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor


def spearman(a: Float[Tensor, "*many outcome"], b: Float[Tensor, "*#many outcome"]) -> Float[Tensor, "*many"]:
    """Spearman's ρ along the last axis, the correlation of ranks, in float64; ties get their mean rank.

    NaN for constant values, for fewer than three outcomes, and if an outcome is NaN.
    """
    if a.shape[-1] < 3:
        return torch.full(a.shape[:-1], torch.nan, dtype=torch.float64)
    x, y = (given.detach().cpu().double().numpy() for given in (a, b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)  # the result is NaN
        return torch.as_tensor(stats.spearmanrho(x, y, axis=-1)[0], dtype=torch.float64)


def partial_spearman(
    a: Float[Tensor, "*many outcome"], b: Float[Tensor, "*#many outcome"], held: Float[Tensor, "*#many outcome"]
) -> Float[Tensor, "*many"]:
    """Spearman's ρ of a and b after the ranks of `held` are regressed out of both.

    ``(ρ_ab − ρ_ah ρ_bh) / √((1 − ρ_ah²)(1 − ρ_bh²))``. NaN if a or b has the same order as `held`.
    """
    with_a, with_b = spearman(a, held), spearman(b, held)
    rest = (1 - with_a.square()) * (1 - with_b.square())
    return torch.where(rest > 1e-12, (spearman(a, b) - with_a * with_b) / rest.clamp(min=1e-12).sqrt(), torch.nan)


def bootstrap(
    values: Float[Tensor, "*many prompt"], seed: int, draws: int = 2000, level: float = 0.95
) -> tuple[Float[Tensor, "*many"], Float[Tensor, "*many"]]:
    """Bootstrap percentile interval of the mean over prompts, which are resampled with replacement.

    Prompts with NaN are left out; with fewer than two other prompts both ends are NaN.
    """
    rows = values.detach().cpu().double().reshape(-1, values.shape[-1]).numpy()
    ends = np.full((2, len(rows)), np.nan)
    for place, row in enumerate(rows):
        known = row[~np.isnan(row)]
        if len(known) > 1:
            found = stats.bootstrap(
                (known,), np.mean, n_resamples=draws, confidence_level=level, method="percentile",
                rng=np.random.default_rng(seed % 2**64),
            )  # fmt: skip
            ends[:, place] = found.confidence_interval
    low, high = torch.from_numpy(ends).reshape(2, *values.shape[:-1])
    return low, high


def noise_ceiling(draws: Sequence[Float[Tensor, " draw"]], seed: int, splits: int = 64) -> float:
    """The mean Spearman ρ that exact expectations would have with means over a few draws of each outcome.

    The draws of each outcome are split at random into halves, whose means have the rank correlation r, on average over
    `splits`. By the formula of Spearman and Brown the means over all draws have the reliability ``2r/(1 + r)``, the
    squared correlation with what they estimate. NaN for fewer than three outcomes with two draws, and for r < 0.

    Source: Spearman 1910; Brown 1910.
    """
    generator = torch.Generator().manual_seed(seed % 2**63)
    held = [one.double() for one in draws if len(one) > 1]
    halves = torch.empty(2, splits, len(held), dtype=torch.float64)
    for outcome, one in enumerate(held):
        for split in range(splits):
            order = one[torch.randperm(len(one), generator=generator)]
            halves[:, split, outcome] = torch.stack([order[::2].mean(), order[1::2].mean()])
    r = float(spearman(halves[0], halves[1]).nanmean())
    return math.sqrt(2 * r / (1 + r)) if r >= 0 else math.nan
