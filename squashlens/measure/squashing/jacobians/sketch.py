"""Estimates of Jacobian norms, and certified bounds on them, from products with random cotangents.

The rows of G are standard normal cotangents, and the products are the rows of ``GJ_i``. For k = `n_probes`:

- Frobenius norm: ``‖GJ_i‖_F / √k``, whose square is unbiased. The ends of the interval are it times `sketch_factors`.
- Spectral norm: the upper end is `spike_sizes` times `direction_factor`. The lower end is the larger of two: the norm
  of J_i in the row space of G, which holds always, and the length that a quarter of G sees of the direction that the
  others find, which may fail, as the upper end may.

All intervals of a result hold together, except with probability `MISSED`.
Bounds are certified if everything runs in float64 and rounding is allowed for. A third thing may fail then: the
comparison with `Jittered` results, which shows what rounding did. Each of the three has a third of `FAILURE`, and of
that each norm an equal share.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Method, Norm, Target, by_device, positive
from squashlens.errors import InputError
from squashlens.measure.squashing.jacobians.products import (
    ByToken,
    Products,
    Pullback,
)
from squashlens.measure.squashing.token_spans import Spans
from squashlens.model.hooking.hook import Hook, Recipe
from squashlens.run.derivatives import visibility
from squashlens.run.derivatives.exact import CERTIFIES, certifying
from squashlens.run.run import Run
from squashlens.theory import norms

# Directions of a sketch: on Gemma 3 270M a tenth of the time of the exact norm.
PROBES = 64
MISSED = 0.05  # probability that any norm of a result is outside its interval
FAILURE = 1e-6  # probability that any certified upper bound is too low or any lower bound too high
EVENTS = 3  # what may fail of each norm: its upper end, its lower end, and what rounding is found to do to it
# Operations for each token up to which "auto" takes the exact norm: a second for ten tokens on two cores.
EXACT = {"cpu": 2e10, "cuda": 2e12}
KINDS = {"sketch": "sketched ", "sketch_upper": "upper bound on the "}


@dataclass(frozen=True, kw_only=True)
class Estimation:
    """How norms of the Jacobian are computed: keywords of `jacobian_norms`, which describes them."""

    method: Method = "auto"
    n_probes: int = PROBES
    vjp_batch_size: int | None = None
    seed: int = 0

    @property
    def kind(self) -> str:
        """What a long name says of the norm, with a space after it."""
        return KINDS.get(self.method, "")

    @property
    def facts(self) -> dict[str, Any]:
        """What the provenance says of estimates with intervals; nothing of exact norms."""
        if self.method != "sketch":
            return {}
        facts = {
            "kind": "estimate",
            "n_probes": self.n_probes,
            "seed": self.seed,
            "failure_probability": MISSED,
        }
        return {"sketch": facts}


def resolved(given: Estimation, run: Run, allowed: Collection[str]) -> Estimation:
    """What was asked for, with the method that ``"auto"`` stands for.

    The method depends on the model and its device, and not on the prompt. Raises for one that is not `allowed`.
    """
    positive(given.n_probes, "n_probes", "a number of directions")
    method = given.method
    known = ["auto", *allowed]
    if method not in known:
        raise InputError(
            f"method={method!r} cannot be used here.",
            f"Use one of {', '.join(known)}.",
        )
    if method == "auto":
        method = "sketch"
        operations = 2 * run.width * _weights_in_blocks(run)
        if run.width <= given.n_probes or operations <= by_device(EXACT, run.device):
            method = "exact"
    return replace(given, method=method)


def _weights_in_blocks(run: Run) -> int:
    """The number of weights of all blocks, which a product of one cotangent goes through."""
    total = 0
    for block in list(run.model.blocks)[: run.n_blocks]:
        total += sum(weights.numel() for weights in block.parameters())
    return total


@dataclass(frozen=True)
class Ends:
    """Upper and lower bounds on the norm of each block, and an estimate of it that is rarely too large."""

    high: ByToken
    low: ByToken
    likely: ByToken

    @property
    def tightness(self) -> float:
        """The largest quotient of upper bound and estimate; 1 where both are 0."""
        quotients = self.high / torch.maximum(self.low, self.likely)
        return float(quotients.nan_to_num(1.0, posinf=math.inf).max())

    @property
    def estimate(self) -> ByToken:
        """The estimate, if it is between the bounds, and the nearer bound otherwise."""
        return torch.minimum(torch.maximum(self.likely, self.low), self.high)

    def rounded(
        self,
        reached: Bool[Tensor, "prompt query position"],
        lost: Float[Tensor, "*prompt #position"],
    ) -> "Ends":
        """The bounds with an allowance for rounding, which is relative to the largest of them."""
        high = norms.with_rounding(self.high, reached[:, 0], lost)
        off = lost * (self.low + self.high.amax(dim=1, keepdim=True))
        return Ends(high, (self.low - off).clamp(min=0), self.likely)

    def by_span(
        self,
        reached: Bool[Tensor, "prompt query position"],
        lost: Float[Tensor, "prompt 1"],
        spans: Spans,
    ) -> "Ends":
        """`rounded` for spans, the last of which has all positions; it is left out of the result.

        The blocks of m positions side by side are off by at most ``√Σ ρ²(e_i + e)² ≤ ρ√m (e_S + e)``, where e_i are the
        norms of the blocks, e is the largest of the row, which the last span bounds, and e_S is the norm of the span.
        """
        reaches_span = spans.sums(reached[:, 0].double())[:, None] > 0
        sizes = torch.tensor(spans.sizes, dtype=torch.float64)
        ends = self.rounded(reaches_span, lost * sizes.sqrt())
        return Ends(ends.high[:, :-1], ends.low[:, :-1], ends.likely[:, :-1])


class Measure:
    """What is computed from the Gram matrix of GJ_i: `spike_sizes`, the norm of J_i in the row space of G, estimates of
    ‖J_i‖₂ from moments, and the lengths `crossed`."""

    def __init__(self, directions: Float[Tensor, "cotangent d"]) -> None:
        self.directions = directions
        self.unmixed = norms.unmixing(directions)
        self.each = len(directions) // norms.FOLDS  # rows in a quarter

    def __call__(
        self, gram: Float[Tensor, "*many out out"]
    ) -> Float[Tensor, "*many several"]:
        """The numbers of each block, from its Gram matrix."""
        unmixed = self.unmixed.to(gram.device)
        in_row_space = norms.largest(unmixed @ gram @ unmixed.mT)
        sizes = [norms.spike_sizes(gram), in_row_space, norms.moment_sizes(gram)]
        several = torch.stack(sizes, dim=-1)
        if not self.each:
            return several
        folded = norms.FOLDS * self.each
        lengths = norms.crossed(gram[..., :folded, :folded])
        return torch.cat([several, lengths], dim=-1)

    def ends(
        self, several: Float[Tensor, "prompt position several"], chance: float
    ) -> Ends:
        """The bounds that follow, each of which fails with probability `chance`."""
        several = several.cpu().double()
        size, least, moments = several[..., :3].unbind(dim=-1)
        low = least
        likely = least
        if self.each:
            lengths = several[..., 3:]
            factor = norms.length_factor(self.each, chance / norms.FOLDS)
            low = torch.maximum(least, factor * lengths.amax(dim=-1))
            mean = lengths.square().mean(dim=-1).sqrt() / math.sqrt(self.each)
            likely = torch.maximum(least, mean)
            likely = torch.fmax(likely, moments)  # which may be NaN
        high = norms.direction_factor(len(self.directions), chance) * size
        return Ends(high, torch.minimum(low, high), likely)


def ends_of(products: Products, norm: Norm, method: Estimation, chance: float) -> Ends:
    """Bounds and estimates from a sketch, each end of which fails with probability `chance`; or the exact norms."""
    if method.method == "exact":
        exact = products.exact(norm)
        return Ends(exact, exact, exact)
    directions = norms.normals(method.seed, products.run.width, method.n_probes).T
    if norm == "spectral":
        measure = Measure(directions)
        return measure.ends(products.measured(directions, measure), chance)
    low, high = norms.sketch_factors(len(directions), chance)
    likely = products.frobenius(directions) / math.sqrt(len(directions))
    return Ends(high * likely, low * likely, likely)


def chance_of_each(count: int) -> float:
    """The probability with which each end of an interval may fail, so that all intervals of `count` norms hold together
    except with probability `MISSED`."""
    return MISSED / 2 / count


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
    count = run.ids.numel()
    if groups is not None:
        groups = groups.and_all(run.positions)
        count = len(groups.names)
    chance = FAILURE / len(targets) / EVENTS
    bounds: dict[Target, Ends] = {}
    tightness = 0.0
    rounding = 0.0
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
            ends = ends_of(products, norm, method, chance / count)
            tightness = max(tightness, ends.tightness)
            lost = products.rounded_away(chance, method.seed)
            bounds[to], lost_here = allowed(products, ends, seen, lost)
            rounding = max(rounding, lost_here)
    facts = {
        "kind": "upper bound",
        "n_probes": method.n_probes,
        "seed": method.seed,
        "certifies": CERTIFIES,
        "rounding": rounding,
        "failure_probability": FAILURE,
    }
    if norm == "spectral":
        facts["estimated_tightness"] = tightness
    return bounds, facts


def allowed(
    products: Products,
    ends: Ends,
    seen: Sequence[Mapping[int, visibility.Visibility]],
    missing: ByToken,
) -> tuple[Ends, float]:
    """The bounds with an allowance for rounding, and its size relative to the largest bound.

    `seen` is what attention sees on each prompt, and `missing` what rounding was found to do to each block.
    """
    run = products.run
    n = run.positions
    pullback = products.pullback
    here = torch.arange(n)[None] == products.query
    known: list[float] = []
    reaching: list[Tensor] = []
    for layer in pullback.layers:
        blocks = range(layer, pullback.top)
        for sight in seen:
            known.append(visibility.derivative_rounding(run, sight, blocks, n))
            reaching.append(visibility.tokens_reaching(sight, blocks, here))
    reached = torch.stack(reaching)
    largest = ends.high.amax(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    lost = torch.tensor(known, dtype=torch.float64) + missing.amax(dim=-1) / largest
    most = float(lost.max())
    visibility.require_digits(most)
    if products.spans is not None:
        return ends.by_span(reached, lost[:, None], products.spans), most
    return ends.rounded(reached, lost[:, None]), most
