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

from squashlens.pages.maps.cells import mean_by_distance, spread
from squashlens.records.provenance import models_of, provenance

MOST = 6_000_000  # bytes of a page
LARGEST = float(np.finfo("<f4").max)  # of a page's numbers
FIXED = 120_000  # of them, for its program, styles and headings
# By variable: the name that the page shows, and what the number says.
SHOWN = {
    "jacobian": (
        "Jacobian",
        "How much a small change of the token's stream can change the query's output y",
    ),
    "bound_over_null": (
        "Path bound ÷ null",
        "1 is what uniform attention gives: causality alone",
    ),
    "path_bound": (
        "Path bound",
        "Sum over attention paths, Theorem 5.1 with constants 1; a shape, not a bound",
    ),
    "log_odds_change": (
        "Knockout",
        "Change of the first answer's lead when later tokens cannot read the token; "
        "negative where the token speaks for this answer",
    ),
    "null": ("Null", "Path bound under uniform attention"),
}
PATH = ("weight", "share", "over_null")
WAY = ("share", "position", "head")
TRACED = (
    *(f"path_{name}" for name in ("position", "head", *PATH)),
    *(f"way_{name}" for name in WAY),
    "head_attention",
)
SERIES = {"path_bound": "path bound", "null": "null", "jacobian": "Jacobian"}


Blob = list[np.ndarray]  # the numbers of a page, one array after the other


def _add(blob: Blob, values: Any) -> int:
    """Append an array; its place among the numbers."""
    blob.append(np.asarray(values, dtype="<f4").ravel())
    return sum(part.size for part in blob[:-1])


def payload(result: xr.Dataset, opened: int | None = None) -> dict[str, Any]:
    """The data of the page of a map's Dataset, which opens at a query."""
    facts = provenance(result)
    tokens = [str(token) for token in result["token"].values]
    if not {*TRACED} <= {*result}:
        result = result.drop_dims("traced", errors="ignore")
    queries = result["query"].values.tolist()
    wanted = facts["call"].get("query", -1) if opened is None else opened
    at_end: int = queries[-1]
    opened = (
        wanted % len(tokens)
        if isinstance(wanted, int) and wanted % len(tokens) in queries
        else at_end
    )
    largest = {name: float(abs(result[name]).max()) for name in SHOWN if name in result}
    names = [
        name for name, most in largest.items() if most <= LARGEST
    ]  # not those that are NaN everywhere
    header: dict[str, Any] = {
        "tokens": tokens,
        "opened": opened,
        "model": models_of(result)[0],
        "code": code_of(facts),
        "facts": [
            (name.replace("_", " "), fact_text(value)) for name, value in facts.items()
        ],
        "spans": {
            "of": result["span"].values.tolist(),
            "names": result["span_name"].values.tolist(),
        }
        if "span" in result.coords
        else None,
    }
    page = _fitting(
        result, names, opened, (MOST - FIXED - len(text_of(header))) * 3 // 4 // 4
    )
    blob: Blob = [np.zeros(0, "<f4")]
    header |= {
        "layers": page["layer"].values.tolist(),
        "queries": page["query"].values.tolist(),
        "notes": [
            *(
                f"{SHOWN[name][0]}: up to {most:.3g}, too large for a page; the result has it."
                for name, most in largest.items()
                if most > LARGEST
            ),
            *_notes(result, page),
        ],
        "quantities": [_quantity(page, name, blob, facts) for name in names],
        "traces": _traces(result.sel(traced=page["traced"]), blob)
        if "traced" in page.dims
        else None,
        "distance": _distance(result[names].sel(layer=page["layer"]), blob),
        "collapse": _collapse(result),
        "again": call_of(facts, query="QUERY"),
        "predicted": _by_query(page, "next_token", "next_probability"),
        "readout": _by_query(page, "readout_token", "readout_probability"),
        "answers": _by_query(page, "target", "against", "log_odds", "log_odds_noise"),
    }
    return header | {
        "blob": base64.b64encode(np.concatenate(blob).tobytes()).decode("ascii")
    }


def _fitting(
    result: xr.Dataset, names: Sequence[str], opened: int, room: int
) -> xr.Dataset:
    """The layers, queries and traced queries of a result for which a page has room, in numbers."""
    queries, layers, sizes = (
        result["query"].values.tolist(),
        result["layer"].values.tolist(),
        result.sizes,
    )
    traced = result["traced"].values.tolist() if "traced" in sizes else []
    room -= len(SERIES) * len(layers) * sizes["position"]
    each = (
        sizes["block"] * (len(WAY) * sizes["rank"] + sizes["head"]) if traced else 0
    )  # numbers of one token
    of_ways = min(room // 3, each * sum(query + 1 for query in traced))
    room -= of_ways
    full, step = [name for name in names if "layer" in result[name].dims], 1
    while len(full) * (opened + 1) * len(layers[::-step]) > room and step < len(layers):
        step += 1  # all layers, or every second, third, …, from the last one down
    layers = sorted(layers[::-step])
    kept = spread(queries, opened, len(full) * len(layers) + len(names), room)
    page = result.sel(query=kept, layer=layers)
    if not traced:
        return page
    paths = [query for query in traced if query in kept]
    return page.sel(
        traced=[
            query for query in spread(paths, opened, each, of_ways) if query in paths
        ]
    )


def _by_query(page: xr.Dataset, *names: str) -> list[list[Any] | None] | None:
    """What some variables have for each query, or None where the last was not measured; None without all of them."""
    if not {*names} <= {*page.variables}:
        return None
    last = page[names[-1]]
    known = (
        last.notnull().all([dim for dim in last.dims if dim != "query"]).values.tolist()
    )
    each = zip(*(page[name].values.tolist() for name in names), strict=True)
    return [
        [*values] if there else None for values, there in zip(each, known, strict=True)
    ]


def call_of(facts: dict[str, Any], **changed: Any) -> str:
    """The call that made a result as code; with `changed` arguments, that of a map with the same options.

    The page puts a number in place of the query 'QUERY'.
    """
    call = dict(facts["call"])
    function, prompt = call.pop("function"), call.pop("prompt")
    if (
        changed and function != "squash_map"
    ):  # a profile measures other things beside the map
        function, call = (
            "squash_map",
            {name: call.get(name) for name in ("norm", "method", "n_probes", "spans")},
        )
    options = "".join(
        f", {name}={value!r}"
        for name, value in (call | changed).items()
        if value is not None
    )
    return f"sl.{function}(model, {prompt!r}{options})"


def load_of(facts: dict[str, Any], source: str) -> str:
    """The call that loads the model of a result from its source, with all options but the device."""
    dtype = facts.get("dtype", "float32")
    stated = {
        "dtype": None if dtype == "float32" else dtype,
        "revision": facts.get("revision"),
        "verify": False if facts.get("proof") == "unverified" else None,
    }
    options = (
        f"{name}={value!r}" for name, value in stated.items() if value is not None
    )
    return f"sl.load({', '.join([repr(source), *options])})"


def code_of(facts: dict[str, Any]) -> str:
    """The lines that make this map again, and the hooks that they leave out."""
    note = "".join(
        f"# measured under: {hook!r}\n" for hook in facts.get("ambient_hooks", [])
    )
    made = call_of(facts)
    made = made if made.startswith("sl.squash_map(") else f"sl.squash_map({made})"
    return f'import squashlens as sl\n\nmodel = {load_of(facts, facts["model"])}\n{note}{made}.save("map.html")\n'


def text_of(value: Any) -> str:
    """JSON that can be put into a script element: without `<`, `>`, `&` and line separators."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _quantity(
    page: xr.Dataset, name: str, blob: Blob, facts: dict[str, Any]
) -> dict[str, Any]:
    """One quantity: how it is shown, and where the numbers of each query are; -1 if they were not measured."""
    rows = [
        row[..., : query + 1]
        for query, row in zip(page["query"].values, page[name].values, strict=True)
    ]
    label, about = SHOWN[name]
    return {
        "name": name,
        "label": label,
        "about": about,
        "unit": str(page[name].attrs["units"]),
        "by_layer": "layer" in page[name].dims,
        "norm": facts["call"].get("norm") if name == "jacobian" else None,
        "starts": [_add(blob, row) if np.isfinite(row).any() else -1 for row in rows],
        "measured": str(page[name].attrs["long_name"]),
    }


def _traces(result: xr.Dataset, blob: Blob) -> dict[str, Any]:
    """Strongest paths, ways and the heads' attention, by query."""
    each = []
    for query in result["traced"].values.tolist():
        trace = result.sel(traced=query)
        paths = [
            {
                "positions": path["path_position"].values.tolist(),
                "heads": path["path_head"].values.tolist(),
                **{name: _number(path[f"path_{name}"].values) for name in PATH},
            }
            for path in (trace.isel(path=k) for k in range(trace.sizes["path"]))
            if np.isfinite(path["path_weight"])
        ]
        ways = {
            name: _add(blob, trace[f"way_{name}"].values[:, : query + 1])
            for name in WAY
        }
        attention = _add(blob, trace["head_attention"].values[..., : query + 1])
        each.append(
            {
                "query": query,
                "paths": paths,
                "sink": float(trace["path_sink"]),
                "attention": attention,
            }
            | ways
        )
    sizes = result.sizes
    return {
        "ranks": sizes["rank"],
        "blocks": sizes["block"],
        "heads": sizes["head"],
        "queries": each,
    }


def _distance(result: xr.Dataset, blob: Blob) -> dict[str, Any]:
    """Mean influence by distance, for each quantity that was measured for all queries."""
    series = [
        {
            "name": name,
            "label": label,
            "start": _add(blob, mean_by_distance(result[name])),
        }
        for name, label in SERIES.items()
        if name in result and result[name].notnull().all()
    ]
    return {"length": result.sizes["position"], "series": series}


def _collapse(result: xr.Dataset) -> dict[str, Any]:
    """The distance of v and v* at every layer, with its noise floor and the size of v."""
    names = ("collapse_distance", "collapse_noise", "last_token_rms")
    held = {
        name: [_number(value) for value in result[name].values]
        for name in names
        if name in result
    }
    return {"layers": [int(layer) for layer in result["layer"].values], **held}


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _notes(result: xr.Dataset, page: xr.Dataset) -> list[str]:
    """What is missing, in sentences."""
    notes, queries = list[str](), result.sizes["query"]
    if queries < (n := result.sizes["position"]):
        notes.append(f"Measured: {queries:,} of {n:,} queries.")
    for name, text in {
        "jacobian": "Jacobian",
        "log_odds_change": "Knockout",
        "way_share": "Strongest paths",
    }.items():
        if name not in result:
            notes.append(f"{text}: not measured.")
            continue
        dim, *others = result[name].dims
        known = result[dim].values[result[name].notnull().any(others)].tolist()
        if len(known) < queries:
            which = (
                f"{len(known)} queries"
                if len(known) > 8
                else f"query {', '.join(map(str, known))}"
            )
            notes.append(f"{text}: measured for {which} only.")
    for dim, text in {
        "query": "queries",
        "layer": "layers",
        "traced": "queries with paths",
    }.items():
        whole, part = result.sizes.get(dim, 0), page.sizes.get(dim, 0)
        if part < whole:
            notes.append(
                f"{part:,} of {whole:,} {text} fit into this page of 6 MB; the result has all of them."
            )
    return notes


def fact_text(value: Any) -> str:
    """A fact of a provenance as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {fact_text(part)}" for key, part in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(fact_text, value)) or "none"
    return "none" if value is None else str(value)
