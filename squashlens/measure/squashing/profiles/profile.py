"""All queries and all layers of one prompt: influence by position and by distance, and representations."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge, Method, Norm, distinct, positive
from squashlens.bars import bar, write
from squashlens.measure.registration import measurement
from squashlens.measure.squashing.jacobians import sketch
from squashlens.measure.squashing.jacobians.products import (
    Products,
    Pullback,
    Way,
    storage_for,
)
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
from squashlens.run.derivatives.exact import CERTIFIES, certifying
from squashlens.run.derivatives.visibility import visibilities
from squashlens.run.run import Run
from squashlens.theory.path_sums import compositions
from squashlens.theory.statistics.laws import ByDistance, Law
from squashlens.theory.statistics.trends import with_ends

Queries = Literal["all"] | Sequence[int]
CHUNK = 1 << 24  # numbers in the rows of some queries that are composed together
NAMES = {
    "path_bound": "path bound",
    "null": "path bound under uniform attention",
    "jacobian": "norm of the Jacobian",
}
BOTH = ("low", "high")
ENDS = {
    "none": (),
    "exact": (),
    "sketch": BOTH,
    "sketch_upper": ("low",),
}  # what is kept beside norms
PARTS = {"floor": "floor γ", "amplitude": "amplitude β", "exponent": "exponent p"}


@measurement("influence", cheaper="Fewer queries= or method='none' takes less.")
def influence(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    queries: Queries = "all",
    layers: Sequence[int] | None = None,
    method: Method = "auto",
    n_probes: int = sketch.PROBES,
    norm: Norm = "spectral",
    seed: int | None = None,
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
        method: way to compute norms of the Jacobian, as in `jacobian_norms`: ``"auto"`` (the default), ``"exact"``,
            ``"sketch"``, or ``"sketch_upper"``, whose bounds hold together; ``"none"``, no norms, which takes one
            forward pass for path bound and null.
        n_probes, norm: as in `jacobian_norms`.
        seed: random seed of sketches; by default as in `jacobian_norms`.

    Returns:
        Dataset. Over (query, layer, position): `path_bound`, `null`, and `jacobian` unless ``method="none"``; with a
        sketch also `jacobian_low` and `jacobian_high`, intervals that hold together with 95 % probability; with
        certified upper bounds `jacobian_low`, certified lower bounds. Zero for positions after the query.

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
    >>> found = sl.influence(model, "110 =", method="none")
    >>> one = sl.path_bound(model, "110 =")
    >>> bool((abs(found["path_bound"].sel(layer=0, query=4) / one - 1) < 1e-5).all())
    True
    """
    way = sketch.Estimation(method=method, n_probes=n_probes, seed=seed)
    return (
        _Work.of("influence", model, prompt, queries, layers, way, norm)
        .measured()
        .by_position()
    )


@measurement(
    "influence_by_distance",
    cheaper="Fewer queries=, n_random_models=0 or method='none' takes less.",
)
def influence_by_distance(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    queries: Queries = "all",
    layers: Sequence[int] | None = None,
    method: Method = "auto",
    n_probes: int = sketch.PROBES,
    norm: Norm = "spectral",
    n_random_models: int = 1,
    seed: int | None = None,
) -> xr.Dataset:
    """How influence falls with distance: means of what `influence` measures, and a power law that is fitted to them.

    Influence by distance r = n − i is the mean over queries, without BOS. The law ``γ + β (r + 1)^(−p)`` is fitted to
    it by least squares, where each distance counts with its number of pairs; intervals are the middle 95 % of 200
    resamples of up to 16 contiguous groups of queries. They say how much the law depends on the queries of this prompt,
    and nothing about other prompts: what all queries share, such as a token that each attends to, is not resampled. In
    simulations they held the true exponent and floor in 0.87 to 0.93 of prompts where queries vary independently; where
    tokens vary, the exponent in 0.96 to 1.0, and the floor in 0.2 to 1.0. Memory grows with the prompt's length, and
    not with its square.

    Args:
        model, prompt, queries, layers, n_probes, norm: as in `influence`.
        method: as in `influence`; the bounds of ``"sketch_upper"`` hold together with those of the random models, and
            ``"none"`` takes one forward pass of the model and of each random model.
        n_random_models: number of models with random weights, drawn with the seeds 0, 1, …, that are measured as well;
            1 by default. They have none of the hooks of the model.
        seed: random seed of sketches and resamples; by default as in `jacobian_norms`.

    Returns:
        Dataset. Over (quantity, layer, distance): `influence`, the mean over queries, and `pairs`, their number.
        `quantity` is ``"path_bound"``, ``"null"``, ``"jacobian"``, and with random models ``"path_bound_random"`` and
        ``"jacobian_random"``. Over (quantity, layer): `floor` γ, `amplitude` β and `exponent` p of the law, each
        with `_low` and `_high`; NaN where influence does not vary, and intervals for fewer than four queries.
        `exponent_at_end` (bool) says where the exponent is at an end of the range that is tried, 0.01 to 16, so that no
        power law describes the influence.

    Raises:
        InputError, CapacityError, UnsoundModelError: as in `influence`.

    Source: the law is that of influence by distance in arXiv 2606.29139.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> found = sl.influence_by_distance(model, "110 =", method="none", n_random_models=0)
    >>> found["pairs"].sel(quantity="path_bound", layer=0).values.astype(int).tolist()
    [4, 3, 2, 1, 0]
    """
    positive(n_random_models, "n_random_models", "a number of models", or_zero=True)
    way = sketch.Estimation(method=method, n_probes=n_probes, seed=seed)
    work = _Work.of(
        "influence_by_distance",
        model,
        prompt,
        queries,
        layers,
        way,
        norm,
        n_random_models=n_random_models,
    ).measured()
    random = [_of_untrained(work, k) for k in range(n_random_models)]
    return work.by_distance([each.sums for each in random])


def _of_untrained(work: "_Work", seed: int) -> "_Work":
    """The same on the same tokens of a model with random weights."""
    with untrained(work.run, seed) as other:
        return replace(work, run=other, sums={}, facts={}).measured(null=False)


@dataclass(frozen=True)
class _Work:
    """What is measured on the model of a run, and what was found: values by position, and sums by distance."""

    run: Run
    queries: Int[Tensor, " query"]
    layers: list[int]
    way: sketch.Estimation
    norm: Norm
    models: int | None  # those that are measured, if only sums by distance are kept
    kept: dict[str, Float[Tensor, "query layer position"]] = field(default_factory=dict)
    sums: dict[str, ByDistance] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        function: str,
        model: Bridge,
        prompt: PromptOrCapture,
        queries: Queries,
        layers: Sequence[int] | None,
        way: sketch.Estimation,
        norm: Norm,
        **random: int,
    ) -> "_Work":
        """Check what a measurement was given, and whether there is room for it."""
        run = Run.open(model, function)
        way = sketch.resolved(way, run, ("exact", "sketch", "sketch_upper", "none"))
        run = run.given(
            prompt,
            queries=queries if queries == "all" else [*queries],
            layers=layers,
            method=way.method,
            n_probes=way.n_probes,
            norm=norm,
            seed=way.seed,
            **random,
        )
        run.require_one(tokens=2)
        places = (
            range(run.positions)
            if queries == "all"
            else run.queries(queries, "queries")
        )
        chosen = (
            range(run.n_blocks + 1) if layers is None else distinct(layers, "layers")
        )
        chosen = sorted(check_layer(layer, run.model, "layers") for layer in chosen)
        models = 1 + random["n_random_models"] if random else None
        work = cls(run, torch.tensor(places), chosen, way, norm, models)
        work.require_fits()
        return work

    @property
    def n(self) -> int:
        return self.run.positions

    def require_fits(self) -> None:
        """State the size of the result and the number of products, and raise if they do not fit."""
        series = {"none": 3, "exact": 4, "sketch": 6, "sketch_upper": 5}[
            self.way.method
        ]
        whole = (
            0
            if self.models
            else series * len(self.queries) * len(self.layers) * self.n * 8
        )
        size = whole + 8 * min(len(self.queries) * self.n, max(CHUNK, self.n)) * 4
        name = self.run.facts["call"]["function"]
        less = "Use `influence_by_distance`, fewer queries=, or fewer layers=."
        require_room(size, torch.device("cpu"), f"The result of {name}", less)
        if size > REPORT_ABOVE:
            write(f"{name}: {human(size)} for {len(self.queries)} queries")

    @cached_property
    def _rows(self) -> tuple[int, Way | None]:
        """The number of rows of a block that are computed, and where they are kept for a spectral norm."""
        if self.way.method == "none":
            return 0, None
        count = self.run.width if self.way.method == "exact" else self.way.n_probes
        if self.norm == "frobenius":
            return count, None
        return count, storage_for(
            self.run, len(self.layers), int(self.queries[-1]) + 1, count
        )

    def measured(self, *, null: bool = True) -> "_Work":
        """Path bound, null and norms of the model."""
        paths = (("path_bound", "model"), ("null", "uniform"))[: 2 if null else 1]
        if reason := why_no_paths(self.run.model):
            if self.way.method == "none":
                require_paths(self.run.model)
            remark(f"No path bound: {reason}")
            paths = ()
        for name, attention in paths:
            self._bounds(name, attention)
        if self.way.method != "none":
            self._jacobians()
        return self

    def _new(self, name: str) -> None:
        if self.models:
            first = int(self.run.facts["bos_count"])
            self.sums[name] = ByDistance(self.n, len(self.layers), self.queries, first)
        else:
            shape = (len(self.queries), len(self.layers), self.n)
            self.kept[name] = torch.zeros(shape, dtype=torch.float64)

    def _take(
        self,
        name: str,
        place: int,
        rows: slice,
        values: Float[Tensor, "query position"],
    ) -> None:
        if self.models:
            self.sums[name].add(place, self.queries[rows], values)
        else:
            self.kept[name][rows, place] = values

    def _bounds(self, name: str, attention: Any) -> None:
        """The path bound of every query from every layer: one product of patterns for some queries at a time."""
        top = self.run.n_blocks
        down = top_down(self.run, attention, min(self.layers), top)
        self._new(name)
        size = max(1, CHUNK // self.n)
        starts = range(0, len(self.queries), size)
        for start in bar(starts, desc=NAMES[name], unit="chunk"):
            rows = slice(start, min(len(self.queries), start + size))
            products = compositions(self.queries[rows], self.n, down, 2.0)
            if (
                self.run.device.type != "cpu"
            ):  # waited for once, and not after each block
                products = to_cpu(list(products))
            for below, values in enumerate(products):
                if top - below in self.layers:
                    self._take(name, self.layers.index(top - below), rows, values)

    def _jacobians(self) -> None:
        """Norms of the Jacobian of every query at every layer; the ends of all intervals hold together."""
        kept_ends = () if self.models else ENDS[self.way.method]
        for name in ("jacobian", *(f"jacobian_{end}" for end in kept_ends)):
            self._new(name)
        certifies = self.way.method == "sketch_upper"
        count, kept = self._rows
        numbers = len(self.queries) * len(self.layers) * self.n
        chance = (
            sketch.FAILURE / sketch.EVENTS / (self.models or 1)
            if certifies
            else sketch.MISSED / 2
        )
        with certifying(self.run) if certifies else nullcontext():
            pullback, rounding = Pullback(self.run, self.layers), 0.0
            missing, seen = torch.zeros(()), []
            if certifies:
                missing = Products(pullback, None).rounded_away(
                    chance, sketch.seed_in(self.way)
                )
                seen = [
                    visibilities(
                        self.run,
                        self.run.ids,
                        (),
                        range(pullback.bottom, pullback.top),
                    )
                ]
            for at in bar(range(len(self.queries)), desc="jacobian", unit="query"):
                products = Products(pullback, int(self.queries[at]))
                ends = sketch.ends_of(
                    products, self.norm, self.way, chance / numbers, kept
                )
                if certifies:
                    ends, lost = sketch.allowed(products, ends, seen, missing)
                    rounding = max(rounding, lost)
                for place, values in enumerate(
                    ends.high if certifies else ends.estimate
                ):
                    self._take("jacobian", place, slice(at, at + 1), values[None])
                for end in kept_ends:
                    self.kept[f"jacobian_{end}"][at] = getattr(ends, end)
        said: dict[str, Any] = {
            "kind": "estimate",
            "failure_probability": sketch.MISSED,
        }
        if certifies:
            said = {"kind": "upper bound", "certifies": CERTIFIES, "rounding": rounding}
            said["failure_probability"] = sketch.FAILURE
        if self.way.method != "exact":
            self.facts["sketch"] = said | {
                "n_probes": count,
                "seed": sketch.seed_in(self.way),
            }

    @property
    def _norm(self) -> str:
        kinds = {"sketch": "sketched ", "sketch_upper": "upper bound on the "}
        return f"{kinds.get(self.way.method, '')}{self.norm} norm"

    def by_position(self) -> xr.Dataset:
        """Values of every query, layer and position, and the representations."""
        norm, by_query = self._norm, ("query", "layer", "position")
        named = NAMES | {"jacobian": f"{norm} of the Jacobian"}
        named |= {
            f"jacobian_{end}": f"{end} end of the interval of the {norm} of the Jacobian"
            for end in BOTH
        }
        variables: dict[str, Variable] = {
            name: (by_query, values, named[name], "1")
            for name, values in self.kept.items()
        }
        variables |= representations(self.run, self.layers)
        _, coords = self.run.coords()
        coords |= {"query": self.queries.numpy(), "layer": np.array(self.layers)}
        labelled = self.run.knowing(**self.facts)
        return labelled.dataset(
            "influence and representations of a prompt", coords, variables
        )

    def by_distance(self, random: Sequence[Mapping[str, ByDistance]]) -> xr.Dataset:
        """Means at each distance and their laws, with those of random models."""
        sums = dict(self.sums)
        for name in ("path_bound", "jacobian"):
            others = [one[name] for one in random if name in one]
            if others:
                sums[f"{name}_random"] = others[0].joined(others[1:])
        over, of = (
            ("quantity", "layer", "distance"),
            f", of the Jacobian the {self._norm}" if self.way.method != "none" else "",
        )
        pairs = torch.stack([s.pairs.sum(dim=0) for s in sums.values()])
        means = torch.stack([s.means() for s in sums.values()])
        generator = torch.Generator().manual_seed(sketch.seed_in(self.way))
        variables: dict[str, Variable] = {
            "influence": (over, means, f"mean influence{of}", "1"),
            "pairs": (over, pairs, "pairs", "1"),
            **_laws([s.laws(generator) for s in sums.values()], of),
        }
        coords = {
            "quantity": list(sums),
            "layer": np.array(self.layers),
            "distance": np.arange(self.n),
        }
        labelled = self.run.knowing(
            **self.facts, random_model_seeds=list(range(len(random)))
        )
        return labelled.dataset("influence by distance", coords, variables)


def _laws(found: Sequence[tuple[Law, Law, Law]], of: str) -> Mapping[str, Variable]:
    """The parts of the laws of all quantities, with both ends of their intervals."""
    variables: dict[str, Variable] = {}
    over = ("quantity", "layer")
    for part, text in PARTS.items():
        ends = [
            torch.stack([getattr(laws[place], part) for laws in found])
            for place in range(3)
        ]
        text = f"{text} of influence by distance{of}"
        variables |= with_ends(
            part, over, ends, text, of="the middle 95 % of resampled queries"
        )
    ends_met = torch.stack([laws[0].at_end for laws in found])
    return variables | {
        "exponent_at_end": (
            over,
            ends_met,
            f"exponent at an end of the range tried{of}",
            "1",
        )
    }
