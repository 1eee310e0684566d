"""Other prompts' residual streams in a token's place: their mean, or those of one that is drawn.

Wiping a stream takes away what it says and that it is there at all, and leads where no prompt has ever led. The mean
over reference prompts leaves what they have in common at that position, and one of them what a real prompt has there.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bos, Bridge
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.model.anatomy import n_blocks
from squashlens.model.fingerprint import digest
from squashlens.model.forward import forward
from squashlens.model.hooks import Hook, Recipe, without_ambient
from squashlens.model.interventions import STREAMS, Blocks, listed, positions_of
from squashlens.model.tokens import Prompts, tokens


@dataclass(frozen=True)
class StandIn:
    """What takes the place of streams: `rows[b, k]` for the token at `places[k]` where it enters block b."""

    name: str
    places: tuple[int, ...]
    rows: Float[Tensor, "block place d"]

    def hooks(self, blocks: Blocks = None, tokens: int | None = None) -> list[Hook]:
        """A hook for each of `blocks`; with `tokens`, only at places before that many tokens."""
        Hook(self.name, STREAMS, lambda stream: stream, blocks).points(
            len(self.rows)
        )  # refuses blocks that are not there
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
def mean_residual(
    positions: Iterable[int], reference: Prompts, blocks: Blocks = None, *, bos: Bos = "family"
) -> Recipe:
    """Put the mean of `reference` prompts' residual streams at `positions` where they enter each of `blocks`.

    The prompts are texts or ids as `tokens` takes them, all of one length; their streams are the plain model's,
    whatever hooks stand, taken anew whenever the hooks are hung. What is put there is constant in derivatives.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> prompt = "What is the last digit in this sequence? 4,7 ="
    >>> others = [prompt.replace("4", digit) for digit in "0123456789"]
    >>> with sl.applied(model, sl.mean_residual(sl.places(model, prompt, "4"), others)):
    ...     str(sl.next_token(model, prompt)["token"].values[0])
    '7'
    """
    places = positions_of(positions, "mean_residual")
    return Recipe(
        f"mean_residual{listed(places)}",
        lambda model: mean_of(model, tokens(model, reference, bos=bos), places).hooks(blocks),
    )


@validated
def resample_residual(
    positions: Iterable[int], reference: Prompts, blocks: Blocks = None, *, seed: int, bos: Bos = "family"
) -> Recipe:
    """Put the residual streams of one of `reference` prompts, drawn with `seed`, at `positions` in each of `blocks`.

    One prompt for all positions and blocks, so that what is put there belongs together; else as `mean_residual`.
    """
    places = positions_of(positions, "resample_residual")
    return Recipe(
        f"resample_residual{listed(places)}",
        lambda model: one_of_them(model, tokens(model, reference, bos=bos), places, seed).hooks(blocks),
    )


def mean_of(model: Bridge, reference: Int[Tensor, "prompt position"], places: tuple[int, ...]) -> StandIn:
    """The mean over prompts of their streams at `places`."""
    name = f"mean_residual{listed(places)} of {digest(reference.tolist())}"
    return StandIn(name, places, _streams(model, reference, places).mean(dim=1))


def one_of_them(
    model: Bridge, reference: Int[Tensor, "prompt position"], places: tuple[int, ...], seed: int
) -> StandIn:
    """The streams at `places` of one prompt, drawn with `seed`."""
    number = Random(f"resample {seed}").randrange(len(reference))
    name = f"resample_residual{listed(places)} of {digest(reference[number].tolist())}"
    return StandIn(name, places, _streams(model, reference[number : number + 1], places)[:, 0])


def _streams(
    model: Bridge, reference: Int[Tensor, "prompt position"], places: tuple[int, ...]
) -> Float[Tensor, "block prompt place d"]:
    """Reference prompts' streams where they enter each block, at `places`, one prompt at a time."""
    n, here = reference.shape[1], list(places)
    if max(here) >= n:
        raise InputError(f"The reference prompts have no position {max(here)}.", f"Their positions are 0 to {n - 1}.")
    found: list[list[Tensor]] = [[] for _ in range(n_blocks(model))]

    def keep(block: int) -> Callable[[Tensor], None]:
        return lambda stream: found[block].append(stream[0, here].detach())

    watch = [(STREAMS.format(block=block), keep(block)) for block in range(len(found))]
    with torch.inference_mode(False), torch.no_grad(), without_ambient(model):
        for ids in reference.split(1):
            forward(model, ids, watch)
    return torch.stack([torch.stack(rows) for rows in found])
