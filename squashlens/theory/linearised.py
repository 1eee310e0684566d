"""Attention linearised in each token's own query, key and value; its derivative in these equals that of attention:

    z_j = z̄_j + α_jj (w_j − w̄_j) + α_jj (w̄_j − z̄_j) s'_jj q_j·(k_j − k̄_j) + C_j (q_j − q̄_j),
    C_j = Σ_k α_jk (w_k − z_j) s'_jk k_kᵀ,

Here s' is the derivative of the logit by the dot product, α are the weights, w the values, and bars mark constants.
Tokens do not interact, so memory grows with the number of tokens that are computed together.
"""

from dataclasses import dataclass

import torch
from einops import repeat
from jaxtyping import Float
from torch import Tensor

from squashlens.theory.attention import Attention

TILE = 512  # keys at a time


@dataclass(frozen=True)
class Statistics:
    """The sums over keys for some queries, in float64.

    `mean` is z̄, `self_weight` α_jj, `key_gain` α_jj s'_jj, and `query_map` C (None if the weights are frozen).
    """

    mean: Float[Tensor, "head query value"]
    self_weight: Float[Tensor, "head query"]
    key_gain: Float[Tensor, "head query"]
    query_map: Float[Tensor, "head query value dot"] | None


def statistics(
    attention: Attention, values: Float[Tensor, "1 group key value"], rows: slice, frozen: bool
) -> Statistics:
    """Compute the sums over keys for some queries, one key/value group at a time."""
    (_, heads, _, dot), (_, groups, _, width) = attention.queries.shape, values.shape
    keys = attention.reached(rows)
    new = values.new_zeros(heads, rows.stop - rows.start, width)
    found = Statistics(
        new, new[..., 0].clone(), new[..., 0].clone(), None if frozen else new.new_zeros(*new.shape, dot)
    )
    here = torch.arange(rows.stop - rows.start, device=new.device)
    for group in range(groups):
        part = slice(group * heads // groups, (group + 1) * heads // groups)
        weights, slope = attention.of_group(group).weights(rows, keys, slope=not frozen)
        alpha = weights[0, 0]
        gain = alpha * attention.scale if slope is None else alpha * slope[0, 0] * attention.scale
        found.mean[part] = alpha @ values[0, group, keys]
        found.self_weight[part] = alpha[:, here, here + rows.start - keys.start]
        found.key_gain[part] = gain[:, here, here + rows.start - keys.start]
        if found.query_map is not None:
            ours = values[0, group, keys], attention.keys[0, group, keys]
            _add_query_map(found.query_map[part], gain, found.mean[part], *ours)
    return found


def _add_query_map(
    to: Float[Tensor, "each query value dot"], gain: Float[Tensor, "each query key"],
    mean: Float[Tensor, "each query value"], values: Float[Tensor, "key value"], keys: Float[Tensor, "key dot"],
) -> None:  # fmt: skip
    """Add Σ_k gain_jk (w_k − z_j) k_kᵀ to `to`, for as many keys at a time as fit into a cache."""
    flat = to.flatten(2).flatten(0, 1)
    for start in range(0, len(keys), TILE):
        part = slice(start, start + TILE)
        outer = (values[part, :, None] * keys[part, None]).flatten(1)
        flat.addmm_(gain[..., part].flatten(0, 1), outer)
    to.sub_(mean[..., None] * (gain @ keys)[..., None, :])


def linearised_attention(
    sums: Statistics, attention: Attention, values: Float[Tensor, "1 group token value"]
) -> Float[Tensor, "1 head token value"]:
    """The attention output z̄ with attention's derivative in the tokens' own queries, keys and values."""
    each, dtype = attention.queries.shape[1] // values.shape[1], values.dtype

    def spread(tensor: Tensor) -> Tensor:
        return repeat(tensor[0], "c j v -> (c e) j v", e=each)

    def change(tensor: Tensor) -> Tensor:
        return tensor - tensor.detach()

    found = sums.mean.to(dtype) + sums.self_weight[..., None].to(dtype) * spread(change(values))
    if sums.query_map is not None:
        key_map = sums.key_gain[..., None] * (spread(values.detach()).double() - sums.mean)
        key_change = (attention.queries[0].detach() * spread(change(attention.keys))).sum(dim=-1, keepdim=True)
        found = found + key_map.to(dtype) * key_change
        found = found + torch.einsum("hjcv,hjv->hjc", sums.query_map.to(dtype), change(attention.queries)[0])
    return found[None]
