"""The edges of the measured bound for each block, and probes for parts of the derivative that they do not cover."""

from collections.abc import Callable, Collection, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Bridge, EdgeKind, Target
from squashlens.bars import bar
from squashlens.engine.budget import BATCH_MEMORY
from squashlens.engine.differentiating.dissection import OpenBlock
from squashlens.engine.differentiating.spans import Span, differentiable, vjps
from squashlens.errors import UnsoundModelError
from squashlens.measure.squashing.jacobians.products import causality, require_causal
from squashlens.theory.bounds.edge_bounds import Maps, Norms, analytic_edges, attention_edges, deviations, exact_edges
from squashlens.theory.norms import missing_sizes
from squashlens.theory.probes import PROBES, normals

# Share of a row's largest edge that may be missing and is then added. If more is missing, the block does not have the
# form that the edges are derived for.
SHARE = 1e-3


def maps_of(block: OpenBlock, to: Target, freeze: Collection[str], wanted: Sequence[int] | None = None) -> Maps:
    """The token-local derivatives of a block that ends at `to`; those of the softmax unless attention is frozen."""
    direct, closing = block.closing(to)
    pattern, values = block.pattern, block.values
    keys = queries = None
    if "attention" not in freeze:
        queries = block.query_rows(pattern[..., None] * deviations(pattern, values)).double()
        keys = KeyRows(block)
    return Maps(
        direct.double(), closing.double(), block.value_map().double(), pattern, values, keys, queries, wanted
    )  # fmt: skip


class KeyRows:
    """`OpenBlock.key_rows` for one query at a time, computed for as many queries at once as fit into memory."""

    def __init__(self, block: OpenBlock):
        self.block, self.held, self.rows = block, range(0), torch.empty(0)

    def __call__(self, query: int) -> Float[Tensor, "head key in"]:
        if query not in self.held:
            heads, n, _ = self.block.pattern.shape
            each = heads * n * (heads * n + self.block.span.leaf.shape[-1]) * self.block.span.leaf.element_size()
            size = max(1, int(BATCH_MEMORY["cpu"] / 2 / each))
            size = n if heads * n <= self.block.span.leaf.shape[-1] else size  # all rows are no more than a map has
            self.held = range(query - query % size, min(n, query - query % size + size))
            self.rows = self.block.key_rows(self.held)
        return self.rows[self.held.index(query)]


def edges_of(maps: Maps, edges: EdgeKind, queries: Sequence[int], norms: Norms) -> Float[Tensor, "query key"]:
    """The edges of one block, with a row j for each of `queries`; other rows, and keys after j, are zero."""
    if edges == "analytic":
        return analytic_edges(maps, queries, norms)
    found = torch.zeros_like(maps.pattern[0])
    for j in queries:
        found[j, : j + 1] = (attention_edges if edges == "attention" else exact_edges)(maps, j, norms)
    return found


def edges_by_autograd(
    span: Span, to: Target, queries: Sequence[int], norms: Norms, batch: int
) -> Float[Tensor, "query key"]:
    """Exact norms for a stretch of blocks of any form, from d vector–Jacobian products per query."""
    output, leaf = span.outputs[to], span.leaf
    every = torch.eye(output.shape[-1], dtype=output.dtype, device=output.device)[:, None]
    found = torch.zeros(leaf.shape[1], leaf.shape[1], dtype=torch.float64, device=leaf.device)
    for j in bar(queries, desc="exact edges", unit="token", leave=False):
        check = causality("The model", j)
        with differentiable():
            alone = output[:, j]
        rows = torch.cat([require_causal(part, j, check) for (part,) in vjps(alone, [leaf], every, batch)])[:, 0]
        check.require()
        found[j, : j + 1] = torch.cat([norms(rows[None, :, i]) for i in range(j + 1)])
    return found


Pulled = Callable[[Sequence[int], Tensor], Float[Tensor, "direction key in"]]


def pulled_through(span: Span, to: Target, batch: int) -> Pulled:
    """A function that gives ``Σ_j u_jᵀ ∂output_j/∂leaf_i`` over some queries j, for every i and several u."""
    output, leaf = span.outputs[to], span.leaf

    def pulled(queries: Sequence[int], directions: Tensor) -> Float[Tensor, "direction key in"]:
        cotangents = output.new_zeros(len(directions), *output.shape)
        cotangents[:, 0, list(queries)] = directions
        return torch.cat([part for (part,) in vjps(output, [leaf], cotangents, batch)])[:, 0]

    return pulled


def missing(
    block: int, jittered: Span, to: Target, known: Pulled, edges: Float[Tensor, "query key"],
    queries: Sequence[int], chance: float, batch: int, seed: int,
) -> Float[Tensor, "query key"]:  # fmt: skip
    """Upper bounds, with failure probability `chance`, on the norm of the derivative that `known` misses.

    The bound for each j of `queries` and i ≤ j is on ``‖Δ_ji‖₂``, where ``Δ_ji`` is ∂v'_j/∂v_i less the derivative that
    `known` gives. The span is of a pass with `Jittered` results, so that the effect of rounding on either one counts as
    missing. Both are multiplied by the same random directions at all queries at once, divided by the largest edge r_j
    of their rows: with Δ_i the matrix of all Δ_ji/r_j on top of each other, `missing_sizes` of the difference is at
    least ``‖Δ_i‖₂ ≥ ‖Δ_ji‖₂/r_j``. Another product for each query shows where its derivative is exactly zero: if the
    edge is zero too, nothing is missing.
    """
    n = jittered.leaf.shape[1]
    here = torch.tensor(queries, device=edges.device)
    largest = edges[here].amax(dim=-1)
    largest = torch.where(largest > torch.finfo(largest.dtype).tiny, largest, 1.0)
    directions = normals(seed)(PROBES, len(queries), jittered.outputs[to].shape[-1]).to(jittered.leaf)
    scaled = directions / largest[:, None].to(directions)
    moved = pulled_through(jittered, to, batch)(queries, scaled).double()
    column = missing_sizes(moved - known(queries, scaled).double(), chance)
    felt = _felt(block, jittered, to, queries, directions[0], batch) | (edges[here] > 0)
    found = torch.zeros(n, n, dtype=torch.float64, device=jittered.leaf.device)
    found[here] = torch.where(felt, largest[:, None] * column, 0.0)
    return found


def _felt(
    block: int, span: Span, to: Target, queries: Sequence[int], directions: Float[Tensor, "query out"], batch: int
) -> Bool[Tensor, "query key"]:
    """Where the derivative of each query is not exactly zero. Raises if it is not at a later token."""
    output, leaf = span.outputs[to], span.leaf
    found: list[Tensor] = []
    for start in range(0, len(queries), batch):
        places = queries[start : start + batch]
        cotangents = output.new_zeros(len(places), *output.shape)
        cotangents[range(len(places)), 0, list(places)] = directions[start : start + batch]
        ((rows,),) = vjps(output, [leaf], cotangents, batch)
        for j, row in zip(places, rows, strict=True):
            check = causality(f"Block {block}", j)
            require_causal(row[:, None], j, check)
            check.require()
        found.append((rows[:, 0] != 0).any(dim=-1))
    return torch.cat(found)


def require_small(
    model: Bridge, block: int, missing: Float[Tensor, "query key"], edges: Float[Tensor, "query key"]
) -> None:
    """Raise if more is missing at any token than `SHARE` of that token's largest edge."""
    share = share_of(missing, edges)
    if not share <= SHARE:  # true for NaN too
        raise UnsoundModelError(
            f"Block {block} of {type(model.original_model).__name__} does not have the form that the edges are derived "
            f"for, or rounding is too large: at some token, {share:.2g} of its largest edge may be missing.",
            "Use edges='exact', which works for any form; or remove hooks, if there are any.",
        )


def share_of(missing: Float[Tensor, "query key"], edges: Float[Tensor, "query key"]) -> float:
    """The largest missing part, relative to the largest edge of its row."""
    return float((missing.amax(dim=-1) / edges.amax(dim=-1).clamp(min=torch.finfo(edges.dtype).tiny)).max())
