"""The token-local maps of one block, before and after attention, for a few tokens at a time.

A block recorded by `replay` is run again on a chunk of its tokens, with the stand-in of `theory.linearised` in place of
attention. The stand-in is linear in the tokens' own queries, keys and values, and has the same derivative in them as
attention. The chunk's graph therefore gives the diagonal blocks ∂v'_j/∂v_j of the whole block's Jacobian, and all
token-local maps on the way. It does not mix tokens, so it needs memory in proportion to the chunk. The queries, keys,
values and output of each chunk are compared with those of the block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Target
from squashlens.engine.agreement import agree
from squashlens.engine.anatomy import dtype_of
from squashlens.engine.differentiating.replay import Call, Replay
from squashlens.engine.differentiating.spans import differentiable, leaf_of
from squashlens.errors import UnsoundModelError
from squashlens.theory.attention import Attention, attention_output
from squashlens.theory.linearised import linearised_attention, statistics


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
        call = self.replay.calls[self.block]
        with differentiable():
            mixed = leaf_of(self.mixed)
            leaf, leaving, attention, values, _ = _attended(self.replay, self.block, self.to, call, lambda *_: mixed)
        return Chunk(slice(0, self.left.shape[1]), leaf, attention, values, mixed, leaving)

    def chunk(self, rows: slice, *, own: bool) -> Chunk:
        """The graph of some tokens, with a stand-in for attention (`own`) or a constant; it must give the block's."""
        around = statistics(self.attention, self.values, rows, self.replay.frozen) if own else None

        def mix(attention: Attention, values: Tensor) -> Tensor:
            constant = leaf_of(self.mixed[:, :, rows])
            return constant if around is None else linearised_attention(around, attention, values)

        call = _at(self.replay.calls[self.block], rows, self.left.shape[1])
        with differentiable():
            leaf, leaving, attention, values, mixed = _attended(self.replay, self.block, self.to, call, mix)
        self._require_same(leaving, self.left[:, rows])
        for found, truth in (
            (attention.queries, self.attention.queries), (attention.keys, self.attention.keys), (values, self.values)
        ):  # fmt: skip
            self._require_same(found, truth[:, :, rows])
        return Chunk(rows, leaf, attention, values, mixed, leaving)

    def chunks(self, tokens: range, size: int, *, own: bool = False) -> Iterator[Chunk]:
        """A range of tokens, `size` at a time."""
        for first in tokens[::size]:
            yield self.chunk(slice(first, min(tokens.stop, first + size)), own=own)

    def _require_same(self, found: Tensor, truth: Tensor) -> None:
        if not agree(found, truth, dtype_of(self.replay.model), dim=-1):  # each token by its own size
            raise UnsoundModelError(
                f"Block {self.block} gives a different result when it runs on part of its tokens.",
                "Use edges='analytic', which runs the whole block.",
            )


def local_block(replay: Replay, block: int, to: Target) -> LocalBlock:
    """Run a recorded block of one prompt once more, and keep what its attention is made of."""
    with torch.no_grad():
        _, left, attention, values, mixed = _attended(replay, block, to, replay.calls[block], attention_output)
    return LocalBlock(replay, block, to, attention.double(), values.double(), mixed, left)


def _attended(
    replay: Replay, block: int, to: Target, call: Call, mix: Callable[[Attention, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Attention, Tensor, Tensor]:
    """Run one block with `mix` in place of its attention: what enters and leaves it, and what `mix` got and gave."""
    seen: list[tuple[Attention, Tensor, Tensor]] = []

    def attend(_: int, attention: Attention, values: Tensor) -> Tensor:
        seen.append((attention, values, mix(attention, values)))
        return seen[0][2]

    with replay.running(attend):
        leaf, left = _run(replay, block, to, call)
    return leaf, left, *seen[0]


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
