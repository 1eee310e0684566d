"""Edges of the measured bound from token-local maps alone: no matrix is kept for a token, let alone for a pair.

With F what closes the block, of the heads' outputs z, and S the mean over queries of ``∂Fᵀ∂F``, for i < j

    e_ji = ‖∂F_j S^{-½}‖ Σ_h α^h_ji ( ‖S_hh^{½} ∂w_i‖ + ‖S_hh^{½}(w_i − z_j)‖ ‖∂s_ji/∂v_i‖ ),
    ‖∂s_ji/∂v_i‖² = s'_ji² q_jᵀ (∂k_i ∂k_iᵀ) q_j,

which is not below the block's: the triangle inequality over heads and over value and key term, then ``‖AB‖ ≤ ‖A‖‖B‖``.
S may be any positive matrix; it is estimated from random directions. The diagonal is the norm of all of ∂v'_j/∂v_j.
Norms of d columns are certified by Lanczos, those of one head's coordinates exact. What is kept of a token is its
products ∂k ∂kᵀ, of one head's coordinates. A row of edges is made of attention's own, and let go after use.

Where α is that of one key, ``w_i − z_j`` loses its digits; it is raised by what it can have lost.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from squashlens.errors import UnsoundModelError
from squashlens.model.attention import Attention, reach
from squashlens.model.local import Chunk, Derivative, LocalBlock
from squashlens.model.spans import differentiable, vjps
from squashlens.theory.edges import with_rounding
from squashlens.theory.norms import away_from_singular

SAMPLES = 16  # random directions × tokens for each coordinate of a metric, and no fewer directions than
DIRECTIONS = 4
SIDE_BY_SIDE = 16  # cotangents of one group's coordinates
FLOOR = 1e-8  # of a metric's largest diagonal entry, added to all: far above what rounding makes of a direction unseen
SAME = 1e-8  # of a token's diagonal edge, by which two ways to run it in float64 may differ
LOST = 1e-13  # what a difference in float64 can have lost, relative to what it is taken of
Certify = Callable[[Callable[[Tensor], Tensor], int, int, torch.device], Float[Tensor, " operator"]]


@dataclass(frozen=True)
class LocalEdges:
    """One block's edges as factors of queries and of keys, float64; `values` are L_hᵀ w of every head."""

    attention: Attention
    values: Float[Tensor, "head key value"]
    diagonal: Float[Tensor, " query"]
    excess: Float[Tensor, " query"]
    by_value: Float[Tensor, "head key"]
    by_key: Float[Tensor, "group key pair"] | None
    rounding: float = 0.0

    def pushed(self, rows: Float[Tensor, "row query"]) -> Float[Tensor, "row key"]:
        """``r E`` for several rows r."""
        device = rows.device
        rows = rows.to(self.diagonal)
        found = torch.zeros_like(rows)
        for block, keys in self.attention.blocks(rows=reach(rows.any(dim=0))):
            weights, slope = self.attention.weights(block, keys, slope=self.by_key is not None)
            total = found.new_zeros(block.stop - block.start, keys.stop - keys.start)
            for group in range(weights.shape[1]):
                bend = None if slope is None else slope[0, group]
                total += self._of_group(group, block, keys, weights[0, group], bend)
            places = torch.arange(len(self.diagonal), device=total.device)
            here = places[block, None] == places[keys]  # the diagonal is apart
            total = torch.where(here, self.diagonal[block, None], self.excess[block, None] * total)
            total = with_rounding(total, self.attention.visible(block, keys), self.rounding)
            found[:, keys] += rows[:, block] @ total
        return found.to(device)

    def _of_group(
        self, group: int, block: slice, keys: slice, weights: Float[Tensor, "each query key"],
        slope: Float[Tensor, "each query key"] | None,
    ) -> Float[Tensor, "query key"]:  # fmt: skip
        """The sum over the heads of one key/value group."""
        each = len(weights)
        heads = slice(group * each, (group + 1) * each)
        felt = self.by_value[heads, None, keys]
        if self.by_key is not None:
            values = self.values[heads, keys]
            mean = weights @ values
            sizes = mean.square().sum(dim=-1, keepdim=True) + values.square().sum(dim=-1)[:, None]
            away = (sizes - 2 * mean @ values.mT).clamp_(min=0).add_(LOST * sizes).sqrt_()
            queries, products = self.attention.queries[0, heads, block], self.by_key[group, keys]
            left, right = _pairs(queries.shape[-1], queries.device)
            asking = queries[..., left] * queries[..., right] * torch.where(left == right, 1.0, 2.0)
            sizes = queries.square().sum(dim=-1, keepdim=True) * products[:, left == right].sum(dim=-1)
            heard = (asking @ products.mT).clamp_(min=0).add_(LOST * sizes).sqrt_() * self.attention.scale
            felt = felt + away * (heard if slope is None else heard * slope)
        return (weights * felt).sum(dim=0)


def _pairs(width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of a symmetric matrix's upper triangle."""
    rows, columns = torch.triu_indices(width, width, device=device)
    return rows, columns


def local_edges(block: LocalBlock, queries: range, size: int, certify: Certify, rounding: float = 0.0) -> LocalEdges:
    """The factors of one block's edges into `queries`, from chunks of `size` tokens; `rounding` as `with_rounding`."""
    keys = range(queries.stop)
    root = torch.linalg.cholesky(_metric(block, queries, size))
    heads, n = block.mixed.shape[1:3]
    by_head = rearrange(root @ root.mT, "(h c) (k e) -> h k c e", h=heads, k=heads)
    own = torch.linalg.cholesky(by_head[range(heads), range(heads)])
    diagonal, excess = root.new_zeros(n), root.new_zeros(n)
    for chunk in block.chunks(queries, size, own=True):
        diagonal[chunk.rows], excess[chunk.rows] = _diagonal(chunk, certify), _excess(chunk, root, certify)
    groups, dot = block.attention.keys.shape[1], block.attention.keys.shape[-1]
    by_value = root.new_zeros(heads, n)
    by_key = None if block.replay.frozen else root.new_zeros(groups, n, dot * (dot + 1) // 2)
    for chunk in block.chunks(keys, size):
        for group in range(groups):
            factors = own.unflatten(0, (groups, -1))[group]
            products = _products(chunk.values, chunk.entering, group)
            sizes = torch.linalg.eigvalsh(factors.mT[:, None] @ products @ factors[:, None])[..., -1]
            by_value.unflatten(0, (groups, -1))[group, :, chunk.rows] = sizes.clamp(min=0).sqrt()
            if by_key is not None:
                left, right = _pairs(dot, products.device)
                products = _products(chunk.attention.keys, chunk.entering, group)
                by_key[group, chunk.rows] = products[:, left, right]
    values = repeat(block.values[0], "c j v -> (c e) j v", e=heads // groups) @ own
    return LocalEdges(block.attention, values, diagonal, excess, by_value, by_key, rounding)


def _diagonal(chunk: Chunk, certify: Certify) -> Float[Tensor, " token"]:
    own = Derivative(chunk.leaving, chunk.entering)
    _, tokens, d = chunk.entering.shape
    return certify(lambda x: own.pulled(own.pushed(x[None]))[0], tokens, d, chunk.entering.device)


def _excess(chunk: Chunk, root: Float[Tensor, "stack stack"], certify: Certify) -> Float[Tensor, " token"]:
    """‖∂F_j S^{-½}‖, S = L Lᵀ."""
    closing = Derivative(chunk.leaving, chunk.mixed)
    _, heads, tokens, _ = chunk.mixed.shape
    inverse = torch.linalg.solve_triangular(
        root, torch.eye(len(root), dtype=root.dtype, device=root.device), upper=False
    )

    def gram(x: Tensor) -> Tensor:
        tangent = rearrange(x @ inverse, "j (h c) -> 1 h j c", h=heads)
        back = closing.pulled(closing.pushed(tangent))
        return rearrange(back, "1 h j c -> j (h c)").double() @ inverse.mT

    return certify(gram, tokens, len(root), root.device)


def _products(
    output: Float[Tensor, "1 group token value"], leaf: Float[Tensor, "1 token in"], group: int
) -> Float[Tensor, "token value value"]:
    """∂x_i ∂x_iᵀ of every token for x of one group."""
    width = output.shape[-1]
    cotangents = output.new_zeros(width, *output.shape)
    cotangents[:, 0, group] = torch.eye(width, device=cotangents.device)[:, None]
    rows = torch.cat([part[:, 0] for (part,) in vjps(output, [leaf], cotangents, SIDE_BY_SIDE)])
    rows = rearrange(rows, "v i d -> i v d").double()
    return rows @ rows.mT


def _metric(block: LocalBlock, queries: range, size: int) -> Float[Tensor, "stack stack"]:
    """S but for a factor, from what random directions of all queries show; kept away from singular."""
    generator = torch.Generator().manual_seed(0)  # on the CPU: the same directions on every device
    _, heads, _, width = block.mixed.shape
    metric = block.values.new_zeros(heads * width, heads * width)
    for chunk in block.chunks(queries, size):
        directions = _directions(chunk.leaving, heads * width, len(queries), generator)
        ((rows,),) = vjps(chunk.leaving, [chunk.mixed], directions, len(directions))
        rows = rearrange(rows, "g 1 h j c -> (g j) (h c)").double()
        metric += rows.mT @ rows
    return away_from_singular(metric, FLOOR)


def _directions(
    like: Float[Tensor, "1 token d"], wanted: int, tokens: int, generator: torch.Generator
) -> Float[Tensor, "direction 1 token d"]:
    """As many directions as give `SAMPLES` for each of `wanted` coordinates over all `tokens`; at most every one."""
    d = like.shape[-1]
    many = DIRECTIONS + SAMPLES * wanted // tokens
    if many >= d:
        every = torch.eye(d, dtype=like.dtype, device=like.device)
        return every[:, None, None].expand(d, *like.shape)
    return torch.randn(many, *like.shape, generator=generator, dtype=torch.float64).to(like)


def require_apart(block: LocalBlock) -> None:
    """Refuse a block whose tokens meet anywhere but in attention.

    With attention's output as a leaf, random cotangents stand at some tokens: at those whose position has a certain
    binary digit, for each digit and both of its values, so that of every two tokens one is once among them without the
    other. The gradient at all others must be 0, bit by bit: where maps are token-local it is a sum of zeros, and where
    they are not, a random number.
    """
    open_ = block.open()
    n = open_.entering.shape[1]
    places, generator = torch.arange(n), torch.Generator().manual_seed(0)
    outputs = {1: [open_.leaving], 2: [open_.attention.queries, open_.attention.keys, open_.values]}
    for digit, value in itertools.product(range((n - 1).bit_length()), (0, 1)):
        among = (places >> digit) % 2 == value
        pairs = [
            (output, torch.randn(output.shape, generator=generator, dtype=output.dtype).to(output.device).index_fill(
                axis, (~among).nonzero()[:, 0].to(output.device), 0))
            for axis, found in outputs.items() for output in found
        ]  # fmt: skip
        with differentiable():
            rows = torch.autograd.grad(
                [output for output, _ in pairs], [open_.entering, open_.mixed], [given for _, given in pairs],
                retain_graph=True,
            )  # fmt: skip
        if any(row.movedim(axis, 0)[~among].count_nonzero() for axis, row in zip((1, 2), rows, strict=True)):
            raise UnsoundModelError(
                f"Tokens of block {block.block} of {type(block.replay.model.original_model).__name__} meet outside "
                "attention, and local edges do not see it.",
                "Use edges='exact', which needs no knowledge of it.",
            )


def require_local_form(block: LocalBlock, edges: LocalEdges, queries: Iterable[int]) -> None:
    """Refuse a block of which autograd sees more than the edges allow.

    At each of `queries` one random direction is pulled back through the whole block, attention included: no token's
    row may be longer than its edge, and at the query itself the tokens' own maps must give the same row.
    """
    leaf, leaving = block.whole()
    generator = torch.Generator().manual_seed(0)
    for j in queries:
        direction = torch.randn(leaving.shape[-1], generator=generator, dtype=torch.float64).to(leaf.device)
        cotangent = torch.zeros_like(leaving)
        cotangent[0, j] = (direction / direction.norm()).to(leaving.dtype)
        rows = Derivative(leaving, leaf).pulled(cotangent)[0].double()
        chunk = block.chunk(slice(j, j + 1), own=True)
        own = Derivative(chunk.leaving, chunk.entering).pulled(cotangent[:, j : j + 1])[0, 0].double()
        here = torch.zeros(1, len(rows), dtype=torch.float64, device=leaf.device)
        here[0, j] = 1.0
        allowed, found = edges.pushed(here)[0], rows.norm(dim=-1)
        off = not (own - rows[j]).norm() <= SAME * edges.diagonal[j]  # NaN too
        if off or not (found <= allowed).all():
            raise UnsoundModelError(
                f"Block {block.block} of {type(block.replay.model.original_model).__name__} does not work as local "
                f"edges are derived: its derivative at token {j} is not what they allow.",
                "Use edges='exact', which needs no knowledge of it.",
            )
