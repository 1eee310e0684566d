"""Activation patching and mean ablation: activations of other prompts in the place of a prompt's own.

Patching asks which activations carry what tells two prompts apart: those of one prompt are put into the pass of the
other, at some positions of some blocks, and what comes out is compared. The mean over reference prompts in a head's
place takes away what the head says about this prompt and leaves what it says about all of them. What is put in place is
constant in derivatives.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from squashlens._typing import Bos, Bridge, Over, one_of
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.model.anatomy import n_blocks
from squashlens.model.hooks import Hook, Recipe
from squashlens.model.interventions import OUTPUTS, STREAMS, Blocks, heads_of, in_heads, listed, positions_of
from squashlens.model.sources import Activations, Source, activations, kept, mean_activations
from squashlens.model.tokens import Prompts, tokens

Places = tuple[int, ...] | None


@validated
def patch_residual(
    positions: Iterable[int],
    source: Source,
    blocks: Blocks = None,
    *,
    from_positions: Iterable[int] | None = None,
    bos: Bos = "family",
) -> Recipe:
    """Put the residual stream of another prompt at `positions` where it enters each of `blocks`.

    ``v⁽ᵇ⁾_i ← u⁽ᵇ⁾_k`` for each block b in `blocks` (all if not given) and each i in `positions`, with u the streams of
    the source and k the position that stands beside i in `from_positions` (i itself if not given).

    Args:
        positions: positions of the prompt that is measured; those that it does not reach are not there.
        source: one prompt, as text or ids as `tokens` takes them, which is run on the plain model whatever hooks
            stand, whenever the hooks are hung; a `Capture` of one, also one taken under hooks; or the cache that
            TransformerLens's `run_with_cache` returns.
        from_positions: positions of the source, one for each of `positions`.

    Refuses: several prompts; positions that the source does not have, given twice, or not as many as `from_positions`;
    a capture of other weights or without those layers.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> clean, other = (f"What is the last digit in this sequence? 4,{digit} =" for digit in "73")
    >>> digit = sl.places(model, clean, "7")
    >>> with sl.applied(model, sl.patch_residual(digit, other, blocks=(0,))):
    ...     str(sl.next_token(model, clean)["token"].values[0])
    '3'
    """
    here, there = _pairs(positions, from_positions, "patch_residual")
    what = f"patch_residual{listed(here)}{'' if here == there else f' from {listed(there)}'}"
    source = kept(source)

    def make(model: Bridge) -> list[Hook]:
        chosen = _blocks(model, what, STREAMS, blocks)
        found = activations(model, source, STREAMS, chosen, bos, what)
        _require_reach(found, there, what)
        return [
            Hook(
                f"{what} of {found.name}",
                STREAMS,
                Replacement(found, block, here, there, what),
                (block,),
                positional=True,
            )
            for block in chosen
        ]

    return Recipe(what, make)


@validated
def patch_heads(
    heads: Iterable[int],
    source: Source,
    blocks: Blocks = None,
    *,
    positions: Iterable[int] | None = None,
    from_positions: Iterable[int] | None = None,
    bos: Bos = "family",
) -> Recipe:
    """Put the outputs of attention heads on another prompt in the place of their outputs on this one.

    ``z⁽ᵇʰ⁾_i ← u⁽ᵇʰ⁾_k`` for each h in `heads` of each b in `blocks`; z, TransformerLens's ``hook_z``, is a head's
    weighted sum of values, before the output matrix. Positions and `source` as in `patch_residual`; without `positions`
    at every one, and a prompt longer than the source is refused. A `Capture` holds no head outputs, so the prompt of a
    capture that was taken without hooks is run again, and others are refused.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> clean, other = (f"What is the last digit in this sequence? 4,{digit} =" for digit in "73")
    >>> with sl.applied(model, sl.patch_heads(range(4), other, blocks=(1,), positions=sl.places(model, clean, "="))):
    ...     str(sl.next_token(model, clean)["token"].values[0])
    '3'
    """
    chosen_heads = heads_of(heads, "patch_heads")
    what, here, there = f"patch_heads{listed(chosen_heads)}", None, None
    if positions is not None:
        here, there = _pairs(positions, from_positions, "patch_heads")
        what += f" at {listed(here)}{'' if here == there else f' from {listed(there)}'}"
    elif from_positions is not None:
        raise InputError("patch_heads: from_positions= is given without positions=.", "Give both, or neither.")
    source = kept(source)

    def make(model: Bridge) -> list[Hook]:
        chosen = _blocks(model, what, OUTPUTS, blocks)
        found = activations(model, source, OUTPUTS, chosen, bos, what)
        _require_reach(found, there, what)
        return _head_hooks(f"{what} of {found.name}", found, chosen, chosen_heads, here, there)

    return Recipe(what, make)


@validated
def mean_heads(
    heads: Iterable[int],
    reference: Prompts,
    blocks: Blocks = None,
    *,
    positions: Iterable[int] | None = None,
    over: Over = "prompts",
    bos: Bos = "family",
) -> Recipe:
    """Put the mean of attention heads' outputs over `reference` prompts in the place of their outputs.

    ``z⁽ᵇʰ⁾_i ← mean over prompts p of z⁽ᵇʰ⁾_i(p)`` for each h in `heads` of each b in `blocks`, at `positions` (all if
    not given); with ``over="positions"`` the mean over prompts and all their positions, the same vector everywhere. The
    first is the usual mean ablation where prompts are of one form; the second is for prompts of any length.

    The reference is texts or ids of one length, run on the plain model, whatever hooks stand, whenever the hooks are
    hung.

    Refuses: positions that the reference does not have; with ``over="prompts"`` and without `positions`, a prompt that
    is longer than the reference.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> prompts = [f"What is the last digit in this sequence? 4,{digit} =" for digit in "0123456789"]
    >>> with sl.applied(model, sl.mean_heads(range(4), prompts, blocks=(1,))):
    ...     str(sl.next_token(model, prompts[7])["token"].values[0])  # what block 1 says of all ten, not 7
    '0'
    """
    one_of(over, Over, "over")
    chosen_heads = heads_of(heads, "mean_heads")
    here = None if positions is None else positions_of(positions, "mean_heads")
    what = f"mean_heads{listed(chosen_heads)}{'' if here is None else f' at {listed(here)}'}"
    what += " over positions" if over == "positions" else ""

    def make(model: Bridge) -> list[Hook]:
        chosen = _blocks(model, what, OUTPUTS, blocks)
        found = mean_activations(model, tokens(model, reference, bos=bos), OUTPUTS, chosen)
        _require_reach(found, here if over == "prompts" else None, what)
        return _head_hooks(f"{what} of {found.name}", found, chosen, chosen_heads, here, here, over == "positions")

    return Recipe(what, make)


@dataclass(frozen=True)
class Replacement:
    """An edit: activations of `block` in place of a tensor's, at positions `here` from positions `there` of the source.

    `None`: every position, from the same one. With `averaged`, the source's mean over positions at each.
    """

    source: Activations
    block: int
    here: Places
    there: Places
    name: str
    averaged: bool = False

    def __call__(self, tensor: Tensor) -> Tensor:
        rows, n = self.source.at(self.block).to(tensor), tensor.shape[1]
        if self.here is None and not self.averaged and n > len(rows):
            raise InputError(
                f"{self.name}: the prompt has {n} positions, and those that it is to be given come from {len(rows)}.",
                "Name positions=, or give prompts as long as this one.",
            )
        if self.here is None:
            pairs = [(place, place) for place in range(n)]
        else:
            there = self.here if self.there is None else self.there
            pairs = [(i, k) for i, k in zip(self.here, there, strict=True) if i < n]
        index = torch.tensor([i for i, _ in pairs], dtype=torch.long, device=tensor.device)
        if self.averaged:
            chosen = rows.mean(dim=0, keepdim=True).expand(len(pairs), *rows.shape[1:])
        else:
            chosen = rows[[k for _, k in pairs]]
        return tensor.index_copy(1, index, chosen.expand(len(tensor), *chosen.shape))


def _head_hooks(
    name: str, found: Activations, blocks: list[int], heads: tuple[int, ...], here: Places, there: Places,
    averaged: bool = False,
) -> list[Hook]:  # fmt: skip
    """A hook for each block, which replaces the outputs of `heads` and leaves the others."""
    edits = {block: Replacement(found, block, here, there, name, averaged) for block in blocks}
    positional = here is not None or not averaged  # the same vector everywhere needs no counting
    return [Hook(name, OUTPUTS, in_heads(edits[block], heads, dim=2), (block,), positional) for block in blocks]


def _blocks(model: Bridge, name: str, site: str, blocks: Blocks) -> list[int]:
    """The blocks that are meant; those that the model does not have are refused."""
    hook = Hook(name, site, lambda tensor: tensor, blocks)
    hook.points(n_blocks(model))
    return list(range(n_blocks(model)) if hook.blocks is None else hook.blocks)


def _require_reach(found: Activations, places: Places, name: str) -> None:
    if places is not None and max(places) >= found.positions:
        raise InputError(
            f"{name}: the source has no position {max(places)}.", f"Its positions are 0 to {found.positions - 1}."
        )


def _pairs(
    positions: Iterable[int], from_positions: Iterable[int] | None, factory: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of the prompt, each once, and the source's positions beside them."""
    here = positions_of(positions, factory)
    there = here if from_positions is None else positions_of(from_positions, f"{factory}: from_positions")
    if len(set(here)) < len(here):
        raise InputError(f"{factory}: {here!r} names a position twice.", "Give each position once.")
    if len(here) != len(there):
        raise InputError(
            f"{factory}: {len(here)} positions and {len(there)} from_positions.", "Give one for each of `positions`."
        )
    return here, there
