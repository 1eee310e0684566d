"""The data of a squash map's page: a JSON header, and its numbers as float32 in base64.

The page gets the numbers of the result, and their means by distance, and computes none. Values after a query are zero
by causality and are left out. A row of the page that was not measured is missing there, and never zero.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from squashlens.measure.squashing.map_cells import mean_by_distance, spread
from squashlens.records.facts import named_models
from squashlens.records.results import provenance

DERIVED = "These are derived values: something was changed since they were measured."
MOST = 6_000_000  # bytes of a page
LARGEST = float(np.finfo("<f4").max)  # of a page's numbers
FIXED = 120_000  # of them, for its program, styles and headings
# By variable: the name that the page shows, and what the number says.
SHOWN = {
    "jacobian": ("Jacobian", "How much a small change of the token's stream can change the query's output y"),
    "bound_over_null": ("Path bound ÷ null", "1 is what uniform attention gives: causality alone"),
    "path_bound": ("Path bound", "Sum over attention paths, Theorem 5.1 with constants 1; a shape, not a bound"),
    "effect": ("Substitution effect", "Mean distance that y moves when the token is replaced"),
    "kl": ("Substitution effect on the next token", "Mean KL divergence when the token is replaced"),
    "null": ("Null", "Path bound under uniform attention"),
}
TRACED = tuple(f"path_{name}" for name in ("position", "weight", "share", "over_null")) + tuple(
    f"way_{name}" for name in ("share", "position", "head")
)
SERIES = {"path_bound": "path bound", "null": "null", "jacobian": "Jacobian"}


class Blob:
    """Numbers, one array after the other."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.size = 0

    def add(self, values: Any) -> int:
        """Append an array; its place in the blob."""
        start = self.size
        self.parts.append(np.asarray(values, dtype="<f4").ravel())
        self.size += self.parts[-1].size
        return start

    def text(self) -> str:
        return base64.b64encode(np.concatenate([*self.parts, np.zeros(0, "<f4")]).tobytes()).decode("ascii")


def payload(result: xr.Dataset, opened: int | None = None) -> dict[str, Any]:
    """The data of the page of a map's Dataset, which opens at a query."""
    facts = provenance(result)
    tokens = [str(token) for token in result["token"].values]
    queries, layers = ([int(number) for number in result[dim].values] for dim in ("query", "layer"))
    traced = [int(query) for query in result["traced"].values] if {*TRACED} <= {*result} else []
    wanted = facts["call"].get("query", -1) if opened is None else opened
    opened = wanted % len(tokens) if isinstance(wanted, int) and wanted % len(tokens) in queries else queries[-1]
    largest = {name: _largest(result[name]) for name in SHOWN if name in result and result[name].notnull().any()}
    names = [name for name, most in largest.items() if most <= LARGEST]
    header: dict[str, Any] = {
        "tokens": tokens, "opened": opened, "model": named_models(facts)[0], "code": code_of(facts),
        "facts": [(name.replace("_", " "), fact_text(value)) for name, value in facts.items()],
        "spans": _spans(result),
    }  # fmt: skip
    room = (MOST - FIXED - len(text_of(header))) * 3 // 4 // 4 - len(SERIES) * len(layers) * len(tokens)
    each = 3 * result.sizes["block"] * result.sizes["rank"] if traced else 0  # numbers of the ways from one token
    of_ways = min(room // 3, each * sum(query + 1 for query in traced))
    room -= of_ways
    full = [name for name in names if "layer" in result[name].dims]
    kept_layers = _fitting_layers(layers, len(full) * (opened + 1), room)
    kept = spread(queries, opened, len(full) * len(kept_layers) + len(names), room)
    paths = [query for query in traced if query in kept]
    paths = [query for query in spread(paths, opened, each, of_ways) if query in paths] if paths else []
    blob = Blob()
    places = [layers.index(layer) for layer in kept_layers]
    header |= {
        "layers": kept_layers, "queries": kept,
        "notes": [
            *([DERIVED] if facts["values"] == "derived" else []),
            *(f"{SHOWN[name][0]}: up to {most:.3g}, too large for a page; the result has it."
              for name, most in largest.items() if name not in names),
            *_notes(result, (queries, kept), (layers, kept_layers), (traced, paths)),
        ],
        "quantities": [_quantity(result, name, kept, places, queries, blob, facts) for name in names],
        "traces": _traces(result, paths, blob) if traced else None, "distance": _distance(result, kept_layers, blob),
        "predicted": _predicted(result, kept, queries), "again": call_of(facts, query="QUERY"),
        "collapse": _collapse(result),
    }  # fmt: skip
    return header | {"blob": blob.text()}


def _predicted(
    result: xr.Dataset, kept: Sequence[int], queries: Sequence[int]
) -> list[tuple[str, float | None]] | None:
    """The most likely token after each query of the page and its probability; None if they were not measured."""
    if "next_token" not in result.coords or "next_probability" not in result:
        return None
    tokens, chances = result["next_token"].values, result["next_probability"].values
    return [(str(tokens[at]), _number(chances[at])) for at in map(list(queries).index, kept)]


def call_of(facts: dict[str, Any], **changed: Any) -> str:
    """The call that made a result as code; with `changed` arguments, that of a map with the same options.

    The page puts a number in place of the query 'QUERY'.
    """
    call = dict(facts["call"])
    function, prompt = call.pop("function"), call.pop("prompt")
    if changed and function != "squash_map":  # a profile measures other things beside the map
        function, call = "squash_map", {name: call.get(name) for name in ("norm", "method", "n_probes", "spans")}
    options = "".join(f", {name}={value!r}" for name, value in (call | changed).items() if value is not None)
    return f"sl.{function}(model, {prompt!r}{options})"


def load_of(facts: dict[str, Any], source: str) -> str:
    """The call that loads the model of a result from its source, with all options but the device."""
    dtype = facts.get("dtype", "float32")
    stated = {
        "dtype": None if dtype == "float32" else dtype,
        "revision": facts.get("revision"),
        "verify": False if facts.get("proof") == "unverified" else None,
    }
    options = (f"{name}={value!r}" for name, value in stated.items() if value is not None)
    return f"sl.load({', '.join([repr(source), *options])})"


def code_of(facts: dict[str, Any]) -> str:
    """The lines that make this map again, and the hooks that they leave out."""
    note = "".join(f"# measured under: {hook!r}\n" for hook in facts.get("ambient_hooks", []))
    made = call_of(facts)
    made = made if made.startswith("sl.squash_map(") else f"sl.squash_map({made})"
    return f'import squashlens as sl\n\nmodel = {load_of(facts, facts["model"])}\n{note}{made}.save("map.html")\n'


def text_of(value: Any) -> str:
    """JSON that can be put into a script element: without `<`, `>`, `&` and line separators."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _fitting_layers(layers: list[int], cost: int, room: int) -> list[int]:
    """The layers of which at least one query fits: all, or every second, third, …, from the last one down."""
    step = 1
    while cost * len(layers[::-step]) > room and step < len(layers):
        step += 1
    return sorted(layers[::-step])


def _quantity(
    result: xr.Dataset, name: str, kept: Sequence[int], places: Sequence[int], queries: Sequence[int], blob: Blob,
    facts: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """One quantity: how it is shown, and where the numbers of each query are; -1 if they were not measured."""
    values, by_layer = result[name].values, "layer" in result[name].dims
    starts = []
    for query in kept:
        row = values[queries.index(query)]
        row = row[places][:, : query + 1] if by_layer else row[: query + 1]
        starts.append(blob.add(row) if np.isfinite(row).any() else -1)
    label, about = SHOWN[name]
    norm = facts["call"].get("norm") if name == "jacobian" else None
    return {
        "name": name, "label": label, "about": about, "unit": str(result[name].attrs["units"]), "by_layer": by_layer,
        "norm": norm, "starts": starts,
        "measured": str(result[name].attrs["long_name"]),
    }  # fmt: skip


def _traces(result: xr.Dataset, traced: Sequence[int], blob: Blob) -> dict[str, Any]:
    """Strongest paths and ways, by query."""
    each = []
    for query in traced:
        trace = result.sel(traced=query)
        paths = [
            {
                "positions": trace["path_position"].values[k].tolist(),
                **{name: _number(trace[f"path_{name}"].values[k]) for name in ("weight", "share", "over_null")},
            }
            for k in range(trace.sizes["path"])
            if np.isfinite(trace["path_weight"].values[k])
        ]
        ways = {name: blob.add(trace[f"way_{name}"].values[:, : query + 1]) for name in ("share", "position", "head")}
        each.append({"query": query, "paths": paths, "sink": float(trace["path_sink"])} | ways)
    return {"ranks": result.sizes["rank"], "blocks": result.sizes["block"], "queries": each}


def _distance(result: xr.Dataset, layers: Sequence[int], blob: Blob) -> dict[str, Any]:
    """Mean influence by distance, for each quantity that was measured for all queries."""
    there = [name for name in SERIES if name in result and result[name].notnull().all()]
    means = {name: mean_by_distance(result[name].sel(layer=list(layers))) for name in there}
    series = [
        {"name": name, "label": SERIES[name], "start": blob.add(values)}
        for name, values in means.items()
        if _largest(values) <= LARGEST
    ]
    return {"length": result.sizes["position"], "series": series}


def _collapse(result: xr.Dataset) -> dict[str, Any]:
    """The distance of v and v* at every layer, with its noise floor and the size of v."""
    names = ("collapse_distance", "collapse_noise", "last_token_rms")
    held = {name: [_number(value) for value in result[name].values] for name in names if name in result}
    return {"layers": [int(layer) for layer in result["layer"].values], **held}


def _spans(result: xr.Dataset) -> dict[str, Any] | None:
    """The number of each token's span, and the spans' names; None if the result has no spans."""
    if "span" not in result.coords:
        return None
    of, names = (result[name].values.tolist() for name in ("span", "span_name"))
    return {"of": of, "names": [names[of.index(k)] for k in range(max(of) + 1)]}


def _largest(values: Any) -> float:
    """The largest finite number."""
    values = np.asarray(values)
    return float(np.abs(values, where=np.isfinite(values), out=np.zeros(values.shape)).max())


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


Two = tuple[Sequence[int], Sequence[int]]  # what was measured, and which of it is in the page


def _notes(result: xr.Dataset, queries: Two, layers: Two, traced: Two) -> list[str]:
    """What is missing, in sentences."""
    n, (measured, kept) = result.sizes["position"], queries
    jacobian = [
        query
        for place, query in enumerate(measured)
        if "jacobian" in result and np.isfinite(result["jacobian"].values[place]).any()
    ]
    said = [
        (len(measured) < n, f"{len(measured):,} of {n:,} queries were measured."),
        (len(kept) < len(measured), f"{len(kept):,} of the {len(measured):,} measured queries are in this page, which "
         "has at most 6 MB; the result has all of them."),
        (len(layers[1]) < len(layers[0]), f"{len(layers[1])} of {len(layers[0])} layers are in this page; the result "
         "has all of them."),
        (not jacobian, "The Jacobian was not measured."),
        (0 < len(jacobian) < len(measured), f"The Jacobian was measured for {_list_queries(jacobian)} only."),
        ("effect" not in result, f"{SHOWN['effect'][0]}: not measured."),
        (not traced[0], "Strongest paths: not traced."),
        (0 < len(traced[0]) < len(measured), f"Strongest paths were traced for {_list_queries(traced[0])} only."),
        (0 < len(traced[1]) < len(traced[0]), f"Strongest paths to {_list_queries(traced[1])} are in this page; the "
         "result has all of them."),
    ]  # fmt: skip
    return [text for holds, text in said if holds]


def _list_queries(queries: Sequence[int]) -> str:
    if len(queries) == 1:
        return f"query {queries[0]}"
    return f"{len(queries)} queries" if len(queries) > 8 else f"queries {', '.join(map(str, queries))}"


def fact_text(value: Any) -> str:
    """A fact of a provenance as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {fact_text(part)}" for key, part in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(fact_text, value)) or "none"
    return "none" if value is None else str(value)
