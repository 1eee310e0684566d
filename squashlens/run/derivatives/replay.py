"""Record a forward pass and run it again block by block, so that only one block's graph is in memory.

The forward pass keeps the input of each block and the arguments of its call: n · d numbers for each block. To pull
cotangents back, each block is run again from its input and differentiated, and its graph is then freed; attention
weights are computed again in blocks of rows. This takes the memory of one block, which grows with n, and the time of
one forward pass for every batch of cotangents.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Target
from squashlens.model.applied import applied
from squashlens.model.hooking.hook import (
    Hook,
    Recipe,
    Watcher,
    expanded_hooks,
    split_frozen_attention,
    torch_hook,
)
from squashlens.model.hooking.standing import attached
from squashlens.model.premises import why_not_block_by_block
from squashlens.run.derivatives.spans import leaf_of, vjps
from squashlens.run.forward import run_to_y
from squashlens.run.run import Run
from squashlens.run.streamed import streamed, why_not_streamed


class Call(NamedTuple):
    """The stream that enters a block, its further arguments by position (`more`), and those by name (`others`)."""

    entering: Tensor
    more: tuple[Any, ...]
    others: dict[str, Any]


@dataclass(frozen=True)
class Replay:
    """What each block of a pass was called with, from v⁽source⁾ up.

    Attributes:
        hooks: hooks that are on the model when a block is run again.
        frozen: whether attention weights are held constant in derivatives.
        calls: by block.
    """

    run: Run
    hooks: tuple[Hook | Recipe, ...]
    frozen: bool
    calls: dict[int, Call]

    def gradients(
        self,
        query: int | None,
        to: Target,
        cotangents: Float[Tensor, "cotangent prompt ... out"],
        batch: int,
        by_layer: Callable[[int, Tensor], None] | None = None,
    ) -> Iterator[Float[Tensor, "cotangent prompt position in"]]:
        """Pull cotangents at one token of `to` back to the stream that enters the lowest block, `batch` at a time.

        The token is `query`; with None, cotangents are at all tokens. `by_layer(block, pulled)` gets what arrives at
        each block's input.
        """
        blocks = sorted(self.calls, reverse=True)
        # Cotangents of attention are zero at later tokens.
        reached = None if query is None else slice(0, query + 1)
        for pulled in cotangents.split(batch):
            with torch.enable_grad(), self.running(reached=reached):
                for block in blocks:
                    leaf, above = self.with_leaf(block)
                    if block == blocks[0]:
                        if to == "y":
                            above = self.run.model.ln_final(above)
                        if query is not None:
                            above = above[:, query]
                    arriving = pulled.to(above.device)
                    # One batch, and one leaf: these are the cotangents of the block below.
                    ((pulled,),) = vjps(self.run, above, [leaf], arriving, len(pulled))
                    if by_layer is not None:
                        by_layer(block, pulled)
            yield pulled

    def with_leaf(self, block: int) -> tuple[Tensor, Tensor]:
        """The stream that entered a block, as a leaf, and the one that leaves it."""
        leaves: list[Tensor] = []

        def plant(tensor: Tensor) -> Tensor:
            leaves.append(leaf_of(tensor))
            return leaves[0]

        # At the hook point, since a leaf that is given to the block would be the stream before its other hooks.
        planted = Watcher(self.run.site(block), plant)
        above = self.leaving(block, self.calls[block].entering, planted)
        return leaves[0], above

    def leaving(self, block: int, entering: Tensor, *hooks: Hook | Watcher) -> Tensor:
        """The stream that leaves a block if this one enters it, with the other arguments that were recorded."""
        call = self.calls[block]
        with attached(self.run.model, *hooks):
            output = self.run.model.blocks[block](entering, *call.more, **call.others)
        return output[0] if isinstance(output, tuple) else output

    @contextmanager
    def running(self, reached: slice | None = None) -> Iterator[None]:
        """Blocks run in the body as they were recorded."""
        with (
            applied(self.run.model, *self.hooks),
            streamed(self.run.model, frozen=self.frozen, reached=reached),
        ):
            yield


def replayable(run: Run, hooks: Sequence[Hook | Recipe]) -> bool:
    """Whether blocks can be run again one by one: no hook would see it happen twice, and none needs patterns."""
    _, others = split_frozen_attention(hooks)
    sites: list[str] = []
    for hook in expanded_hooks(run.model, others):
        sites += hook.points(run.n_blocks)
    return (
        not run.hooks()
        and why_not_streamed(run.model, sites) is None
        and why_not_block_by_block(run.model) is None
    )


def record(
    run: Run,
    ids: Int[Tensor, "prompt position"],
    hooks: Sequence[Hook | Recipe],
    source: int,
    top: int,
) -> Replay:
    """Run one forward pass, of which blocks `source` … `top` − 1 can be run again."""
    calls: dict[int, Call] = {}

    def keep(
        block: int, _module: Any, args: tuple[Any, ...], others: dict[str, Any]
    ) -> None:
        """Keep what a block is called with; some models give the stream by name."""
        others = dict(others)
        if not args:
            args = (others.pop("hidden_states"),)
        calls[block] = Call(args[0].detach(), more=args[1:], others=others)

    frozen, others = split_frozen_attention(hooks)
    replay = Replay(run, tuple(others), frozen, calls)
    with ExitStack() as stack:
        for b in range(source, top):
            block = run.model.blocks[b]
            torch_hook(stack, block, partial(keep, b), before=True, with_kwargs=True)
        with replay.running():
            run_to_y(run, ids.clone())
    return replay
