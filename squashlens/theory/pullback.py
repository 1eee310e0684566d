"""Vector–Jacobian products of attention, without the whole pattern.

The backward pass recomputes the weights, one block of rows at a time, and each block is used for every cotangent of a
batch. So many cotangents share the cost of the weights.
"""

from dataclasses import replace
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from squashlens.theory.attention import Attention, attention_output, nonzero_range

Gradients = tuple[
    Float[Tensor, "cotangent prompt head query dot"] | None,
    Float[Tensor, "cotangent prompt group key dot"] | None,
    Float[Tensor, "cotangent prompt group key value"],
]


def gradients(
    attention: Attention,
    values: Float[Tensor, "prompt group key value"],
    cotangents: Float[Tensor, "cotangent prompt head query value"],
    frozen: bool = False,
    reached: slice | None = None,
) -> Gradients:
    """Pull cotangents of `attention_output` back to queries, keys and values; with `frozen` weights only to the values.

    With ``P`` the weights: ``dw = Pᵀ dz``, ``ds = P ∘ (dz wᵀ − rowsum(P ∘ dz wᵀ))``, times the cap's derivative, then
    ``dq = scale · ds k`` and ``dk = scale · dsᵀ q``. Rows where all cotangents are zero are skipped: those
    outside `reached`, if it is given.
    """
    many, (prompts, heads, n, width) = len(cotangents), attention.queries.shape
    groups, dtype = attention.keys.shape[1], attention.dtype
    new = {"dtype": dtype, "device": values.device}
    to_values = torch.zeros(many, *values.shape, **new)
    to_queries = None if frozen else torch.zeros(many, prompts, heads, n, width, **new)
    to_keys = None if frozen else torch.zeros(many, *attention.keys.shape, **new)
    span = nonzero_range(cotangents.any(dim=-1).flatten(0, 2).any(dim=0)) if reached is None else reached
    for rows, keys in attention.blocks(copies=1 if frozen else max(1, many), rows=span):
        weights, slope = attention.weights(rows, keys, slope=not frozen)
        weights = rearrange(weights, "p c e j k -> p c (e j) k")
        size = rows.stop - rows.start
        arriving = rearrange(cotangents[:, :, :, rows].to(dtype), "g p (c e) j v -> g p c (e j) v", c=groups)
        across = rearrange(arriving, "g p c j v -> p c j (g v)")
        to_values[:, :, :, keys] += rearrange(weights.mT @ across, "p c k (g v) -> g p c k v", g=many)
        if to_queries is None or to_keys is None:
            continue
        stacked = rearrange(arriving, "g p c j v -> p c (g j) v")
        pulled = rearrange(stacked @ values[:, :, keys].to(dtype).mT, "p c (g j) k -> p c g j k", g=many)
        pulled *= weights[:, :, None]
        pulled -= weights[:, :, None] * pulled.sum(dim=-1, keepdim=True)
        if slope is not None:
            pulled *= rearrange(slope, "p c e j k -> p c 1 (e j) k")
        scaled_keys = attention.keys[:, :, None, keys].to(dtype) * attention.scale
        to_queries[:, :, :, rows] = rearrange(pulled @ scaled_keys, "p c g (e j) v -> g p (c e) j v", j=size)
        query_rows = rearrange(attention.queries[:, :, rows], "p (c e) j v -> p c 1 (e j) v", c=groups).to(dtype)
        to_keys[:, :, :, keys] += rearrange(pulled.mT @ (query_rows * attention.scale), "p c g k v -> g p c k v")
    return to_queries, to_keys, to_values


class Attended(torch.autograd.Function):
    """`attention_output` with a backward pass that recomputes the weights, one block of rows for many cotangents."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, frozen: bool,
        reached: slice | None,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(queries, keys, values)
        ctx.attention, ctx.frozen = replace(attention, queries=queries[:0], keys=keys[:0]), frozen
        ctx.reached = reached
        return attention_output(replace(attention, queries=queries, keys=keys), values)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        found: Any = PulledBack.apply(*ctx.saved_tensors, cotangents[0], ctx.attention, ctx.frozen, ctx.reached)
        return (*((None, None) if ctx.frozen else found[:2]), found[2], None, None, None)


class PulledBack(torch.autograd.Function):
    """`gradients` as a separate graph node, so that a batch of cotangents arrives as a batch and not one by one."""

    @staticmethod
    def forward(
        queries: Tensor, keys: Tensor, values: Tensor, cotangent: Tensor, attention: Attention, frozen: bool,
        reached: slice | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        found = PulledBack._batch(queries, keys, values, cotangent[None], attention, frozen, reached)
        return tuple(part[0] for part in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any, in_dims: tuple[Any, ...], queries: Tensor, keys: Tensor, values: Tensor, cotangent: Tensor,
        attention: Attention, frozen: bool, reached: slice | None,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:  # fmt: skip
        if in_dims[:3] != (None, None, None):
            raise NotImplementedError("Only cotangents can be batched, not queries, keys or values.")
        batch = cotangent.movedim(in_dims[3], 0)
        return PulledBack._batch(queries, keys, values, batch, attention, frozen, reached), (0, 0, 0)

    @staticmethod
    def _batch(
        queries: Tensor, keys: Tensor, values: Tensor, batch: Tensor, attention: Attention, frozen: bool,
        reached: slice | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        whole = replace(attention, queries=queries, keys=keys)
        found = gradients(whole, values, batch, frozen, reached)
        like = (queries, keys, values)
        none = batch.new_zeros(len(batch), 1)
        return tuple(none if f is None else f.to(x.dtype) for f, x in zip(found, like, strict=True))


def differentiable_attention(
    attention: Attention, values: Tensor, frozen: bool, reached: slice | None = None
) -> Float[Tensor, "prompt head query value"]:
    """The differentiable attention output ``Σ_k α_jk w_k``; with frozen weights it depends only on the values.

    `reached`, if given, are the positions outside of which cotangents are zero.
    """
    return Attended.apply(attention.queries, attention.keys, values, attention, frozen, reached)  # pyright: ignore
