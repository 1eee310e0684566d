"""What a squash map of one prompt shows: influence of each cell, the strongest paths, and the ways of each cell."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, Norm, SpansOfTokens, positive
from squashlens.engine.anatomy import n_blocks, pattern_site
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.memory import require_room
from squashlens.engine.native import outputs_are_tokens
from squashlens.engine.running.forward import forward, log_probabilities
from squashlens.engine.state import measured
from squashlens.engine.text.tokens import display_tokens
from squashlens.engine.verify import require_sound
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure.session import Session, streams_of
from squashlens.measure.squashing.jacobians.products import Products, Pullback
from squashlens.measure.squashing.jacobians.sketch import MISSED, Estimation, ends_of, resolved, seed_in
from squashlens.measure.squashing.profiles.profile import influence
from squashlens.measure.squashing.substitution import substitution_effect
from squashlens.measure.squashing.token_spans import Spans
from squashlens.measure.squashing.walks import strongest, top_down, without, written_out
from squashlens.records.results import Variable, attributes, provenance, sealed
from squashlens.theory.spread import first_has_nearly_all, first_share
from squashlens.theory.statistics.decay import ByDistance

ENDS, TEXTS = ("low", "high"), ("long_name", "units")
BY_QUERY = ("query", "layer", "position")
ROOM = 1_000_000  # numbers of one quantity: queries × layers × positions
CELLS = 100_000  # cells whose ways are kept, over all traced queries
RATIO = ("path bound over that under uniform attention", "1")
SAME = ("model", "fingerprint", "dtype", "device", "ambient_hooks")  # of joined results


@measured
def measure(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    query: int,
    way: Estimation,
    norm: Norm,
    n_replacements: int,
    spans: SpansOfTokens = None,
    alone: bool = False,
    tick: Callable[[float], None] | None = None,
) -> xr.Dataset:
    """What `squash_map` shows of a model and a prompt; see there for the arguments.

    With `alone`, only `query` is measured. `tick` is called with the share of the Jacobian's rows that are done.
    """
    positive(n_replacements, "n_replacements", "a number of tokens", or_zero=True)
    model = require_sound(model)
    way = resolved(way, model, ("exact", "sketch", "none"))
    seed = seed_in(way)
    session = Session.start(
        model, prompt, "squash_map",
        query=query, method=way.method, n_probes=way.n_probes, norm=norm,
        n_replacements=n_replacements, spans=spans, seed=seed,
    )  # fmt: skip
    session.require_one(tokens=2)
    _, groups = Spans.of(session, spans)
    opened, layers = session.query(query), list(range(n_blocks(session.model) + 1))
    queries = [opened] if alone else spread(range(session.positions), opened, len(layers), ROOM)
    whole = influence(model, prompt, queries=queries, method="none", seed=seed)
    variables, coords = {"bound_over_null": ratio(whole)}, dict[str, Any]()
    if groups is not None:
        coords |= _of_tokens(groups, session.positions)
    with suppress(UnsoundModelError):  # a model whose logits do not follow from y
        coords["next_token"], variables["next_probability"] = _predict(session, queries)
    known: dict[str, Any] = {}
    if way.method != "none":
        variables |= _jacobian(session, queries, opened, layers, norm, way, tick)
        if way.method == "sketch":
            known["sketch"] = {"n_probes": way.n_probes, "seed": seed, "failure_probability": MISSED}
    if n_replacements:
        variables |= _replace(session, opened, queries, n_replacements, seed)
    if session.positions <= LONGEST:
        chosen = spread(queries, opened, len(layers), CELLS)
        ways, labels = traces(session, chosen, whole["path_bound"].sel(query=chosen).values)
        variables, coords = variables | ways, coords | labels
    result = with_variables(whole, variables).assign_coords(coords).assign_attrs(long_name="squash map of a prompt")
    return sealed(result, {**session.facts, **known})


def with_variables(result: xr.Dataset, variables: Mapping[str, Variable]) -> xr.Dataset:
    """A Dataset with further variables, each given as (dimensions, values, long name, units)."""
    return result.assign(
        {name: (dims, np.asarray(values), attributes(*text)) for name, (dims, values, *text) in variables.items()}
    )


def _predict(session: Session, queries: list[int]) -> tuple[tuple[str, np.ndarray], Variable]:
    """The most likely token after each query as a coordinate, and its probability."""
    model, (y,) = session.model, streams_of(session, ["y"], queries)
    best = [logs.max(dim=-1) for logs in log_probabilities(model, y[0])]
    ids, chances = (torch.cat(parts).cpu() for parts in zip(*((row.indices, row.values) for row in best), strict=True))
    texts = display_tokens(model, ids[None])[0] if outputs_are_tokens(model) else [f"#{int(token)}" for token in ids]
    probability: Variable = (("query",), chances.exp(), "probability of the most likely next token", "1")
    return ("query", np.array(texts, dtype=object)), probability


def _of_tokens(groups: Spans, n: int) -> dict[str, Any]:
    """The span of each token as coordinates: its number and name, -1 and no name for a token of none."""
    number, name = np.full(n, -1), np.full(n, "", dtype=object)
    for k, inside in enumerate(groups.positions):
        number[inside], name[inside] = k, groups.names[k]
    return {"span": ("position", number), "span_name": ("position", name)}


def with_ratio(result: xr.Dataset) -> xr.Dataset:
    """A result of `influence` with the ratio of path bound and null, under the same provenance."""
    return sealed(with_variables(result, {"bound_over_null": ratio(result)}), provenance(result))


def ratio(result: xr.Dataset) -> Variable:
    """Path bound ÷ null; NaN where the null is zero, as after the query."""
    bound, null = result["path_bound"].values, result["null"].values
    with np.errstate(invalid="ignore", divide="ignore"):
        return BY_QUERY, np.where(null > 0, bound / null, np.nan), *RATIO


def mean_by_distance(values: xr.DataArray) -> Float[Tensor, "layer distance"]:
    """The mean over queries at each distance, as in `influence_by_distance`, of what was measured for all of them."""
    values = values.sortby("query")
    queries, (_, layers, n) = torch.tensor(values["query"].values), values.shape
    sums = ByDistance(n, layers, queries, int(provenance(values).get("bos_count", 0)))
    for layer in range(layers):
        sums.add(layer, queries, torch.tensor(values.values[:, layer]))
    return sums.means()


def at_query(queries: list[int], opened: int, values: Any) -> np.ndarray:
    """Values of the opened query as a row among all queries; NaN for the others, which were not measured."""
    row = np.asarray(values)
    rows = np.full((len(queries), *row.shape), np.nan)
    rows[queries.index(opened)] = row
    return rows


def _jacobian(
    session: Session, queries: list[int], opened: int, layers: list[int], norm: Norm, method: Estimation,
    tick: Callable[[float], None] | None,
) -> dict[str, Variable]:  # fmt: skip
    """Norms for the opened query from all layers; NaN for the other queries, which were not measured."""
    products, text = Products(Pullback(session, layers, tick=tick), opened), f"{norm} norm of the Jacobian"
    ends = ends_of(products, norm, method, MISSED / 2 / (len(layers) * products.reach))
    norms = {"jacobian": (ends.estimate, text)}
    if method.method == "sketch":
        norms = {"jacobian": (ends.estimate, f"sketched {text}")}
        norms |= {f"jacobian_{end}": (getattr(ends, end), f"{end} end of the interval of the {text}") for end in ENDS}
    return {name: (BY_QUERY, at_query(queries, opened, values), label, "1") for name, (values, label) in norms.items()}


def joined(before: xr.Dataset, more: xr.Dataset, query: int) -> xr.Dataset:
    """A map's result with the rows of one more query, which was measured alone on the same model and prompt."""
    facts, others = provenance(before), provenance(more)
    if any(facts.get(name) != others.get(name) for name in SAME):
        raise InputError(
            "The model was changed since the map was made.", "Make the map again, with `squashlens.squash_map`."
        )
    whole = before
    for dim in [dim for dim in ("query", "traced") if dim in before.dims and query in more[dim].values]:
        labels = sorted({*map(int, before[dim].values), query})
        fill = {str(name): -1 if np.issubdtype(old.dtype, np.integer) else np.nan for name, old in before.items()}
        whole = whole.reindex({dim: labels}, fill_value=fill | {"next_token": ""}).copy(deep=True)
        for name in [*before.data_vars, *({"next_token"} & {*before.coords})]:
            if dim in whole[name].dims and name in more.variables:
                whole[name].loc[{dim: query}] = more[name].sel({dim: query}).values
    later: dict[str, Any] = {"further_queries": sorted({*facts.get("further_queries", []), query})}
    if "sketch" in facts and "sketch" in others:
        both = [each["sketch"]["failure_probability"] for each in (facts, others)]
        later["sketch"] = facts["sketch"] | {"failure_probability": sum(both)}
    return sealed(whole, facts | later)


def _replace(session: Session, opened: int, queries: list[int], n_replacements: int, seed: int) -> dict[str, Variable]:
    """What replacing each token does to y of the opened query; NaN for the other queries."""
    effects = substitution_effect(session.model, session.ids, n_replacements=n_replacements, query=opened, seed=seed)
    return {
        name: (("query", "position"), at_query(queries, opened, effects[name]), *map(effects[name].attrs.get, TEXTS))
        for name in ("effect", "kl")
    }  # pyright: ignore[reportReturnType]


PATHS, RANKS = 5, 3  # strongest paths of a query, and most important ways of a cell
LONGEST = 1024  # tokens of a prompt whose patterns are kept whole
STAYS = -1  # in place of a head: through the residual connection


def traces(
    session: Session, traced: Sequence[int], bounds: Float[np.ndarray, "query layer position"]
) -> tuple[dict[str, Variable], dict[str, Any]]:
    """Paths into the queries `traced`, and the ways of each cell; `bounds` are their path bounds from every layer.

    The path that stays at the query is left out. Where nearly all paths start at the first token, as with an attention
    sink or in a deep model, these are left out too, and their share is kept. Shares are of the paths that remain.

    The path bound obeys ``B⁽ℓ⁾_i = Σ_j 2 (α_ji + δ_ji) B⁽ℓ⁺¹⁾_j``, so that the terms divided by the sum are shares of
    the ways from cell (ℓ, i): one for each later token j that reads it, and one for its residual connection.
    """
    top, n = n_blocks(session.model), session.positions
    require_room(top * n * n * 8, torch.device("cpu"), "The attention patterns", "Use a shorter prompt.")
    above = torch.from_numpy(np.ascontiguousarray(bounds))
    ways = _Ways(traced, above, top)
    ways.watch(session)
    down = [ways.means[block] for block in reversed(range(top))]
    uniform = [written_out(session, pattern) for pattern in top_down(session, "uniform", 0, top)]
    places = torch.full((len(traced), PATHS, top + 1), -1, dtype=torch.int64)
    weight, share, over_null = (torch.full((len(traced), PATHS), torch.nan, dtype=torch.float64) for _ in range(3))
    sink = np.zeros(len(traced))
    for at, query in enumerate(traced):
        seen = slice(0, query + 1)
        starts = above[at, 0, seen].numpy()
        sink[at] = first_share(starts) if first_has_nearly_all(starts) else 0.0
        first = [0] if sink[at] else []
        own = without([each[seen, seen] for each in down], first)
        best = strongest(own, [each[seen, seen] for each in uniform], query, PATHS + 1)
        others = (best.places != query).any(dim=1).nonzero()[:PATHS, 0]  # without the path that stays at the query
        k, weights = len(others), best.weights[others]
        places[at, :k], weight[at, :k], over_null[at, :k] = best.places[others], weights, weights / best.null[others]
        share[at, :k] = weights * 2.0**top / starts[len(first) : query].sum()
    by_path, by_cell = ("traced", "path"), ("traced", "block", "position", "rank")
    variables: dict[str, Variable] = {
        "path_position": ((*by_path, "layer"), places, "position of the path in each layer", "position"),
        "path_weight": (by_path, weight, "product of attention and residual weights", "1"),
        "path_share": (by_path, share, "share of the weight of all paths from these tokens", "1"),
        "path_over_null": (by_path, over_null, "weight over that of the same path under uniform attention", "1"),
        "path_sink": (("traced",), sink, "share of the paths from the first token, which were left out", "1"),
        "way_share": (by_cell, ways.share, "share of the cell's paths that take this way", "1"),
        "way_position": (by_cell, ways.position, "token that the way leads to", "position"),
        "way_head": (by_cell, ways.head, "head that moves most on the way, or -1 for the residual", "1"),
    }
    coords = {"traced": np.array(traced), "path": np.arange(PATHS), "rank": np.arange(RANKS)}
    return variables, coords


class _Ways:
    """The most important ways of every cell to each query, and what the search for them reads of every block.

    A head moves attention times the norm of the value; attention alone in models without a hook point on values.
    """

    def __init__(self, traced: Sequence[int], above: Float[Tensor, "query layer position"], top: int) -> None:
        shape = (len(traced), top, above.shape[-1], RANKS)
        self.traced, self.above = traced, above
        self.share = torch.full(shape, torch.nan, dtype=torch.float64)
        self.position, self.head = (torch.full(shape, -1, dtype=torch.int64) for _ in range(2))
        self.means, self.sizes = dict[int, Tensor](), dict[int, Tensor]()  # patterns over heads; norms of values

    def watch(self, session: Session) -> None:
        """Read the patterns and values of all blocks in one forward pass."""
        blocks, hooks = range(self.share.shape[1]), session.model.hook_dict
        named = [(f"blocks.{block}.attn.hook_v", partial(self._values, block)) for block in blocks]
        named = [(name, look) for name, look in named if name in hooks]
        named += [(pattern_site(block), partial(self._take, block)) for block in blocks]
        with torch.no_grad():
            forward(session.model, session.ids, named)

    def _values(self, block: int, values: Float[Tensor, "prompt position group d"]) -> None:
        if values.ndim == 4:  # latent attention has others
            self.sizes[block] = values[0].detach().float().norm(dim=-1).T.cpu()

    def _take(self, block: int, pattern: Float[Tensor, "prompt head query key"]) -> None:
        """Split the path bound of each cell below `block` by what it goes through."""
        heads = pattern[0].detach().float().cpu()
        self.means[block], mean = heads.mean(dim=0), heads.double().mean(dim=0)
        sizes = self.sizes.get(block, torch.ones(1, heads.shape[-1]))
        largest = (heads * sizes.repeat_interleave(len(heads) // len(sizes), dim=0)[:, None]).argmax(dim=0)
        for at, query in enumerate(self.traced):
            seen = slice(0, query + 1)
            reach = self.above[at, block + 1, seen]
            attended = 2 * mean[seen, seen] * reach[:, None]
            terms = torch.cat([attended, 2 * reach[None]])  # the last row: through the residual connection
            shares = terms / terms.sum(dim=0)
            best = shares.topk(min(RANKS, len(terms)), dim=0)
            k, here = len(best.indices), torch.arange(query + 1)
            stays = best.indices == query + 1
            to = torch.where(stays, here, best.indices)
            head = torch.where(stays, STAYS, largest[seen, seen][to, here])
            for kept, values in ((self.share, best.values), (self.position, to), (self.head, head)):
                kept[at, block, seen, :k] = values.T.to(kept.dtype)


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
