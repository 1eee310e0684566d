"""Agreement of orders: Spearman's ρ, what is left of it once a third quantity is held, and how sure a mean of it is."""

import torch
from jaxtyping import Float
from torch import Tensor


def ranks(values: Float[Tensor, "*many outcome"]) -> Float[Tensor, "*many outcome"]:
    """Places in the order along the last axis, from 0; ties share their mean place.

    >>> ranks(torch.tensor([3.0, 1.0, 3.0])).tolist()
    [1.5, 0.0, 1.5]
    """
    below = (values[..., None, :] < values[..., :, None]).double().sum(dim=-1)
    equal = (values[..., None, :] == values[..., :, None]).double().sum(dim=-1)
    return below + (equal - 1) / 2


def spearman(a: Float[Tensor, "*many outcome"], b: Float[Tensor, "*#many outcome"]) -> Float[Tensor, "*many"]:
    """Spearman's ρ along the last axis: the correlation of ranks.

    NaN for a constant, for fewer than three outcomes, and where an outcome is NaN: that has no rank.
    """
    if a.shape[-1] < 3:
        return torch.full(a.shape[:-1], torch.nan, dtype=torch.float64, device=a.device)
    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(dim=-1, keepdim=True), y - y.mean(dim=-1, keepdim=True)
    found = (x * y).sum(dim=-1) / (x.square().sum(dim=-1) * y.square().sum(dim=-1)).sqrt()
    return torch.where(a.isnan().any(dim=-1) | b.isnan().any(dim=-1), torch.nan, found)


def rank_trend(values: Float[Tensor, "*many outcome"]) -> Float[Tensor, "*many"]:
    """Spearman's ρ of the values with their place along the last axis; NaN for a constant or fewer than three."""
    return spearman(values, torch.arange(values.shape[-1], dtype=torch.float64, device=values.device))


def partial_spearman(
    a: Float[Tensor, "*many outcome"], b: Float[Tensor, "*#many outcome"], held: Float[Tensor, "*#many outcome"]
) -> Float[Tensor, "*many"]:
    """Spearman's ρ of a and b once the ranks of `held` are taken out of both, linearly.

    ``(ρ_ab − ρ_ah ρ_bh) / √((1 − ρ_ah²)(1 − ρ_bh²))``. NaN where a or b is ordered as `held` is: nothing is left.
    """
    with_a, with_b = spearman(a, held), spearman(b, held)
    rest = (1 - with_a.square()) * (1 - with_b.square())
    return torch.where(rest > 1e-12, (spearman(a, b) - with_a * with_b) / rest.clamp(min=1e-12).sqrt(), torch.nan)


def bootstrap(
    values: Float[Tensor, "*many prompt"], generator: torch.Generator, draws: int = 2000, level: float = 0.95
) -> tuple[Float[Tensor, "*many"], Float[Tensor, "*many"]]:
    """Percentile interval of the mean over prompts, which are drawn again with replacement; NaN for one prompt.

    Prompts on which a value is not defined are left out of its mean.
    """
    prompts = values.shape[-1]
    if prompts < 2:
        nothing = torch.full(values.shape[:-1], torch.nan, dtype=values.dtype)
        return nothing, nothing
    picked = torch.randint(prompts, (draws, prompts), generator=generator)
    means = values[..., picked].nanmean(dim=-1)
    low, high = means.nanquantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=values.dtype), dim=-1)
    return low, high
