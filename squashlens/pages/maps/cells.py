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
    chance_of_each,
    ends_of,
    resolved,
)
from squashlens.measure.squashing.knockout import knockout_effect
from squashlens.measure.squashing.profiles.profile import token_influence
from squashlens.measure.squashing.token_spans import Spans
from squashlens.model.anatomy import outputs_are_tokens
from squashlens.model.memory import to_cpu
from squashlens.model.proof import public
from squashlens.pages.maps.traces import LONGEST, RANKS, traces_of
from squashlens.records.labels import attributes
from squashlens.records.provenance import (
    provenance,
    with_provenance,
    without_provenance,
)
from squashlens.run.activations import streams_of
from squashlens.run.captured import PromptOrCapture
from squashlens.run.forward import log_probabilities
from squashlens.run.run import Run
from squashlens.theory.statistics.laws import ByDistance

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

    `way` says how norms of the Jacobian are computed. With `alone`, only `query` is measured. `tick` is called with the
    share of the Jacobian's rows that are done.
    """
    run = Run.open(model, "squash_map")
    way = resolved(way, run, ("exact", "sketch", "none"))
    run = run.given(
        prompt,
        query=query,
        method=way.method,
        n_probes=way.n_probes,
        norm=norm,
        knockout=knockout,
        target=target,
        spans=spans,
        seed=way.seed,
    )
    run.require_one(tokens=2)
    _, groups = Spans.of(run, spans)
    opened = run.query(query)
    n_layers = run.n_blocks + 1
    queries = [opened]
    if not alone:  # all, or as many as there is room for
        queries = spread(range(run.positions), opened, n_layers, ROOM)
    whole = token_influence(
        model, prompt, queries=queries, method="none", seed=way.seed
    )
    whole["bound_over_null"] = ratio(whole)
    # What is measured of all these queries; of some of them; and of the opened one alone.
    parts = [_predictions(run, queries)]
    if run.positions <= LONGEST:
        traced = spread(queries, opened, n_layers, CELLS)
        parts.append(traces_of(run, traced, whole["path_bound"].sel(query=traced)))
    of_opened = [_readouts(run, opened)]
    if way.method != "none":
        of_opened.append(_norms(run, opened, norm, way, tick))
    if knockout or target:
        kind = knockout or "attention"
        without = knockout_effect(
            run.model, run.ids, kind=kind, target=target, query=opened
        )
        of_opened.append(without)
    parts += [_among(queries, opened, part) for part in of_opened]
    result = xr.merge([whole, *parts], compat="override", combine_attrs="override")
    result = result.assign_attrs(long_name="squash map of a prompt")
    if groups is not None:
        result = result.assign_coords(_of_tokens(groups, run.positions))
    return with_provenance(result, _facts_with_sketch(run, way))


def _facts_with_sketch(run: Run, way: Estimation) -> dict[str, Any]:
    """What a map's result depends on, with its sketch."""
    facts = dict(run.as_run())
    if way.method == "sketch":
        facts["sketch"] = {
            "n_probes": way.n_probes,
            "seed": way.seed,
            "failure_probability": MISSED,
        }
    return facts


def _predictions(run: Run, queries: list[int]) -> xr.Dataset:
    """The most likely token after each query; nothing for a model whose logits do not follow from y."""
    (y,) = streams_of(run, ["y"], at=queries)
    with suppress(UnsoundModelError):
        # Some queries at a time, since a row has the size of the vocabulary.
        ids = []
        shares = []
        for logs in log_probabilities(run, y[0]):
            best = logs.max(dim=-1)
            ids.append(best.indices)
            shares.append(best.values.exp().cpu())
        ids = torch.cat(ids)
        share = torch.cat(shares)
        about = attributes("probability of the most likely next token", "1")
        return xr.Dataset(
            {"next_probability": ("query", share.numpy(), about)},
            {"next_token": ("query", _texts(run, ids)), "query": queries},
        )
    return xr.Dataset()


def _readouts(run: Run, opened: int) -> xr.Dataset:
    """What the model's readout finds at each layer; nothing where it does not give the last layer's logits."""
    streams = streams_of(run, range(run.n_blocks + 1), at=opened)
    with suppress(UnsoundModelError):
        stacked = torch.stack(to_cpu([stream[0] for stream in streams]))
        logs, ids = readout(run, stacked).topk(RANKS)
        about = "probability of the likeliest tokens in the readout of a layer"
        over = ("layer", "rank")
        share = logs.double().exp().cpu().numpy()
        return xr.Dataset(
            {"readout_probability": (over, share, attributes(about, "1"))},
            {"readout_token": (over, _texts(run, ids))},
        )
    return xr.Dataset()


def _texts(run: Run, ids: Int[Tensor, "*many"]) -> np.ndarray:
    """Tokens that a model predicts, as text, in an array of the shape of `ids`."""
    flat = ids.reshape(1, -1)
    if outputs_are_tokens(run.model):
        (texts,) = run.tokens_of(flat)  # of one prompt
    else:  # those of a compiled program have no text
        texts = np.char.add("#", flat[0].cpu().numpy().astype(str))
    return np.array(texts, dtype=object).reshape(ids.shape)


def _of_tokens(groups: Spans, n: int) -> dict[str, Any]:
    """The span of each of `n` tokens as coordinates: its number and name, -1 and no name for a token of none."""
    number = np.full(n, -1)
    name = np.full(n, "", dtype=object)
    for k, inside in enumerate(groups.positions):
        number[inside] = k
        name[inside] = groups.names[k]
    return {"span": ("position", number), "span_name": ("position", name)}


def ratio(result: xr.Dataset) -> xr.DataArray:
    """Path bound ÷ null; NaN where the null is zero, as after the query."""
    values = result["path_bound"] / result["null"].where(result["null"] > 0)
    values.attrs = attributes("path bound over that under uniform attention", "1")
    return values


def mean_by_distance(values: xr.DataArray) -> Float[Tensor, "layer distance"]:
    """The mean over queries at each distance, as in `influence_by_distance`, of values over (query, layer, position)
    that were measured for all queries."""
    values = values.sortby("query")
    queries = torch.tensor(values["query"].values)
    _, layers, n = values.shape
    bos_count = int(provenance(values).get("bos_count", 0))
    sums = ByDistance(n, layers, queries, bos_count)
    for layer in range(layers):
        sums.add(layer, queries, torch.tensor(values.values[:, layer]))
    return sums.means()


def _among(queries: list[int], opened: int, part: xr.Dataset) -> xr.Dataset:
    """What was measured of the opened query, as a row among all queries; NaN, or no text, for the others."""
    row = without_provenance(part).drop_vars(["token", "token_id"], errors="ignore")
    texts = ("target", "against", "readout_token")
    texts = [name for name in texts if name in row.coords]
    row = row.reset_coords(texts)  # only variables get the dimension, and fill values
    rows = row.expand_dims(query=[opened])
    fill: Any = dict.fromkeys(rows, np.nan) | dict.fromkeys(texts, "")
    rows = rows.reindex(query=queries, fill_value=fill)
    return rows.set_coords(texts)


def _norms(
    run: Run,
    query: int,
    norm: Norm,
    way: Estimation,
    tick: Callable[[float], None] | None,
) -> xr.Dataset:
    """Norms of the Jacobian of the query from all layers, over (layer, position); those of a sketch with intervals."""
    layers = list(range(run.n_blocks + 1))
    products = Products(Pullback(run, layers, tick=tick), query)
    chance = chance_of_each(len(layers) * products.reach)
    ends = ends_of(products, norm, way, chance)
    text = f"{norm} norm of the Jacobian"
    norms = {"jacobian": (ends.estimate, text)}
    if way.method == "sketch":
        interval = f"end of the interval of the {text}"
        norms = {
            "jacobian": (ends.estimate, f"sketched {text}"),
            "jacobian_low": (ends.low, f"low {interval}"),
            "jacobian_high": (ends.high, f"high {interval}"),
        }
    over = ("layer", "position")
    variables = {}
    for name, (values, about) in norms.items():
        variables[name] = (over, np.asarray(values), attributes(about, "1"))
    return xr.Dataset(variables)


def joined(before: xr.Dataset, more: xr.Dataset, query: int) -> xr.Dataset:
    """A map's result with the rows of one more query, which was measured alone on the same model and prompt.

    Rows that the result has of this query already are replaced.
    """
    facts = dict(provenance(before))
    new_facts = provenance(more)
    for name in SAME:
        if facts.get(name) != new_facts.get(name):
            raise InputError(
                "The model was changed since the map was made.",
                "Make the map again, with `squashlens.squash_map`.",
            )
    whole = before
    for dim in ("query", "traced"):
        if dim in before.dims and query in more[dim]:
            names = [name for name in before.variables if dim in before[name].dims]
            # xarray would copy what has no such dimension: only these variables are joined.
            old = before[names].drop_sel({dim: query}, errors="ignore")
            new = more[names].sel({dim: [query]})
            rows = xr.concat([old, new], dim, coords="minimal", compat="override")
            rows = without_provenance(rows).sortby(dim)
            whole = whole.drop_dims(dim).merge(rows, compat="override")
    further = set(facts.get("further_queries", [])) | {query}
    facts["further_queries"] = sorted(further)
    if "sketch" in facts and "sketch" in new_facts:  # either may fail
        chance = facts["sketch"]["failure_probability"]
        chance += new_facts["sketch"]["failure_probability"]
        facts["sketch"] = facts["sketch"] | {"failure_probability": chance}
    return with_provenance(whole, facts)


def spread(queries: Sequence[int], opened: int, cost: int, room: int) -> list[int]:
    """The queries to keep, in ascending order, if query q costs ``cost · (q + 1)`` of `room`; at least the opened one.

    >>> spread(range(8), 7, cost=1, room=36)
    [0, 1, 2, 3, 4, 5, 6, 7]
    >>> spread(range(8), 7, cost=1, room=20)
    [1, 3, 5, 7]
    """
    all_queries = sorted(set(queries) | {opened})
    for step in range(1, len(all_queries) + 1):
        # Every second, third, … query, counted so that the opened one is among them.
        first = all_queries.index(opened) % step
        chosen = all_queries[first::step]
        if sum(cost * (query + 1) for query in chosen) <= room:
            return chosen
    return [opened]
