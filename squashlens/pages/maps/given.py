"""Results that a map is made of, in place of a model and a prompt: which can be shown, and which are refused."""

from typing import Any

import xarray as xr

from squashlens._typing import short_repr
from squashlens.errors import InputError
from squashlens.pages.maps.cells import FEWER, ratio
from squashlens.records.provenance import provenance

# The dimensions of a map, in an order in which every variable has its own; joined results may have others.
DIMS = ("query", "traced", "path", "block", "head", "layer", "position", "rank")
COUNTED = {"position", "block", "head", "rank"}  # which the page counts from 0
NEEDED = {"query", "layer", "position", "path_bound", "null", "token", "token_id"}
DEFAULTS = {
    "prompt": None,
    "method": "auto",
    "n_probes": FEWER,
    "norm": "spectral",
    "knockout": None,
    "target": None,
    "spans": None,
    "seed": 0,
}


def refuse_options(*options: Any) -> None:
    """Raise an error for an option of the measurement, in the order of `DEFAULTS`, that is given with a result."""
    for (name, default), value in zip(DEFAULTS.items(), options, strict=True):
        if value != default:
            raise InputError(
                f"{name}={short_repr(value)} is given with a result, which is shown as it was measured.",
                f"Leave {name}= out, or give a model and a prompt.",
            )


def of_result(result: xr.Dataset) -> xr.Dataset:
    """The Dataset of a map, from a result of `squash_map` or `token_influence`; an error if the page cannot show it."""
    joined = [str(dim) for dim in result.dims if dim not in DIMS]
    function = provenance(result)["call"].get("function")
    known = set(result.dims) | set(result.variables)
    if function not in ("token_influence", "squash_map") or not known >= NEEDED:
        raise InputError(
            f"model= is a result of {short_repr(function)} that a map cannot be made of.",
            "Give a model and a prompt, or the whole result of `token_influence`.",
        )
    if joined:
        raise InputError(
            f"model= is a result with the dimension {joined[0]!r}, and a map shows one prompt and one model.",
            f"Select one, for example with `result.isel({joined[0]}=0)`.",
        )
    for dim, index in result.indexes.items():
        if index.empty or not index.is_unique:
            raise InputError(
                f"model= is a result with {len(index)} labels of {str(dim)!r}, of which {index.nunique()} differ.",
                f"Select at least one {dim}, and none twice.",
            )
    # The page counts labels from 0, and needs positions up to the last query, and blocks below the last layer.
    last = {
        "position": int(result["query"].max()),
        "block": int(result["layer"].max()) - 1,
    }
    for dim in COUNTED & set(result.dims):
        labels = result[dim].values.tolist()
        if labels != list(range(len(labels))) or last.get(dim, 0) >= len(labels):
            raise InputError(
                f"model= is a result with only a part of {dim}, and a map shows the whole prompt.",
                "Give the whole result; a selection may choose among query and layer.",
            )
    ordered = result.transpose(*DIMS, missing_dims="ignore")
    if function == "squash_map":
        return ordered
    return ordered.assign(bound_over_null=ratio(ordered))


def find_query(result: xr.Dataset, query: int) -> int:
    """The position of a query of the result; a negative number counts from the end. An error if it is not there."""
    n = result.sizes["position"]
    known = set(result["query"].values.tolist())
    if not -n <= query < n or query % n not in known:
        raise InputError(
            f"query={query} is not among the {len(known)} queries of the result.",
            f"Use one of them, for example {max(known)}, or measure it: give the model and the prompt.",
        )
    return query % n
