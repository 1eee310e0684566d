"""Edges of a path bound as products of factors of queries and keys, without a matrix for each token or pair.

F maps the heads' outputs z to the block's output, and S is the mean of ``∂Fᵀ∂F`` over queries. For i < j the edge is

    e_ji = ‖∂F_j S^{-½}‖ Σ_h α^h_ji ( ‖S_hh^{½} ∂w_i‖ + ‖S_hh^{½}(w_i − z_j)‖ ‖∂s_ji/∂v_i‖ ),
    ‖∂s_ji/∂v_i‖² = s'_ji² q_jᵀ (∂k_i ∂k_iᵀ) q_j,

It is an upper bound on the norm of the Jacobian block, by the triangle inequality over heads and over value and key
term, and ``‖AB‖ ≤ ‖A‖‖B‖``. S may be any positive matrix. A row of edges is computed with a row of attention weights,
and discarded after use.

If one key has nearly all the weight, ``w_i − z_j`` loses digits; its norm is raised by the largest possible loss.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.theory.attention import Attention, nonzero_range
from squashlens.theory.bounds.edge_bounds import with_rounding

LOST = 1e-13  # largest error of a difference in float64, relative to its terms


@dataclass(frozen=True)
class LocalEdges:
    """The edges of one block as factors of queries and keys, in float64; `values` are L_hᵀ w for every head."""

    attention: Attention
    values: Float[Tensor, "head key value"]
    diagonal: Float[Tensor, " query"]
    closing_factor: Float[Tensor, " query"]
    by_value: Float[Tensor, "head key"]
    by_key: Float[Tensor, "group key pair"] | None
    rounding: float = 0.0

    def pushed(self, rows: Float[Tensor, "row query"]) -> Float[Tensor, "row key"]:
        """``r E`` for several rows r."""
        device = rows.device
        rows = rows.to(self.diagonal)
        found = torch.zeros_like(rows)
        for block, keys in self.attention.blocks(rows=nonzero_range(rows.any(dim=0))):
            weights, slope = self.attention.weights(block, keys, slope=self.by_key is not None)
            total = found.new_zeros(block.stop - block.start, keys.stop - keys.start)
            for group in range(weights.shape[1]):
                cap_slope = None if slope is None else slope[0, group]
                total += self._of_group(group, block, keys, weights[0, group], cap_slope)
            places = torch.arange(len(self.diagonal), device=total.device)
            here = places[block, None] == places[keys]  # the diagonal has its own edges
            total = torch.where(here, self.diagonal[block, None], self.closing_factor[block, None] * total)
            total = with_rounding(total, self.attention.visible(block, keys), self.rounding)
            found[:, keys] += rows[:, block] @ total
        return found.to(device)

    def _of_group(
        self, group: int, block: slice, keys: slice, weights: Float[Tensor, "each query key"],
        slope: Float[Tensor, "each query key"] | None,
    ) -> Float[Tensor, "query key"]:  # fmt: skip
        """The sum over the heads of one key/value group, of weights times value and key terms."""
        each = len(weights)
        heads = slice(group * each, (group + 1) * each)
        terms = self.by_value[heads, None, keys]
        if self.by_key is not None:
            values = self.values[heads, keys]
            mean = weights @ values
            sizes = mean.square().sum(dim=-1, keepdim=True) + values.square().sum(dim=-1)[:, None]
            deviation = (sizes - 2 * mean @ values.mT).clamp_(min=0).add_(LOST * sizes).sqrt_()
            queries, products = self.attention.queries[0, heads, block], self.by_key[group, keys]
            left, right = torch.triu_indices(queries.shape[-1], queries.shape[-1], device=queries.device)
            query_products = queries[..., left] * queries[..., right] * torch.where(left == right, 1.0, 2.0)
            sizes = queries.square().sum(dim=-1, keepdim=True) * products[:, left == right].sum(dim=-1)
            key_slope = (query_products @ products.mT).clamp_(min=0).add_(LOST * sizes).sqrt_() * self.attention.scale
            terms = terms + deviation * (key_slope if slope is None else key_slope * slope)
        return (weights * terms).sum(dim=0)
