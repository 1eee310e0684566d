"""Results that a map is made of, in place of a model and a prompt: which can be shown, and which are refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from squashlens._typing import short_repr
from squashlens.checks.results import is_relative, moved_probability
from squashlens.errors import InputError
from squashlens.measure.remedies.named_interventions import AS_IT_IS, lengths_with
from squashlens.measure.squashing.jacobians.sketch import PROBES
from squashlens.measure.squashing.map_cells import of_profile
from squashlens.records.results import provenance

# In an order in which every variable of a map has its dimensions; that of a joined result is another.
DIMS = ("query", "traced", "path", "block", "layer", "position", "rank")
COUNTED = ("position", "block", "rank")  # which the page counts from 0
DEFAULTS = {
    "prompt": None, "method": "auto", "n_probes": PROBES, "norm": "spectral", "n_replacements": 0,
    "spans": None, "seed": None,
}  # fmt: skip


def refuse_options(*given: Any) -> None:
    """Raise an error for an option of the measurement, in the order of `DEFAULTS`, that is given with a result."""
    for (name, default), value in zip(DEFAULTS.items(), given, strict=True):
        if value != default:
            raise InputError(
                f"{name}={short_repr(value)} is given with a result, which is shown as it was measured.",
                f"Leave {name}= out, or give a model and a prompt.",
            )


def of_result(found: xr.Dataset) -> xr.Dataset:
    """The Dataset of a map, from one that was measured before. Raises for a result that the page cannot show."""
    joined = [str(dim) for dim in found.dims if dim not in DIMS]
    function = provenance(found)["call"].get("function")
    whole = {"query", "layer", "position"} <= {*found.dims} and {"path_bound", "null"} <= {*found}
    if function in ("influence", "squash_map") and whole and joined:
        raise InputError(
            f"model= is a result with the dimension {joined[0]!r}, and a map shows one prompt and one model.",
            f"Select one, for example with `result.isel({joined[0]}=0)`.",
        )
    if function not in ("influence", "squash_map") or not whole or not {"token", "token_id"} <= {*found.coords}:
        raise InputError(
            f"model= is a result of {short_repr(function)} that a map cannot be made of.",
            "Give a model and a prompt, or the whole result of `influence`.",
        )
    for dim in ("query", "layer", "traced", "path"):
        labels = found[dim].values if dim in found.dims else np.zeros(1)
        if not len(labels) or len({*labels.tolist()}) < len(labels):
            raise InputError(
                f"model= is a result with {len(labels)} labels of {dim!r}, of which {len({*labels.tolist()})} differ.",
                f"Select at least one {dim}, and none twice.",
            )
    cut = [dim for dim in COUNTED if dim in found.dims and found[dim].values.tolist() != [*range(found.sizes[dim])]]
    if cut or found["query"].max() >= found.sizes["position"]:
        part = cut[0] if cut else "position"
        raise InputError(
            f"model= is a result with only a part of {part}, and a map shows the whole prompt.",
            "Give the whole result; a selection may choose among query and layer.",
        )
    ordered = found.transpose(*DIMS, missing_dims="ignore")
    return of_profile(ordered) if function == "influence" else ordered


def find_query(found: xr.Dataset, query: int) -> int:
    """A query of the result, counted from the end if it is negative."""
    n, known = found.sizes["position"], {int(one) for one in found["query"].values}
    if not -n <= query < n or query % n not in known:
        raise InputError(
            f"query={query} is not among the {len(known)} queries of the result.",
            f"Use one of them, for example {max(known)}, or measure it: give the model and the prompt.",
        )
    return query % n


SAME = ("fingerprint", "dtype", "ambient_hooks")  # of a map, and of its interventions
COMPARED, MORE = {"change", "layer", "length"}, {"replayed", "content", "block"}
WHOLE = "Give a result of `squashlens.compare`, or a selection from it among change and length."


@dataclass(frozen=True)
class Interventions:
    """A result of `compare` that was checked to be one, so that only the model and the prompt are left to check."""

    result: xr.Dataset
    facts: Mapping[str, Any]  # of the unchanged model

    @classmethod
    def of(cls, given: xr.Dataset) -> "Interventions":
        """Raise an error for any other result, and for one without the unchanged model."""
        dims = {str(dim) for dim in given.dims}
        if not COMPARED <= dims <= COMPARED | MORE or AS_IT_IS not in given["change"].values:
            raise InputError(f"interventions= has the dimensions {short_repr(sorted(dims))}.", WHOLE)
        provenance(given)  # an error for values that were computed
        facts = provenance(given.sel(change=AS_IT_IS))
        found = cls(given, facts)
        try:
            found._measured([])
        except (KeyError, TypeError, ValueError, AttributeError, InputError):  # of another version, or damaged
            raise InputError("interventions= does not say which prompts it was measured on.", WHOLE) from None
        return found

    @property
    def names(self) -> list[str]:
        """The names of the interventions, the unchanged model among them."""
        return [str(name) for name in self.result["change"].values]

    def require(self, facts: Mapping[str, Any], ids: Sequence[int]) -> None:
        """Raise an error if they were measured on another model than a map, or on other prompts."""
        for name in SAME:
            if self.facts.get(name) != facts.get(name):
                raise InputError(
                    "interventions= was measured on another model than the map: its "
                    f"{name.replace('_', ' ')} is {short_repr(self.facts.get(name))}, and that of the map "
                    f"{short_repr(facts.get(name))}.",
                    "Measure `compare` on the model of the map, under the same hooks.",
                )
        if not self._measured(ids):
            raise InputError(
                "interventions= was measured on other prompts than that of the map.",
                "Give `compare` a sequence that has this prompt at one of its lengths.",
            )

    def tables(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """What the page shows for a prompt: a table for each length at which the sequence is this prompt."""
        return [_of_sequence(self.result, n) for n in self._measured(ids)]

    def _measured(self, ids: Sequence[int]) -> list[int]:
        """The lengths at which the sequence is the prompt."""
        return lengths_with(self.facts["form"], ids, [int(n) for n in self.result["length"].values])


def ids_of(found: xr.Dataset) -> list[int]:
    """The token ids of a map's prompt."""
    return [int(token) for token in found["token_id"].values]


def _of_sequence(found: xr.Dataset, n: int) -> dict[str, Any]:
    """The numbers of one sequence at the length of the prompt, of which there is no interval."""
    here, layer = found.sel(length=n), int(found["layer"].values[-1])
    size = "D ÷ rms" if is_relative(found["distance"]) else "D"
    columns = [_column(here["distance"].sel(layer=layer), f"{size} at layer {layer}")]
    if "noise_floor" in found and n in found["replayed"].values:
        floor = found["noise_floor"].sel(layer=layer, replayed=n)
        columns.append(_column(floor, f"noise floor of {size} at layer {layer}"))
    columns.append(_column(here["distance_y"], f"{size} of y"))
    columns.append(_column(moved_probability(here["total_variation"]), "probability that moves"))
    if "bound" in found and n == found["content"].values[-1]:
        columns.append(_column(found["bound"].sel(content=1), "path bound of the first content token"))
    if "accuracy" in found:
        columns.append(_column(here["accuracy"], "right answers"))
    about = (
        f"Measured on this prompt, which has {n} content tokens: single numbers, without intervals. "
        "The larger D is, and the change of the next token, the less is lost."
    )
    return {
        "length": n, "about": about, "changes": [str(name) for name in found["change"].values],
        "columns": columns,
    }  # fmt: skip


def _column(values: xr.DataArray, label: str) -> dict[str, Any]:
    """One quantity of all interventions."""
    return {
        "name": str(values.name), "label": label, "unit": str(values.attrs["units"]),
        "about": str(values.attrs["long_name"]),
        "cells": [[_number(value)] for value in values.values.astype(float)],
    }  # fmt: skip


def _number(value: float) -> float | str | None:
    """A number as JSON can have it; an infinite one is text that the page reads as a number."""
    if np.isnan(value):
        return None
    return float(value) if np.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
