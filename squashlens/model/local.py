"""One block token by token: what happens to each alone before and after attention, for a few tokens at a time.

A block recorded by `replay` is run again on a chunk of its tokens, with a stand-in in place of attention that is linear
in the tokens' own queries, keys and values and has the derivative that attention has in them,

    z_j = z̄_j + α_jj (w_j − w̄_j) + α_jj (w̄_j − z̄_j) s'_jj q_j·(k_j − k̄_j) + C_j (q_j − q̄_j),
    C_j = Σ_k α_jk (w_k − z_j) s'_jk k_kᵀ,

s' the derivative of the logit by the dot product. What the chunk's graph gives are then the diagonal blocks
∂v'_j/∂v_j of the whole block's Jacobian, and every token-local map on the way. Tokens meet nowhere in it, so memory
goes with the chunk. That a chunk is what the block does is checked: its queries, keys, values and output are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from einops import repeat
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Target
from squashlens.errors import UnsoundModelError
from squashlens.model.anatomy import dtype_of
from squashlens.model.attention import Attention, attended
from squashlens.model.proof import TOLERANCE
from squashlens.model.replay import Call, Replay
from squashlens.model.spans import differentiable, leaf_of

TILE = 512  # keys


@dataclass(frozen=True)
class Derivative:
    """The derivative of one tensor by another, both ways: JᵀY by the graph, JX by the graph of that."""

    output: Tensor
    entry: Tensor

    def pulled(self, cotangent: Tensor) -> Tensor:
        """Jᵀ y; `spans.vjps` takes many at a time."""
        with differentiable():
            (found,) = torch.autograd.grad(self.output, self.entry, cotangent.to(self.output.dtype), retain_graph=True)
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
            return _run(self.replay, self.block, self.to, self.replay.calls[self.block])

    def open(self) -> Chunk:
        """The graph of all tokens with attention's output as a leaf: everything that happens outside attention."""
        seen: list[tuple[Attention, Tensor, Tensor]] = []

        def mix(_: int, attention: Attention, values: Tensor) -> Tensor:
            seen.append((attention, values, leaf_of(self.mixed)))
            return seen[0][2]

        with differentiable(), self.replay.running(mix):
            leaf, leaving = _run(self.replay, self.block, self.to, self.replay.calls[self.block])
        return Chunk(slice(0, self.left.shape[1]), leaf, *seen[0], leaving)

    def chunk(self, rows: slice, *, own: bool) -> Chunk:
        """The graph of some tokens; refused where it does not leave what the block left.

        With `own` attention is the stand-in; else it is constant, which is enough for what comes before and after it.
        """
        around = statistics(self.attention, self.values, rows, self.replay.frozen) if own else None
        seen: list[tuple[Attention, Tensor, Tensor]] = []

        def mix(_: int, attention: Attention, values: Tensor) -> Tensor:
            constant = leaf_of(self.mixed[:, :, rows])
            seen.append((attention, values, constant if around is None else stand_in(around, attention, values)))
            return seen[0][2]

        call = _at(self.replay.calls[self.block], rows, self.left.shape[1])
        with differentiable(), self.replay.running(mix):
            leaf, leaving = _run(self.replay, self.block, self.to, call)
        attention, values, _ = seen[0]
        self._require_same(leaving, self.left[:, rows])
        for found, truth in (
            (attention.queries, self.attention.queries), (attention.keys, self.attention.keys), (values, self.values)
        ):  # fmt: skip
            self._require_same(found, truth[:, :, rows])
        return Chunk(rows, leaf, *seen[0], leaving)

    def chunks(self, tokens: range, size: int, *, own: bool = False) -> Iterator[Chunk]:
        """A range of tokens, `size` at a time."""
        for first in tokens[::size]:
            yield self.chunk(slice(first, min(tokens.stop, first + size)), own=own)

    def _require_same(self, found: Tensor, truth: Tensor) -> None:
        allowed = TOLERANCE[dtype_of(self.replay.model)] * truth.abs().amax(dim=-1)  # a token by its own size
        if not bool(((found.detach() - truth).abs().amax(dim=-1) <= allowed).all()):  # NaN too
            raise UnsoundModelError(
                f"Block {self.block} does something else to some of its tokens than to all of them.",
                "Use edges='analytic', which runs it whole.",
            )


def opened(replay: Replay, block: int, to: Target) -> LocalBlock:
    """Run a recorded block of one prompt once more, and keep what its attention is made of."""
    seen: list[tuple[Attention, Tensor, Tensor]] = []

    def keep(_: int, attention: Attention, values: Tensor) -> Tensor:
        seen.append((attention, values, attended(attention, values)))
        return seen[0][2]

    with torch.no_grad(), replay.running(keep):
        _, left = _run(replay, block, to, replay.calls[block])
    attention, values, mixed = seen[0]
    return LocalBlock(replay, block, to, attention.double(), values.double(), mixed, left)


def _run(replay: Replay, block: int, to: Target, call: Call) -> tuple[Tensor, Tensor]:
    """One block with what it is called with: the stream that enters as a leaf, and what leaves, as `to` has it."""
    leaf, left = replay.block(block, call)
    return leaf, replay.model.ln_final(left) if to == "y" else left


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
    """What attention amounts to for some queries, in float64: z̄, α_jj, α_jj s'_jj, and C unless weights are frozen."""

    mean: Float[Tensor, "head query value"]
    own: Float[Tensor, "head query"]
    felt: Float[Tensor, "head query"]
    sensed: Float[Tensor, "head query value dot"] | None


def statistics(
    attention: Attention, values: Float[Tensor, "1 group key value"], rows: slice, frozen: bool
) -> Statistics:
    """Sums over keys, for queries of which one group's rows are held at once."""
    (_, heads, n, dot), (_, groups, _, width) = attention.queries.shape, values.shape
    first = 0 if attention.window is None else max(0, rows.start - attention.window + 1)
    keys = slice(first, rows.stop if attention.mask is None else n)
    new = values.new_zeros(heads, rows.stop - rows.start, width)
    found = Statistics(
        new, new[..., 0].clone(), new[..., 0].clone(), None if frozen else new.new_zeros(*new.shape, dot)
    )
    here = torch.arange(rows.stop - rows.start, device=new.device)
    for group in range(groups):
        part = slice(group * heads // groups, (group + 1) * heads // groups)
        weights, slope = attention.of_group(group).weights(rows, keys, slope=not frozen)
        alpha = weights[0, 0]
        felt = alpha * attention.scale if slope is None else alpha * slope[0, 0] * attention.scale
        found.mean[part] = alpha @ values[0, group, keys]
        found.own[part] = alpha[:, here, here + rows.start - keys.start]
        found.felt[part] = felt[:, here, here + rows.start - keys.start]
        if found.sensed is not None:
            ours = values[0, group, keys], attention.keys[0, group, keys]
            _add_sensed(found.sensed[part], felt, found.mean[part], *ours)
    return found


def _add_sensed(
    to: Float[Tensor, "each query value dot"], felt: Float[Tensor, "each query key"],
    mean: Float[Tensor, "each query value"], values: Float[Tensor, "key value"], keys: Float[Tensor, "key dot"],
) -> None:  # fmt: skip
    """Σ_k felt_jk (w_k − z_j) k_kᵀ: products of matrices, of as many keys at a time as a cache holds."""
    flat = to.flatten(2).flatten(0, 1)
    for start in range(0, len(keys), TILE):
        part = slice(start, start + TILE)
        outer = (values[part, :, None] * keys[part, None]).flatten(1)
        flat.addmm_(felt[..., part].flatten(0, 1), outer)
    to.sub_(mean[..., None] * (felt @ keys)[..., None, :])


def stand_in(
    around: Statistics, attention: Attention, values: Float[Tensor, "1 group token value"]
) -> Float[Tensor, "1 head token value"]:
    """z̄ with the derivative that attention has in the tokens' own queries, keys and values, which carry the graph."""
    each, dtype = attention.queries.shape[1] // values.shape[1], values.dtype

    def spread(tensor: Tensor) -> Tensor:
        return repeat(tensor[0], "c j v -> (c e) j v", e=each)

    def change(tensor: Tensor) -> Tensor:
        return tensor - tensor.detach()

    found = around.mean.to(dtype) + around.own[..., None].to(dtype) * spread(change(values))
    if around.sensed is not None:
        away = around.felt[..., None] * (spread(values.detach()).double() - around.mean)
        asked = (attention.queries[0].detach() * spread(change(attention.keys))).sum(dim=-1, keepdim=True)
        found = found + away.to(dtype) * asked
        found = found + torch.einsum("hjcv,hjv->hjc", around.sensed.to(dtype), change(attention.queries)[0])
    return found[None]
