"""Certified upper bounds on Jacobian norms from a sketch, in float64 and with an allowance for rounding.

The lower end of the interval is the larger of two: the norm of the blocks' part in the row space of the sketch, which
holds always, and the length that a quarter of the sketch sees of the direction that the others find, which may fail, as
the upper end may. The third that may fail is the comparison with `Jittered` results, which shows what rounding did.
Each of the three has a third of the failure probability, and of that each norm an equal share, so that all numbers of
the result hold together, except with that probability.

With ``tightness=`` the sketch grows until its bounds are tight enough. The numbers of rows at which it is looked at are
fixed beforehand, and each of these stages has an equal share of an end's failure probability. So the bounds of all
stages hold together, except with that probability, wherever the sketch stops, and the smallest of them may be used.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Norm, Target
from squashlens.engine.anatomy import width
from squashlens.engine.differentiating.exact import CERTIFIES, certifying
from squashlens.engine.differentiating.visibility import (
    derivative_rounding,
    require_digits,
    tokens_reaching,
    visibilities,
)
from squashlens.engine.hooking.hook import Hook, Recipe
from squashlens.measure.session import Session
from squashlens.measure.squashing.jacobians.products import Products
from squashlens.measure.squashing.jacobians.rows import Spectral, collected, of_span, padded
from squashlens.measure.squashing.token_spans import Spans
from squashlens.theory.bounds.edge_bounds import with_rounding
from squashlens.theory.norms import (
    FOLDS,
    crossed,
    direction_factor,
    length_factor,
    moment_sizes,
    sketch_factors,
    sketch_stages,
    spectral_norms,
    spike_sizes,
    unmixing,
)
from squashlens.theory.probes import normals

FAILURE = 1e-6  # probability that any upper bound is too low or any lower bound too high
FIRST = 16  # rows of a growing sketch at its first stage
EVENTS = 3  # what may fail of each norm: its upper end, its lower end, and what rounding is found to do to it
ByToken = Float[Tensor, "prompt position"]


@dataclass(frozen=True)
class Ends:
    """Upper and lower bounds on the norm of each block, and an estimate of it that is rarely too large."""

    high: ByToken
    low: ByToken
    likely: ByToken

    @property
    def tightness(self) -> float:
        """The largest quotient of upper bound and estimate; 1 where both are 0."""
        return float((self.high / torch.maximum(self.low, self.likely)).nan_to_num(1.0, posinf=math.inf).max())

    @property
    def estimate(self) -> ByToken:
        """The estimate, if it is between the bounds, and the nearer bound otherwise."""
        return torch.minimum(torch.maximum(self.likely, self.low), self.high)

    def narrowed(self, other: "Ends") -> "Ends":
        """The narrower of two intervals that both hold; the estimate is the second one's."""
        return Ends(torch.minimum(self.high, other.high), torch.maximum(self.low, other.low), other.likely)

    def share_of(self, missing: ByToken) -> Float[Tensor, " prompt"]:
        """The largest of what may be missing of the norms, relative to the largest upper bound."""
        return missing.amax(dim=-1) / self.high.amax(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)

    def rounded(self, reached: Tensor, lost: Tensor) -> "Ends":
        """The bounds with an allowance for rounding, which is relative to the largest of them."""
        rows = zip(self.high[:, None], reached, lost[:, None], strict=True)
        high = torch.cat([with_rounding(row, near, rounding) for row, near, rounding in rows])
        off = lost * (self.low + self.high.amax(dim=1, keepdim=True))
        return Ends(high, (self.low - off).clamp(min=0), self.likely)

    def by_span(self, reached: Tensor, lost: Float[Tensor, "prompt 1"], spans: Spans) -> "Ends":
        """The same for spans, the last of which has all positions; it is left out of the result.

        The blocks of m positions side by side are off by at most ``√Σ ρ²(e_i + e)² ≤ ρ√m (e_S + e)``, where e_i are the
        norms of the blocks, e is the largest of the row, which the last span bounds, and e_S is the norm of the span.
        """
        near = spans.sums(reached[:, 0].double())[:, None] > 0
        sizes = torch.tensor([len(inside) for inside in spans.positions], dtype=torch.float64)
        found = self.rounded(near, lost * sizes.sqrt())
        return Ends(found.high[:, :-1], found.low[:, :-1], found.likely[:, :-1])


# More than ten parameters, since it takes all options of `jacobian_norms` that apply.
def upper_sketch(
    session: Session, spans: Mapping[Target, int], hooks: Sequence[Hook | Recipe], from_layer: int, query: int,
    norm: Norm, n_probes: int, tightness: float | None, seed: int, batch_size: int | None,
    groups: Spans | None = None,
) -> tuple[dict[Target, Ends], dict[str, Any]]:  # fmt: skip
    """Bounds on ‖J_i‖ for each target, or on the norm of each span, and their certificate."""
    model, n = session.model, session.positions
    groups = None if groups is None else groups.and_all(n)
    chance = FAILURE / len(spans)
    each = chance / (session.ids.numel() if groups is None else len(groups.names))
    found: dict[Target, Ends] = {}
    sketch: dict[str, Any] = {"certifies": CERTIFIES, "rounding": 0.0, "failure_probability": FAILURE}
    with certifying(model):
        blocks = range(from_layer, max(spans.values()))
        seen = [visibilities(model, ids[None], hooks, blocks) for ids in session.ids]
        here = torch.arange(n)[None] == query
        for to, top in spans.items():
            products = Products(session, hooks, from_layer, top, to, query, batch_size, groups)
            if tightness is not None:
                ends, facts = _grown(products, each, tightness, seed)
            elif norm == "spectral":
                ends, facts = _sketched(products, each, n_probes, seed)
            else:
                ends, facts = _frobenius(products, each, n_probes, seed)
            inside = range(from_layer, top)
            lost = torch.tensor([derivative_rounding(model, sight, inside, n) for sight in seen], dtype=torch.float64)
            lost += ends.share_of(products.rounded_away(chance / EVENTS, seed))
            require_digits(float(lost.max()))
            reached = torch.stack([tokens_reaching(sight, inside, here) for sight in seen])
            lost = lost[:, None]
            found[to] = ends.rounded(reached, lost) if groups is None else ends.by_span(reached, lost, groups)
            sketch |= {"rounding": max(sketch["rounding"], float(lost.max()))}
            sketch |= {name: max(value, sketch.get(name, 0.0)) for name, value in facts.items()}
    return found, sketch


def _frobenius(products: Products, chance: float, probes: int, seed: int) -> tuple[Ends, dict[str, int | float]]:
    """Frobenius norms from ‖GJ_i‖_F, by Chernoff's factor."""
    directions = normals(seed)(width(products.session.model), probes).T
    return frobenius_ends(products.frobenius(directions).cpu(), probes, chance / EVENTS), {}


def frobenius_ends(size: Float[Tensor, "*many position"], probes: int, chance: float) -> Ends:
    """Bounds on ‖J_i‖_F from ‖GJ_i‖_F, each of which fails with probability `chance`."""
    likely = size / math.sqrt(probes)
    low, high = sketch_factors(probes, chance)
    return Ends(high * likely, low * likely, likely)


def _sketched(products: Products, chance: float, probes: int, seed: int) -> tuple[Ends, dict[str, int | float]]:
    """Spectral norms from GJ_i with a given number of rows."""
    directions = normals(seed)(width(products.session.model), probes).T
    measure = Measure(directions)
    several = products.measured(directions, products.storage(len(directions)), measure)
    ends = measure.ends(several, chance / EVENTS)
    return ends, {"estimated_tightness": ends.tightness}


def _grown(products: Products, chance: float, tightness: float, seed: int) -> tuple[Ends, dict[str, int | float]]:
    """Spectral norms from a sketch that grows until it is as tight as `tightness`, by estimate; at the end exact."""
    d, reach, drawn = width(products.session.model), products.query + 1, normals(seed)
    stages = sketch_stages(FIRST, d)
    directions = torch.zeros(0, d, dtype=torch.float64)
    found: Ends | None = None
    with tempfile.TemporaryDirectory() as folder:
        parts: list[Tensor] = []

        def more(new: Float[Tensor, "cotangent d"], measure: Spectral) -> Tensor:
            way = products.storage(len(new), once=True).way
            part, n, device = collected(products.along(new), way, slice(0, reach), len(new), folder)
            parts.append(part)
            spans = [[place] for place in range(reach)] if products.spans is None else products.spans.within(reach)
            several = torch.stack([measure(of_span(parts, inside).to(device)) for inside in spans], dim=1)
            return several if products.spans is not None else padded(several, n)

        for k in stages:
            new = drawn(d, k - len(directions)).T
            directions = torch.cat([directions, new])
            measure = Measure(directions)
            ends = measure.ends(more(new, measure), chance / EVENTS / len(stages))
            found = ends if found is None else found.narrowed(ends)
            if found.tightness <= tightness:
                return found, {"n_probes": k, "estimated_tightness": found.tightness}
        # Too many for a sketch: with the rows that a whole basis still lacks, the norm is exact.
        left = torch.linalg.qr(directions.mT, mode="complete").Q[:, len(directions) :].mT
        unmixed = torch.block_diag(unmixing(directions), torch.eye(len(left), dtype=torch.float64))
        exact = more(left, lambda rows: spectral_norms(unmixed.to(rows.device) @ rows.double())).cpu()
        return Ends(exact, exact, exact), {"n_probes": d, "estimated_tightness": 1.0}


class Measure:
    """What is computed from the rows GJ_i: their `spike_sizes`, the norm of J_i in their row space, estimates of ‖J_i‖₂
    from their moments, and the lengths `crossed`."""

    def __init__(self, directions: Float[Tensor, "cotangent d"]) -> None:
        self.probes, self.unmixed = len(directions), unmixing(directions)

    def __call__(self, rows: Float[Tensor, "many out in"]) -> Float[Tensor, "many several"]:
        straight = self.unmixed.to(rows.device) @ rows.double()
        found = torch.stack([spike_sizes(rows), spectral_norms(straight), moment_sizes(rows)], dim=-1)
        return torch.cat([found, crossed(rows[:, : FOLDS * self.each])], dim=-1) if self.each else found

    @property
    def each(self) -> int:
        """The number of rows in a quarter."""
        return self.probes // FOLDS

    def ends(self, several: Float[Tensor, "prompt position several"], chance: float) -> Ends:
        """The bounds that follow, each of which fails with probability `chance`."""
        size, least, moments, *lengths = several.cpu().double().unbind(dim=-1)
        sure, likely = least, least
        if lengths:
            seen = torch.stack(lengths)
            sure = torch.maximum(least, length_factor(self.each, chance / FOLDS) * seen.amax(dim=0))
            likely = torch.maximum(least, seen.square().mean(dim=0).sqrt() / math.sqrt(self.each))
            likely = torch.fmax(likely, moments)  # which may be NaN
        high = direction_factor(self.probes, chance) * size
        return Ends(high, torch.minimum(sure, high), likely)
