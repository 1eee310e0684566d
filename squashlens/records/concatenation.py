"""Join the results of several calls, of one measurement, along a new dimension."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from squashlens._typing import short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.records.facts import settled, told
from squashlens.records.joining import ARRAY, joined
from squashlens.records.results import R, is_measured, labels_of, stored_facts
from squashlens.saving.digests import Result

TOKENS = {"token": "", "token_id": -1}  # after the last token of a prompt that is shorter than others


@validated
def concat(result: Mapping[str | int | float, Result], dim: str) -> xr.DataArray | xr.Dataset:
    """Join results of one measurement along a new dimension: of several models, prompts or options.

    The parts are aligned by their labels. A part that lacks a label, such as a layer of a deeper model or a position of
    a longer prompt, has NaN there, so that whole numbers and truth values become floating-point numbers. Positions are
    aligned by number and not by token: where the parts have different tokens, `token` and `token_id` are those of each
    part, over (`dim`, position); after a part's own tokens, whose number is the coordinate `n_tokens`, `token` is ""
    and `token_id` is −1.

    Args:
        result: results of one measurement, by the labels that they get along `dim`.
        dim: name of the new dimension, such as ``"model"`` or ``"prompt"``.

    Returns:
        DataArray or Dataset with the leading dimension `dim`. The provenance of ``result.sel({dim: label})`` is that
        of the part with this label; in the provenance of the whole, facts that differ are lists. For certificates,
        `rounding` is the largest of the parts' values, and `failure_probability` is their sum: an upper bound on the
        probability that any number of any part is too low. The whole is measured if all parts are.

    Raises:
        InputError: no results, results of different measurements, of different variables or with different units or
            definitions (such as another norm), labels of which some are text and some numbers, a `dim` that the
            results already have, or a result that has no provenance.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> prompts = {"short": "11 =", "long": "1101 ="}
    >>> both = sl.results.concat({name: sl.path_bound(model, text) for name, text in prompts.items()}, dim="prompt")
    >>> both.dims, both["token"].sel(prompt="short").values.tolist()
    (('prompt', 'position'), ['<bos>', '1', '1', '=', '', ''])
    >>> sl.results.provenance(both.sel(prompt="short"))["call"]["prompt"]
    '11 ='
    """
    if isinstance(result, xr.Dataset):
        raise InputError("result= is one result.", "Give a dict of results by label, such as {'gemma': a, 'llama': b}.")
    if not result:
        raise InputError("result= is empty.", "Give at least one result, by its label.")
    if len({isinstance(label, str) for label in result}) > 1:
        raise InputError("Some labels of result= are text and some are numbers.", "Give labels of one kind.")
    if not dim.strip():
        raise InputError("dim= is empty.", "Give a name, such as 'model'.")
    facts = [settled(stored_facts(one), labels_of(one), list(map(str, one.dims))) for one in result.values()]
    # A part may have a label along `dim` from a selection.
    parts: Any = {
        n: one.drop_vars(dim) if dim in one.coords and not one[dim].ndim else one for n, one in result.items()
    }
    (first, one), *others = parts.items()
    for (label, other), stated in zip(others, facts[1:], strict=True):
        which = f"{short_repr(first)} and {short_repr(label)}"
        if (functions := [_functions(each) for each in (facts[0], stated)]) and functions[0] != functions[1]:
            raise InputError(
                f"These are results of different measurements: {short_repr(first)} of {' and '.join(functions[0])}, "
                f"{short_repr(label)} of {' and '.join(functions[1])}.",
                "Join results of one measurement. `squashlens.results.table` takes a dict of different ones.",
            )
        _require_alike(one, other, which)
    if dim in {*one.dims, *one.coords, *_variables(one)}:
        raise InputError(
            f"These results already have {dim!r}.", "Give another dim=, or select one label along it in each result."
        )
    try:
        return joined(_aligned(parts), dim, facts, measured=all(map(is_measured, result.values())))
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:  # labels that occur twice, or stacked ones
        if isinstance(error, InputError):
            raise
        raise InputError(f"These results cannot be aligned: {error}", "Give results that are not reshaped.") from error


def _functions(facts: Mapping[str, Any]) -> list[str]:
    """The measurements that made a part, which itself may be joined."""
    calls = told(dict(facts), lambda _: None).get("call", {})
    each = calls if isinstance(calls, list) else [calls]
    found = [one.get("function") for one in each if isinstance(one, dict)]
    return sorted({str(name) for one in found for name in (one if isinstance(one, list) else [one])})


def _require_alike(first: Result, other: Result, which: str) -> None:
    """Raise an error unless both have the same variables, of the same dimensions, meaning and units."""
    here, there = _variables(first), _variables(other)
    if isinstance(first, xr.Dataset) is not isinstance(other, xr.Dataset):
        raise InputError(f"Of {which}, one is a Dataset and one a DataArray.", "Give results of one kind.")
    if only := sorted({*here} ^ {*there}):
        raise InputError(
            f"Of {which}, only one has {', '.join(map(repr, only))}.",
            "Measure both with the same options, or select variables that both have, as in `result[['distance']]`.",
        )
    for name, (dims, meaning) in here.items():
        if {*dims} != {*there[name][0]}:
            raise InputError(
                f"{name!r} has other dimensions in {which}: ({', '.join(dims)}), and ({', '.join(there[name][0])}).",
                "Select the same dimensions in both.",
            )
        if meaning != there[name][1]:
            differ = [one for one, (_, meaning) in here.items() if meaning != there[one][1]]
            kept = "" if len(differ) == len(here) else f", or leave out what differs: `result.drop_vars({differ!r})`"
            raise InputError(
                f"{name!r} is not the same quantity in {which}: {meaning}, and {there[name][1]}.",
                f"Measure both with the same options{kept}.",
            )


def _variables(one: Result) -> dict[str, tuple[list[str], str]]:
    """Dimensions of every variable, and its long name with its units."""
    named = one.data_vars if isinstance(one, xr.Dataset) else {one.name: one}
    return {
        str(name): (sorted(map(str, values.dims)), f"{values.attrs.get('long_name')} ({values.attrs.get('units')})")
        for name, values in named.items()
    }


def _aligned(parts: Mapping[Any, R]) -> dict[Any, R]:
    """The parts over the labels of all of them, padded with NaN, "" and, in token ids, −1."""
    first = next(iter(parts.values()))
    wanted: dict[Any, np.ndarray] = {}
    for dim in first.dims:
        labels = [np.asarray(one.coords[dim]) for one in parts.values() if dim in one.coords]
        if any(not np.array_equal(each, labels[0]) for each in labels[1:]):
            wanted[dim] = _union(labels)
    found = {label: one.transpose(*first.dims) for label, one in parts.items()}
    if "position" in wanted:
        found = {label: _with_size(one) for label, one in found.items()}
    return {label: _padded(one, wanted) for label, one in found.items()} if wanted else found


def _with_size(one: R) -> R:
    """A part with the number of its own tokens, which several prompts of unequal lengths have already."""
    size = one.sizes["position"]
    own = ("prompt", np.full(one.sizes["prompt"], size)) if "prompt" in one.dims else size
    return one if "n_tokens" in one.coords else one.assign_coords(n_tokens=own)


def _union(labels: Sequence[np.ndarray]) -> np.ndarray:
    """All labels in the order in which they first occur; numbers in increasing order."""
    every = np.concatenate(labels)
    values, places = np.unique(every, return_index=True)
    return values if every.dtype.kind in "iuf" else every[np.sort(places)]


def _padded(one: R, wanted: Mapping[Any, np.ndarray]) -> R:
    """A part over these labels, with what stands for a missing value of each variable and coordinate."""
    fill: dict[Any, Any] = {}
    whole: Any = one if isinstance(one, xr.Dataset) else one.to_dataset(name=ARRAY)
    for name, values in whole.variables.items():
        if values.dtype.kind == "b" and wanted.keys() & {*values.dims}:  # xarray would make an array of objects of it
            whole[name] = whole[name].astype(float)
        text = values.dtype.kind in "OU"
        fill[name] = TOKENS.get(str(name), "" if text else np.nan)
    padded = whole.reindex(wanted, fill_value=fill)
    return padded if isinstance(one, xr.Dataset) else padded[ARRAY].rename(one.name)
