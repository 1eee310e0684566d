"""What a squash map of one prompt shows: influence of each cell, readouts, and which tokens decide an answer."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge, Knockout, Norm, SpansOfTokens
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure.answers.answer_by_layer import readout
from squashlens.measure.squashing.jacobians.products import Products, Pullback
from squashlens.measure.squashing.jacobians.sketch import (
    MISSED,
    Estimation,
    ends_of,
    resolved,
    seed_in,
)
from squashlens.measure.squashing.knockout import knockout_effect
from squashlens.measure.squashing.profiles.profile import influence
from squashlens.measure.squashing.token_spans import Spans
from squashlens.model.anatomy import outputs_are_tokens
from squashlens.model.memory import to_cpu
from squashlens.model.proof import public
from squashlens.pages.maps.traces import LONGEST, RANKS, Traces
from squashlens.records.labels import Variable, arrays_of
from squashlens.records.provenance import provenance, with_provenance
from squashlens.run.captured import PromptOrCapture
from squashlens.run.forward import forward, log_probabilities
from squashlens.run.run import Run
from squashlens.theory.statistics.decay import ByDistance

ENDS, ANSWERS = ("low", "high"), ("target", "against")
BY_QUERY = ("query", "layer", "position")
FEWER = 32  # probes of a sketch; on Gemma 3 270M its norms are within 30 % of the exact ones, those of 64 within 24 %
ROOM = 1_000_000  # numbers of one quantity: queries × layers × positions
CELLS = 100_000  # cells whose ways are kept, over all traced queries
SAME = ("model", "fingerprint", "dtype", "device", "ambient_hooks")  # of joined results


@public
def measure(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    query: int,
    way: Estimation,
    norm: Norm,
    knockout: Knockout | None = None,
    target: str | tuple[str, str] | None = None,
    spans: SpansOfTokens = None,
    alone: bool = False,
    tick: Callable[[float], None] | None = None,
) -> xr.Dataset:
    """What `squash_map` shows of a model and a prompt; see there for the arguments.

    With `alone`, only `query` is measured. `tick` is called with the share of the Jacobian's rows that are done.
    """
    run = Run.open(model, "squash_map")
    way = resolved(way, run, ("exact", "sketch", "none"))
    seed = seed_in(way)
    run = run.given(
        prompt,
        query=query,
        method=way.method,
        n_probes=way.n_probes,
        norm=norm,
        knockout=knockout,
        target=target,
        spans=spans,
        seed=seed,
    )
    run.require_one(tokens=2)
    _, groups = Spans.of(run, spans)
    opened, layers = run.query(query), list(range(run.n_blocks + 1))
    queries = (
        [opened] if alone else spread(range(run.positions), opened, len(layers), ROOM)
    )
    whole = influence(model, prompt, queries=queries, method="none", seed=seed)
    variables, coords = {"bound_over_null": ratio(whole)}, dict[str, Any]()
    if groups is not None:
        coords |= _of_tokens(groups, run.positions)
    traces = None
    if run.positions <= LONGEST:
        chosen = spread(queries, opened, len(layers), CELLS)
        traces = Traces(run, chosen, whole["path_bound"].sel(query=chosen).values)
    read, labels = _read_out(run, queries, opened, traces)
    variables, coords = variables | read, coords | labels
    if traces is not None:
        traced, labels = traces.variables()
        variables, coords = variables | traced, coords | labels
    known: dict[str, Any] = {}
    if way.method != "none":
        variables |= _jacobian(run, queries, opened, layers, norm, way, tick)
        if way.method == "sketch":
            known["sketch"] = {
                "n_probes": way.n_probes,
                "seed": seed,
                "failure_probability": MISSED,
            }
    if knockout or target:
        kind = knockout or "attention"
        effects = knockout_effect(
            run.model, run.ids, kind=kind, target=target, query=opened
        )
        for name, values in effects.items():
            (text, units), over = (
                map(values.attrs.get, ("long_name", "units")),
                map(str, values.dims),
            )
            variables[str(name)] = (
                ("query", *over),
                at_query(queries, opened, values),
                str(text),
                str(units),
            )
        coords |= {
            name: ("query", at_query(queries, opened, effects[name].item()))
            for name in ANSWERS
        }
    result = (
        whole.assign(arrays_of(variables))
        .assign_coords(coords)
        .assign_attrs(long_name="squash map of a prompt")
    )
    return with_provenance(result, {**run.as_run(), **known})


def _read_out(
    run: Run, queries: list[int], opened: int, traces: Traces | None
) -> tuple[dict[str, Variable], dict[str, Any]]:
    """What is predicted after each query, and what the model's readout finds at each layer of the opened one.

    Both come from the forward pass that `traces` watch. They are left out for a model whose logits do not follow from
    y, or from the last layer.
    """
    sites = run.sites()[:-1]
    y, streams = run.site("y"), dict[str, Tensor]()
    watch = [
        (
            site,
            lambda v, site=site: streams.update({site: v[0, opened].detach().clone()}),
        )
        for site in sites
    ]
    watch += [(y, lambda v: streams.update({y: v[0, queries].detach().clone()}))]
    forward(run, run.ids, [*watch, *(traces.watched() if traces else [])])

    variables, coords = dict[str, Variable](), dict[str, Any]()
    with suppress(UnsoundModelError):
        best = [logs.max(dim=-1) for logs in log_probabilities(run, streams.pop(y))]
        ids, logs = (
            torch.cat(parts)
            for parts in zip(*((row.indices, row.values) for row in best), strict=True)
        )
        coords["next_token"] = ("query", _texts(run, ids))
        variables["next_probability"] = (
            ("query",),
            logs.exp().cpu(),
            "probability of the most likely next token",
            "1",
        )
    with suppress(UnsoundModelError):
        logs, ids = readout(run, torch.stack(to_cpu([*streams.values()]))).topk(RANKS)
        over, text = (
            ("query", "layer", "rank"),
            "probability of the likeliest tokens in the readout of a layer",
        )
        coords["readout_token"] = (over, at_query(queries, opened, _texts(run, ids)))
        variables["readout_probability"] = (
            over,
            at_query(queries, opened, logs.double().exp()),
            text,
            "1",
        )
    return variables, coords


def _texts(run: Run, ids: Int[Tensor, "*many"]) -> np.ndarray:
    """Tokens that a model predicts, as text."""
    flat = ids.reshape(1, -1)
    texts = (
        run.tokens_of(flat)[0]
        if outputs_are_tokens(run.model)
        else [f"#{int(token)}" for token in flat[0]]
    )
    return np.array(texts, dtype=object).reshape(ids.shape)


def _of_tokens(groups: Spans, n: int) -> dict[str, Any]:
    """The span of each token as coordinates: its number and name, -1 and no name for a token of none."""
    number, name = np.full(n, -1), np.full(n, "", dtype=object)
    for k, inside in enumerate(groups.positions):
        number[inside], name[inside] = k, groups.names[k]
    return {"span": ("position", number), "span_name": ("position", name)}


def ratio(result: xr.Dataset) -> Variable:
    """Path bound ÷ null; NaN where the null is zero, as after the query."""
    values = result["path_bound"] / result["null"].where(result["null"] > 0)
    return BY_QUERY, values, "path bound over that under uniform attention", "1"


def mean_by_distance(values: xr.DataArray) -> Float[Tensor, "layer distance"]:
    """The mean over queries at each distance, as in `influence_by_distance`, of what was measured for all of them."""
    values = values.sortby("query")
    queries, (_, layers, n) = torch.tensor(values["query"].values), values.shape
    sums = ByDistance(n, layers, queries, int(provenance(values).get("bos_count", 0)))
    for layer in range(layers):
        sums.add(layer, queries, torch.tensor(values.values[:, layer]))
    return sums.means()


def at_query(queries: list[int], opened: int, values: Any) -> np.ndarray:
    """Values of the opened query as a row among all queries; NaN, or no text, for the others, not measured."""
    row = np.asarray(values)
    numbers = row.dtype.kind == "f"
    rows = np.full(
        (len(queries), *row.shape),
        np.nan if numbers else "",
        dtype=float if numbers else object,
    )
    rows[queries.index(opened)] = row.tolist()
    return rows


def _jacobian(
    run: Run,
    queries: list[int],
    opened: int,
    layers: list[int],
    norm: Norm,
    method: Estimation,
    tick: Callable[[float], None] | None,
) -> dict[str, Variable]:
    """Norms for the opened query from all layers; NaN for the other queries, which were not measured."""
    products, text = (
        Products(Pullback(run, layers, tick=tick), opened),
        f"{norm} norm of the Jacobian",
    )
    ends = ends_of(products, norm, method, MISSED / 2 / (len(layers) * products.reach))
    sketched = method.method == "sketch"
    norms = {"jacobian": (ends.estimate, f"sketched {text}" if sketched else text)}
    if sketched:
        norms |= {
            f"jacobian_{end}": (
                getattr(ends, end),
                f"{end} end of the interval of the {text}",
            )
            for end in ENDS
        }
    return {
        name: (BY_QUERY, at_query(queries, opened, values), label, "1")
        for name, (values, label) in norms.items()
    }


def joined(before: xr.Dataset, more: xr.Dataset, query: int) -> xr.Dataset:
    """A map's result with the rows of one more query, which was measured alone on the same model and prompt."""
    facts, others = provenance(before), provenance(more)
    if any(facts.get(name) != others.get(name) for name in SAME):
        raise InputError(
            "The model was changed since the map was made.",
            "Make the map again, with `squashlens.squash_map`.",
        )
    whole = before
    for dim in [
        dim
        for dim in ("query", "traced")
        if dim in before.dims and query in more[dim].values
    ]:
        labels = sorted({*map(int, before[dim].values), query})
        fill = {
            str(name): -1 if np.issubdtype(old.dtype, np.integer) else np.nan
            for name, old in before.items()
        }
        texts = {name for name, old in before.coords.items() if dim in old.dims} - {dim}
        whole = whole.reindex(
            {dim: labels}, fill_value=fill | dict.fromkeys(texts, "")
        ).copy(deep=True)
        for name in [*before.data_vars, *texts]:
            if dim in whole[name].dims and name in more.variables:
                whole[name].loc[{dim: query}] = more[name].sel({dim: query}).values
    later: dict[str, Any] = {
        "further_queries": sorted({*facts.get("further_queries", []), query})
    }
    if "sketch" in facts and "sketch" in others:
        both = [each["sketch"]["failure_probability"] for each in (facts, others)]
        later["sketch"] = facts["sketch"] | {"failure_probability": sum(both)}
    return with_provenance(whole, facts | later)


def spread(queries: Sequence[int], opened: int, cost: int, room: int) -> list[int]:
    """The queries to keep, in ascending order, if query q costs ``cost · (q + 1)`` of `room`; at least the opened one.

    >>> spread(range(8), 7, cost=1, room=36)
    [0, 1, 2, 3, 4, 5, 6, 7]
    >>> spread(range(8), 7, cost=1, room=20)
    [1, 3, 5, 7]
    """
    whole = sorted({*queries, opened})
    for step in range(1, len(whole) + 1):
        kept = whole[whole.index(opened) % step :: step]
        if sum(cost * (query + 1) for query in kept) <= room:
            return kept
    return [opened]
