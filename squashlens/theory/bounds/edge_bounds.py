"""Upper bounds on how much token i can change token j within one block: the edges of a certified path bound.

A block has values w, logits s, patterns α, and a map F from the heads' outputs z to the block's output. The chain rule
gives

    ∂v'_j/∂v_i = δ_ji ∂F/∂v_j + ∂F/∂z_j ∂z_j/∂v_i,
    ∂z_j/∂v_i  = α_ji ∂w_i/∂v_i  +  α_ji (w_i − z_j) (∂s_ji/∂v_i)ᵀ  +  δ_ji Σ_k α_jk (w_k − z_j) (∂s_jk/∂v_j)ᵀ
                 value              key                               query

for each head. An edge is an upper bound on the spectral norm of this Jacobian block. Three kinds use the same maps:

* `exact` is the norm itself.
* `attention` separates F: ``‖∂F/∂z_j S^{-½}‖ ‖S^{½} ∂z_j/∂v_i‖`` for any positive matrix S. Here S is the mean over
  queries of ``∂Fᵀ∂F``, so the first factor is 1 if F is the same for all queries.
* `analytic` needs no matrix for a pair of tokens: the key term has rank one in each head and a closed-form norm, and
  the value term is the least of three bounds (`value_norms`).

The n diagonal edges are exact in all three kinds. If softmax saturates, ``w_i − z_j`` cancels, so it is computed
relative to the key with the largest weight. An attention sink is a key without a value; the other weights then sum to
less than 1.

Source: Barbero et al. 2024, Theorem 5.1; these are its constants for a real model. Derivation in docs/certificates.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens.theory.norms import away_from_singular, spectral_norms

ROUNDING = 1e-6  # largest error in the sum of a row of float32 attention weights


def deviations(
    pattern: Float[Tensor, "head query key"], values: Float[Tensor, "key head value"]
) -> Float[Tensor, "head query key value"]:
    """w_i − z_j for every head, as ``(w_i − w_top) − Σ_k α_jk (w_k − w_top)``, where top has the largest α_jk."""
    by_head = rearrange(values, "key head value -> head key value")
    top = pattern.argmax(dim=-1)
    heads = torch.arange(len(pattern), device=pattern.device)[:, None]
    from_top = by_head[:, None] - by_head[heads, top][:, :, None]
    deviation = from_top - einsum(pattern, from_top, "h j k, h j k c -> h j c")[:, :, None]
    # A weight that is missing from a row by more than rounding belongs to a sink, which has no value.
    left = 1 - pattern.sum(dim=-1)
    left = torch.where(left.abs() > ROUNDING, left, 0.0)
    return deviation + left[:, :, None, None] * by_head[heads, top][:, :, None]


@dataclass(frozen=True)
class Maps:
    """The token-local derivatives of one block in float64, from which its edges are computed.

    ``key_rows(j)`` gives ∂s_ji/∂v_i for every head and i ≤ j; `query_rows` is the whole query term. Both are None if
    attention is frozen.
    """

    direct: Float[Tensor, "query out in"]
    closing: Float[Tensor, "query out head value"]
    value_map: Float[Tensor, "key head value in"]
    pattern: Float[Tensor, "head query key"]
    values: Float[Tensor, "key head value"]
    key_rows: Callable[[int], Float[Tensor, "head key in"]] | None = None
    query_rows: Float[Tensor, "query head value in"] | None = None
    wanted: Sequence[int] | None = None  # queries whose edges are needed; None: all

    @cached_property
    def metric(self) -> Float[Tensor, "stack stack"]:
        """S, the mean of ∂Fᵀ∂F over the wanted queries, with a small diagonal added so that it can be inverted."""
        rows = slice(None) if self.wanted is None else list(self.wanted)
        closing = rearrange(self.closing[rows], "j out h c -> (j out) (h c)")
        return away_from_singular(closing.mT @ closing / len(self.closing[rows]), 1e-12)

    @cached_property
    def root(self) -> Float[Tensor, "stack stack"]:
        """The Cholesky factor L with ``S = L Lᵀ``, used in place of S^{½}: ``‖S^{½} X‖ = ‖Lᵀ X‖``."""
        return torch.linalg.cholesky(self.metric)

    @cached_property
    def closing_factor(self) -> Float[Tensor, " query"]:
        """‖∂F/∂z_j S^{-½}‖ for every wanted query, from the largest generalised eigenvalue of ``∂Fᵀ∂F`` and S.

        It is infinite for the others, so that no edge into them can be too small.
        """
        rows = slice(None) if self.wanted is None else list(self.wanted)
        closing = rearrange(self.closing[rows], "j out h c -> j out (h c)")
        found = closing.new_full((len(self.closing),), torch.inf)
        found[rows] = spectral_norms(torch.linalg.solve_triangular(self.root, closing.mT, upper=False))
        return found

    def transfer(self, query: int, keys: slice) -> Float[Tensor, "seen stack in"]:
        """∂z_j/∂v_i for one j and several i, with the heads stacked."""
        alpha = self.pattern[:, query, keys].T
        moved = alpha[:, :, None, None] * self.value_map[keys]
        if self.key_rows is not None and self.query_rows is not None:
            weighted = alpha[:, :, None] * self.deviation(query)[keys]
            moved = moved + einsum(weighted, self.key_rows(query)[:, keys].double(), "i h c, h i d -> i h c d")
            here = torch.arange(self.pattern.shape[-1], device=alpha.device)[keys] == query
            moved[here] += self.query_rows[query]
        return rearrange(moved, "i h c d -> i (h c) d")

    def deviation(self, query: int) -> Float[Tensor, "key head value"]:
        """w_i − z_j for one j."""
        return rearrange(deviations(self.pattern[:, query : query + 1], self.values)[:, 0], "h i c -> i h c")

    def blocks(self, query: int, keys: slice) -> Float[Tensor, "seen out in"]:
        """The Jacobian blocks ∂v'_j/∂v_i for one j and several i."""
        closing = rearrange(self.closing[query], "out h c -> out (h c)")
        found = closing @ self.transfer(query, keys)
        here = torch.arange(self.pattern.shape[-1], device=found.device)[keys] == query
        found[here] += self.direct[query]
        return found

    def pulled(
        self, queries: Sequence[int], directions: Float[Tensor, "direction row out"]
    ) -> Float[Tensor, "direction key in"]:
        """``Σ_j u_jᵀ ∂v'_j/∂v_i`` over some queries j, for every i and several u, each with a row for each j."""
        here = torch.tensor(queries, device=self.pattern.device)
        heads = self.pattern.shape[0]
        by_query = rearrange(directions, "u j out -> j u out")
        closed = by_query @ rearrange(self.closing[here], "j out h c -> j out (h c)")
        closed = rearrange(closed, "j u (h c) -> u h j c", h=heads)
        mixed = rearrange(self.pattern[:, here].mT @ closed, "u h i c -> i u (h c)")
        found = rearrange(mixed @ rearrange(self.value_map, "i h c d -> i (h c) d"), "i u d -> u i d")
        own = by_query @ self.direct[here]
        if self.key_rows is not None and self.query_rows is not None:
            for place, j in enumerate(queries):
                slopes = einsum(closed[:, :, place], self.deviation(j), "u h c, i h c -> u h i") * self.pattern[:, j]
                found += einsum(slopes, self.key_rows(j).double(), "u h i, h i d -> u i d")
            queried = rearrange(self.query_rows[here], "j h c d -> j (h c) d")
            own = own + rearrange(closed, "u h j c -> j u (h c)") @ queried
        return found.index_add(1, here, rearrange(own, "j u d -> u j d"))


Norms = Callable[[Float[Tensor, "many out in"]], Float[Tensor, " many"]]


def with_rounding(
    edges: Float[Tensor, "row key"], reached: Bool[Tensor, "row key"], rounding: float | Float[Tensor, "#row #key"]
) -> Float[Tensor, "row key"]:
    """Raise edges by the rounding error of their computation, so that they bound the exact block.

    The error of an edge is at most `rounding` times the largest edge of its row. This also covers cancellation and
    underflow: a weight that underflows to 0 gets this edge. Where no path exists, an edge of 0 stays 0.
    """
    lost = rounding * edges.amax(dim=-1, keepdim=True)
    return edges * (1 + rounding) + torch.where(reached | (edges > 0), lost, 0.0)


def exact_edges(maps: Maps, query: int, norms: Norms) -> Float[Tensor, " seen"]:
    """The exact edges ‖∂v'_j/∂v_i‖ for i ≤ j."""
    return norms(maps.blocks(query, slice(0, query + 1)))


def attention_edges(maps: Maps, query: int, norms: Norms) -> Float[Tensor, " seen"]:
    """The exact norm of attention's part, times a bound on the rest of the block; the diagonal is exact."""
    before = norms(maps.root.mT @ maps.transfer(query, slice(0, query)))
    return torch.cat([maps.closing_factor[query] * before, norms(maps.blocks(query, slice(query, query + 1)))])


def analytic_edges(maps: Maps, queries: Sequence[int], norms: Norms) -> Float[Tensor, "query key"]:
    """The sum of value and key term for i < j in the rows of `queries`, 0 in other rows, and the exact diagonal."""
    found, value = torch.zeros_like(maps.pattern[0]), value_norms(maps)
    for j in queries:
        found[j, :j] = value[j, :j]
        if maps.key_rows is not None:
            found[j, :j] += key_norms(maps, j, maps.key_rows(j))[:j]
    here = torch.tensor(queries, device=found.device)
    found[here, here] = norms(torch.cat([maps.blocks(j, slice(j, j + 1)) for j in queries]))
    return found


def key_norms(maps: Maps, query: int, rows: Float[Tensor, "head key in"]) -> Float[Tensor, " key"]:
    """The exact norm ‖Σ_h a_h g_hᵀ‖ from H × H Gram matrices; ``a_h = α ∂F/∂z^h (w_i − z_j)``, ``g_h = ∂s_ji/∂v_i``."""
    alpha = maps.pattern[:, query].T
    pushed = einsum(maps.closing[query], maps.deviation(query), "out h c, i h c -> i h out") * alpha[:, :, None]
    pulled = rearrange(rows.double(), "h i d -> i h d")
    # ‖AᵀG‖² is the largest eigenvalue of √(GGᵀ) AAᵀ √(GGᵀ), which is H × H
    size, basis = torch.linalg.eigh(pulled @ pulled.mT)
    root = basis * size.clamp(min=0).sqrt()[:, None]
    return spectral_norms(root.mT @ pushed)


def value_norms(maps: Maps) -> Float[Tensor, "query key"]:
    """The least of three bounds on ``‖∂F/∂z_j Σ_h α_ji ∂w_i/∂v_i‖`` for every pair; none needs the matrix of a pair.

    1. Head by head: ``Σ_h α_h ‖∂F_h S_hh^{-½}‖ ‖S_hh^{½} ∂w_h‖``.
    2. All heads together: ``‖∂F S^{-½}‖ √(Σ_hk α_h α_k N_hk)`` with ``N_hk = ‖∂w_hᵀ S_hk ∂w_k‖``.
    3. The Frobenius norm, a sum of traces over pairs of heads.
    """
    heads, alpha = maps.pattern.shape[0], maps.pattern
    closing, value_map, metric = maps.closing, maps.value_map, maps.metric
    blocks = rearrange(metric, "(h c) (k e) -> h k c e", h=heads, k=heads)
    own = torch.linalg.cholesky(blocks[torch.arange(heads), torch.arange(heads)])
    before = spectral_norms(torch.linalg.solve_triangular(own, rearrange(closing, "j o h c -> j h c o"), upper=False))
    values_factor = spectral_norms(own.mT @ value_map)
    by_head = einsum(alpha, before, values_factor, "h j i, j h, i h -> j i")
    # ‖Jᵀ S K‖ = ‖Lᵀ S M‖ for J Jᵀ = L Lᵀ and K Kᵀ = M Mᵀ, value × value matrices
    size, basis = torch.linalg.eigh(value_map @ value_map.mT)
    root = basis * size.clamp(min=0).sqrt()[..., None, :]
    squared = torch.zeros_like(alpha[0])
    frobenius = torch.zeros_like(alpha[0])
    for h in range(heads):
        # Products with all later heads at once: the derivatives of a head alone lie apart in memory.
        inner = closing[:, :, h].mT @ rearrange(closing[:, :, h:], "j o k e -> j o (k e)")
        outer = value_map[:, h] @ rearrange(value_map[:, h:], "i k e d -> i (k e) d").mT
        inner = rearrange(inner, "j c (k e) -> k j (c e)", k=heads - h)
        outer = rearrange(outer, "i c (k e) -> k (c e) i", k=heads - h)
        for k in range(h, heads):
            twice = (1 if h == k else 2) * alpha[h] * alpha[k]
            crossed = spectral_norms(root[:, h].mT @ blocks[h, k] @ root[:, k])
            squared += twice * crossed
            frobenius += twice * (inner[k - h] @ outer[k - h])
    together = maps.closing_factor[:, None] * squared.clamp(min=0).sqrt()
    # Traces have signs, so heads can cancel up to rounding. The rounding is proportional to the terms without signs,
    # which are at most products of Frobenius norms: ε for each of the d + n successive sums.
    ahead, after = torch.linalg.matrix_norm(closing.transpose(1, 2)), torch.linalg.matrix_norm(value_map)
    unsigned = einsum(alpha, ahead, after, "h j i, j h, i h -> j i").square()
    sums = sum(closing.shape[1:]) + value_map.shape[-1] + alpha.shape[-1]
    frobenius = frobenius.clamp(min=0) + sums * torch.finfo(frobenius.dtype).eps * unsigned
    return torch.minimum(torch.minimum(by_head, together), frobenius.sqrt())
