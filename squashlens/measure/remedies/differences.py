"""Differences between interventions and the unchanged model on the same samples, with exact intervals and tests."""

from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor

from squashlens.records.results import attributes
from squashlens.theory.statistics.paired import least_p, median_interval, ratio, share_interval, sign_test
from squashlens.theory.statistics.trends import holm

SIZES = {"distance": "D", "jacobian_norm": "norm of the Jacobian"}


def with_differences(found: xr.Dataset) -> xr.Dataset:
    """The result with medians, ratios to the first change, intervals over samples, and corrected p-values.

    All tests of the result are corrected together. There is no test of the first change, which is the model itself,
    and none of the divergence, which is 0 only if nothing changed.
    """
    made: dict[str, tuple[Any, Tensor, str]] = {}
    differences: dict[str, Tensor] = {}
    for name, text in SIZES.items():
        if name in found:
            dims, values = _values(found, name)
            quotient = ratio(values, values[:1])
            _summarise(made, name, dims, median_interval(values), f"{text}, median over samples")
            _summarise(
                made, f"{name}_ratio", dims, median_interval(quotient),
                f"{text} divided by that of the unchanged model, median over samples",
            )  # fmt: skip
            differences[name] = values - values[:1]
    if "right" in found:
        dims, values = _values(found, "right")
        _summarise(made, "accuracy", dims, share_interval(values), "share of right answers")
        differences["accuracy"] = values - values[:1]
        text = "share of right answers minus that of the unchanged model"
        made["accuracy_difference"] = (dims[:-1], differences["accuracy"].mean(dim=-1), text)
    if "kl" in found:
        dims, values = _values(found, "kl")
        _summarise(made, "kl", dims, median_interval(values), "KL divergence of the next token, median over texts")
    tests = {name: _without_first(sign_test(each)) for name, each in differences.items()}
    corrected = _corrected(tests)
    for name, p in tests.items():
        dims = _values(found, "right" if name == "accuracy" else name)[0][:-1]
        text = "p-value of the exact sign test of the paired differences to the unchanged model"
        made[f"{name}_p"] = (dims, p, text)
        made[f"{name}_p_holm"] = (dims, corrected[name], f"{text}, corrected by Holm's method")
    several = sum(int((~p.isnan()).sum()) for p in tests.values())
    least = least_p(found.sizes["sample"])
    made["least_p"] = ((), torch.tensor(least).double(), "smallest p-value that this number of samples can give")
    made["least_p_holm"] = ((), torch.tensor(min(1.0, several * least)).double(), "the same, corrected for all tests")
    units = {name: found[name].attrs["units"] for name in found.data_vars}
    new = {
        name: xr.Variable(dims, values.numpy(), attributes(text, _unit(name, units)))
        for name, (dims, values, text) in made.items()
    }
    return found.assign(new)


def remedies_table(found: xr.Dataset) -> pd.DataFrame:
    """The summary of a result for families: a row for each change, family and length."""
    columns = {name: found[name] for name in ("distance_ratio", "distance_ratio_low", "distance_ratio_high")}
    if "jacobian_norm_ratio" in found:
        norms = found["jacobian_norm_ratio"]
        columns |= {f"jacobian_{place}": norms.sel(place=place, drop=True) for place in ("first", "last")}
    if "accuracy" in found:
        columns["accuracy"] = found["accuracy"]
    if "kl_median" in found:
        columns["kl"] = found["kl_median"].broadcast_like(found["distance_ratio"])
    tests = [found[name] for name in found.data_vars if str(name).endswith("_p_holm") and str(name) != "least_p_holm"]
    least = [one.min("place") if "place" in one.dims else one for one in tests]
    columns["p_holm"] = xr.concat(least, dim="test").min("test")
    plain = xr.Dataset({name: one.reset_coords(drop=True) for name, one in columns.items()})
    return plain.to_dataframe(dim_order=["change", "family", "length"]).reindex(columns=list(columns))


def _values(found: xr.Dataset, name: str) -> tuple[tuple[Any, ...], Tensor]:
    """Dimensions and values of a variable, in float64."""
    return found[name].dims, torch.from_numpy(np.asarray(found[name].values, dtype=float))


def _summarise(
    made: dict[str, tuple[Any, Tensor, str]], name: str, dims: tuple[Any, ...], ends: tuple[Tensor, Tensor, Tensor],
    text: str,
) -> None:  # fmt: skip
    """Add the middle of an interval as a variable, and its ends as two more."""
    middle = name if name.endswith(("_ratio", "accuracy")) else f"{name}_median"
    made[middle] = (dims[:-1], ends[0], text)
    made[f"{name}_low"] = (dims[:-1], ends[1], f"{text}, lower end of its 95 % interval")
    made[f"{name}_high"] = (dims[:-1], ends[2], f"{text}, upper end of its 95 % interval")


def _without_first(p: Tensor) -> Tensor:
    return torch.cat([torch.full_like(p[:1], torch.nan), p[1:]])


def _corrected(tests: dict[str, Tensor]) -> dict[str, Tensor]:
    """The p-values of all tests together, corrected by Holm's method."""
    flat = torch.cat([p.flatten() for p in tests.values()])
    parts = torch.tensor(holm(flat.tolist())).double().split([p.numel() for p in tests.values()])
    return {name: part.reshape(p.shape) for (name, p), part in zip(tests.items(), parts, strict=True)}


def _unit(name: str, units: dict[Any, str]) -> str:
    """The unit of a summary: that of its variable for a median and its interval, else none."""
    ends = ("median", "low", "high")
    return next((units[whole] for whole in units for end in ends if name == f"{whole}_{end}"), "1")
