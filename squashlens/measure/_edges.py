"""The edges of the measured bound, block by block, and the proof that a block is of the form they are derived for."""

from collections.abc import Collection, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from squashlens._typing import Bridge, Edges, Target
from squashlens.errors import UnsoundModelError
from squashlens.measure._rows import norms_at
from squashlens.model.budget import BATCH_MEMORY
from squashlens.model.dissection import OpenBlock
from squashlens.model.spans import Span, vjps
from squashlens.theory.edges import Maps, Norms, analytic_edges, attention_edges, deviations, exact_edges

DEVIATION = 1e-3  # what the derived derivative may differ from autograd's, relative to its largest row


def maps_of(block: OpenBlock, to: Target, freeze: Collection[str], wanted: Sequence[int] | None = None) -> Maps:
    """The token-local derivatives of one block that ends at `to`; the softmax's only where it is not frozen."""
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
    """`OpenBlock.key_rows` of one query at a time, taken for as many at once as fit into a batch's memory."""

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
    """One block's edges, row j for each of `queries`; the other rows, and all behind j, are zero."""
    if edges == "analytic":
        return analytic_edges(maps, queries, norms)
    found = torch.zeros_like(maps.pattern[0])
    for j in queries:
        found[j, : j + 1] = (attention_edges if edges == "attention" else exact_edges)(maps, j, norms)
    return found


def edges_by_autograd(
    span: Span, to: Target, queries: Sequence[int], norms: Norms, batch: int, progress: bool
) -> Float[Tensor, "query key"]:
    """Exact norms of a whole stretch of blocks, whatever is in it: d vector–Jacobian products for each query."""
    output, leaf = span.outputs[to], span.leaf
    every = torch.eye(output.shape[-1], dtype=output.dtype, device=output.device)
    found = torch.zeros(leaf.shape[1], leaf.shape[1], dtype=torch.float64, device=leaf.device)
    for j in tqdm(queries, desc="exact edges", unit="token", delay=1, leave=False, disable=not progress):
        found[j] = norms_at(output, j, leaf, "spectral", every, batch, norms)[0]
    return found


def require_form(model: Bridge, block: int, span: Span, to: Target, maps: Maps, queries: Iterable[int]) -> None:
    """Refuse a block whose derivative, as `maps` has it, is not autograd's through the whole block.

    At each of `queries` both are applied to one random direction and compared for every token i.
    """
    output, leaf = span.outputs[to], span.leaf
    generator = torch.Generator().manual_seed(0)  # any direction serves, as long as nobody chose it for the model
    direction = torch.randn(output.shape[-1], generator=generator, dtype=torch.float64).to(leaf.device)
    for j in queries:
        cotangent = torch.zeros_like(output)[None]
        cotangent[0, 0, j] = direction.to(output.dtype)
        ((truth,),) = vjps(output, [leaf], cotangent, 1)
        derived = direction @ maps.blocks(j, slice(0, j + 1))
        wanted = truth[0, 0, : j + 1].double()
        difference, size = ((derived - wanted).norm(dim=-1).max().item(), wanted.norm(dim=-1).max().item())
        if not difference <= DEVIATION * size:  # NaN too
            raise UnsoundModelError(
                f"Block {block} of {type(model.original_model).__name__} does not work as the edges are derived: "
                f"its derivative at token {j} is off by {difference / size:.2g} of itself.",
                "Use edges='exact', which needs no knowledge of it; or take standing hooks away, if there are any.",
            )
