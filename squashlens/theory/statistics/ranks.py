"""How well ranks of noisy means can agree, and intervals of a mean and of a share."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from scipy import special
from torch import Tensor

from squashlens.theory.statistics.trends import LEVEL, association

Z = 1.959964  # normal quantile of a 95 % interval


def mean_interval(values: Float[Tensor, "*many seed"]) -> tuple[Tensor, Tensor, Tensor]:
    """The mean along the last axis, and the ends of Student's 95 % interval ``x̄ ± t s/√k``, with t of k − 1 degrees.

    Values of NaN are left out; with fewer than two others both ends are NaN. Of mean rank correlations over
    2, 3, 5, 8 and 20 prompts of 18 tokens, with ρ of 0, 0.5 and 0.9, the 95 % interval covers 92 to 95 % of the true
    ones, where percentiles of a bootstrap cover 48 to 50 %, 71 to 74 %, 82 to 84 %, 86 to 89 % and 91 to 92 %. At ρ = 0
    it is 3.5, 1.1, 0.57, 0.39 and 0.23 wide: two prompts say nothing about a correlation; use five or more.
    """
    values = values.detach().cpu().double()
    k = (~values.isnan()).sum(dim=-1)
    mean = values.nanmean(dim=-1)
    spread = ((values - mean[..., None]).square().nansum(dim=-1) / (k - 1) / k).sqrt()
    reach = torch.from_numpy(np.asarray(special.stdtrit(k.numpy() - 1, (1 + LEVEL) / 2))) * spread
    reach = torch.where(k > 1, reach, torch.nan)
    return mean, mean - reach, mean + reach


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
    r = float(association(halves[0], halves[1]).rho.nanmean())
    return math.sqrt(2 * r / (1 + r)) if r >= 0 else math.nan


def wilson(share: np.ndarray | float, of: int) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's 95 % interval of a share of `of` items."""
    middle, weight = (share + Z**2 / (2 * of)) / (1 + Z**2 / of), Z / (1 + Z**2 / of)
    half = weight * np.sqrt(share * (1 - share) / of + Z**2 / (4 * of**2))
    return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


def share_interval(right: Float[Tensor, "*many seed"]) -> tuple[Tensor, Tensor, Tensor]:
    """The share of ones along the last axis, NaN left out, and its exact 95 % interval (Clopper and Pearson 1934)."""
    n, tail = (~right.isnan()).sum(dim=-1).numpy(), (1 - LEVEL) / 2
    k = right.double().nansum(dim=-1).numpy()
    low = np.where(k > 0, special.betaincinv(np.maximum(k, 1), n - k + 1, tail), 0.0)
    high = np.where(k < n, special.betaincinv(k + 1, np.maximum(n - k, 1), 1 - tail), 1.0)
    share, low, high = (torch.from_numpy(np.where(n > 0, end, np.nan)) for end in (k / np.maximum(n, 1), low, high))
    return share, low, high
