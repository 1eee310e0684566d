"""Replace the residual stream at some positions by that of other prompts: by their mean, or by one drawn at random.

Setting a residual stream to zero removes its content, and also creates a state that no prompt produces. The mean over
reference prompts keeps what they have in common at that position. A drawn prompt keeps the state of a real prompt.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bos, Bridge
from squashlens.checks.arguments import validated
from squashlens.engine.anatomy import n_blocks
from squashlens.engine.canonical import digest
from squashlens.engine.hooking.hook import Hook, Recipe, without_ambient
from squashlens.engine.running.forward import forward
from squashlens.engine.text.tokens import Prompts, tokenize
from squashlens.errors import InputError
from squashlens.hooks.interventions import STREAMS, Blocks, listed, positions_of


@dataclass(frozen=True)
class StandIn:
    """Replacement residual streams: `rows[b, k]` for the token at `places[k]` at the input of block b."""

    name: str
    places: tuple[int, ...]
    rows: Float[Tensor, "block place d"]

    def hooks(self, blocks: Blocks = None, tokens: int | None = None) -> list[Hook]:
        """One hook for each of `blocks`; if `tokens` is given, only for the first `tokens` positions."""
        # This raises an error for blocks that the model does not have.
        Hook(self.name, STREAMS, lambda stream: stream, blocks).points(len(self.rows))
        return [
            Hook(self.name, STREAMS, self._edit(block, tokens), (block,), positional=True)
            for block in (range(len(self.rows)) if blocks is None else blocks)
        ]

    def _edit(self, block: int, tokens: int | None) -> Callable[[Tensor], Tensor]:
        def edit(stream: Tensor) -> Tensor:
            end = stream.shape[1] if tokens is None else min(tokens, stream.shape[1])
            here = [k for k, place in enumerate(self.places) if place < end]
            index = torch.tensor([self.places[k] for k in here], dtype=torch.long, device=stream.device)
            rows = self.rows[block, here].to(stream)
            return stream.index_copy(1, index, rows.expand(len(stream), -1, -1))

        return edit


@validated
def mean_residual(positions: Iterable[int], source: Prompts, blocks: Blocks = None, *, bos: Bos = "family") -> Recipe:
    """Replace the residual stream at `positions` by its mean over the prompts of `source`.

    It is replaced at the input of each of `blocks`. The inserted mean counts as a constant in derivatives.

    Args:
        positions: positions counted from 0.
        source: texts or token ids, all of the same number of tokens. They are run without any hooks each time this
            hook is applied.
        blocks: blocks to act in; all by default.
        bos: how the prompts of `source` get their BOS token, as in `squashlens.prompts.tokenize`.

    Returns:
        A recipe for hooks, for `squashlens.applied`.

    Raises:
        InputError: if the prompts of `source` lack one of the positions.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> prompt = "What is the last digit in this sequence? 4,7 ="
    >>> others = [prompt.replace("4", digit) for digit in "0123456789"]
    >>> with sl.applied(model, sl.hooks.mean_residual(sl.hooks.find_positions(model, prompt, "4"), others)):
    ...     str(sl.top_tokens(model, prompt)["token"].values[0])
    '7'
    """
    places = positions_of(positions, "mean_residual")
    return Recipe(
        f"mean_residual{listed(places)}",
        lambda model: mean_of(model, tokenize(model, source, bos=bos), places).hooks(blocks),
    )


@validated
def resample_residual(
    positions: Iterable[int], source: Prompts, blocks: Blocks = None, *, seed: int, bos: Bos = "family"
) -> Recipe:
    """Replace the residual stream at `positions` by that of one prompt drawn from `source`, in each of `blocks`.

    The same prompt is used for all positions and blocks, so that the inserted activations belong together.

    Args:
        positions: positions counted from 0.
        source: texts or token ids, as in `mean_residual`.
        blocks: blocks to act in; all by default.
        seed: random seed of the draw.
        bos: how the prompts of `source` get their BOS token, as in `squashlens.prompts.tokenize`.

    Returns:
        A recipe for hooks, for `squashlens.applied`.

    Raises:
        InputError: if the drawn prompt lacks one of the positions.
    """
    places = positions_of(positions, "resample_residual")
    return Recipe(
        f"resample_residual{listed(places)}",
        lambda model: one_of_them(model, tokenize(model, source, bos=bos), places, seed).hooks(blocks),
    )


def mean_of(model: Bridge, reference: Int[Tensor, "prompt position"], places: tuple[int, ...]) -> StandIn:
    """The mean over prompts of their residual streams at `places`."""
    name = f"mean_residual{listed(places)} of {digest(reference.tolist())}"
    return StandIn(name, places, _streams(model, reference, places).mean(dim=1))


def one_of_them(
    model: Bridge, reference: Int[Tensor, "prompt position"], places: tuple[int, ...], seed: int
) -> StandIn:
    """The residual streams at `places` of one prompt, drawn with `seed`."""
    number = Random(f"resample {seed}").randrange(len(reference))
    name = f"resample_residual{listed(places)} of {digest(reference[number].tolist())}"
    return StandIn(name, places, _streams(model, reference[number : number + 1], places)[:, 0])


def _streams(
    model: Bridge, reference: Int[Tensor, "prompt position"], places: tuple[int, ...]
) -> Float[Tensor, "block prompt place d"]:
    """The residual streams of the reference prompts at `places`, at the input of each block; one pass per prompt."""
    n, here = reference.shape[1], list(places)
    if max(here) >= n:
        raise InputError(f"The source has no position {max(here)}.", f"Its positions are 0 to {n - 1}.")
    found: list[list[Tensor]] = [[] for _ in range(n_blocks(model))]

    def keep(block: int) -> Callable[[Tensor], None]:
        return lambda stream: found[block].append(stream[0, here].detach())

    watch = [(STREAMS.format(block=block), keep(block)) for block in range(len(found))]
    with torch.inference_mode(False), torch.no_grad(), without_ambient(model):
        for ids in reference.split(1):
            forward(model, ids, watch)
    device = found[0][0].device  # the blocks of a model that is spread over several devices have their streams there
    return torch.stack([torch.stack(rows).to(device) for rows in found])
