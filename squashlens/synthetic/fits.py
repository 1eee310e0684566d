"""Fits of power laws: the slope on log–log axes for each random draw, and the interval of the slopes' mean."""

from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import dtype_name
from squashlens.errors import InputError
from squashlens.records.results import Variable, versions
from squashlens.synthetic.stack import Stack
from squashlens.theory.norms import mean_interval
from squashlens.theory.statistics.trends import Labelled, with_ends

FEWEST = 3  # points for a fit
DRAWS = 5  # with fewer draws, Student's interval relies on normally distributed draws, which cannot be checked


def tail_of(lengths: list[int], tail: float) -> Bool[Tensor, " length"]:
    """A mask of the lengths in the upper share `tail` of the range of log n; an error if there are fewer than three."""
    if not 0 < tail <= 1:
        raise InputError(f"tail={tail!r} is not a share.", "Give a number above 0 and at most 1.")
    logs = torch.tensor(lengths, dtype=torch.float64).log()
    chosen = logs >= logs[-1] - tail * (logs[-1] - logs[0]) - 1e-12  # the range includes its end
    if int(chosen.sum()) < FEWEST:
        raise InputError(
            f"Only {int(chosen.sum())} of the lengths are in the tail that is fitted.",
            f"Give at least {FEWEST} lengths there, or a larger tail=.",
        )
    return chosen


def power_law(
    lengths: Float[Tensor, " length"], values: Float[Tensor, "*many length"]
) -> tuple[Float[Tensor, "*many"], Float[Tensor, "*many"]]:
    """Slope and R² of the least-squares line of log value on log length, which describes these lengths only.

    Values of 0 are left out; with fewer than three other values both results are NaN. R² of a constant is NaN.
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


def of_draws(name: str, slopes: Float[Tensor, "seed ..."], text: str, dims: tuple[str, ...] = ()) -> Labelled:
    """The mean over draws with the ends of its 95 % interval (Student's t); NaN for fewer than five draws."""
    mean, half = mean_interval(slopes)
    half = half if len(slopes) >= DRAWS else torch.full_like(half, torch.nan)
    found = with_ends(name, dims, (mean, mean - half, mean + half), f"{text}, mean over seeds")
    return {f"{name}_mean": found.pop(name), **found}


def slopes_of(
    name: str, fit: str, what: str, lengths: Float[Tensor, " length"], values: Float[Tensor, "seed *many length"],
    dims: tuple[str, ...] = (),
) -> dict[str, Variable]:  # fmt: skip
    """Exponents by seed and `dims`, their means and intervals, and R² of the fits, as variables of a Dataset."""
    slope, share = power_law(lengths, values)
    by_seed, text = ("seed", *dims), f"slope of log {what} on log n in the tail"
    each = {name: (by_seed, slope, text, "1"), fit: (by_seed, share, f"R² of the fitted line of the {text}", "1")}
    return each | of_draws(name, slope, text, dims)


def facts(
    function: str, stack: Stack | None, seeds: list[int], dtype: torch.dtype, device: str, **arguments: Any
) -> dict[str, Any]:
    """The facts for the provenance of a result on a random stack."""
    return {
        "stack": None if stack is None else asdict(stack),
        "seeds": seeds,
        "dtype": dtype_name(dtype),
        "device": device,
        "versions": versions(),
        "call": {"function": function} | arguments,
    }
