"""Activation patching and mean ablation: replace a prompt's activations by those of other prompts.

Patching shows which activations carry the difference between two prompts: activations of one prompt are inserted into
the forward pass of the other, at some positions of some blocks, and the outputs are compared. The mean over reference
prompts removes what is specific to this prompt and keeps what all prompts share; zero would be a state that no prompt
produces. The inserted activations count as constants in derivatives. Prompts of a source are run without any hooks each
time a hook is applied.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from squashlens._typing import Bridge, Over
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.hooks.activations import (
    Activations,
    Source,
    activations,
    mean_activations,
    rereadable,
)
from squashlens.hooks.interventions import (
    OUTPUTS,
    STREAMS,
    SUBLAYERS,
    Blocks,
    Edit,
    Place,
    listed,
    positions_of,
)
from squashlens.model.anatomy import n_blocks
from squashlens.model.hooking.hook import Hook, Recipe, require_blocks
from squashlens.model.text.tokens import Prompts, tokenize

Positions = Iterable[int] | None
# The activations to insert, given a model and some of its blocks.
FindActivations = Callable[[Bridge, Sequence[int]], Activations]


@validated
def patch_residual(
    positions: Iterable[int],
    source: Source,
    blocks: Blocks = None,
    *,
    from_positions: Iterable[int] | None = None,
) -> Recipe:
    """Replace the residual stream at `positions` by that of another prompt, at the input of each of `blocks`.

    ``v⁽ᵇ⁾_i ← u⁽ᵇ⁾_k`` for each block b in `blocks` and each i in `positions`, where u is the residual stream of the
    source and k is the entry of `from_positions` that belongs to i.

    Args:
        positions: positions of the measured prompt, counted from 0.
        source: one prompt, as text or token ids, or the cache that TransformerLens's `run_with_cache` returns, also one
            that was taken under hooks.
        blocks: blocks to act in; all by default.
        from_positions: positions in the source, one for each of `positions`; the same positions by default.

    Raises:
        InputError: if the source has several prompts or lacks one of the positions; if a position is given twice, or
            `from_positions` has another length than `positions`.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> clean, other = (f"What is the last digit in this sequence? 4,{digit} =" for digit in "73")
    >>> digit = sl.hooks.find_positions(model, clean, "7")
    >>> with sl.applied(model, sl.hooks.patch_residual(digit, other, blocks=(0,))):
    ...     str(sl.top_tokens(model, clean)["token"].values[0])
    '3'
    """
    place = Place.of("patch_residual", STREAMS, positions)
    return _from_one_prompt(place, source, blocks, from_positions)


@validated
def mean_residual(
    positions: Iterable[int], source: Prompts, blocks: Blocks = None
) -> Recipe:
    """Replace the residual stream at `positions` by its mean over the prompts of `source`, in each of `blocks`.

    Args:
        positions: positions counted from 0.
        source: texts or token ids, all of the same number of tokens, also for a mean over positions.
        blocks: as in `patch_residual`.

    Raises:
        InputError: if the prompts of `source` lack one of the positions.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompt = "What is the last digit in this sequence? 4,7 ="
    >>> others = [prompt.replace("4", digit) for digit in "0123456789"]
    >>> with sl.applied(model, sl.hooks.mean_residual(sl.hooks.find_positions(model, prompt, "4"), others)):
    ...     str(sl.top_tokens(model, prompt)["token"].values[0])
    '7'
    """
    place = Place.of("mean_residual", STREAMS, positions)
    return _of_mean(place, source, blocks, "prompts")


@validated
def resample_residual(
    positions: Iterable[int], source: Prompts, blocks: Blocks = None, *, seed: int
) -> Recipe:
    """Replace the residual stream at `positions` by that of one prompt drawn from `source`, in each of `blocks`.

    The same prompt is used for all positions and blocks, so that the inserted activations belong together.

    Args:
        positions: positions counted from 0.
        source: as in `mean_residual`.
        blocks: as in `patch_residual`.
        seed: random seed of the draw.

    Raises:
        InputError: if the drawn prompt lacks one of the positions.
    """
    place = Place.of("resample_residual", STREAMS, positions)

    def find(model: Bridge, chosen: Sequence[int]) -> Activations:
        drawn = drawn_from(tokenize(model, source), seed)
        return mean_activations(model, drawn, STREAMS, chosen)

    return Insertion(place, place.positions).recipe(blocks, find)


@validated
def patch_heads(
    heads: Iterable[int],
    source: Source,
    blocks: Blocks = None,
    *,
    positions: Iterable[int] | None = None,
    from_positions: Iterable[int] | None = None,
) -> Recipe:
    """Replace the outputs of attention heads by their outputs on another prompt.

    ``z⁽ᵇʰ⁾_i ← u⁽ᵇʰ⁾_k`` for each h in `heads` of each b in `blocks`. z, TransformerLens's ``hook_z``, is a head's
    weighted sum of values, before the output matrix.

    Args:
        heads: query heads, counted from 0.
        source: one prompt or a cache, as in `patch_residual`.
        blocks, from_positions: as in `patch_residual`.
        positions: positions of the measured prompt, counted from 0; all by default.

    Raises:
        InputError: in the cases of `patch_residual`; and, in the forward pass without `positions`, if the prompt is
            longer than the source.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> clean, other = (f"What is the last digit in this sequence? 4,{digit} =" for digit in "73")
    >>> last = sl.hooks.find_positions(model, clean, "=")
    >>> with sl.applied(model, sl.hooks.patch_heads(range(4), other, blocks=(1,), positions=last)):
    ...     str(sl.top_tokens(model, clean)["token"].values[0])
    '3'
    """
    place = Place.of("patch_heads", OUTPUTS, positions, heads)
    return _from_one_prompt(place, source, blocks, from_positions)


@validated
def patch_mlp(
    source: Source,
    blocks: Blocks = None,
    *,
    positions: Iterable[int] | None = None,
    from_positions: Iterable[int] | None = None,
) -> Recipe:
    """Replace what MLPs add to the residual stream by what they add on another prompt.

    ``m⁽ᵇ⁾_i ← u⁽ᵇ⁾_k`` for each b in `blocks`. m is TransformerLens's ``hook_mlp_out``, after a norm that
    follows the MLP.

    Args:
        source: as in `patch_heads`.
        blocks, positions, from_positions: as in `patch_heads`.

    Raises:
        InputError: the cases of `patch_heads`.
    """
    place = Place.of("patch_mlp", SUBLAYERS["mlp"], positions)
    return _from_one_prompt(place, source, blocks, from_positions)


@validated
def mean_heads(
    heads: Iterable[int],
    source: Prompts,
    blocks: Blocks = None,
    *,
    positions: Iterable[int] | None = None,
    over: Over = "prompts",
) -> Recipe:
    """Replace the outputs of attention heads by their mean over the prompts of `source` (mean ablation).

    ``z⁽ᵇʰ⁾_i ← mean over prompts p of z⁽ᵇʰ⁾_i(p)`` for each h in `heads` of each b in `blocks`, position by position.
    With ``over="positions"`` the mean is taken over prompts and all their positions, so the same vector is inserted
    everywhere. The mean at each position is the usual mean ablation, for prompts of the same form. With the mean over
    positions, the measured prompt may have another length than those of `source`.

    Args:
        heads, positions: as in `patch_heads`.
        source: as in `mean_residual`.
        blocks: as in `patch_residual`.
        over: ``"prompts"`` or ``"positions"``, see above.

    Raises:
        InputError: if the prompts of `source` lack one of the positions; with ``over="prompts"`` and without
            `positions`, in the forward pass, if the prompt is longer than they are.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> prompts = [f"What is the last digit in this sequence? 4,{digit} =" for digit in "0123456789"]
    >>> with sl.applied(model, sl.hooks.mean_heads(range(4), prompts, blocks=(1,))):
    ...     str(sl.top_tokens(model, prompts[7])["token"].values[0])  # the right answer is 7
    '0'
    """
    place = Place.of("mean_heads", OUTPUTS, positions, heads)
    return _of_mean(place, source, blocks, over)


@validated
def mean_mlp(
    source: Prompts,
    blocks: Blocks = None,
    *,
    positions: Iterable[int] | None = None,
    over: Over = "prompts",
) -> Recipe:
    """Replace what MLPs add to the residual stream by its mean over the prompts of `source`.

    Args:
        source: as in `mean_residual`.
        blocks, positions, over: as in `mean_heads`.

    Raises:
        InputError: the cases of `mean_heads`.
    """
    place = Place.of("mean_mlp", SUBLAYERS["mlp"], positions)
    return _of_mean(place, source, blocks, over)


def _from_one_prompt(
    place: Place, source: Source, blocks: Blocks, from_positions: Positions
) -> Recipe:
    """The recipe of hooks that insert the activations of one prompt, or of a cache."""
    here = place.positions
    there = here
    name = place.name
    if from_positions is not None:
        there = positions_of(from_positions, f"{place.factory}: from_positions")
        if here is None or len(here) != len(there):
            raise InputError(
                f"{place.factory}: from_positions= has {len(there)} positions, and positions= {len(here or ())}.",
                "Give one from_position for each position.",
            )
        if there != here:
            name += f" from {listed(there)}"
    if here is not None and len(set(here)) < len(here):
        raise InputError(
            f"{place.factory}: positions={here!r} names a position twice.",
            "Give each position once.",
        )
    # Each application of the recipe reads the source again.
    source = rereadable(source)

    def find(model: Bridge, chosen: Sequence[int]) -> Activations:
        return activations(model, source, place.site, chosen, name)

    return Insertion(replace(place, name=name), there).recipe(blocks, find)


def _of_mean(place: Place, source: Prompts, blocks: Blocks, over: Over) -> Recipe:
    """The recipe of hooks that insert means over prompts, or over prompts and positions."""

    def find(model: Bridge, chosen: Sequence[int]) -> Activations:
        return mean_activations(model, tokenize(model, source), place.site, chosen)

    if over == "positions":
        everywhere = replace(place, name=f"{place.name} over positions")
        return Insertion(everywhere, None, averaged=True).recipe(blocks, find)
    return Insertion(place, place.positions).recipe(blocks, find)


@dataclass(frozen=True)
class Insertion:
    """What is inserted: the activations of other prompts at the positions `there` (None means the same ones).

    With `averaged`, their mean over positions is inserted everywhere.
    """

    place: Place
    there: tuple[int, ...] | None
    averaged: bool = False

    def recipe(self, blocks: Blocks, find: FindActivations) -> Recipe:
        """The recipe of hooks, one for each chosen block, that insert the activations that `find` gives."""
        name = self.place.name

        def make(model: Bridge) -> list[Hook]:
            """The hooks for a model, whose source is run now."""
            chosen = blocks_of(model, blocks, name)
            inserted = find(model, chosen)
            if self.there is not None and max(self.there) >= inserted.positions:
                raise InputError(
                    f"{name}: the source has no position {max(self.there)}.",
                    f"Its positions are 0 to {inserted.positions - 1}.",
                )
            return self.hooks(inserted, chosen)

        return Recipe(name, make)

    def hooks(self, inserted: Activations, blocks: Iterable[int]) -> list[Hook]:
        """One hook for each block, which inserts these activations."""
        name = f"{self.place.name} of {inserted.name}"
        hooks: list[Hook] = []
        for block in blocks:
            edit = self._edit(inserted.rows[block])
            # The same vector at every position needs no position numbers.
            hooks.append(
                self.place.hook(name, edit, (block,), positional=not self.averaged)
            )
        return hooks

    def _edit(self, source: Tensor) -> Edit:
        """An edit of a tensor (prompt, position, …) that inserts rows of `source`, (position, …)."""
        chosen = self.place.positions

        def edit(tensor: Tensor) -> Tensor:
            """The tensor with rows `there` of the source as its rows `here`; rows beyond its end are left out."""
            rows = source.to(tensor)
            n = tensor.shape[1]
            if rows.shape[1:] != tensor.shape[2:] or rows.ndim != tensor.ndim - 1:
                raise InputError(
                    f"{self.place.name}: activations of shape {tuple(rows.shape)} do not fit {tuple(tensor.shape)}.",
                    "Give a prompt, or a cache from this model.",
                )
            if self.averaged:
                rows = rows.mean(dim=0, keepdim=True).expand(n, *rows.shape[1:])
            if chosen is None and n > len(rows):
                raise InputError(
                    f"{self.place.name}: the prompt has {n} positions, but the activations to insert have {len(rows)}.",
                    "Give positions=, or prompts as long as this one.",
                )
            here = torch.arange(n) if chosen is None else torch.tensor(chosen)
            there = here if self.there is None else torch.tensor(self.there)
            is_in_prompt = here < n
            here = here[is_in_prompt].to(tensor.device)
            there = there[is_in_prompt].to(rows.device)
            for_each_prompt = rows[there].expand(len(tensor), *rows[there].shape)
            return tensor.index_copy(1, here, for_each_prompt)

        return edit


def blocks_of(model: Bridge, blocks: Blocks, name: str) -> list[int]:
    """The blocks in which the hook `name` acts, each once; all by default. Raises for one that the model lacks."""
    every = range(n_blocks(model))
    if blocks is None:
        return list(every)
    require_blocks(blocks, len(every), name)
    return list(dict.fromkeys(blocks))


def drawn_from(ids: Tensor, seed: int) -> Tensor:
    """The token ids of one prompt, drawn with `seed`."""
    number = Random(f"resample {seed}").randrange(len(ids))
    return ids[number : number + 1]
