"""Estimates of Jacobian norms, and certified bounds on them, from products with random cotangents.

The rows of G are standard normal cotangents, and the products are the rows of ``GJ_i``. For k = `n_probes`:

- Frobenius norm: ``‖GJ_i‖_F / √k``, whose square is unbiased. The ends of the interval are it times `sketch_factors`.
- Spectral norm: the upper end is `spike_sizes` times `direction_factor`. The lower end is the larger of two: the norm
  of J_i in the row space of G, which holds always, and the length that a quarter of G sees of the direction that the
  others find, which may fail, as the upper end may.

All intervals of a result hold together, except with probability `MISSED`; with ``rtol=`` it is that of each of them.
Bounds are certified if everything runs in float64 and rounding is allowed for. A third thing may fail then: the
comparison with `Jittered` results, which shows what rounding did. Each of the three has a third of `FAILURE`, and of
that each norm an equal share.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Method, Norm, Target, positive
from squashlens.errors import InputError
from squashlens.measure.squashing.jacobians.products import (
    ByToken,
    Products,
    Pullback,
    Way,
)
from squashlens.measure.squashing.token_spans import Spans
from squashlens.model.hooking.hook import Hook, Recipe
from squashlens.remarks import remark
from squashlens.run.derivatives import visibility
from squashlens.run.derivatives.exact import CERTIFIES, certifying
from squashlens.run.run import Run
from squashlens.theory import norms
from squashlens.theory.probes import normals, seed_of
from squashlens.theory.statistics.ranks import mean_interval

PROBES = (
    64  # directions of a sketch: on Gemma 3 270M a tenth of the time of the exact norm
)
FIRST = 16  # rows of a growing sketch at its first stage
MISSED = 0.05  # probability that any norm of a result is outside its interval
FAILURE = 1e-6  # probability that any certified upper bound is too low or any lower bound too high
EVENTS = 3  # what may fail of each norm: its upper end, its lower end, and what rounding is found to do to it
# Operations for each token up to which "auto" takes the exact norm: a second for ten tokens on two cores.
EXACT = {"cpu": 2e10, "cuda": 2e12}


@dataclass(frozen=True, kw_only=True)
class Estimation:
    """How norms of the Jacobian are computed: keywords of `jacobian_norms`, which describes them."""

    method: Method = "auto"
    n_probes: int = PROBES
    rtol: float | None = None
    vjp_batch_size: int | None = None
    seed: int | None = None


def resolved(given: Estimation, run: Run, allowed: Collection[str]) -> Estimation:
    """The same with the method that ``"auto"`` stands for, and a seed.

    The method depends on the model and its device, and not on the prompt. Raises for one that is not `allowed`.
    """
    positive(given.n_probes, "n_probes", "a number of directions")
    method = given.method
    if method not in ("auto", *allowed):
        raise InputError(
            f"method={method!r} cannot be used here.",
            f"Use one of {', '.join(('auto', *allowed))}.",
        )
    if method == "auto":
        weights = sum(
            p.numel()
            for block in list(run.model.blocks)[: run.n_blocks]
            for p in block.parameters()
        )
        most = EXACT["cpu" if run.device.type == "cpu" else "cuda"]
        exact = run.width <= given.n_probes or 2 * run.width * weights <= most
        method = "exact" if exact else "sketch"
    return replace(
        given,
        method=method,
        seed=seed_of(given.seed, certifies=method == "sketch_upper"),
    )


def seed_in(method: Estimation) -> int:
    """The seed of a resolved method."""
    return cast(int, method.seed)


@dataclass(frozen=True)
class Ends:
    """Upper and lower bounds on the norm of each block, and an estimate of it that is rarely too large."""

    high: ByToken
    low: ByToken
    likely: ByToken

    @property
    def tightness(self) -> float:
        """The largest quotient of upper bound and estimate; 1 where both are 0."""
        return float(
            (self.high / torch.maximum(self.low, self.likely))
            .nan_to_num(1.0, posinf=math.inf)
            .max()
        )

    @property
    def estimate(self) -> ByToken:
        """The estimate, if it is between the bounds, and the nearer bound otherwise."""
        return torch.minimum(torch.maximum(self.likely, self.low), self.high)

    def rounded(self, reached: Tensor, lost: Tensor) -> "Ends":
        """The bounds with an allowance for rounding, which is relative to the largest of them."""
        rows = zip(self.high[:, None], reached, lost[:, None], strict=True)
        high = torch.cat(
            [norms.with_rounding(row, near, rounding) for row, near, rounding in rows]
        )
        off = lost * (self.low + self.high.amax(dim=1, keepdim=True))
        return Ends(high, (self.low - off).clamp(min=0), self.likely)

    def by_span(
        self, reached: Tensor, lost: Float[Tensor, "prompt 1"], spans: Spans
    ) -> "Ends":
        """The same for spans, the last of which has all positions; it is left out of the result.

        The blocks of m positions side by side are off by at most ``√Σ ρ²(e_i + e)² ≤ ρ√m (e_S + e)``, where e_i are the
        norms of the blocks, e is the largest of the row, which the last span bounds, and e_S is the norm of the span.
        """
        near = spans.sums(reached[:, 0].double())[:, None] > 0
        sizes = torch.tensor(
            [len(inside) for inside in spans.positions], dtype=torch.float64
        )
        found = self.rounded(near, lost * sizes.sqrt())
        return Ends(found.high[:, :-1], found.low[:, :-1], found.likely[:, :-1])


class Measure:
    """What is computed from the Gram matrix of GJ_i: `spike_sizes`, the norm of J_i in the row space of G, estimates of
    ‖J_i‖₂ from moments, and the lengths `crossed`."""

    def __init__(self, directions: Float[Tensor, "cotangent d"]) -> None:
        self.directions, self.unmixed = directions, norms.unmixing(directions)
        self.each = len(directions) // norms.FOLDS  # rows in a quarter

    def __call__(
        self, gram: Float[Tensor, "*many out out"]
    ) -> Float[Tensor, "*many several"]:
        unmixed, folded = self.unmixed.to(gram.device), norms.FOLDS * self.each
        straight = unmixed @ gram @ unmixed.mT
        found = torch.stack(
            [
                norms.spike_sizes(gram),
                norms.largest(straight),
                norms.moment_sizes(gram),
            ],
            dim=-1,
        )
        return (
            torch.cat([found, norms.crossed(gram[..., :folded, :folded])], dim=-1)
            if self.each
            else found
        )

    def ends(
        self, several: Float[Tensor, "prompt position several"], chance: float
    ) -> Ends:
        """The bounds that follow, each of which fails with probability `chance`."""
        size, least, moments, *lengths = several.cpu().double().unbind(dim=-1)
        sure, likely = least, least
        if lengths:
            seen = torch.stack(lengths)
            sure = torch.maximum(
                least,
                norms.length_factor(self.each, chance / norms.FOLDS) * seen.amax(dim=0),
            )
            likely = torch.maximum(
                least, seen.square().mean(dim=0).sqrt() / math.sqrt(self.each)
            )
            likely = torch.fmax(likely, moments)  # which may be NaN
        high = norms.direction_factor(len(self.directions), chance) * size
        return Ends(high, torch.minimum(sure, high), likely)


def ends_of(
    products: Products,
    norm: Norm,
    method: Estimation,
    chance: float,
    kept: Way | None = None,
) -> Ends:
    """Bounds and estimates from a sketch, each end of which fails with probability `chance`; or the exact norms."""
    d = products.run.width
    if method.method == "exact":
        kept = (kept or products.storage(d)) if norm == "spectral" else None
        exact = products.once((norm, "exact"), lambda: products.exact(kept))
        return Ends(exact, exact, exact)
    directions, about = normals(seed_in(method))(d, method.n_probes).T, (norm, method)
    if norm == "frobenius":
        size = products.once(about, lambda: products.frobenius(directions))
        low, high = norms.sketch_factors(len(directions), chance)
        likely = size / math.sqrt(len(directions))
        return Ends(high * likely, low * likely, likely)
    measure, kept = Measure(directions), kept or products.storage(len(directions))
    return measure.ends(
        products.once(about, lambda: products.measured(directions, kept, measure)),
        chance,
    )


def until(
    products: Products, rtol: float, seed: int
) -> tuple[ByToken, dict[str, ByToken], dict[str, Any]]:
    """A Frobenius norm sketched until its interval is narrow enough, the ends of the interval, and provenance facts."""
    d, generator = products.run.width, torch.Generator().manual_seed(seed)
    squares: list[Tensor] = []
    taken = 0
    while True:
        more = min(d - taken, max(FIRST, taken // 2))
        directions = torch.randn(more, d, generator=generator, dtype=torch.float64)
        new = [
            rows.double().square().sum(dim=-1) for rows in products.along(directions)
        ]
        squares += (
            new
            if products.spans is None
            else [products.spans.sums(part) for part in new]
        )
        taken += more
        mean, low, high = mean_interval(torch.cat(squares).movedim(0, -1))
        ends = {"low": low.clamp(min=0).sqrt(), "high": high.sqrt()}
        reached = float(
            ((ends["high"] - ends["low"]) / (2 * mean.sqrt())).nan_to_num(0).max()
        )
        if reached <= rtol or taken == d:
            break
    if reached > rtol:
        remark(
            f"rtol={rtol:g} was not reached after {taken} probes, as many as the exact norm takes; the interval is "
            f"±{reached:.1%}."
        )
    sketch = {
        "kind": "estimate",
        "probes": taken,
        "seed": seed,
        "rtol": rtol,
        "reached": reached,
    }
    return mean.sqrt(), ends, {"sketch": sketch}


def certified_norms(
    run: Run,
    targets: Mapping[Target, int],
    hooks: Sequence[Hook | Recipe],
    from_layer: int,
    query: int,
    norm: Norm,
    method: Estimation,
    groups: Spans | None = None,
) -> tuple[dict[Target, Ends], dict[str, Any]]:
    """Certified bounds on ‖J_i‖ for each target, or on the norm of each span, and what the provenance says of them."""
    seed = seed_in(method)
    groups = None if groups is None else groups.and_all(run.positions)
    chance = FAILURE / len(targets)
    each = chance / (run.ids.numel() if groups is None else len(groups.names)) / EVENTS
    found: dict[Target, Ends] = {}
    sketch: dict[str, Any] = {
        "kind": "upper bound",
        "n_probes": method.n_probes,
        "seed": seed,
        "certifies": CERTIFIES,
        "rounding": 0.0,
        "failure_probability": FAILURE,
    }
    with certifying(run):
        blocks = range(from_layer, max(targets.values()))
        seen = [
            visibility.visibilities(run, ids[None], hooks, blocks) for ids in run.ids
        ]
        for to, top in targets.items():
            pullback = Pullback(
                run, [from_layer], hooks, top, to, method.vjp_batch_size
            )
            products = Products(pullback, query, groups)
            ends = ends_of(products, norm, method, each)
            if norm == "spectral":
                sketch["estimated_tightness"] = max(
                    ends.tightness, sketch.get("estimated_tightness", 0.0)
                )
            lost = products.rounded_away(chance / EVENTS, seed)
            found[to], rounding = allowed(products, ends, seen, lost)
            sketch["rounding"] = max(sketch["rounding"], rounding)
    return found, sketch


def allowed(
    products: Products,
    ends: Ends,
    seen: Sequence[Mapping[int, visibility.Visibility]],
    missing: ByToken,
) -> tuple[Ends, float]:
    """The bounds with an allowance for rounding, and its size relative to the largest bound.

    `seen` is what attention sees on each prompt, and `missing` what rounding was found to do to each block.
    """
    pullback, n = products.pullback, products.run.positions
    stretches = [
        (sight, range(layer, pullback.top))
        for layer in pullback.layers
        for sight in seen
    ]
    known = [
        visibility.derivative_rounding(products.run, sight, blocks, n)
        for sight, blocks in stretches
    ]
    largest = ends.high.amax(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    lost = torch.tensor(known, dtype=torch.float64) + missing.amax(dim=-1) / largest
    visibility.require_digits(float(lost.max()))
    here = torch.arange(n)[None] == products.query
    reached = torch.stack(
        [visibility.tokens_reaching(sight, blocks, here) for sight, blocks in stretches]
    )
    if products.spans is not None:
        return ends.by_span(reached, lost[:, None], products.spans), float(lost.max())
    return ends.rounded(reached, lost[:, None]), float(lost.max())
