"""The factors of a block's local edges (`theory.local_edges`), from maps of single tokens.

No d × d matrix is stored for a token or a pair of tokens. The metric S is estimated from random directions. The
diagonal edge is the norm of all of ∂v'_j/∂v_j. Norms over d columns are certified by Lanczos; norms over one head's
coordinates are exact. For each token, only its products ∂k ∂kᵀ over one head's coordinates are stored.
"""

import itertools
from collections.abc import Callable, Iterable

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from squashlens.engine.agreement import IN_FLOAT64
from squashlens.engine.differentiating.chunks import Chunk, Derivative, LocalBlock
from squashlens.engine.differentiating.spans import differentiable, vjps
from squashlens.errors import UnsoundModelError
from squashlens.theory.bounds.local_edges import LocalEdges
from squashlens.theory.norms import away_from_singular
from squashlens.theory.probes import normals

SAMPLES = 16  # random directions times tokens, for each coordinate of a metric
DIRECTIONS = 4  # smallest number of random directions
VJP_BATCH = 16  # cotangents in a batch
FLOOR = 1e-8  # share of a metric's largest diagonal entry that is added to all of them; far above rounding error
Certify = Callable[[Callable[[Tensor], Tensor], int, int, torch.device], Float[Tensor, " operator"]]


def local_edges(block: LocalBlock, queries: range, size: int, certify: Certify, rounding: float = 0.0) -> LocalEdges:
    """The factors of one block's edges into `queries`, from `size` tokens at a time, with allowance `rounding`."""
    keys = range(queries.stop)
    root = torch.linalg.cholesky(_metric(block, queries, size))
    heads, n = block.mixed.shape[1:3]
    by_head = rearrange(root @ root.mT, "(h c) (k e) -> h k c e", h=heads, k=heads)
    own = torch.linalg.cholesky(by_head[range(heads), range(heads)])
    diagonal, scale = root.new_zeros(n), root.new_zeros(n)
    for chunk in block.chunks(queries, size, own=True):
        diagonal[chunk.rows], scale[chunk.rows] = _diagonal(chunk, certify), _scale(chunk, root, certify)
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
                left, right = torch.triu_indices(dot, dot, device=products.device)
                products = _products(chunk.attention.keys, chunk.entering, group)
                by_key[group, chunk.rows] = products[:, left, right]
    values = repeat(block.values[0], "c j v -> (c e) j v", e=heads // groups) @ own
    return LocalEdges(block.attention, values, diagonal, scale, by_value, by_key, rounding)


def _diagonal(chunk: Chunk, certify: Certify) -> Float[Tensor, " token"]:
    """The norm of ∂v'_j/∂v_j for each token."""
    own = Derivative(chunk.leaving, chunk.entering)
    _, tokens, d = chunk.entering.shape
    return certify(lambda x: own.pulled(own.pushed(x[None]))[0], tokens, d, chunk.entering.device)


def _scale(chunk: Chunk, root: Float[Tensor, "stack stack"], certify: Certify) -> Float[Tensor, " token"]:
    """The norm ‖∂F_j S^{-½}‖ for each token, where S = L Lᵀ and L is `root`."""
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
    """The products ∂x_i ∂x_iᵀ of every token i, for the coordinates x of one group."""
    width = output.shape[-1]
    cotangents = output.new_zeros(width, *output.shape)
    cotangents[:, 0, group] = torch.eye(width, device=cotangents.device)[:, None]
    rows = torch.cat([part[:, 0] for (part,) in vjps(output, [leaf], cotangents, VJP_BATCH)])
    rows = rearrange(rows, "v i d -> i v d").double()
    return rows @ rows.mT


def _metric(block: LocalBlock, queries: range, size: int) -> Float[Tensor, "stack stack"]:
    """The metric S up to a factor, from random directions at all queries, with a floor that keeps it invertible."""
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
    """Random directions, enough for `SAMPLES` per coordinate over all tokens, or all unit directions if fewer."""
    d = like.shape[-1]
    many = DIRECTIONS + SAMPLES * wanted // tokens
    if many >= d:
        every = torch.eye(d, dtype=like.dtype, device=like.device)
        return every[:, None, None].expand(d, *like.shape)
    return torch.randn(many, *like.shape, generator=generator, dtype=torch.float64).to(like)


def require_apart(block: LocalBlock, seed: int) -> None:
    """Raise for a block in which tokens interact outside attention.

    The output of attention is a leaf. Random cotangents are set at the tokens whose position has a given binary digit,
    for each digit and both of its values, so that any two tokens are separated by one of these sets. The gradient at
    all other tokens must be exactly zero: for token-local maps it is a sum of zeros, otherwise a random number.
    """
    open_ = block.open()
    n = open_.entering.shape[1]
    places, drawn = torch.arange(n), normals(seed)
    outputs = {1: [open_.leaving], 2: [open_.attention.queries, open_.attention.keys, open_.values]}
    for digit, value in itertools.product(range((n - 1).bit_length()), (0, 1)):
        among = (places >> digit) % 2 == value
        factors = [
            (output, drawn(*output.shape).to(output).index_fill(
                axis, (~among).nonzero()[:, 0].to(output.device), 0))
            for axis, found in outputs.items() for output in found
        ]  # fmt: skip
        with differentiable():
            rows = torch.autograd.grad(
                [output for output, _ in factors], [open_.entering, open_.mixed], [given for _, given in factors],
                retain_graph=True,
            )  # fmt: skip
        if any(row.movedim(axis, 0)[~among].count_nonzero() for axis, row in zip((1, 2), rows, strict=True)):
            raise UnsoundModelError(
                f"In block {block.block} of {type(block.replay.model.original_model).__name__}, tokens interact "
                "outside attention, which local edges do not cover.",
                "Use edges='exact', which works for any form.",
            )


def require_local_form(block: LocalBlock, edges: LocalEdges, queries: Iterable[int], seed: int) -> None:
    """Raise for a block whose derivative by autograd exceeds its edges.

    For each of `queries`, one random unit direction is pulled back through the whole block, including attention. No
    token's row may be longer than its edge, and at the query itself the token-local maps must give the same row.
    """
    leaf, leaving = block.whole()
    drawn = normals(seed)
    for j in queries:
        direction = drawn(leaving.shape[-1]).to(leaf.device)
        cotangent = torch.zeros_like(leaving)
        cotangent[0, j] = (direction / direction.norm()).to(leaving.dtype)
        rows = Derivative(leaving, leaf).pulled(cotangent)[0].double()
        chunk = block.chunk(slice(j, j + 1), own=True)
        own = Derivative(chunk.leaving, chunk.entering).pulled(cotangent[:, j : j + 1])[0, 0].double()
        here = torch.zeros(1, len(rows), dtype=torch.float64, device=leaf.device)
        here[0, j] = 1.0
        allowed, found = edges.pushed(here)[0], rows.norm(dim=-1)
        off = not (own - rows[j]).norm() <= IN_FLOAT64 * edges.diagonal[j]  # true for NaN too
        if off or not (found <= allowed).all():
            raise UnsoundModelError(
                f"Block {block.block} of {type(block.replay.model.original_model).__name__} does not have the form "
                f"that local edges are derived for: its derivative at token {j} exceeds them.",
                "Use edges='exact', which works for any form.",
            )
