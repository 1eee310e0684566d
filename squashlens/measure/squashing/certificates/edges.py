"""The edges of the measured bound for each block, and probes for parts of the derivative that they do not cover."""

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, Edges, Target
from squashlens.bars import bar
from squashlens.engine.budget import BATCH_MEMORY
from squashlens.engine.differentiating.dissection import OpenBlock
from squashlens.engine.differentiating.spans import Span, vjps
from squashlens.errors import UnsoundModelError
from squashlens.measure.squashing.jacobians.rows import norms_at, require_causal
from squashlens.theory.bounds.edges import Maps, Norms, analytic_edges, attention_edges, deviations, exact_edges
from squashlens.theory.norms import direction_factor

PROBES = 8  # random directions that show what the derived derivative misses
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
            each = heads * n * (heads * n + self.block.span.leaf.shape[-1]) * self.rows.element_size()
            size = max(1, int(BATCH_MEMORY["cpu"] / 2 / each))
            self.held = range(query - query % size, min(n, query - query % size + size))
            self.rows = self.block.key_rows(self.held)
        return self.rows[self.held.index(query)]


def edges_of(maps: Maps, edges: Edges, queries: Sequence[int], norms: Norms) -> Float[Tensor, "query key"]:
    """The edges of one block, with a row j for each of `queries`; other rows, and keys after j, are zero."""
    if edges == "analytic":
        return analytic_edges(maps, queries, norms)
    found = torch.zeros_like(maps.pattern[0])
    for j in queries:
        found[j, : j + 1] = (attention_edges if edges == "attention" else exact_edges)(maps, j, norms)
    return found


def edges_by_autograd(
    span: Span, to: Target, queries: Sequence[int], norms: Norms, batch: int, progress: bool
) -> Float[Tensor, "query key"]:
    """Exact norms for a stretch of blocks of any form, from d vector–Jacobian products per query."""
    output, leaf = span.outputs[to], span.leaf
    every = torch.eye(output.shape[-1], dtype=output.dtype, device=output.device)
    found = torch.zeros(leaf.shape[1], leaf.shape[1], dtype=torch.float64, device=leaf.device)
    for j in bar(queries, desc="exact edges", unit="token", leave=False, progress=progress):
        found[j] = norms_at(output, j, leaf, "spectral", every, batch, norms)[0]
    return found


Rows = Callable[[Sequence[int], Tensor], Iterable[Float[Tensor, "cotangent key in"]]]


def rows_of(span: Span, to: Target, batch: int) -> Rows:
    """A function that multiplies cotangents by ∂output_j/∂leaf_i for some queries j."""
    output, leaf = span.outputs[to], span.leaf

    def rows(places: Sequence[int], directions: Tensor) -> Float[Tensor, "query cotangent key in"]:
        cotangents = output.new_zeros(len(places), len(directions), *output.shape)
        for place, j in enumerate(places):
            cotangents[place, :, 0, j] = directions
        found = torch.cat([part for (part,) in vjps(output, [leaf], cotangents.flatten(0, 1), batch)])
        return found.unflatten(0, (len(places), len(directions)))[:, :, 0]

    return rows


def missing(
    block: int, jittered: Span, to: Target, rows: Rows, queries: Sequence[int], chance: float, batch: int
) -> Float[Tensor, "query key"]:
    """Upper bounds, with failure probability `chance`, on the norm of the derivative that `rows` misses.

    The bound for each j of `queries` and i ≤ j is on ``‖∂v'_j/∂v_i − R_ji‖₂``, where ``R_ji`` is the derivative that
    `rows` gives. Both are multiplied by the same `PROBES` random directions; the norm of the differences times
    `direction_factor` is at least the spectral norm of what is missing. The span is of a pass with `Jittered`
    results, so that the effect of rounding on either one counts as missing.
    """
    n, width = jittered.leaf.shape[1], jittered.outputs[to].shape[-1]
    generator = torch.Generator().manual_seed(0)  # any directions work that do not depend on the model
    directions = torch.randn(PROBES, width, generator=generator, dtype=torch.float64).to(jittered.leaf)
    factor = direction_factor(PROBES, chance / (len(queries) * n))
    found = torch.zeros(n, n, dtype=torch.float64, device=jittered.leaf.device)
    size, true_rows = max(1, batch // PROBES), rows_of(jittered, to, batch)
    for start in range(0, len(queries), size):
        places = queries[start : start + size]
        pairs = zip(places, true_rows(places, directions), rows(places, directions), strict=True)
        for j, truth, known in pairs:
            require_causal(truth[:, None], j, f"Block {block}")
            off = truth[:, : j + 1].double() - known[:, : j + 1].double()
            found[j, : j + 1] = factor * off.square().sum(dim=(0, 2)).sqrt()
    return found


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
