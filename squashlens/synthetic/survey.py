"""Survey of stacks: how fast D and δ decrease with length, for every combination of some options."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Distance, short_repr
from squashlens.bars import bar
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.records.results import Variable, signed
from squashlens.synthetic.convergence import convergence
from squashlens.synthetic.fits import facts
from squashlens.synthetic.stacks.draws import chosen_lengths, chosen_seeds
from squashlens.synthetic.stacks.stack import Stack

OPTIONS = tuple(field.name for field in fields(Stack))
TOP, FIRST = "top layer", "first layer"
BY_CELL = {
    **{name: TOP for name in ("exponent_mean", "exponent_low", "exponent_high", "fit")},
    **{f"variation_{name}": FIRST for name in ("exponent_mean", "exponent_low", "exponent_high", "fit", "zero")},
    "premise": FIRST,
    "rate": "",
}
BY_SEED = {"distance": TOP, "total_variation": FIRST, "self_weight": FIRST}


@validated
def survey(
    stack: Stack,
    over: Mapping[str, Sequence[Any]],
    lengths: Iterable[int],
    *,
    seeds: int | Iterable[int] = 5,
    norm: Distance = "l1",
    tail: float = 0.5,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> xr.Dataset:
    """`convergence` for every combination of options of a stack: D after the last layer, δ in the first layer.

    Theorem B.3 starts at the first layer, where the last tokens of v and v* have the same content and their attention
    rows differ only by position. Therefore δ and the premise are those of the first layer, and D is that of the last.

    Args:
        stack: the stack whose options are varied.
        over: options of `Stack`, each with a list of values. ``window`` sets the mask too: None means no window
            (``mask="causal"``).
        lengths, seeds, norm, tail, dtype, device, progress: as in `convergence`.

    Returns:
        Dataset with one dimension for each option, in the order of `over`: `exponent_mean`, `exponent_low`,
        `exponent_high` and `fit` (mean R²) of D; `variation_exponent_mean`, `_low`, `_high`, `variation_fit`,
        `variation_zero` and `premise` of δ; and `rate`, all as `convergence` defines them. With an additional dimension
        `seed`, at the longest length: `distance`, `total_variation`, `self_weight`. A window of None is labelled
        ``all``.

    Raises:
        InputError: if a name in `over` is not an option, an option has no values, or values contradict each other.

    >>> over = {"encoding": ["none", "alibi"]}
    >>> found = survey(Stack(projections="direct"), over, [100, 1000, 3000, 10000], progress=False)
    >>> found["premise"].values.tolist()
    [True, False]
    """
    values = _checked(over)
    chosen, numbers = chosen_lengths(lengths), chosen_seeds(seeds)
    cells = [_varied(stack, dict(zip(values, cell, strict=True))) for cell in product(*values.values())]
    for cell in cells:
        cell.check_lengths(chosen)
    settings: dict[str, Any] = {"seeds": numbers, "norm": norm, "tail": tail, "dtype": dtype, "device": device}
    found = [
        _summary(convergence(cell, chosen, progress=False, **settings))
        for cell in bar(cells, desc="survey", unit="stack", progress=progress)
    ]
    shape, options = tuple(len(each) for each in values.values()), tuple(values)
    variables: dict[str, Variable] = {}
    for name in (*BY_CELL, *BY_SEED):
        numbers_of = np.stack([cell[name].values for cell in found])
        text = str(found[0][name].attrs["long_name"])
        dims = (*options, "seed") if name in BY_SEED else options
        variables[name] = (dims, numbers_of.reshape(*shape, *numbers_of.shape[1:]), text, "1")
    return signed(
        "synthetic stacks by their options",
        {name: _labels(each) for name, each in values.items()} | {"seed": numbers},
        variables,
        facts(
            "survey", stack, numbers, dtype, str(device), lengths=chosen, norm=norm, tail=tail,
            over={name: list(each) for name, each in values.items()},
        ),
    )  # fmt: skip


def _summary(found: xr.Dataset) -> xr.Dataset:
    """A summary of one stack: D of its last layer and δ of its first, as exponents and at the longest length."""
    longest = found.isel(length=-1, drop=True).assign(
        fit=found["fit"].mean("seed", keep_attrs=True),
        variation_fit=found["variation_fit"].mean("seed", keep_attrs=True),
    )
    picked = {}
    for name, layer in (BY_CELL | BY_SEED).items():
        values = longest[name]
        if layer:
            values = values.isel(layer=-1 if layer == TOP else 0, drop=True)
        where = [str(values.attrs["long_name"]), *[layer] * bool(layer), *["longest length"] * (name in BY_SEED)]
        picked[name] = values.assign_attrs(long_name=", ".join(where))
    return xr.Dataset(picked)


def _checked(over: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The options with their values as lists; an error for unknown options or repeated values."""
    if not over:
        raise InputError("over is empty: there is nothing to vary.", "Give an option of Stack with its values.")
    for name, values in over.items():
        if name not in OPTIONS:
            raise InputError(f"over: {name!r} is not an option of Stack.", f"Use some of: {', '.join(OPTIONS)}.")
        if not len(values) or len(set(map(str, values))) < len(values):
            raise InputError(
                f"over[{name!r}]={short_repr(values)} is not a list of different values.",
                "Give a list in which each value occurs once.",
            )
    return {name: list(values) for name, values in over.items()}


def _varied(stack: Stack, options: dict[str, Any]) -> Stack:
    """The stack of one cell; a window also sets the mask, and without a window there are no sinks."""
    if "window" in options and "mask" not in options:
        mask = "causal" if options["window"] is None else "window"
        options = options | {"mask": mask} | ({"sinks": 0} if mask == "causal" else {})
    return replace(stack, **options)


def _labels(values: list[Any]) -> list[Any]:
    """Values as a coordinate: as numbers if all are numbers, otherwise as text."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return values
    return ["all" if value is None else str(value) for value in values]
