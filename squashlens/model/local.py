"""One block token by token: what happens to each alone before and after attention, for a few tokens at a time.

A block recorded by `replay` is run again on a chunk of its tokens, with a stand-in in place of attention that is linear
in the tokens' own queries, keys and values and has the derivative that attention has in them,

    z_j = z̄_j + α_jj (w_j − w̄_j) + α_jj (w̄_j − z̄_j) s'_jj q_j·(k_j − k̄_j) + C_j (q_j − q̄_j),
    C_j = Σ_k α_jk (w_k − z_j) s'_jk k_kᵀ,

s' the derivative of the logit by the dot product. What the chunk's graph gives are then the diagonal blocks
∂v'_j/∂v_j of the whole block's Jacobian, and every token-local map on the way. Tokens meet nowhere in it, so that memory
goes with the chunk. That the chunk is what the block does is checked against the recorded stream.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Target
from squashlens.errors import UnsoundModelError
from squashlens.model.anatomy import dtype_of, residual_site
from squashlens.model.attention import Attention, attended
from squashlens.model.hooks import Hook, hung
from squashlens.model.proof import TOLERANCE
from squashlens.model.replay import Replay
from squashlens.model.spans import differentiable, leaf_of


@dataclass(frozen=True)
class Derivative:
    """The derivative of one tensor by another, both ways: JᵀY by the graph, JX by the graph of that."""

    output: Tensor
    entry: Tensor

    def pulled(self, cotangent: Tensor) -> Tensor:
        """Jᵀ y, many products at once if the cotangent has a leading axis more than the output."""
        many = cotangent.ndim > self.output.ndim
        with differentiable():
            (found,) = torch.autograd.grad(
                self.output, self.entry, cotangent.to(self.output.dtype), retain_graph=True, is_grads_batched=many
            )
        return found

    def pushed(self, tangent: Tensor) -> Tensor:
        """J x."""
        dual, back = self._transposed
        with differentiable():
            (found,) = torch.autograd.grad(back, dual, tangent.to(back.dtype), retain_graph=True)
        return found

    @cached_property
    def _transposed(self) -> tuple[Tensor, Tensor]:
        with differentiable():
            dual = torch.zeros_like(self.output).requires_grad_()
            (back,) = torch.autograd.grad(self.output, self.entry, dual, create_graph=True)
        return dual, back


@dataclass(frozen=True)
class Chunk:
    """The graph of a few tokens of one block: the stream, what enters attention, what it gives, the block's output."""

    rows: slice
    entering: Float[Tensor, "1 token in"]
    attention: Attention
    values: Float[Tensor, "1 group token value"]
    mixed: Float[Tensor, "1 head token value"]
    leaving: Float[Tensor, "1 token out"]


@dataclass(frozen=True)
class LocalBlock:
    """A recorded block of one prompt, ending at `to`: its attention, and its tokens' own maps by the chunk."""

    replay: Replay
    block: int
    to: Target
    attention: Attention
    values: Float[Tensor, "1 group token value"]
    mixed: Float[Tensor, "1 head token value"]
    left: Float[Tensor, "1 token out"]

    def whole(self) -> tuple[Tensor, Tensor]:
        """All tokens with attention as it is, to be differentiated: the stream as a leaf, and what the block leaves."""
        with differentiable(), self.replay.running():
            return self._run(self.replay.calls[self.block])

    def chunk(self, rows: slice, *, own: bool) -> Chunk:
        """The graph of some tokens; refused where it does not leave what the block left.

        With `own` attention is the stand-in; else it is constant, which is enough for what comes before and after it.
        """
        around = statistics(self.attention, self.values, rows, self.replay.frozen) if own else None
        seen: list[tuple[Attention, Tensor, Tensor]] = []

        def mix(_: int, attention: Attention, values: Tensor) -> Tensor:
            if around is None:
                found = leaf_of(self.mixed[:, :, rows])
            else:
                ours = replace(self.attention, queries=self.attention.queries[:, :, rows])
                found = stand_in(around, attention, values, ours, self.values[:, :, rows])
            seen.append((attention, values, found))
            return found

        with differentiable(), self.replay.running(mix):
            leaf, leaving = self._run(_at(self.replay.calls[self.block], rows, self.left.shape[1]))
        truth = self.left[:, rows]
        allowed = TOLERANCE[dtype_of(self.replay.model)] * max(1.0, truth.abs().max().item())
        if not (leaving.detach() - truth).abs().max().item() <= allowed:  # NaN too
            raise UnsoundModelError(
                f"Block {self.block} does something else to some of its tokens than to all of them.",
                "Use edges='analytic', which runs it whole.",
            )
        return Chunk(rows, leaf, *seen[0], leaving)

    def chunks(self, tokens: range, size: int, *, own: bool = False) -> Iterator[Chunk]:
        """A range of tokens, `size` at a time."""
        for first in tokens[::size]:
            yield self.chunk(slice(first, min(tokens.stop, first + size)), own=own)

    def _run(self, call: Any) -> tuple[Tensor, Tensor]:
        entering, more, others = call
        model, leaves = self.replay.model, []

        def plant(tensor: Tensor) -> Tensor:
            leaves.append(leaf_of(tensor))
            return leaves[0]

        with hung(model, Hook("leaf", residual_site(self.block, model), plant)):
            left = model.blocks[self.block](entering, *more, **others)
            left = left[0] if isinstance(left, tuple) else left
            return leaves[0], model.ln_final(left) if self.to == "y" else left



def opened(replay: Replay, block: int, to: Target) -> LocalBlock:
    """Run a recorded block of one prompt once more, and keep what its attention is made of."""
    seen: list[tuple[Attention, Tensor, Tensor]] = []

    def keep(_: int, attention: Attention, values: Tensor) -> Tensor:
        seen.append((attention, values, attended(attention, values)))
        return seen[0][2]

    with torch.no_grad(), replay.running(keep):
        entering, more, others = replay.calls[block]
        left = replay.model.blocks[block](entering, *more, **others)
        left = left[0] if isinstance(left, tuple) else left
        left = replay.model.ln_final(left) if to == "y" else left
    attention, values, mixed = seen[0]
    return LocalBlock(replay, block, to, attention.double(), values.double(), mixed, left)


def _at(call: Any, rows: slice, n: int) -> Any:
    """What a block is called with, for some of its tokens: positions are the second axis, of vectors the only one."""
    if isinstance(call, Tensor):
        if call.ndim > 1 and call.shape[1] == n:
            return call[:, rows]
        return call[rows] if call.ndim == 1 and len(call) == n else call
    if isinstance(call, list | tuple):
        return type(call)(_at(part, rows, n) for part in call)
    return {name: _at(part, rows, n) for name, part in call.items()} if isinstance(call, dict) else call


@dataclass(frozen=True)
class Statistics:
    """What attention amounts to for some queries, in float64: z̄, α_jj, s'_jj, and C unless the weights are frozen."""

    mean: Float[Tensor, "head query value"]
    own: Float[Tensor, "head query"]
    slope: Float[Tensor, "head query"]
    sensed: Float[Tensor, "head query value dot"] | None


def statistics(
    attention: Attention, values: Float[Tensor, "1 group key value"], rows: slice, frozen: bool
) -> Statistics:
    """Sums over keys, block of rows by block of rows; the largest buffer holds key × value × dot of one group."""
    heads, groups = attention.queries.shape[1], values.shape[1]
    found: list[tuple[Tensor, ...]] = []
    for block, keys in attention.blocks(rows=rows):
        weights, slope = attention.weights(block, keys, slope=not frozen)
        mean = torch.einsum("cejk,ckv->cejv", weights[0], values[0, :, keys])
        here = torch.arange(block.stop - block.start, device=mean.device)
        own = weights[0][..., here, here + block.start - keys.start]
        bend = torch.ones_like(own) if slope is None else slope[0][..., here, here + block.start - keys.start]
        parts = [mean, own, attention.scale * bend]
        if not frozen:
            felt = weights[0] * attention.scale if slope is None else weights[0] * slope[0] * attention.scale
            parts.append(torch.stack([
                _covariance(felt[c], mean[c], values[0, c, keys], attention.keys[0, c, keys]) for c in range(groups)
            ]))  # fmt: skip
        found.append(tuple(rearrange(part, "c e j ... -> (c e) j ...", c=groups, e=heads // groups) for part in parts))
    joined = [torch.cat(parts, dim=1) for parts in zip(*found, strict=True)]
    return Statistics(joined[0], joined[1], joined[2], None if frozen else joined[3])


def _covariance(
    felt: Float[Tensor, "each query key"], mean: Float[Tensor, "each query value"],
    values: Float[Tensor, "key value"], keys: Float[Tensor, "key dot"],
) -> Float[Tensor, "each query value dot"]:  # fmt: skip
    """Σ_k felt_jk (w_k − z_j) k_kᵀ, as one product of matrices."""
    outer = (values[:, :, None] * keys[:, None]).flatten(1)
    whole = (felt.flatten(0, 1) @ outer).view(*felt.shape[:2], values.shape[1], keys.shape[1])
    return whole - mean[..., None] * (felt @ keys)[..., None, :]


def stand_in(
    around: Statistics, attention: Attention, values: Float[Tensor, "1 group token value"],
    ours: Attention, theirs: Float[Tensor, "1 group token value"],
) -> Float[Tensor, "1 head token value"]:  # fmt: skip
    """z̄ with the derivative that attention has in the tokens' own queries, keys and values.

    `attention` and `values` carry the graph, `ours` and `theirs` are the same numbers in float64.
    """
    each = ours.queries.shape[1] // theirs.shape[1]

    def change(tensor: Tensor) -> Tensor:
        moved = (tensor - tensor.detach()).double()[0]
        return repeat(moved, "c j v -> (c e) j v", e=len(around.own) // len(moved))

    found = around.mean + around.own[..., None] * change(values)
    if around.sensed is not None:
        by_key = (ours.queries[0] * change(attention.keys)).sum(dim=-1)
        away = repeat(theirs[0], "c j v -> (c e) j v", e=each) - around.mean
        found = found + (around.own * around.slope * by_key)[..., None] * away
        found = found + torch.einsum("hjcv,hjv->hjc", around.sensed, change(attention.queries))
    return found[None].to(values.dtype)
