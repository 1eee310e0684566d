"""All queries and all layers of one prompt: influence by position and by distance, and representations."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import AttentionKind, Bridge, Method, Norm, distinct, positive
from squashlens.bars import bar, write
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.squashing.jacobians import sketch
from squashlens.measure.squashing.jacobians.products import Products, Pullback
from squashlens.measure.squashing.profiles.states import representations
from squashlens.measure.squashing.walks import top_down
from squashlens.model.anatomy import check_layer
from squashlens.model.memory import human, require_room, to_cpu
from squashlens.model.premises import require_paths, why_no_paths
from squashlens.records.labels import Variable
from squashlens.remarks import remark
from squashlens.run.activations import untrained
from squashlens.run.captured import PromptOrCapture
from squashlens.run.captures.capture import REPORT_ABOVE
from squashlens.run.run import Run
from squashlens.theory.path_sums import compositions
from squashlens.theory.statistics.laws import ByDistance, FittedLaw
from squashlens.theory.statistics.trends import with_ends

Queries = Literal["all"] | Sequence[int]
METHODS = ("exact", "sketch", "none")
CHUNK = 1 << 24  # numbers in the rows of some queries that are composed together
NAMES = {
    "path_bound": "path bound",
    "null": "path bound under uniform attention",
    "jacobian": "norm of the Jacobian",
}
PATHS: dict[str, AttentionKind] = {"path_bound": "model", "null": "uniform"}
ENDS = ("low", "high")
PARTS = {"floor": "floor γ", "amplitude": "amplitude β", "exponent": "exponent p"}


@measurement(
    "token_influence",
    cheaper="Fewer queries= or layers=, or the default method='none', takes less.",
)
def token_influence(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    queries: Queries = "all",
    layers: Sequence[int] | None = None,
    method: Method = "none",
    n_probes: int = sketch.PROBES,
    norm: Norm = "spectral",
    seed: int = 0,
) -> xr.Dataset:
    """How much every token influences every later one, from every layer, with the layers' representations beside it.

    The path bound of Theorem 5.1 (constants 1) and its null are computed for all queries from one forward pass, and for
    all layers from one product of patterns. Norms of the Jacobian ‖∂y_n/∂v⁽ℓ⁾_i‖ take d backward passes for each query,
    or `n_probes`, which serve all layers and positions.

    Args:
        model: as in `path_bound`.
        prompt: the prompt as text or token ids of shape (position), or a `capture` of it; a single prompt.
        queries: query positions n; negative values count from the end. All by default.
        layers: layers ℓ whose residual streams are the start of influence, and are described; 0 to L, all by default.
        method: ``"none"`` (the default), path bound and null alone, which takes one forward pass: seconds on Gemma 3
            270M with 60 tokens. ``"auto"``, ``"exact"`` and ``"sketch"``, as in `jacobian_norms`, add norms of the
            Jacobian, for d or `n_probes` products at each query, which take about half an hour there, and half a minute
            at a single query.
        n_probes, norm: as in `jacobian_norms`.
        seed: random seed of sketches; 0 by default.

    Returns:
        Dataset. Over (query, layer, position): `path_bound`, `null`, and `jacobian` unless ``method="none"``; with a
        sketch also `jacobian_low` and `jacobian_high`, intervals that hold together with 95 % probability. Zero for
        positions after the query.

        Over (layer): `representation_entropy`, of the shares σ²/Σσ² of the streams' singular values, in nat;
        `effective_rank`, exp of the entropy of σ/Σσ; `first_token_norm` and `stream_norm`; `collapse_distance`, the L∞
        distance of the last token from that of the prompt with its last token repeated, with its noise floor
        `collapse_noise` and the root mean square of the last token's stream, `last_token_rms`.

    Raises:
        InputError: several prompts, a prompt of one token, or a query or layer that does not exist.
        CapacityError: the result or the rows of a Jacobian do not fit into memory; the message states their size.
        UnsoundModelError: the model is not causal; or, with ``method="none"``, something besides attention passes
            between its tokens. With another method there is no path bound and no null then.

    Source: Barbero et al. 2024, Theorem 5.1.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> found = sl.token_influence(model, "110 =")
    >>> one = sl.path_bound(model, "110 =")
    >>> bool((abs(found["path_bound"].sel(layer=0, query=4) / one - 1) < 1e-5).all())
    True
    """
    way = sketch.Estimation(method=method, n_probes=n_probes, seed=seed)
    asked = _asked(model, prompt, queries, layers, way, norm)
    # Path bound and null; with norms also the Jacobian, and a sketch's low and high.
    n_series = {"none": 2, "exact": 3, "sketch": 5}[asked.way.method]
    shape = (len(asked.queries), len(asked.layers), asked.n)
    asked.require_fits(8 * n_series * math.prod(shape))
    by_name: dict[str, Float[Tensor, "query layer position"]] = {}
    for name, layer, some_queries, values in asked.measured():
        if name not in by_name:
            by_name[name] = torch.zeros(shape, dtype=torch.float64)
        by_name[name][some_queries, layer] = values
    text = f"{asked.kind_of_norm} of the Jacobian"
    texts = NAMES | {"jacobian": text}
    for end in ENDS:
        texts[f"jacobian_{end}"] = f"{end} end of the interval of the {text}"
    by_query = ("query", "layer", "position")
    variables: dict[str, Variable] = {}
    for name, values in by_name.items():
        variables[name] = (by_query, values, texts[name], "1")
    variables |= representations(asked.run, asked.layers)
    _, coords = asked.run.coords()
    coords |= {"query": asked.queries.numpy(), "layer": np.array(asked.layers)}
    run = asked.run.knowing(**asked.way.facts)
    return run.dataset("influence and representations of a prompt", coords, variables)


@measurement(
    "influence_by_distance",
    cheaper="Fewer queries=, n_random_models=0 or the default method='none' takes less.",
)
def influence_by_distance(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    queries: Queries = "all",
    layers: Sequence[int] | None = None,
    method: Method = "none",
    n_probes: int = sketch.PROBES,
    norm: Norm = "spectral",
    n_random_models: int = 1,
    seed: int = 0,
) -> xr.Dataset:
    """How influence falls with distance: means of what `token_influence` measures, and a power law that is fitted to
    them.

    Influence by distance r = n − i is the mean over queries, without BOS. The law ``γ + β (r + 1)^(−p)`` is fitted to
    it by least squares, where each distance counts with its number of pairs; intervals are the middle 95 % of 200
    resamples of up to 16 contiguous groups of queries. They say how much the law depends on the queries of this prompt,
    and nothing about other prompts: what all queries share, such as a token that each attends to, is not resampled. In
    simulations they held the true exponent and floor in 0.87 to 0.93 of prompts where queries vary independently; where
    tokens vary, the exponent in 0.96 to 1.0, and the floor in 0.2 to 1.0. Memory grows with the prompt's length, and
    not with its square.

    Args:
        model, prompt, queries, layers, n_probes, norm: as in `token_influence`.
        method: ``"none"`` (the default), path bound and null alone, which takes one forward pass of the model and of
            each random model: seconds on Gemma 3 270M with 60 tokens. Every other method of `token_influence` adds
            norms of the Jacobian, of the random models too, for `n_probes` or d products at each query, which take
            about 40 minutes there; fewer `queries` and `layers` and ``n_random_models=0`` take less.
        n_random_models: number of models with random weights, drawn with the seeds 0, 1, …, that are measured as well;
            1 by default. They have none of the hooks of the model.
        seed: random seed of sketches and resamples; 0 by default.

    Returns:
        Dataset. Over (quantity, layer, distance): `influence`, the mean over queries, and `pairs`, their number.
        `quantity` is ``"path_bound"`` and ``"null"``, with norms ``"jacobian"``, and with random models
        ``"path_bound_random"`` and, with norms, ``"jacobian_random"``. Over (quantity, layer): `floor` γ, `amplitude` β
        and `exponent` p of the law, each with `_low` and `_high`; NaN where influence does not vary, and intervals for
        fewer than four queries. `exponent_at_end` (bool) says where the exponent is at an end of the range that is
        tried, 0.01 to 16, so that no power law describes the influence.

    Raises:
        InputError, CapacityError, UnsoundModelError: as in `token_influence`.

    Source: the law is that of influence by distance in arXiv 2606.29139.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> found = sl.influence_by_distance(model, "110 =", n_random_models=0)
    >>> found["pairs"].sel(quantity="path_bound", layer=0).values.astype(int).tolist()
    [4, 3, 2, 1, 0]
    """
    positive(n_random_models, "n_random_models", "a number of models", or_zero=True)
    way = sketch.Estimation(method=method, n_probes=n_probes, seed=seed)
    asked = _asked(model, prompt, queries, layers, way, norm)
    asked.require_fits(0)
    sums = _by_distance(asked)
    # For each quantity the sums of every random model, which are added up.
    of_random: dict[str, list[ByDistance]] = {}
    for random_seed in range(n_random_models):
        for name, of_one_model in _of_untrained(asked, random_seed).items():
            of_random.setdefault(f"{name}_random", []).append(of_one_model)
    for name, (first, *others) in of_random.items():
        sums[name] = first.joined(others)
    seeds = list(range(n_random_models))
    run = asked.run.knowing(**asked.way.facts, random_model_seeds=seeds)
    of = ""
    if asked.way.method != "none":
        of = f", of the Jacobian the {asked.kind_of_norm}"
    over = ("quantity", "layer", "distance")
    generator = torch.Generator().manual_seed(asked.way.seed)
    influences: list[Tensor] = []
    pairs: list[Tensor] = []
    laws: list[FittedLaw] = []
    for by_distance in sums.values():
        influences.append(by_distance.means())
        pairs.append(by_distance.pairs.sum(dim=0))  # over groups of queries
        laws.append(by_distance.laws(generator))
    variables: dict[str, Variable] = {
        "influence": (over, torch.stack(influences), f"mean influence{of}", "1"),
        "pairs": (over, torch.stack(pairs), "pairs", "1"),
    }
    variables |= _parts_of_laws(laws, of)
    coords = {
        "quantity": list(sums),
        "layer": np.array(asked.layers),
        "distance": np.arange(asked.n),
    }
    return run.dataset("influence by distance", coords, variables)


class Rows(NamedTuple):
    """Values of one quantity for some queries at all positions, from one layer.

    Attributes:
        name: the quantity, such as "path_bound".
        layer, queries: indices into the layers and the queries that are asked for.
    """

    name: str
    layer: int
    queries: slice
    values: Float[Tensor, "query position"]


def _asked(
    model: Bridge,
    prompt: PromptOrCapture,
    queries: Queries,
    layers: Sequence[int] | None,
    way: sketch.Estimation,
    norm: Norm,
) -> "_Asked":
    """Check the arguments of a measurement: what is measured, with defaults filled in and queries as positions."""
    run = Run.open(model, **this_call())
    way = sketch.resolved(way, run, METHODS)
    run = run.given(prompt, method=way.method)
    run.require_one(tokens=2)
    positions: Sequence[int] = range(run.positions)
    if queries != "all":
        positions = run.queries(queries, "queries")
    chosen: Sequence[int] = range(run.n_blocks + 1)
    if layers is not None:
        chosen = distinct(layers, "layers")
    chosen = sorted(check_layer(layer, run.model, "layers") for layer in chosen)
    return _Asked(run, torch.tensor(positions), chosen, way, norm)


@dataclass(frozen=True)
class _Asked:
    """What is measured: the queries and layers of a prompt, and how norms of the Jacobian are computed."""

    run: Run
    queries: Int[Tensor, " query"]
    layers: list[int]
    way: sketch.Estimation
    norm: Norm

    @property
    def n(self) -> int:
        return self.run.positions

    @property
    def kind_of_norm(self) -> str:
        return f"{self.way.kind}{self.norm} norm"

    def require_fits(self, result_size: int) -> None:
        """Raise if the result, of `result_size` bytes, and the path bounds' rows do not fit; state a large size."""
        # As many numbers as `_bounds` composes together; four copies in float64.
        numbers = min(len(self.queries) * self.n, max(CHUNK, self.n))
        size = result_size + 4 * 8 * numbers
        name = self.run.function
        require_room(
            size,
            torch.device("cpu"),
            f"The result of {name}",
            "Use `influence_by_distance`, fewer queries=, or fewer layers=.",
        )
        if size > REPORT_ABOVE:
            write(f"{name}: {human(size)} for {len(self.queries)} queries")

    def measured(self, paths: Mapping[str, AttentionKind] = PATHS) -> Iterator[Rows]:
        """The quantities in `paths`, each a path bound under this attention, and norms of the Jacobian; query by query.

        A model without paths has norms alone; if these are not asked for either, that is an error.
        """
        why_not = why_no_paths(self.run.model)
        if why_not and self.way.method == "none":
            require_paths(self.run.model)  # raises
        if why_not:
            remark(f"No path bound: {why_not}")
        else:
            for name, attention in paths.items():
                yield from self._bounds(name, attention)
        if self.way.method != "none":
            yield from self._norms()

    def _bounds(self, name: str, attention: AttentionKind) -> Iterator[Rows]:
        """The path bound of every query from every layer: one product of patterns for some queries at a time."""
        top = self.run.n_blocks
        down = top_down(self.run, attention, min(self.layers), top)
        chunk = max(1, CHUNK // self.n)
        starts = range(0, len(self.queries), chunk)
        for start in bar(starts, desc=NAMES[name], unit="chunk"):
            some = slice(start, min(len(self.queries), start + chunk))
            # With all constants 1, a block's factor is σ_ψ/β₂ + 1 = 2.
            products = compositions(self.queries[some], self.n, down, gain=2.0)
            if self.run.device.type != "cpu":
                # Waited for once, and not after each block.
                products = to_cpu(list(products))
            # The rows after k patterns are those from layer L − k.
            for n_patterns, values in enumerate(products):
                layer = top - n_patterns
                if layer in self.layers:
                    yield Rows(name, self.layers.index(layer), some, values)

    def _norms(self) -> Iterator[Rows]:
        """Norms of the Jacobian of every query at every layer, exact or with intervals that hold together."""
        pullback = Pullback(self.run, self.layers)
        n_norms = len(self.queries) * len(self.layers) * self.n
        chance = sketch.chance_of_each(n_norms)
        for number in bar(range(len(self.queries)), desc="jacobian", unit="query"):
            products = Products(pullback, int(self.queries[number]))
            ends = sketch.ends_of(products, self.norm, self.way, chance)
            series = {"jacobian": ends.estimate}
            if self.way.method == "sketch":
                series |= {"jacobian_low": ends.low, "jacobian_high": ends.high}
            query = slice(number, number + 1)
            # `Products` stacks the layers of the single prompt along the dimension of prompts.
            for name, by_layer in series.items():
                for layer, values in enumerate(by_layer):
                    yield Rows(name, layer, query, values[None])


def _by_distance(
    asked: _Asked, paths: Mapping[str, AttentionKind] = PATHS
) -> dict[str, ByDistance]:
    """Sums over queries of what `asked` measures, by quantity and distance, without BOS."""
    first = int(asked.run.facts["bos_count"])
    sums: dict[str, ByDistance] = {}
    for name, layer, queries, values in asked.measured(paths):
        if name.endswith(ENDS):  # the ends of intervals have no mean
            continue
        if name not in sums:
            sums[name] = ByDistance(asked.n, len(asked.layers), asked.queries, first)
        sums[name].add(layer, asked.queries[queries], values)
    return sums


def _of_untrained(asked: _Asked, seed: int) -> dict[str, ByDistance]:
    """The sums of a model with random weights on the same tokens, without the null, which no weights change."""
    with untrained(asked.run, seed) as other:
        return _by_distance(replace(asked, run=other), {"path_bound": "model"})


def _parts_of_laws(laws: Sequence[FittedLaw], of: str) -> dict[str, Variable]:
    """The parts γ, β and p of the laws of all quantities over (quantity, layer), with both ends of their intervals.

    `of` is appended to long names.
    """
    variables: dict[str, Variable] = {}
    over = ("quantity", "layer")
    for part, text in PARTS.items():
        values = torch.stack([getattr(fitted.law, part) for fitted in laws])
        low = torch.stack([getattr(fitted.low, part) for fitted in laws])
        high = torch.stack([getattr(fitted.high, part) for fitted in laws])
        text = f"{text} of influence by distance{of}"
        resampled = "the middle 95 % of resampled queries"
        variables |= with_ends(part, over, (values, low, high), text, of=resampled)
    variables["exponent_at_end"] = (
        over,
        torch.stack([fitted.law.at_end for fitted in laws]),
        f"exponent at an end of the range tried{of}",
        "1",
    )
    return variables
