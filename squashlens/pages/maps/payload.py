"""The data of a squash map's page: a JSON header, and its numbers as float32 in base64.

The page gets the numbers of the result, and their means by distance, and computes none. Values after a query are zero
by causality and are left out. A row of the page that was not measured is missing there, and never zero.
"""

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from squashlens.pages.maps.cells import mean_by_distance, spread
from squashlens.pages.page import fact_text
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
    "target_score_change": (
        "Knockout",
        "Change of the first answer's lead when later tokens cannot read the token; "
        "negative where the token speaks for this answer",
    ),
    "null": ("Null", "Path bound under uniform attention"),
}
WAY = ("share", "position", "head")
TRACED = {
    *("path_position", "path_head", "path_weight", "path_share", "path_over_null"),
    *("way_share", "way_position", "way_head", "head_attention"),
}
MEASURED = {
    "jacobian": "Jacobian",
    "target_score_change": "Knockout",
    "way_share": "Strongest paths",
}
SERIES = {"path_bound": "path bound", "null": "null", "jacobian": "Jacobian"}


class Numbers:
    """The numbers of a page, one array after the other."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self.count = 0

    def add(self, values: Any) -> int:
        """Append an array, and give the place where it starts among all numbers."""
        flat = np.asarray(values, dtype="<f4").ravel()
        self.arrays.append(flat)
        self.count += flat.size
        return self.count - flat.size

    def text(self) -> str:
        """All of them in base 64."""
        content = b"".join(array.tobytes() for array in self.arrays)
        return base64.b64encode(content).decode("ascii")


def payload(result: xr.Dataset, opened: int | None = None) -> dict[str, Any]:
    """The data of the page of a map's Dataset, which opens at a query; by default that of the measurement."""
    facts = provenance(result)
    if not set(result) >= TRACED:
        result = result.drop_dims("traced", errors="ignore")
    opened = _opened(result, facts["call"].get("query") if opened is None else opened)
    largest = _largest(result)
    # Neither those that are NaN everywhere nor those that float32 does not hold.
    names = [name for name, most in largest.items() if most <= LARGEST]
    header: dict[str, Any] = {
        "tokens": list(map(str, result["token"].values)),
        "opened": opened,
        "model": models_of(result)[0],
        "code": code_of(facts),
        "facts": [(key.replace("_", " "), fact_text(facts[key])) for key in facts],
        "spans": None,
    }
    if "span" in result.coords:
        numbers = result["span"].values.tolist()
        header["spans"] = {"of": numbers, "names": result["span_name"].values.tolist()}
    # Four characters of base 64 are three bytes, and a number has four bytes.
    room = (MOST - FIXED - len(text_of(header))) * 3 // 4 // 4
    page = _fitting(result, names, opened, room)
    blob = Numbers()
    traces = None
    if "traced" in page.dims:
        traces = _traces(result.sel(traced=page["traced"]), blob)
    header |= {
        "layers": page["layer"].values.tolist(),
        "queries": page["query"].values.tolist(),
        "notes": _notes(result, page, largest),
        "quantities": [_quantity(page, name, blob, facts) for name in names],
        "traces": traces,
        "distance": _distance(result[names].sel(layer=page["layer"]), blob),
        "collapse": _collapse(result),
        "again": call_of(facts, query="QUERY"),
        "predicted": _by_query(page, "next_token", "next_probability"),
        "readout": _by_query(page, "readout_token", "readout_probability"),
        "answers": _by_query(
            page, "target", "against", "target_score", "target_score_noise"
        ),
    }
    return header | {"blob": blob.text()}


def _largest(result: xr.Dataset) -> dict[str, float]:
    """The largest size of each quantity that the page shows."""
    largest = {}
    for name in SHOWN:
        if name in result:
            largest[name] = float(abs(result[name]).max())
    return largest


def _opened(result: xr.Dataset, wanted: Any) -> int:
    """The query that the page opens at: the one that is wanted, if it was measured, or the last."""
    queries = result["query"].values.tolist()
    if isinstance(wanted, int) and wanted % result.sizes["position"] in queries:
        return wanted % result.sizes["position"]
    return queries[-1]


def _fitting(
    result: xr.Dataset, names: Sequence[str], opened: int, room: int
) -> xr.Dataset:
    """The part of a result for which a page has `room`, a count of numbers: some layers, queries and traced queries.

    `names` are the quantities that it shows. First come layers of the opened query, then other queries.
    """
    queries = result["query"].values.tolist()
    layers = result["layer"].values.tolist()
    sizes = result.sizes
    room -= len(SERIES) * len(layers) * sizes["position"]  # means by distance
    room_of_ways = 0
    if "traced" in sizes:
        room_of_ways = room // 3
        room -= room_of_ways
    n_by_layer = sum("layer" in result[name].dims for name in names)
    of_a_layer = n_by_layer * (opened + 1)  # numbers of the opened query
    # All layers, or every second, third, …, from the last one down.
    step = 1
    while step < len(layers) and of_a_layer * len(layers[::-step]) > room:
        step += 1
    layers = sorted(layers[::-step])
    numbers_of_a_token = n_by_layer * len(layers) + len(names)
    queries = spread(queries, opened, numbers_of_a_token, room)
    page = result.sel(query=queries, layer=layers)
    if "traced" not in sizes:
        return page
    traced = np.intersect1d(result["traced"], queries)
    numbers_of_a_token = sizes["block"] * (len(WAY) * sizes["rank"] + sizes["head"])
    drawn = spread(traced.tolist(), opened, numbers_of_a_token, room_of_ways)
    # `spread` keeps the opened query, which may have no ways.
    return page.sel(traced=np.intersect1d(traced, drawn))


def _by_query(page: xr.Dataset, *names: str) -> list[list[Any] | None] | None:
    """For each query the values of some variables, in a list; None for a query without the last one.

    None if the page does not have all of the variables.
    """
    if not set(names) <= set(page.variables):
        return None
    columns = [page[name].transpose("query", ...).values.tolist() for name in names]
    rows: list[list[Any] | None] = []
    for row in zip(*columns, strict=True):
        is_known = np.isfinite(row[-1]).all()
        rows.append(list(row) if is_known else None)
    return rows


def call_of(facts: dict[str, Any], **changed: Any) -> str:
    """The call that made a result as code, such as "sl.squash_map(model, 'a b', query=-1)".

    With `changed` arguments, it is the call of a map with the same options. The page puts a number in place of the
    query 'QUERY'.
    """
    call = dict(facts["call"])
    function = call.pop("function")
    prompt = call.pop("prompt")
    if changed and function != "squash_map":
        # A profile measures other things beside the map.
        function = "squash_map"
        options = ("norm", "method", "n_probes", "spans")
        call = {name: call[name] for name in options if name in call}
    texts = [f"sl.{function}(model, {prompt!r}"]
    for name, value in (call | changed).items():
        if value is not None:
            texts.append(f"{name}={value!r}")
    return f"{', '.join(texts)})"


def load_of(facts: dict[str, Any], source: str) -> str:
    """The call that loads the model of a result from its source, with all options but the device."""
    texts = [repr(source)]
    if facts.get("dtype", "float32") != "float32":
        texts.append(f"dtype={facts['dtype']!r}")
    if facts.get("revision") is not None:
        texts.append(f"revision={facts['revision']!r}")
    if facts.get("proof") == "unverified":
        texts.append("verify=False")
    return f"sl.load({', '.join(texts)})"


def code_of(facts: dict[str, Any]) -> str:
    """The lines that make this map again, and the hooks that they leave out."""
    made = call_of(facts)
    if not made.startswith("sl.squash_map("):
        made = f"sl.squash_map({made})"
    lines = ["import squashlens as sl", "", f"model = {load_of(facts, facts['model'])}"]
    lines += [f"# measured under: {hook!r}" for hook in facts.get("ambient_hooks", [])]
    lines += [f'{made}.save("map.html")', ""]
    return "\n".join(lines)


def text_of(value: Any) -> str:
    """JSON that can be put into a script element: without `<`, `>`, `&` and line separators."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _quantity(
    page: xr.Dataset, name: str, blob: Numbers, facts: dict[str, Any]
) -> dict[str, Any]:
    """One quantity: how it is shown, and where the numbers of each query start in `blob`; -1 if they were not
    measured."""
    values = page[name]
    starts = []
    for query in page["query"].values:
        row = values.sel(query=query).values[..., : query + 1]  # up to the query
        starts.append(blob.add(row) if np.isfinite(row).any() else -1)
    label, about = SHOWN[name]
    return {
        "name": name,
        "label": label,
        "about": about,
        "unit": values.attrs["units"],
        "by_layer": "layer" in values.dims,
        "norm": facts["call"].get("norm") if name == "jacobian" else None,
        "starts": starts,
        "measured": values.attrs["long_name"],
    }


def _traces(result: xr.Dataset, blob: Numbers) -> dict[str, Any]:
    """Strongest paths, ways and the heads' attention, by query; of arrays, where they start in `blob`."""
    queries = []
    for query in result["traced"].values.tolist():
        trace = result.sel(traced=query, position=slice(0, query))
        drawn = {"query": query, "paths": _paths(trace)}
        drawn["sink"] = float(trace["path_sink"])
        for name in WAY:
            drawn[name] = blob.add(trace[f"way_{name}"])
        drawn["attention"] = blob.add(trace["head_attention"])
        queries.append(drawn)
    sizes = result.sizes
    return {
        "ranks": sizes["rank"],
        "blocks": sizes["block"],
        "heads": sizes["head"],
        "queries": queries,
    }


def _paths(trace: xr.Dataset) -> list[dict[str, Any]]:
    """The strongest paths to a query, for as many as there are."""
    # Plain arrays: a selection of xarray takes a millisecond, and there are thousands.
    weights = trace["path_weight"].values
    ratios = trace["path_over_null"].values
    positions = trace["path_position"].transpose("path", "layer").values
    heads = trace["path_head"].transpose("path", "block").values
    paths = []
    for rank in np.flatnonzero(np.isfinite(weights)):
        shown = {
            "weight": float(weights[rank]),
            "over_null": _number(ratios[rank]),
            "positions": positions[rank].tolist(),
            "heads": heads[rank].tolist(),
        }
        paths.append(shown)
    return paths


def _distance(result: xr.Dataset, blob: Numbers) -> dict[str, Any]:
    """Mean influence by distance, for each quantity that was measured for all queries."""
    series = []
    for name, label in SERIES.items():
        if name in result and result[name].notnull().all():
            start = blob.add(mean_by_distance(result[name]))
            series.append({"name": name, "label": label, "start": start})
    return {"length": result.sizes["position"], "series": series}


def _collapse(result: xr.Dataset) -> dict[str, Any]:
    """The distance of v and v* at every layer, with its noise floor and the size of v."""
    shown = {"layers": result["layer"].values.tolist()}
    for name in ("collapse_distance", "collapse_noise", "last_token_rms"):
        if name in result:
            known = np.isfinite(result[name])  # JSON has no NaN
            shown[name] = result[name].astype(object).where(known, None).values.tolist()
    return shown


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _notes(
    result: xr.Dataset, page: xr.Dataset, largest: dict[str, float]
) -> list[str]:
    """What is missing, in sentences: what the `result` does not have, and what does not fit into the `page`."""
    notes = []
    for name, most in largest.items():
        if most > LARGEST:
            label, _ = SHOWN[name]
            text = (
                f"{label}: up to {most:.3g}, too large for a page; the result has it."
            )
            notes.append(text)
    queries = result.sizes["query"]
    if queries < result.sizes["position"]:
        notes.append(f"Measured: {queries:,} of {result.sizes['position']:,} queries.")
    for name, text in MEASURED.items():
        if name not in result:
            notes.append(f"{text}: not measured.")
            continue
        dim, *others = result[name].dims  # the first is "query", or "traced"
        is_measured = result[name].notnull().any(others)
        measured = result[dim][is_measured].values
        if len(measured) < queries:
            which = f"{len(measured)} queries"
            if len(measured) <= 8:
                which = f"query {', '.join(measured.astype(str))}"
            notes.append(f"{text}: measured for {which} only.")
    kinds = {"query": "queries", "layer": "layers", "traced": "queries with paths"}
    for dim, text in kinds.items():
        part = page.sizes.get(dim, 0)
        whole = result.sizes.get(dim, 0)
        if part < whole:
            notes.append(
                f"{part:,} of {whole:,} {text} fit into this page of 6 MB; the result has all of them."
            )
    return notes
