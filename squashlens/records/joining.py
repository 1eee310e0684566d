"""Join results along a new dimension. xarray joins; padding of tokens, and whether they are one quantity, is ours."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from squashlens._typing import short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.records.provenance import R, Result, names_of

# After the last token of a prompt that is shorter than others.
PADDING = {"token": "", "token_id": -1}
# Certificates of several parts hold for all of them: the largest rounding, and the sum of what may fail.
OF_CERTIFICATES = {
    "rounding": max,
    "failure_probability": sum,
    "estimated_tightness": max,
}


@validated
def concat(
    result: Mapping[str | int | float, Result], dim: str
) -> xr.DataArray | xr.Dataset:
    """Join results of one measurement along a new dimension: of several models, prompts or options.

    The parts are aligned by their labels. A part that lacks a label, such as a layer of a deeper model or a position of
    a longer prompt, has NaN there, so that whole numbers and truth values become floating-point numbers. Positions are
    aligned by number and not by token: where the parts have different tokens, `token` and `token_id` are those of each
    part, over (`dim`, position); after a part's own tokens, whose number is the coordinate `n_tokens`, `token` is ""
    and `token_id` is −1. A part that is selected keeps this padding, which figures, tables and `answer_frequencies`
    leave out. ``xr.concat`` joins results of equal labels just as well.

    Args:
        result: results of one measurement, by the labels that they get along `dim`.
        dim: name of the new dimension, such as ``"model"`` or ``"prompt"``.

    Returns:
        DataArray or Dataset with the leading dimension `dim`. The provenance of ``result.sel({dim: label})`` is that
        of the part with this label. For certificates, `rounding` is the largest of the parts' values, and
        `failure_probability` is their sum: an upper bound on the probability that any number of any part is too low.

    Raises:
        InputError: no results, results of different measurements, of different variables or with different units or
            definitions (such as another norm), or a `dim` that the results already have.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompts = {"short": "11 =", "long": "1101 ="}
    >>> both = sl.results.concat({name: sl.path_bound(model, text) for name, text in prompts.items()}, dim="prompt")
    >>> both.dims, both["token"].sel(prompt="short").values.tolist()
    (('prompt', 'position'), ['<bos>', '1', '1', '=', '', ''])
    >>> sl.results.provenance(both.sel(prompt="short"))["call"]["prompt"]
    '11 ='
    """
    if isinstance(result, xr.Dataset):
        raise InputError(
            "result= is one result.",
            "Give a dict of results by label, such as {'gemma': a, 'llama': b}.",
        )
    if not result:
        raise InputError("result= is empty.", "Give at least one result, by its label.")
    parts: Any = {label: _without_label(part, dim) for label, part in result.items()}
    first = next(iter(parts))
    if dim in parts[first].dims or dim in _meanings(parts[first]):
        raise InputError(
            f"These results already have {dim!r}.",
            "Give another dim=, or select one label along it in each result.",
        )
    for label, part in parts.items():
        _require_alike(parts[first], part, first, label)
    return joined(parts, dim)


def joined(results: Mapping[Any, R], dim: str) -> R:
    """Results along a new leading `dim`, labelled by the keys; each keeps its provenance."""
    parts: list[Any] = aligned(list(results.values()))
    whole: Any = xr.concat(
        parts,
        dim=xr.Variable(dim, np.array(list(results))),
        data_vars="all",
        coords="different",
        compat="equals",
        join="exact",
        combine_attrs=_joined_attributes,
    )
    for name in names_of(whole):
        if dim not in whole[name].dims:  # all parts have the same provenance
            of_each_part = whole[name].expand_dims({dim: whole[dim]})
            whole = whole.assign_coords({name: of_each_part})
    return whole


def aligned(parts: Sequence[R]) -> list[R]:
    """The parts over the labels of all of them, padded with NaN, "" and, in token ids, −1."""
    union: dict[Any, np.ndarray] = {}  # for each dimension with different labels
    for dim in parts[0].dims:
        labels: list[pd.Index] = []
        is_different = False
        for part in parts:
            if dim in part.indexes:
                labels.append(part.indexes[dim])
                is_different |= not labels[-1].equals(labels[0])
        if is_different:
            union[dim] = _union(labels)
    if not union:
        return list(parts)
    if "position" in union:
        parts = [_with_size(part) for part in parts]
    return [padded(part, union) for part in parts]


def _union(labels: Sequence[pd.Index]) -> np.ndarray:
    """All labels: numbers in ascending order, texts as they first occur."""
    every = np.concatenate([index.to_numpy() for index in labels])
    if every.dtype.kind in "iuf":
        return np.unique(every)
    return pd.unique(every)


def padded(part: R, labels: Mapping[Any, Any]) -> R:
    """A result over these labels of its dimensions, with a padding where it has none: NaN, "" or one of `PADDING`."""
    if isinstance(part, xr.DataArray):
        whole = padded(part.to_dataset(name=VALUES), labels)
        return whole[VALUES].rename(part.name)
    whole: Any = part
    fill: dict[Any, Any] = {}
    for name, variable in part.variables.items():
        # xarray would make an array of objects of truth values and NaN.
        if variable.dtype.kind == "b" and labels.keys() & set(variable.dims):
            whole = whole.assign({name: part[name].astype(float)})
        missing = "" if variable.dtype.kind in "OUT" else np.nan
        fill[name] = PADDING.get(str(name), missing)
    return whole.reindex(labels, fill_value=fill)


VALUES = "values of an array"  # its name while it is a Dataset


def without_padding(result: Any) -> Any:
    """A single prompt's result for its own tokens, without what follows them where it was joined with longer ones."""
    size = result.coords.get("n_tokens")
    if size is None or size.ndim or "position" not in result.dims:
        return result
    return result.isel(position=result["position"].values < size.item())


def _with_size(part: R) -> R:
    """A part with the number of its own tokens, which several prompts of unequal lengths have already."""
    if "n_tokens" in part.coords:
        return part
    # Not the number of positions, of which only some may have been measured.
    positions: Any = part["position"].values
    size = int(positions.max()) + 1
    if "prompt" not in part.dims:
        return part.assign_coords(n_tokens=size)
    return part.assign_coords(n_tokens=("prompt", np.full(part.sizes["prompt"], size)))


def _without_label(part: Result, dim: str) -> Result:
    """A part without the label along `dim` that it may have from a selection."""
    if dim in part.coords and not part[dim].ndim:
        return part.drop_vars(dim)
    return part


def _meanings(part: Result) -> dict[str, str]:
    """What each variable of a result is: its long name, units, dimensions, and the measurement that made it."""
    variables: Any = {}
    if isinstance(part, xr.DataArray):
        variables[part.name] = part
    else:
        variables |= part.data_vars
    maker = " and ".join(names_of(part)) or "no provenance"
    meanings = {}
    for name, values in variables.items():
        quantity = f"{values.attrs.get('long_name')} ({values.attrs.get('units')})"
        dims = ", ".join(sorted(map(str, values.dims)))
        kind = type(part).__name__
        meanings[str(name)] = f"{quantity} over ({dims}), in a {kind} with {maker}"
    return meanings


def _require_alike(first: Result, second: Result, label: Any, other: Any) -> None:
    """Raise an error unless two results have the same variables, with the same meanings."""
    in_first = _meanings(first)
    in_second = _meanings(second)
    for name in {**in_first, **in_second}:
        if in_first.get(name) != in_second.get(name):
            raise InputError(
                f"{name!r} is not the same quantity in {short_repr(label)} and {short_repr(other)}: "
                f"{in_first.get(name, 'missing')}; and {in_second.get(name, 'missing')}.",
                "Measure both with the same options, or drop this variable. "
                "`squashlens.results.table` takes results of any kind.",
            )


def _joined_attributes(
    attributes: Sequence[Mapping[str, Any]], context: Any
) -> dict[str, Any]:
    """The attributes that all joined variables have in common, and the certificate of all.

    `xr.concat` calls it with a context that is not used.
    """
    shared = dict(attributes[0])
    for part in attributes[1:]:
        for name, value in list(shared.items()):
            if part.get(name) != value:
                del shared[name]
    for name, combine in OF_CERTIFICATES.items():
        values: list[Any] = []
        for part in attributes:
            if name in part:
                values.append(part[name])
        if values:
            shared[name] = combine(values)
    return shared
