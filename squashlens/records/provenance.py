"""Where the numbers of a result came from: text in a coordinate that is named for the measurement.

The provenance of `path_bound` is the coordinate `provenance_path_bound`, JSON text without dimensions. It is a
coordinate so that xarray keeps it where it is true: `xr.concat` keeps each part's, `sel` that of the selected part, a
mean over parts drops it, `xr.merge` of several measurements keeps all, arithmetic between different calls drops both,
and netCDF keeps it. It says where numbers came from, and not that nothing was done to them since.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import Any, TypeVar

import xarray as xr

from squashlens._typing import short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError

Result = xr.DataArray | xr.Dataset
Facts = Mapping[str, Any]
R = TypeVar("R", xr.DataArray, xr.Dataset)
PREFIX = "provenance_"
PACKAGES = ("squashlens", "torch", "transformers", "transformer-lens")


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the main packages; read once, because they do not change while a program runs."""
    packages = {name: metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version()} | packages


def stated(facts: Facts) -> dict[str, str]:
    """The coordinate with these facts, by its name; a function's name must be among them."""
    return {PREFIX + facts["call"]["function"]: as_text(facts)}


def as_text(facts: Facts) -> str:
    """Facts as JSON text without spaces, in the order in which they were stated."""
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":"), default=str)


def names_of(result: Result) -> list[str]:
    """The names of the coordinates with provenances."""
    names: list[str] = []
    for name in result.coords:
        if str(name).startswith(PREFIX):
            names.append(str(name))
    return names


def without_provenance(result: R) -> R:
    """The result without provenances: a part of another result, which has its own."""
    return result.drop_vars(names_of(result))


def with_provenance(result: R, facts: Facts) -> R:
    """The result with this provenance alone."""
    return without_provenance(result).assign_coords(stated(facts))


def parts_of(result: Result) -> list[dict[str, Any]]:
    """The facts of each part of a result; those of one that is missing, such as a cell of a study, are empty."""
    texts: list[Any] = []
    for name in names_of(result):
        texts += result.coords[name].values.ravel().tolist()
    return [read(text) for text in texts]


def joined_along(result: Result) -> list[str]:
    """The dimensions along which results were joined: those of the provenances."""
    dims: list[str] = []
    for name in names_of(result):
        dims += map(str, result.coords[name].dims)
    return list(dict.fromkeys(dims))


def facts_of(result: Result) -> dict[str, Any]:
    """The facts of a result; those that differ between its parts are lists. Empty for what squashlens did not make."""
    known: list[Facts] = []
    for facts in parts_of(result):
        if facts:  # not of a part that is missing
            known.append(facts)
    return merged(known)


@validated
def provenance(result: Result) -> dict[str, Any]:
    """Where a result came from: model, weights, dtype, device, hooks, versions and the call that made it.

    It is read from the coordinate that is named for the measurement, such as `provenance_path_bound`. xarray keeps it
    in a selection, in arithmetic with numbers and in files, and drops it from a mean over several parts and from a
    ratio of results of two calls. So it says which call the numbers came from, and not what was done to them since.

    Of a joined result (of `concat`, `xr.concat`, or several prompts or interventions), facts that differ between the
    parts are lists, in the order of the labels; ``result.sel(model="llama")`` has its own.

    Args:
        result: a result of squashlens, or anything that xarray made of one.

    Returns:
        The provenance as a dict.

    Raises:
        InputError: if the result has no provenance.

    >>> import squashlens as sl
    >>> bound = sl.path_bound(sl.load("tiny-gemma"), "110 =")
    >>> facts = sl.results.provenance(bound / bound.sum())
    >>> facts["model"], facts["call"]["function"], facts["call"]["prompt"]
    ('tiny-gemma', 'path_bound', '110 =')
    """
    require_done(result)
    if not names_of(result):
        raise InputError(
            "These values have no provenance: squashlens did not measure them, or they were made of several calls.",
            "Give a result of squashlens, or what xarray makes of a single one.",
        )
    return facts_of(result)


def is_done(result: Result) -> bool:
    """Whether a result has numbers: it is not a cell of a study that was not computed."""
    parts = parts_of(result)
    return not parts or any(parts)


def require_done(result: Result) -> None:
    """Raise an error for a result without numbers."""
    if not is_done(result):
        raise InputError(
            "Nothing was measured at these labels: this cell of a study is not done, or no joined part has them.",
            "Select others, or run the study and combine its results again.",
        )


def read(text: object) -> dict[str, Any]:
    """The facts in a text; empty where a part is missing, which xarray fills with NaN."""
    if not isinstance(text, str) or not text:
        return {}
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        raise InputError(
            f"A coordinate {PREFIX}… has {short_repr(text)}, which is not text of a JSON object.",
            "Drop this coordinate, or give a result of squashlens.",
        ) from None


def merged(parts: Sequence[Facts]) -> dict[str, Any]:
    """The facts of several parts; those that differ are lists, with None for a part without that fact."""
    common: dict[str, Any] = {}
    for facts in parts:
        common |= facts  # for the names, in the order in which they first occur
    for name in common:
        common[name] = _merge([facts.get(name) for facts in parts])
    return common


def _merge(values: Sequence[Any]) -> Any:
    """The common value, or the list of the values; dicts with the same keys are merged key by key."""
    first = values[0]
    if values.count(first) == len(values):
        return first
    if isinstance(first, dict) and all(_has_keys(value, first) for value in values):
        return merged(values)
    return list(values)


def _has_keys(value: Any, of: Facts) -> bool:
    """Whether a value is a dict with the keys `of` another one."""
    return isinstance(value, dict) and value.keys() == of.keys()


def subject_of(facts: Facts) -> Any:
    """What was measured: the prompt, or the name of the sequence or task; None if none is stated."""
    if "prompt" in facts.get("call", {}):
        return facts["call"]["prompt"]
    for about in (facts.get("sequence"), facts.get("task")):
        if isinstance(about, dict):
            return about["name"]
    return None


def models_of(result: Result) -> list[str]:
    """The models of a result, each with what became of its weights if they are not the whole published ones."""
    named = []
    for facts in parts_of(result):
        for of_model in (facts, facts.get("other")):  # the second of two models
            if of_model and "model" in of_model:
                named.append(_named(of_model["model"], of_model.get("weights_origin")))
    return list(dict.fromkeys(named))


def _named(model: str, origin: Facts | None) -> str:
    """A model, and in brackets what its weights were made of.

    >>> _named("a", {"note": "dequantized from Q8_0; not the published weights"})
    'a (dequantized from Q8_0)'
    >>> _named("a", {"note": "read from F16 in a GGUF file"}), _named("a", None)
    ('a', 'a')
    """
    if not origin:
        return model
    change = origin.get("note", "").partition(";")[0]
    if not change or change.startswith("read from"):
        return model
    return f"{model} ({change})"
