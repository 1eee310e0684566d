"""How fast something falls with length: the slope on log–log axes, by draw, and how sure the mean of the slopes is."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens.errors import InputError
from squashlens.theory.norms import mean_interval

FEWEST = 3  # points of a fit
DRAWS = 5  # of fewer, Student's interval depends on the draws being normal, which nothing shows


def tail_of(lengths: list[int], tail: float) -> Bool[Tensor, " length"]:
    """Which lengths lie in the upper `tail` of the range of log n; fewer than three are refused.

    >>> tail_of([1, 9, 10, 30, 100], 0.5).tolist()
    [False, False, True, True, True]
    """
    if not 0 < tail <= 1:
        raise InputError(f"tail={tail!r} is not a share.", "Give more than 0, at most 1.")
    logs = torch.tensor(lengths, dtype=torch.float64).log()
    chosen = logs >= logs[-1] - tail * (logs[-1] - logs[0]) - 1e-12  # the end of the range itself is in it
    if int(chosen.sum()) < FEWEST:
        raise InputError(
            f"{int(chosen.sum())} of the lengths lie in the tail that is fitted.",
            f"Give {FEWEST} lengths there or more, or a larger tail=.",
        )
    return chosen


def power_law(
    lengths: Float[Tensor, " length"], values: Float[Tensor, "*many length"]
) -> tuple[Float[Tensor, "*many"], Float[Tensor, "*many"]]:
    """Slope and R² of the least-squares line of log value on log length.

    Values of 0 have no logarithm and are left out; with fewer than three others both are NaN. R² of a constant is NaN.
    The line describes these lengths. It is no test of a power law, and says nothing of lengths beyond.

    >>> n = torch.tensor([1, 10, 100, 1000]).double()
    >>> slope, fit = power_law(n, 5 / n)
    >>> round(slope.item(), 9), round(fit.item(), 9)
    (-1.0, 1.0)
    """
    there = (values > 0) & values.isfinite()
    count = there.sum(dim=-1, keepdim=True)
    x = torch.where(there, lengths.log(), 0.0)
    y = torch.where(there, values.clamp(min=torch.finfo(values.dtype).tiny).log(), 0.0)
    x = torch.where(there, x - x.sum(dim=-1, keepdim=True) / count, 0.0)
    y = torch.where(there, y - y.sum(dim=-1, keepdim=True) / count, 0.0)
    xy, xx, yy = (x * y).sum(dim=-1), x.square().sum(dim=-1), y.square().sum(dim=-1)
    few = count[..., 0] < FEWEST
    least, most = values.where(there, torch.inf).amin(dim=-1), values.where(there, 0).amax(dim=-1)
    return torch.where(few, torch.nan, xy / xx), torch.where(few | (least == most), torch.nan, xy.square() / (xx * yy))


def mean_of(
    slopes: Float[Tensor, "seed ..."],
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]:
    """The mean over draws and the ends of its 95 % interval (Student's t): NaN for fewer than five draws."""
    if len(slopes) < DRAWS:
        none = torch.full_like(slopes[0], torch.nan)
        return slopes.mean(dim=0), none, none
    mean, half = mean_interval(slopes)
    return mean, mean - half, mean + half
