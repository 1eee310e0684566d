"""Attention without the whole pattern: a few rows at a time, computed from queries and keys and then discarded.

Every function goes over blocks of rows ``α_j = softmax(s_j)``, where s are the model's logits: scaled, capped, masked,
with sinks. A block has whole rows, so memory grows with n, and only time with n². The backward pass recomputes the
weights, and each block is used for every cotangent of a batch.

The axes of `rearrange` are p prompt, c key group, e head of the group, j query, k key, v coordinate, g cotangent.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from squashlens._typing import by_device
from squashlens.theory.fused_attention import (
    attend_with_lse,
    or_else,
    pulled_back,
    row_times_pattern,
)

# Weights in one block of rows, over all prompts and heads: they fit into the caches of a CPU, and keep a GPU busy.
CELLS = {"cpu": 1 << 21, "cuda": 1 << 26}
LONGEST = 256  # most rows of a block
SHORTEST = 16  # fewest rows of a block
FEW = 32  # rows: each goes through fused kernels anew, while a block of rows serves all of them
LINEAR = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
]


@dataclass(frozen=True)
class Attention:
    """The attention of one block as queries and keys, with logits ``s_jk = cap · tanh(scale · q_j · k_k / cap)``.

    Queries and keys include bias, head norm and rotation. Query head h reads key group h // (heads / groups). A query
    sees its own key and the keys before it; with `window`, only the last `window` of these; with `mask`, which is added
    to the logits, the keys that it leaves. A sink is a logit of a key without a value. If fused kernels computed the
    attention, `lse` is the logsumexp of each row's logits, and rows are multiplied by it in such kernels too; `failed`
    is told why, if one fails.
    """

    queries: Float[Tensor, "prompt head query dot"]
    keys: Float[Tensor, "prompt group key dot"]
    scale: float
    cap: float | None = None
    window: int | None = None
    sinks: Float[Tensor, " head"] | None = None
    mask: Float[Tensor, "#prompt #head query key"] | None = None
    lse: Float[Tensor, "prompt head query"] | None = None
    failed: Callable[[str], None] = warnings.warn

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which weights are computed: at least float32."""
        return torch.promote_types(self.queries.dtype, torch.float32)

    def to(self, device: torch.device) -> "Attention":
        """The same attention on another device.

        On another kind of device it loses the logsumexp, with which rows are multiplied by fused kernels: these were
        chosen for the first device. Rows are then multiplied block by block.
        """
        moved: dict[str, Any] = {
            name: part.to(device)
            for name, part in vars(self).items()
            if isinstance(part, Tensor)
        }
        if device.type != self.queries.device.type:
            moved["lse"] = None
        return replace(self, **moved)

    def largest_product(self) -> float:
        """An upper bound on ‖q_j‖ ‖k_i‖ · scale; rounding of a logit is proportional to it, however small the logit."""
        longest_query = self.queries.norm(dim=-1).max().item()
        longest_key = self.keys.norm(dim=-1).max().item()
        return longest_query * longest_key * abs(self.scale)

    def visible(self, rows: slice, keys: slice) -> Bool[Tensor, "query key"]:
        """Which keys a block of rows may see in at least one prompt and head."""
        prompts, heads, _, _ = self.queries.shape
        groups = self.keys.shape[1]
        size = (rows.stop - rows.start, keys.stop - keys.start)
        # logits of 0, of which only masking makes others
        zeros = self.queries.new_zeros(prompts, groups, heads // groups, *size)
        return unmasked(self._masked(zeros, rows, keys)).flatten(0, 2).any(dim=0)

    def blocks(
        self, copies: int = 1, rows: slice | None = None
    ) -> Iterator[tuple[slice, slice]]:
        """Consecutive blocks of the given rows (all by default), each with the slice of keys that it may see.

        `copies` is the number of arrays of the weights' size that the caller holds at once for a block: with more of
        them, blocks have fewer rows.
        """
        prompts, heads, n, _ = self.queries.shape
        rows = rows or slice(0, n)
        cells = by_device(CELLS, self.queries.device) // (copies * prompts * heads)
        start = rows.start
        while start < rows.stop:
            of_first_row = self.reached(slice(start, start + 1))
            fitting = cells // (of_first_row.stop - of_first_row.start)
            size = min(LONGEST, max(SHORTEST, fitting))
            block = slice(start, min(rows.stop, start + size))
            yield block, self.reached(block)
            start = block.stop

    def weights(
        self, rows: slice, keys: slice, *, slope: bool = False
    ) -> tuple[
        Float[Tensor, "prompt group each query key"],
        Float[Tensor, "prompt group each query key"] | None,
    ]:
        """The weights α of a block of rows, and with `slope` the derivative of the cap (None without a cap)."""
        groups = self.keys.shape[1]
        # the heads of a group as further queries, so that one product with its keys serves them all
        queries = rearrange(
            self.queries[:, :, rows], "p (c e) j v -> p c (e j) v", c=groups
        ).to(self.dtype)
        products = (queries * self.scale) @ self.keys[:, :, keys].to(self.dtype).mT
        logits = rearrange(
            products, "p c (e j) k -> p c e j k", j=rows.stop - rows.start
        )
        cap_slope = None
        if self.cap is not None:  # in place, since a block fills the cache
            logits.div_(self.cap).tanh_()
            cap_slope = 1 - logits**2 if slope else None  # of cap · tanh(s / cap)
            logits.mul_(self.cap)
        logits = self._masked(logits, rows, keys)
        if self.sinks is None:
            return logits.softmax(dim=-1), cap_slope
        sink = rearrange(self.sinks.to(self.dtype), "(c e) -> 1 c e 1 1", c=groups)
        # The sink takes its part of each row, and then has no column, as it has no value.
        with_sink = torch.cat([logits, sink.expand(*logits.shape[:-1], 1)], dim=-1)
        return with_sink.softmax(dim=-1)[..., :-1], cap_slope

    def _masked(self, logits: Tensor, rows: slice, keys: slice) -> Tensor:
        """Logits of a block of rows with the mask added, or −∞ at hidden keys; they may be changed in place.

        Their axes are (prompt, group, head of the group, query, key).
        """
        if self.mask is not None:
            mask = self.mask[:, :, rows, keys].to(self.dtype)
            groups = self.keys.shape[1] if mask.shape[1] > 1 else 1  # 1: for all heads
            return logits + rearrange(mask, "p (c e) j k -> p c e j k", c=groups)
        device = logits.device
        if self.window is None:  # only the last square of the block has keys to mask
            size = rows.stop - rows.start
            is_later = torch.ones(size, size, dtype=torch.bool, device=device).triu(1)
            logits[..., rows.start - keys.start :].masked_fill_(is_later, -torch.inf)
            return logits
        query = torch.arange(rows.start, rows.stop, device=device)[:, None]
        key = torch.arange(keys.start, keys.stop, device=device)
        is_hidden = (key > query) | (query - key >= self.window)
        return logits.masked_fill_(is_hidden, -torch.inf)

    def averaged(self) -> Float[Tensor, "prompt query key"]:
        """The whole pattern A averaged over heads: n² numbers."""
        prompts, _, n, _ = self.queries.shape
        mean = torch.zeros(prompts, n, n, dtype=self.dtype, device=self.queries.device)
        for block, keys in self.blocks():
            weights, _ = self.weights(block, keys)
            mean[:, block, keys] = weights.mean(dim=(1, 2))
        return mean

    def reached(self, within: slice) -> slice:
        """The keys that queries in a slice may see."""
        if self.mask is not None:
            return slice(0, self.keys.shape[2])
        if self.window is None:
            return slice(0, within.stop)
        return slice(max(0, within.start - self.window + 1), within.stop)

    def pushed(
        self, rows: Float[Tensor, "*row prompt query"], within: slice | None = None
    ) -> Float[Tensor, "*row prompt key"]:
        """``r A`` for several rows r, A averaged over heads, in float64 on the device of the queries.

        Outside the slice `within` the rows are zero; without it they are looked at, for which a device has to wait.
        """
        flat = rows.reshape(-1, *rows.shape[-2:])
        if within is None:
            within = nonzero_range(flat.flatten(0, 1).any(dim=0))
        flat = flat.to(self.queries.device, torch.float64)
        is_long = within.stop - within.start > LONGEST
        if self.lse is not None and is_long and len(flat) <= FEW:
            with or_else(self.failed):
                product = self._pushed_by_kernel(flat, self.lse, within)
                return product.reshape(rows.shape)
        # by blocks, also where the kernels have just failed
        product = torch.zeros_like(flat)
        for block, keys in self.blocks(rows=within):
            weights, _ = self.weights(block, keys)
            # rows may be beyond float32's range
            pattern = weights.mean(dim=(1, 2)).double()
            rows_of_block = flat[..., block]
            product[..., keys] += torch.einsum("rpj,pjk->rpk", rows_of_block, pattern)
        return product.reshape(rows.shape)

    def _pushed_by_kernel(
        self,
        rows: Float[Tensor, "row prompt query"],
        lse: Float[Tensor, "prompt head query"],
        within: slice,
    ) -> Float[Tensor, "row prompt key"]:
        """``r A`` by fused kernels, one row after the other; outside `within` the rows are zero."""
        product = torch.zeros_like(rows)
        keys = self.reached(within)
        for product_row, row in zip(product, rows, strict=True):
            product_row[:, keys] = row_times_pattern(
                row[:, within],
                self.queries[:, :, within],
                self.keys[:, :, keys],
                lse[:, :, within],
                self.scale,
                self.window,
                self.cap,
                ahead=within.start - keys.start,
            )
        return product


def by_rows(
    pattern: Float[Tensor, "*many query key"] | Attention, copies: int = 1
) -> Iterator[tuple[slice, slice, Float[Tensor, "head query key"]]]:
    """Blocks of rows of one prompt's attention: the slices of rows and of keys that they may see, and their weights.

    A pattern without an axis of heads, a mean over them, has one head here. `copies` is as in `Attention.blocks`.
    """
    if isinstance(pattern, Attention):
        for rows, keys in pattern.blocks(copies):
            weights, _ = pattern.weights(rows, keys)
            of_prompt = weights[0]
            yield rows, keys, of_prompt.flatten(0, 1)  # groups × heads of each
        return
    n = pattern.shape[-1]
    for start in range(0, n, LONGEST):
        stop = min(n, start + LONGEST)  # also of the keys, since patterns are causal
        yield (
            slice(start, stop),
            slice(0, stop),
            pattern[..., start:stop, :stop].reshape(-1, stop - start, stop),
        )


def unmasked(
    scores: Float[Tensor, "*many query key"],
) -> Bool[Tensor, "*many query key"]:
    """Which keys are not masked: masked logits are −∞, or the lowest number of this or a narrower dtype."""
    lowest = max(torch.finfo(scores.dtype).min, torch.finfo(torch.float32).min)
    return scores > lowest / 2  # half: the lowest of bfloat16 is a little higher


def nonzero_range(rows: Bool[Tensor, " query"]) -> slice:
    """The slice from the first to the last row that is True; empty if none is."""
    places = rows.nonzero()
    if not len(places):
        return slice(0, 0)
    return slice(int(places[0]), int(places[-1]) + 1)


def attention_output(
    attention: Attention, values: Float[Tensor, "prompt group key value"]
) -> Float[Tensor, "prompt head query value"]:
    """The output ``Σ_k α_jk w_k`` of every head, by a fused kernel if one supports this attention, else by blocks."""
    fused = _fused_output(attention, values)
    if fused is not None:
        return fused
    shape = (*attention.queries.shape[:-1], values.shape[-1])
    output = attention.queries.new_empty(shape)
    for rows, keys in attention.blocks():
        weights, _ = attention.weights(rows, keys)
        # the rows of a group's heads together, for one product with its values
        weights = rearrange(weights, "p c e j k -> p c (e j) k")
        mixed = weights @ values[:, :, keys].to(weights.dtype)
        n = rows.stop - rows.start
        by_head = rearrange(mixed, "p c (e j) v -> p (c e) j v", j=n)
        output[:, :, rows] = by_head.to(output.dtype)
    return output


def _fused_output(
    attention: Attention, values: Float[Tensor, "prompt group key value"]
) -> Float[Tensor, "prompt head query value"] | None:
    """The output by one of PyTorch's fused kernels of linear memory; None if none supports this attention."""
    if not (attention.cap is attention.sinks is attention.window is None):
        return None
    _, heads, n, _ = attention.queries.shape
    _, groups, n_keys, _ = attention.keys.shape
    if attention.mask is None and n != n_keys:
        return None
    spread = partial(repeat, pattern="p c k v -> p (c e) k v", e=heads // groups)
    try:
        # Other kernels would silently compute the whole pattern; blocks of rows are better than that.
        with sdpa_kernel(LINEAR), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each kernel warns why it cannot be used
            return scaled_dot_product_attention(
                attention.queries,
                spread(attention.keys),
                spread(values),
                attn_mask=attention.mask,
                is_causal=attention.mask is None,
                scale=attention.scale,
            )
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None


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
    outputs: Float[Tensor, "prompt head query value"] | None = None,
) -> Gradients:
    """Pull cotangents of `attention_output` back to queries, keys and values; with `frozen` weights only to the values.

    With ``P`` the weights: ``dw = Pᵀ dz``, ``ds = P ∘ (dz wᵀ − rowsum(P ∘ dz wᵀ))``, times the cap's derivative, then
    ``dq = scale · ds k`` and ``dk = scale · dsᵀ q``. Rows where all cotangents are zero are skipped: those
    outside `reached`, if it is given. `outputs` are those of flash attention, if it computed the attention: then its
    own backward pass is used.
    """
    if outputs is not None and attention.lse is not None:
        parts = attention.queries, attention.keys, values, outputs, attention.lse
        with or_else(attention.failed):
            return pulled_back(*parts, cotangents, attention.scale)
    # by blocks, also where flash attention has just failed
    many = len(cotangents)
    groups = attention.keys.shape[1]
    dtype = attention.dtype

    def zeros(like: Tensor) -> Tensor:
        return torch.zeros(many, *like.shape, dtype=dtype, device=values.device)

    to_values = zeros(values)
    to_queries = None if frozen else zeros(attention.queries)
    to_keys = None if frozen else zeros(attention.keys)
    if reached is None:
        reached = nonzero_range(cotangents.any(dim=-1).flatten(0, 2).any(dim=0))
    copies = (
        1 if frozen else max(1, many)
    )  # ds has the size of the weights, for each cotangent
    for rows, keys in attention.blocks(copies=copies, rows=reached):
        weights, slope = attention.weights(rows, keys, slope=not frozen)
        weights = rearrange(weights, "p c e j k -> p c (e j) k")
        arriving = rearrange(
            cotangents[:, :, :, rows].to(dtype),
            "g p (c e) j v -> g p c (e j) v",
            c=groups,
        )
        # all cotangents beside each other, for one product with the weights
        side_by_side = rearrange(arriving, "g p c j v -> p c j (g v)")
        to_values[:, :, :, keys] += rearrange(
            weights.mT @ side_by_side, "p c k (g v) -> g p c k v", g=many
        )
        if to_queries is None or to_keys is None:
            continue
        to_weights = _pulled_to_weights(arriving, values[:, :, keys].to(dtype))
        to_logits = _pulled_to_logits(to_weights, weights, slope)
        scaled_keys = attention.keys[:, :, None, keys].to(dtype) * attention.scale
        to_queries[:, :, :, rows] = rearrange(
            to_logits @ scaled_keys,
            "p c g (e j) v -> g p (c e) j v",
            j=rows.stop - rows.start,
        )
        queries = rearrange(
            attention.queries[:, :, rows], "p (c e) j v -> p c 1 (e j) v", c=groups
        )
        scaled_queries = queries.to(dtype) * attention.scale
        to_keys[:, :, :, keys] += rearrange(
            to_logits.mT @ scaled_queries, "p c g k v -> g p c k v"
        )
    return to_queries, to_keys, to_values


def _pulled_to_weights(
    arriving: Float[Tensor, "cotangent prompt group row value"],
    values: Float[Tensor, "prompt group key value"],
) -> Float[Tensor, "prompt group cotangent row key"]:
    """``dP = dz wᵀ``, one product for all cotangents; a row is a query of one head of the group."""
    stacked = rearrange(arriving, "g p c j v -> p c (g j) v")
    return rearrange(stacked @ values.mT, "p c (g j) k -> p c g j k", g=len(arriving))


def _pulled_to_logits(
    to_weights: Float[Tensor, "prompt group cotangent row key"],
    weights: Float[Tensor, "prompt group row key"],
    slope: Float[Tensor, "prompt group each query key"] | None,
) -> Float[Tensor, "prompt group cotangent row key"]:
    """``ds = P ∘ (dP − rowsum(P ∘ dP))``, times the slope of the cap, in place of dP."""
    to_logits = to_weights.mul_(weights[:, :, None])
    to_logits -= weights[:, :, None] * to_logits.sum(dim=-1, keepdim=True)
    if slope is not None:
        to_logits *= rearrange(slope, "p c e j k -> p c 1 (e j) k")
    return to_logits


class Attended(torch.autograd.Function):
    """`attention_output` with a backward pass that recomputes the weights, one block of rows for many cotangents.

    If `fused`, flash attention computes both.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        attention: Attention,
        frozen: bool,
        reached: slice | None,
        fused: bool,
    ) -> Tensor:
        """The output. Queries, keys and values are kept for the backward pass, and with `fused` the output and lse."""
        output = None
        lse = None
        kept_output = None
        if fused:
            with or_else(attention.failed):
                output, lse = attend_with_lse(queries, keys, values, attention.scale)
                kept_output = output.detach()  # off the graph that holds it
        if output is None:
            output = attention_output(
                replace(attention, queries=queries, keys=keys), values
            )
        ctx.save_for_backward(queries, keys, values)
        # The backward pass gets queries and keys from what was saved for it.
        without_tensors = replace(
            attention, queries=queries[:0], keys=keys[:0], lse=lse
        )
        ctx.constant = (without_tensors, frozen, reached, kept_output)
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of all arguments of `forward`; None for those without one."""
        to_queries, to_keys, to_values = PulledBack.apply(
            *ctx.saved_tensors, cotangents[0], *ctx.constant
        )  # pyright: ignore
        _, frozen, _, _ = ctx.constant
        constants = (None, None, None, None)  # attention, frozen, reached, fused
        if frozen:
            return (None, None, to_values, *constants)
        return (to_queries, to_keys, to_values, *constants)


class PulledBack(torch.autograd.Function):
    """`gradients` as a separate graph node, so that a batch of cotangents arrives as a batch and not one by one."""

    @staticmethod
    def forward(
        queries: Tensor, keys: Tensor, values: Tensor, cotangent: Tensor, *constant: Any
    ) -> tuple[Tensor, ...]:
        """The gradients of one cotangent; `constant` is attention, frozen, reached and outputs, as in `gradients`."""
        batch = PulledBack._batch(queries, keys, values, cotangent[None], *constant)
        return tuple(gradient[0] for gradient in batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any,
        in_dims: tuple[Any, ...],
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        cotangent: Tensor,
        *constant: Any,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """The gradients of a batch of cotangents that `torch.func.vmap` brings, in one call."""
        if in_dims[:3] != (None, None, None):
            raise NotImplementedError(
                "Only cotangents can be batched, not queries, keys or values."
            )
        batch = cotangent.movedim(in_dims[3], 0)
        pulled = PulledBack._batch(queries, keys, values, batch, *constant)
        return pulled, (0, 0, 0)  # the axis of the batch in each gradient

    @staticmethod
    def _batch(
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        batch: Tensor,
        attention: Attention,
        *constant: Any,
    ) -> tuple[Tensor, ...]:
        """The gradients for a batch of cotangents, in the dtypes of what they are gradients of."""
        attention = replace(attention, queries=queries, keys=keys)
        to_queries, to_keys, to_values = gradients(attention, values, batch, *constant)
        # in place of the gradients that frozen weights do not have, since tensors must be returned
        placeholder = batch.new_zeros(len(batch), 1)
        return (
            placeholder if to_queries is None else to_queries.to(queries.dtype),
            placeholder if to_keys is None else to_keys.to(keys.dtype),
            to_values.to(values.dtype),
        )


def differentiable_attention(
    attention: Attention,
    values: Tensor,
    frozen: bool,
    reached: slice | None = None,
    fused: bool = False,
) -> Float[Tensor, "prompt head query value"]:
    """The differentiable attention output ``Σ_k α_jk w_k``; with frozen weights it depends only on the values.

    `reached`, if given, are the positions outside of which cotangents are zero. `fused` is for what `is_flash` takes.
    """
    return Attended.apply(
        attention.queries, attention.keys, values, attention, frozen, reached, fused
    )  # pyright: ignore
