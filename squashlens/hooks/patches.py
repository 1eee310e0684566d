"""Activation patching and mean ablation: replace a prompt's activations by those of other prompts.

Patching shows which activations carry the difference between two prompts: activations of one prompt are inserted into
the forward pass of the other, at some positions of some blocks, and the outputs are compared. The mean over reference
prompts removes what is specific to this prompt and keeps what all prompts share; zero would be a state that no prompt
produces. The inserted activations count as constants in derivatives. Prompts of a source are run without any hooks each
time a hook is applied.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
    kept,
    mean_activations,
)
from squashlens.hooks.interventions import (
    OUTPUTS,
    STREAMS,
    SUBLAYERS,
    Blocks,
    heads_of,
    in_heads,
    listed,
    positions_of,
)
from squashlens.model.anatomy import n_blocks
from squashlens.model.hooking.hook import Hook, Recipe
from squashlens.model.text.tokens import Prompts, tokenize

Places = tuple[int, ...] | None


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
    return _patched(
        "patch_residual", STREAMS, source, blocks, positions, from_positions
    )


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
    return _averaged("mean_residual", STREAMS, source, blocks, positions, "prompts")


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
    here = positions_of(positions, "resample_residual")

    def take(model: Bridge, chosen: Sequence[int]) -> Activations:
        return mean_activations(
            model, drawn_from(tokenize(model, source), seed), STREAMS, chosen
        )

    return _recipe(
        f"resample_residual{listed(here)}", STREAMS, here, here, blocks, take
    )


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
    chosen_heads = heads_of(heads, "patch_heads")
    return _patched(
        "patch_heads", OUTPUTS, source, blocks, positions, from_positions, chosen_heads
    )


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
    return _patched(
        "patch_mlp", SUBLAYERS["mlp"], source, blocks, positions, from_positions
    )


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
    chosen_heads = heads_of(heads, "mean_heads")
    return _averaged(
        "mean_heads", OUTPUTS, source, blocks, positions, over, chosen_heads
    )


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
    return _averaged("mean_mlp", SUBLAYERS["mlp"], source, blocks, positions, over)


@dataclass(frozen=True)
class Replacement:
    """An edit that puts the source's rows `there` (or with `averaged` their mean) into rows `here`; None means all."""

    source: Activations
    block: int
    here: Places
    there: Places
    name: str
    averaged: bool = False

    def __call__(self, tensor: Tensor) -> Tensor:
        rows, n = self.source.rows[self.block].to(tensor), tensor.shape[1]
        if self.averaged:
            rows = rows.mean(dim=0, keepdim=True).expand(n, *rows.shape[1:])
        if self.here is None and n > len(rows):
            raise InputError(
                f"{self.name}: the prompt has {n} positions, but the activations to insert have {len(rows)}.",
                "Give positions=, or prompts as long as this one.",
            )
        here = range(n) if self.here is None else self.here
        there = here if self.there is None else self.there
        pairs = [(i, k) for i, k in zip(here, there, strict=True) if i < n]
        index = torch.tensor(
            [i for i, _ in pairs], dtype=torch.long, device=tensor.device
        )
        chosen = rows[[k for _, k in pairs]]
        return tensor.index_copy(1, index, chosen.expand(len(tensor), *chosen.shape))


def replacing(
    name: str,
    site: str,
    found: Activations,
    blocks: Iterable[int],
    here: Places,
    there: Places,
    heads: tuple[int, ...] = (),
    averaged: bool = False,
) -> list[Hook]:
    """One hook for each block, which inserts the activations `found`, in some heads."""
    positional = (
        here or not averaged
    )  # the same vector at every position needs no position numbers
    edits = {
        block: Replacement(found, block, here, there, name, averaged)
        for block in blocks
    }
    return [
        Hook(
            name,
            site,
            in_heads(edit, heads, dim=2) if heads else edit,
            (block,),
            positional,
        )
        for block, edit in edits.items()
    ]


def drawn_from(ids: Tensor, seed: int) -> Tensor:
    """The token ids of one prompt, drawn with `seed`."""
    number = Random(f"resample {seed}").randrange(len(ids))
    return ids[number : number + 1]


def _recipe(
    what: str,
    site: str,
    here: Places,
    there: Places,
    blocks: Blocks,
    take: Callable[[Bridge, list[int]], Activations],
    heads: tuple[int, ...] = (),
    averaged: bool = False,
) -> Recipe:
    """The recipe of hooks, one for each chosen block, that insert the activations that `take` finds, in some heads."""

    def make(model: Bridge) -> list[Hook]:
        whole = Hook(what, site, lambda tensor: tensor, blocks)
        whole.points(
            n_blocks(model)
        )  # an error for a block that the model does not have
        chosen = list(range(n_blocks(model)) if whole.blocks is None else whole.blocks)
        found = take(model, chosen)
        if there is not None and max(there) >= found.positions:
            last = found.positions - 1
            raise InputError(
                f"{what}: the source has no position {max(there)}.",
                f"Its positions are 0 to {last}.",
            )
        return replacing(
            f"{what} of {found.name}", site, found, chosen, here, there, heads, averaged
        )

    return Recipe(what, make)


def _patched(
    factory: str,
    site: str,
    source: Source,
    blocks: Blocks,
    positions: Iterable[int] | None,
    from_positions: Iterable[int] | None,
    heads: tuple[int, ...] = (),
) -> Recipe:
    """The recipe of hooks that insert the activations of one prompt at `site`."""
    what, here, there = f"{factory}{listed(heads) if heads else ''}", None, None
    if positions is not None:
        here = positions_of(positions, factory)
        there = (
            here
            if from_positions is None
            else positions_of(from_positions, f"{factory}: from_positions")
        )
        if len(set(here)) < len(here):
            raise InputError(
                f"{factory}: positions={here!r} names a position twice.",
                "Give each position once.",
            )
        if len(here) != len(there):
            raise InputError(
                f"{factory}: the numbers of positions and from_positions are {len(here)} and {len(there)}.",
                "Give one from_position for each position.",
            )
        what += f" at {listed(here)}{'' if here == there else f' from {listed(there)}'}"
    elif from_positions is not None:
        raise InputError(
            f"{factory}: from_positions= is given without positions=.",
            "Give both, or neither.",
        )
    source = kept(source)
    return _recipe(
        what,
        site,
        here,
        there,
        blocks,
        lambda m, own: activations(m, source, site, own, what),
        heads,
    )


def _averaged(
    factory: str,
    site: str,
    source: Prompts,
    blocks: Blocks,
    positions: Iterable[int] | None,
    over: Over,
    heads: tuple[int, ...] = (),
) -> Recipe:
    """The recipe of hooks that insert means over prompts at `site`."""
    here = None if positions is None else positions_of(positions, factory)
    what = f"{factory}{listed(heads) if heads else ''}{'' if here is None else f' at {listed(here)}'}"
    what += " over positions" if over == "positions" else ""
    there = here if over == "prompts" else None

    def take(model: Bridge, chosen: Sequence[int]) -> Activations:
        return mean_activations(model, tokenize(model, source), site, chosen)

    return _recipe(what, site, here, there, blocks, take, heads, over == "positions")
