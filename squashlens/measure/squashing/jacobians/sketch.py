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
    """What was asked for, with ``"exact"`` or ``"sketch"`` in place of the method ``"auto"``.

    The choice depends on the model and its device, and not on the prompt. Raises for a method that is not `allowed`.
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
        # Exact with no more products than a sketch, or few operations: two for each weight and each of d products.
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
    """Upper and lower bounds on the norm of each block, and `likely`, an estimate of it that is rarely too large."""

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
        """The bounds with an allowance for rounding: `lost` times the largest upper bound, and times the bound itself.

        `reached` says which tokens can influence the query, the only one there is; others keep an upper bound of 0.
        """
        high = norms.with_rounding(self.high, reached[:, 0], lost)
        allowance = lost * (self.low + self.high.amax(dim=1, keepdim=True))
        return Ends(high, (self.low - allowance).clamp(min=0), self.likely)

    def by_span(
        self,
        reached: Bool[Tensor, "prompt query position"],
        lost: Float[Tensor, "prompt 1"],
        spans: Spans,
    ) -> "Ends":
        """`rounded` for spans, the last of which, added by `and_all`, has all positions; the result leaves it out.

        The blocks of m positions side by side are off by at most ``√Σ ρ²(e_i + e)² ≤ ρ√m (e_S + e)``, where e_i are the
        norms of the blocks, e is the largest of the row, which the last span bounds, and e_S is the norm of the span.
        """
        # A span influences the query if one of its tokens does; (prompt, query, span).
        is_span_reached = spans.sums(reached[:, 0].double())[:, None] > 0
        sizes = torch.tensor(spans.sizes, dtype=torch.float64)
        ends = self.rounded(is_span_reached, lost * sizes.sqrt())
        return Ends(ends.high[:, :-1], ends.low[:, :-1], ends.likely[:, :-1])


class Measure:
    """What a sketch of spectral norms computes from the Gram matrix of GJ_i, and the bounds that follow.

    It is called where the Gram matrices are, on a device, and gives a few numbers of each: `spike_sizes`, the norm of
    J_i in the row space of G, `moment_sizes`, and the lengths `crossed`. `ends` makes bounds of these on the CPU.
    """

    def __init__(self, directions: Float[Tensor, "cotangent d"]) -> None:
        self.directions = directions  # the rows of G
        self.unmixing = norms.unmixing(directions)
        self.rows_of_quarter = len(directions) // norms.FOLDS

    def __call__(
        self, gram: Float[Tensor, "*many out out"]
    ) -> Float[Tensor, "*many several"]:
        """Three numbers of each block, from its Gram matrix, and one for each quarter of G if there are four rows."""
        unmixing = self.unmixing.to(gram.device)
        in_row_space = norms.largest(unmixing @ gram @ unmixing.mT)
        sizes = [norms.spike_sizes(gram), in_row_space, norms.moment_sizes(gram)]
        several = torch.stack(sizes, dim=-1)
        if not self.rows_of_quarter:
            return several
        # Quarters of equal size, without the last rows if their number is no multiple of four.
        n_rows = norms.FOLDS * self.rows_of_quarter
        lengths = norms.crossed(gram[..., :n_rows, :n_rows])
        return torch.cat([several, lengths], dim=-1)

    def ends(
        self, several: Float[Tensor, "prompt position several"], chance: float
    ) -> Ends:
        """The bounds that follow from what a call gave, each of which fails with probability `chance`."""
        several = several.cpu().double()
        spike_size, in_row_space, moment_size = several[..., :3].unbind(dim=-1)
        low = in_row_space
        likely = in_row_space
        k = self.rows_of_quarter
        if k:
            lengths = several[..., 3:]  # one of each quarter, of which each may fail
            factor = norms.length_factor(k, chance / norms.FOLDS)
            low = torch.maximum(low, factor * lengths.amax(dim=-1))
            # Squared lengths divided by k are unbiased estimates of ‖J_i v‖², at most ‖J_i‖₂².
            mean = lengths.square().mean(dim=-1).sqrt() / math.sqrt(k)
            likely = torch.maximum(likely, mean)
            likely = torch.fmax(likely, moment_size)  # which may be NaN
        high = norms.direction_factor(len(self.directions), chance) * spike_size
        return Ends(high, torch.minimum(low, high), likely)


def ends_of(products: Products, norm: Norm, method: Estimation, chance: float) -> Ends:
    """Bounds on the norms of `products`, and estimates of them, each bound failing with probability `chance`.

    With the method ``"exact"`` all three are the exact norms.
    """
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
    """Certified bounds on ‖J_i‖ for each target, or on the norm of each span, and what the provenance says of them.

    `targets` has the layer number of each.
    """
    n_norms = run.ids.numel()
    if groups is not None:
        # A span of all tokens, whose bound is one on every block, sets the scale of rounding (`by_span`).
        groups = groups.and_all(run.positions)
        n_norms = len(groups.names)
    # For each target and each of the things that may fail.
    chance = FAILURE / len(targets) / EVENTS
    bounds: dict[Target, Ends] = {}
    tightness = 0.0
    rounding = 0.0
    with certifying(run):
        blocks = range(from_layer, max(targets.values()))
        seen: list[Mapping[int, visibility.Visibility]] = []
        for ids in run.ids:
            seen.append(visibility.visibilities(run, ids[None], hooks, blocks))
        for to, top in targets.items():
            pullback = Pullback(
                run, [from_layer], hooks, top, to, method.vjp_batch_size
            )
            products = Products(pullback, query, groups)
            ends = ends_of(products, norm, method, chance / n_norms)
            tightness = max(tightness, ends.tightness)
            missing = products.rounded_away(chance, method.seed)
            bounds[to], rounding_to = with_allowance(products, ends, seen, missing)
            rounding = max(rounding, rounding_to)
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


def with_allowance(
    products: Products,
    ends: Ends,
    seen: Sequence[Mapping[int, visibility.Visibility]],
    missing: ByToken,
) -> tuple[Ends, float]:
    """The bounds with an allowance for rounding, and its size relative to the largest bound.

    `seen` is what attention sees on each prompt, by block, and `missing` what rounding was found to do to each block of
    the Jacobian. As in `Products`, the prompts of one layer follow those of another.
    """
    run = products.run
    n = run.positions
    pullback = products.pullback
    is_query = torch.arange(n)[None] == products.query
    predicted: list[float] = []
    reaching: list[Tensor] = []
    for layer in pullback.layers:
        blocks = range(layer, pullback.top)
        for of_prompt in seen:
            predicted.append(visibility.derivative_rounding(run, of_prompt, blocks, n))
            reaching.append(visibility.tokens_reaching(of_prompt, blocks, is_query))
    reached = torch.stack(reaching)  # (prompt, query, position), of a single query
    largest = ends.high.amax(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    found = missing.amax(dim=-1) / largest
    lost = torch.tensor(predicted, dtype=torch.float64) + found
    most = float(lost.max())
    visibility.require_digits(most)
    if products.spans is not None:
        return ends.by_span(reached, lost[:, None], products.spans), most
    return ends.rounded(reached, lost[:, None]), most
