"""The path bound with measured constants: a certified bound for this model at this input.

Each pair of neighbouring layers has a matrix of edges ``e_ji ≥ ‖∂v'_j/∂v_i‖₂``, the norms of a block's Jacobian. By the
chain rule and the triangle inequality, row n of the product of these matrices is at least ``‖∂y_n/∂v_i‖₂``. Whatever is
frozen is frozen in every edge. The last block includes the final norm and ends at y, so that the final norm needs no
constant of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Target
from squashlens.bars import bar
from squashlens.errors import UnsoundModelError
from squashlens.hooks.freeze import freezing
from squashlens.measure.squashing.jacobians.products import require_causal
from squashlens.model.memory import require_room
from squashlens.model.premises import why_not_block_by_block
from squashlens.run.budget import cotangents_on_graph
from squashlens.run.derivatives import visibility
from squashlens.run.derivatives.exact import (
    CERTIFIES,
    Jittered,
    certifying,
    require_one_device,
)
from squashlens.run.derivatives.spans import Span, open_spans, vjps
from squashlens.run.run import Run
from squashlens.theory.norms import (
    PROBES,
    missing_sizes,
    normals,
    spectral_norms,
    with_rounding,
)

FAILURE = 5e-7  # probability that the probes miss what rounding did


class Stretch(NamedTuple):
    """A block, or the final norm alone.

    Attributes:
        bottom: the layer at which it starts.
        to: the target at which it ends, a layer or y.
        top: the layer number of this target, L for y.
    """

    bottom: int
    to: Target
    top: int

    @property
    def blocks(self) -> range:
        return range(self.bottom, self.top)


def certified_rows(
    run: Run,
    targets: Mapping[Target, int],
    from_layer: int,
    query: int,
    freeze: Sequence[str],
    *,
    vjp_batch_size: int | None,
    seed: int,
) -> tuple[dict[Target, Float[Tensor, "prompt position"]], dict[str, Any]]:
    """For each target the row `query` of the product of edge matrices, and what its certificate says.

    `targets` has the layer number of each target. Every edge is computed once, and all bounds hold together, except
    with the certificate's failure probability.
    """
    chains: dict[Target, list[Stretch]] = {
        to: _stretches(from_layer, top, to) for to, top in targets.items()
    }
    steps = max(
        len(chain) for chain in chains.values()
    )  # factors of the longest product
    reason = why_not_block_by_block(run.model)
    if steps > 1 and reason:
        remedy = "Use `jacobian_norms(method='sketch_upper')`, which is certified too."
        raise UnsoundModelError(reason, remedy)
    # The last stretch of a chain needs only the edges into the query, and lower ones those into all tokens up to it.
    # These come second, since a stretch that is the last for one target may be a lower one for another.
    queries: dict[Stretch, range] = {}
    for *_, last in chains.values():
        queries[last] = range(query, query + 1)
    for *lower, _ in chains.values():
        queries |= dict.fromkeys(lower, range(query + 1))
    top_down = dict(sorted(queries.items(), key=_bottom, reverse=True))
    edges = _Edges(run, top_down, freeze, seed, vjp_batch_size)
    one_hot = torch.nn.functional.one_hot(torch.tensor(query), run.positions).double()
    rows: dict[Target, list[Tensor]] = {to: [] for to in targets}
    rounding = 0.0
    require_one_device(run)
    with certifying(run):
        edges.require_fits()
        for ids in run.ids:
            matrices: dict[Stretch, Tensor] = {}
            for stretch, matrix, rounding_of_stretch in edges.matrices(ids[None]):
                matrices[stretch] = matrix
                rounding = max(rounding, rounding_of_stretch)
            for to, chain in chains.items():
                row = one_hot
                for stretch in reversed(chain):
                    row = row @ matrices[stretch]
                rows[to].append(row)
    certificate = {
        "certifies": CERTIFIES,
        "rounding_per_step": rounding,
        "rounding": (1 + rounding) ** steps - 1,
        "failure_probability": FAILURE,
    }
    return {to: torch.stack(parts) for to, parts in rows.items()}, certificate


def _stretches(from_layer: int, top: int, to: Target) -> list[Stretch]:
    """The blocks between two layers from the bottom up, the last of which ends at the target `to`.

    Without a block between them, from v⁽ᴸ⁾ to y, it is the final norm alone.
    """
    bottoms = list(range(from_layer, top)) or [top]
    lower = [Stretch(layer, layer + 1, layer + 1) for layer in bottoms[:-1]]
    return [*lower, Stretch(bottoms[-1], to, top)]


def _bottom(wanted: tuple[Stretch, range]) -> int:
    stretch, _ = wanted
    return stretch.bottom


class _Matrix(NamedTuple):
    """The edges of a stretch on one prompt, and the error by rounding, relative to the largest edge of a row."""

    stretch: Stretch
    edges: Float[Tensor, "query key"]
    rounding: float


@dataclass(frozen=True)
class _Edges:
    """How edges are computed: of which stretches, from the top one down, and into which queries of each."""

    run: Run
    queries: Mapping[Stretch, range]
    freeze: Sequence[str]
    seed: int
    batch_size: int | None

    def require_fits(self) -> None:
        """Raise if the Jacobian's rows of one query do not fit."""
        n = self.run.positions
        d = self.run.width
        require_room(
            8 * n * d * d,
            self.run.device,
            "The rows of one query",
            "Use a shorter prompt. `jacobian_norms(method='sketch_upper')` is certified too, and takes less.",
        )

    def matrices(self, ids: Tensor) -> Iterator[_Matrix]:
        """The edges of every stretch on one prompt, as matrices on the CPU that include the allowance for rounding.

        The allowance is the sum of a bound on what rounding does to logits and products, and what random probes find.
        """
        run = self.run
        n = run.positions
        hooks = freezing(self.freeze)
        bottom = min(stretch.bottom for stretch in self.queries)
        top = max(stretch.top for stretch in self.queries)
        seen = visibility.visibilities(run, ids, hooks, range(bottom, top))
        each_query = torch.eye(n, dtype=torch.bool)  # a row for each
        for stretch, queries in bar(
            self.queries.items(), desc="path bound", unit="stretch"
        ):
            plain = self._open(ids, stretch)
            jittered = self._open(ids, stretch, Jittered(run.device, self.seed))
            edges = self._norms(plain, stretch.to, queries)
            rounding = visibility.derivative_rounding(run, seen, stretch.blocks, n)
            largest = edges[queries.start : queries.stop].amax(dim=-1)  # of each row
            rounding += self._rounded_away(
                plain, jittered, stretch.to, queries, largest
            )
            # Which tokens can influence each query: elsewhere an edge of 0 needs no allowance.
            reached = visibility.tokens_reaching(seen, stretch.blocks, each_query)
            edges = with_rounding(edges.cpu(), reached, rounding)
            yield _Matrix(stretch, edges, rounding)

    def _open(
        self, ids: Tensor, stretch: Stretch, within: Jittered | None = None
    ) -> Span:
        """The graph of a stretch of blocks from a forward pass on one prompt, `within` a context such as `Jittered`."""
        hooks = freezing(self.freeze)
        bottom = stretch.bottom
        spans = open_spans(self.run, ids, hooks, [bottom], stretch.top, within=within)
        return spans[bottom]

    @property
    def _batch(self) -> int:
        return self.batch_size or cotangents_on_graph(self.run, 1, self.run.positions)

    def _norms(
        self, span: Span, to: Target, queries: range
    ) -> Float[Tensor, "query key"]:
        """The norms ‖∂v'_j/∂v_i‖ of a stretch of blocks, from d vector–Jacobian products for each query j."""
        output = span.outputs[to]
        leaf = span.leaf
        n = leaf.shape[1]
        d = output.shape[-1]
        # (cotangent, prompt, d)
        unit = torch.eye(d, dtype=output.dtype, device=output.device)[:, None]
        edges = torch.zeros(n, n, dtype=torch.float64, device=leaf.device)
        for j in bar(queries, desc="edges", unit="token", leave=False):
            with torch.enable_grad():
                at_query = output[:, j]  # on the graph
            batches: list[Tensor] = []
            for (rows,) in vjps(self.run, at_query, [leaf], unit, self._batch):
                batches.append(require_causal(self.run, rows, j))
            rows = torch.cat(batches)[:, 0]  # (out, key, in)
            for i in range(j + 1):
                edges[j, i] = spectral_norms(rows[None, :, i])[0]
        return edges

    def _rounded_away(
        self,
        plain: Span,
        jittered: Span,
        to: Target,
        queries: range,
        largest: Float[Tensor, " query"],
    ) -> float:
        """The most that rounding did to a block Δ_ji of the derivative, relative to the largest edge r_j of its row.

        The derivative of the same pass with `Jittered` results is multiplied by the same random directions, divided by
        r_j, at all queries at once. With Δ_i the matrix of all Δ_ji/r_j on top of each other, `missing_sizes` of the
        difference is at least ``‖Δ_i‖₂ ≥ ‖Δ_ji‖₂/r_j``. Raises if it leaves no digit.
        """
        largest = largest.clamp(min=torch.finfo(largest.dtype).tiny)
        directions = normals(self.seed, PROBES, len(queries), self.run.width)
        scaled = directions.to(largest) / largest[:, None]
        difference = self._pulled(jittered, to, queries, scaled)
        difference = difference - self._pulled(plain, to, queries, scaled)
        chance = FAILURE / (len(self.queries) * len(self.run.ids))
        lost = float(missing_sizes(difference, chance).max())
        visibility.require_digits(lost)
        return lost

    def _pulled(
        self,
        span: Span,
        to: Target,
        queries: range,
        directions: Float[Tensor, "probe query d"],
    ) -> Float[Tensor, "probe position d"]:
        """The products of a stretch's derivative with each probe, whose directions are at all queries at once."""
        output = span.outputs[to]
        cotangents = output.new_zeros(len(directions), *output.shape)
        cotangents[:, 0, list(queries)] = directions.to(output)
        products = vjps(self.run, output, [span.leaf], cotangents, self._batch)
        return torch.cat([rows for (rows,) in products])[:, 0]
