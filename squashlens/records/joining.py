"""Join results along a new dimension, where each keeps its own provenance."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from squashlens._typing import short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.records.facts import CHANGED, Facts, read_facts, together
from squashlens.records.results import R, is_measured, own_facts, sealed, stored_facts
from squashlens.saving.stored import OF_ALL, Result, as_dataset, texts_of

TOKENS = {
    "token": "",
    "token_id": -1,
}  # after the last token of a prompt that is shorter than others


@validated
def concat(
    result: Mapping[str | int | float, Result], dim: str
) -> xr.DataArray | xr.Dataset:
    """Join results of one measurement along a new dimension: of several models, prompts or options.

    The parts are aligned by their labels. A part that lacks a label, such as a layer of a deeper model or a position of
    a longer prompt, has NaN there, so that whole numbers and truth values become floating-point numbers. Positions are
    aligned by number and not by token: where the parts have different tokens, `token` and `token_id` are those of each
    part, over (`dim`, position); after a part's own tokens, whose number is the coordinate `n_tokens`, `token` is ""
    and `token_id` is −1. Figures, tables and `answer_frequencies` leave the padding of a selected part out.

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
    if len({isinstance(label, str) for label in result}) > 1:
        raise InputError(
            "Some labels of result= are text and some are numbers.",
            "Give labels of one kind.",
        )
    result = {label: restored(part) for label, part in result.items()}
    facts = [own_facts(part, stored_facts(part)) for part in result.values()]
    # A part may have a label along `dim` from a selection.
    parts: Any = {
        n: part.drop_vars(dim) if dim in part.coords and not part[dim].ndim else part
        for n, part in result.items()
    }
    first, *others = parts
    meanings = {
        label: _meanings(parts[label], stored)
        for label, stored in zip(parts, facts, strict=True)
    }
    for label in others:
        _require_alike({each: meanings[each] for each in (first, label)})
    part = parts[first]
    if dim in {*part.dims, *part.coords, *meanings[first]}:
        raise InputError(
            f"These results already have {dim!r}.",
            "Give another dim=, or select one label along it in each result.",
        )
    try:
        return joined(
            parts, dim, facts, measured=all(map(is_measured, result.values()))
        )
    except (
        ValueError,
        TypeError,
        KeyError,
        NotImplementedError,
    ) as error:  # labels that occur twice, or stacked ones
        raise InputError(
            f"These results cannot be aligned: {error}",
            "Give results that are not reshaped.",
        ) from error


def joined(
    results: Mapping[Any, R],
    dim: str,
    facts: Sequence[Facts] | None = None,
    *,
    measured: bool = True,
) -> R:
    """Results joined along a new leading `dim`, labelled by the keys; each keeps its provenance."""
    whole, stored = stacked(
        results,
        dim,
        list(map(stored_facts, results.values())) if facts is None else facts,
    )
    return sealed(
        whole,
        together(dim, np.array(list(results)).tolist(), stored),
        measured=measured,
    )


def stacked(
    results: Mapping[Any, R], dim: str, facts: Sequence[Facts]
) -> tuple[R, list[Facts]]:
    """Results along a new leading `dim`, without a provenance of the whole, and the facts of each for `together`."""
    parts = list(map(as_dataset, aligned(results).values()))
    labels = xr.Variable(dim, np.array(list(results)))
    whole: Any = xr.concat(
        parts,
        dim=labels,
        data_vars="all",
        coords="different",
        compat="equals",
        join="exact",
        combine_attrs="override",
    )
    for name, values in whole.data_vars.items():
        values.attrs = _joined_attributes([part[name].attrs for part in parts])
    own = [_own(as_dataset(part), whole) for part in results.values()]
    return _in_kind(whole, next(iter(results.values()))), [
        each | mine for each, mine in zip(facts, own, strict=True)
    ]


def _own(part: xr.Dataset, whole: xr.Dataset) -> Facts:
    """What joining changes in a part: the labels of its dimensions, types of variables, and attributes."""
    attributes = {
        str(name): {
            k: v
            for k, v in values.attrs.items()
            if k not in OF_ALL and whole[name].attrs.get(k) != v
        }
        for name, values in part.data_vars.items()
    }
    return {
        "labels": {
            dim: part[dim].values.tolist()
            for dim in part.dims
            if part.sizes[dim] != whole.sizes[dim]
        },
        "types": {
            name: values.dtype.str
            for name, values in part.variables.items()
            if values.dtype.kind in "biu"
        },
        "attributes": {
            name: changed for name, changed in attributes.items() if changed
        },
    }


def restored(result: Any) -> Any:
    """One part that was selected from a joined result, as it was before; any other result as it is.

    The part loses the labels that only other parts have, and gets back its own types and attributes. What is NaN in the
    part itself stays.
    """
    stored = stored_facts(result) if len(texts_of(result)) == 1 else {}
    own = own_facts(result, stored)
    if not own.keys() & {*CHANGED}:
        return result
    whole = as_dataset(result).copy(deep=False)
    for dim, labels in own["labels"].items():
        there = whole[dim].values.tolist() if dim in whole.dims else []
        others = [place for place, label in enumerate(there) if label not in labels]
        over = [
            values
            for values in whole.data_vars.values()
            if dim in values.dims and values.dtype.kind == "f"
        ]
        if others and not any(
            values[{dim: others}].notnull().any() for values in over
        ):  # or the labels were changed
            whole = whole.isel(
                {dim: [there.index(label) for label in labels if label in there]}
            )
    with np.errstate(invalid="ignore"):
        typed = {
            name: whole[name].astype(kind)
            for name, kind in own["types"].items()
            if name in whole.variables
        }
    whole = whole.assign(
        {
            name: values
            for name, values in typed.items()
            if (values == whole[name]).all()
        }
    )
    for name in whole.data_vars:
        whole[name].attrs.update(own["attributes"].get(name, {}))
    return _in_kind(whole, result)


def _in_kind(whole: Any, like: R) -> R:
    """The array in a Dataset that was made of one; otherwise the Dataset."""
    return (
        whole
        if isinstance(like, xr.Dataset)
        else next(iter(whole.data_vars.values())).rename(like.name)
    )


def restated(result: R, facts: Mapping[str, Any]) -> R:
    """The same result with additional facts, signed as it is now: for what a measurement or a figure made of it."""
    return sealed(result, stored_facts(result) | dict(facts))


def aligned(parts: Mapping[Any, R]) -> dict[Any, R]:
    """The parts over the labels of all of them, padded with NaN, "" and, in token ids, −1."""
    first = next(iter(parts.values()))
    wanted: dict[Any, np.ndarray] = {}
    for dim in first.dims:
        labels = [
            np.asarray(part.coords[dim])
            for part in parts.values()
            if dim in part.coords
        ]
        if any(not np.array_equal(each, labels[0]) for each in labels[1:]):
            every = np.concatenate(labels)
            values, places = np.unique(every, return_index=True)
            wanted[dim] = (
                values if every.dtype.kind in "iuf" else every[np.sort(places)]
            )  # texts as they first occur
    sized = {
        label: _with_size(part) if "position" in wanted else part
        for label, part in parts.items()
    }
    return (
        {label: padded(part, wanted) for label, part in sized.items()}
        if wanted
        else sized
    )


def padded(part: R, wanted: Mapping[Any, Any]) -> R:
    """A result over these labels, with what stands for a missing value of each variable and coordinate."""
    fill: dict[Any, Any] = {}
    whole: Any = as_dataset(part)
    for name, values in whole.variables.items():
        if values.dtype.kind == "b" and wanted.keys() & {
            *values.dims
        }:  # xarray would make an array of objects of it
            whole = whole.assign({name: whole[name].astype(float)})
        fill[name] = TOKENS.get(str(name), "" if values.dtype.kind in "OU" else np.nan)
    return _in_kind(whole.reindex(wanted, fill_value=fill), part)


def _with_size(part: R) -> R:
    """A part with the number of its own tokens, which several prompts of unequal lengths have already."""
    size = part.sizes["position"]
    own = (
        ("prompt", np.full(part.sizes["prompt"], size))
        if "prompt" in part.dims
        else size
    )
    return part if "n_tokens" in part.coords else part.assign_coords(n_tokens=own)


def _meanings(part: Result, facts: Facts) -> dict[str, str]:
    """What each variable of a result is: its long name, units, dimensions, and the measurements that made it."""
    calls = read_facts(facts, lambda _: None).get("call", {})
    each = [
        call.get("function")
        for call in (calls if isinstance(calls, list) else [calls])
        if isinstance(call, dict)
    ]
    made = sorted(
        {
            str(name)
            for part in each
            for name in (part if isinstance(part, list) else [part])
        }
    )
    kind, named = (
        ("Dataset", part.data_vars)
        if isinstance(part, xr.Dataset)
        else ("DataArray", {part.name: part})
    )
    return {
        str(
            name
        ): f"{values.attrs.get('long_name')} ({values.attrs.get('units')}) over "
        f"({', '.join(sorted(map(str, values.dims)))}), in a {kind} of {' and '.join(made)}"
        for name, values in named.items()
    }


def _require_alike(meanings: Mapping[Any, Mapping[str, str]]) -> None:
    """Raise an error unless two results have the same variables, with the same meanings."""
    (first, here), (second, there) = meanings.items()
    differ = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if differ:
        kept = (
            f", or give `result.drop_vars({differ!r}, errors='ignore')` of each"
            if {*here} - {*differ}
            else ""
        )
        raise InputError(
            f"{differ[0]!r} is not the same quantity in {short_repr(first)} and {short_repr(second)}: "
            f"{here.get(differ[0], 'missing')}; and {there.get(differ[0], 'missing')}.",
            f"Measure both with the same options{kept}. `squashlens.results.table` takes results of any kind.",
        )


def _joined_attributes(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The attributes that all joined variables have in common, with the certificate of all, and "or" between others."""
    of: dict[str, Any] = {
        "rounding": max,
        "failure_probability": sum,
        "estimated_tightness": max,
    }
    of |= dict.fromkeys(
        ("long_name", "units"),
        lambda texts: " or ".join(dict.fromkeys(map(str, texts))),
    )
    values = {
        name: [attrs[name] for attrs in each]
        for name in each[0]
        if all(name in attrs for attrs in each)
    }
    alike = {
        name: several[0]
        for name, several in values.items()
        if all(value == several[0] for value in several)
    }
    return alike | {
        name: of[name](several) for name, several in values.items() if name in of
    }
