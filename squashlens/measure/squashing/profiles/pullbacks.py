"""Norms of the Jacobian of chosen queries at all layers, from the same vector–Jacobian products."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Norm
from squashlens.engine.anatomy import device_of, dtype_of, n_blocks, width
from squashlens.engine.differentiating.exact import CERTIFIES, Jittered
from squashlens.engine.differentiating.visibility import (
    derivative_rounding,
    require_digits,
    tokens_reaching,
    visibilities,
)
from squashlens.engine.memory import require_room, to_cpu
from squashlens.measure.session import Session
from squashlens.measure.squashing.jacobians.pullback import Pullback
from squashlens.measure.squashing.jacobians.rows import Batch
from squashlens.measure.squashing.jacobians.sketch import MISSED
from squashlens.measure.squashing.jacobians.upper import EVENTS, FAILURE, Ends, Measure, frobenius_ends
from squashlens.theory.norms import missing_sizes, spectral_norms, squared_frobenius
from squashlens.theory.probes import PROBES, normals

ByLayer = Float[Tensor, "layer position"]


def norms_of(pullback: Pullback, query: int, norm: Norm, directions: Float[Tensor, "cotangent d"]) -> ByLayer:
    """Exact norms at each layer and position for one query, from products with orthonormal directions."""
    n, layers = pullback.session.positions, pullback.layers
    if norm == "frobenius":
        squares: dict[int, Tensor] = {}

        def add(layer: int, rows: Batch) -> None:
            more = squared_frobenius(rows)[0]
            squares[layer] = squares[layer] + more if layer in squares else more

        for _ in pullback.batches(query, directions, add):
            pass
        return torch.stack(to_cpu([squares[layer] for layer in layers])).sqrt()
    every = _hold_rows(pullback, query, directions)
    found = to_cpu([torch.stack([spectral_norms(block) for block in rows.unbind(1)]) for rows in every])
    return torch.nn.functional.pad(torch.stack(found), (0, n - query - 1))


def _hold_rows(
    pullback: Pullback, query: int | None, directions: Float[Tensor, "cotangent *query d"]
) -> list[Float[Tensor, "cotangent position in"]]:
    """All rows of the blocks of one query, or of the sum of all queries, layer by layer."""
    held: dict[int, list[Tensor]] = {layer: [] for layer in pullback.layers}
    seen = slice(None if query is None else query + 1)
    for _ in pullback.batches(query, directions, lambda layer, rows: held[layer].append(rows[:, 0, seen])):
        pass
    return [torch.cat(held[layer]) for layer in pullback.layers]


def require_held(session: Session, layers: Sequence[int], reach: int, rows: int) -> None:
    """Raise if the rows of one query's Jacobian at all layers do not fit."""
    size = len(layers) * reach * rows * width(session.model) * max(4, dtype_of(session.model).itemsize)
    what = f"The Jacobian's {rows} rows of one query at {len(layers)} layers"
    require_room(2 * size, device_of(session.model), what, "Use norm='frobenius', fewer layers=, or method='none'.")


class Sketch:
    """Bounds and estimates at each layer and position for one query after another, each end failing with `chance`."""

    def __init__(self, pullback: Pullback, norm: Norm, probes: int, seed: int, chance: float) -> None:
        self.pullback, self.norm, self.chance = pullback, norm, chance
        self.directions = normals(seed)(width(pullback.session.model), probes).T
        self.measure = Measure(self.directions)

    def of(self, query: int) -> Ends:
        """The bounds for one query, with layers in place of prompts."""
        n, reach = self.pullback.session.positions, query + 1
        if self.norm == "frobenius":
            size = norms_of(self.pullback, query, "frobenius", self.directions)
            return frobenius_ends(size, len(self.directions), self.chance)
        rows = _hold_rows(self.pullback, query, self.directions)
        several = torch.stack([torch.stack([self.measure(one[:, i][None])[0] for i in range(reach)]) for one in rows])
        return self.measure.ends(torch.nn.functional.pad(several, (0, 0, 0, n - reach)), self.chance)

    def facts(self) -> dict[str, Any]:
        """What the provenance says of the sketch."""
        return {"kind": "estimate", "n_probes": len(self.directions), "failure_probability": MISSED}


class CertifiedSketch(Sketch):
    """The same with certified bounds, for several queries together; to be used in float64."""

    def __init__(self, pullback: Pullback, queries: int, models: int, norm: Norm, probes: int, seed: int) -> None:
        session, layers = pullback.session, pullback.layers
        model, n = session.model, session.positions
        chance = FAILURE / EVENTS / (models * len(layers))
        super().__init__(pullback, norm, probes, seed, chance / (queries * n))
        self.top = n_blocks(model)
        self.seen = visibilities(model, session.ids, (), range(min(*layers, self.top - 1), self.top))
        lost = [derivative_rounding(model, self.seen, range(layer, self.top), n) for layer in layers]
        self.lost, self.most = torch.tensor(lost, dtype=torch.float64), 0.0
        everywhere = normals(seed)(PROBES, n, width(model))
        plain = _hold_rows(pullback, None, everywhere)
        with Jittered(device_of(model), seed):
            jittered = _hold_rows(Pullback(session, layers), None, everywhere)
        moved = zip(jittered, plain, strict=True)
        # The norm of all queries' derivatives on top of each other is at least that of each.
        self.missing = torch.stack([missing_sizes(one - other, chance).cpu() for one, other in moved])

    def of(self, query: int) -> Ends:
        """The bounds for one query, with layers in place of prompts, and an allowance for rounding."""
        ends = super().of(query)
        here = torch.arange(self.pullback.session.positions)[None] == query
        reached = [tokens_reaching(self.seen, range(layer, self.top), here) for layer in self.pullback.layers]
        lost = self.lost + ends.share_of(self.missing)
        self.most = max(self.most, float(lost.max()))
        require_digits(self.most)
        return ends.rounded(torch.stack(reached), lost[:, None])

    def facts(self) -> dict[str, Any]:
        certificate = {"certifies": CERTIFIES, "rounding": self.most, "failure_probability": FAILURE}
        return super().facts() | {"kind": "upper bound"} | certificate
