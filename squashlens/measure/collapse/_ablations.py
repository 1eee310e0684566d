"""The ablations of separators: as an edited sequence, as a sequence with given position ids, or as hooks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Ablation, Bridge, Edit
from squashlens.engine.agreement import agree
from squashlens.engine.anatomy import device_of, dtype_of
from squashlens.engine.capturing.pairs import PairRun
from squashlens.engine.hooking.hook import Hook
from squashlens.engine.hooking.standing import without_ambient
from squashlens.engine.proving.effective import probe_ids, require_effective
from squashlens.engine.proving.registry import proved
from squashlens.engine.running.forward import causal, context, next_logits
from squashlens.errors import InputError, SquashlensError, UnsoundModelError
from squashlens.hooks.activations import Activations, mean_activations
from squashlens.hooks.interventions import STREAMS, mask_tokens, zero_pattern, zero_residual, zero_values
from squashlens.hooks.patches import drawn_from, stream_hooks
from squashlens.prompts import Token, one_token, stacked
from squashlens.sequences import GrowingSequence

REFERENCES = 8  # reference sequences to draw when the caller gives none

# The hooks that ablate separators, given the positions of the separators and the blocks in which the hooks act.
MakeHooks = Callable[[Sequence[int], tuple[int, ...]], list[Hook]]


@dataclass(frozen=True)
class Variant:
    """One ablation: the sequence to run, and options of `PairRun.pairs` such as position ids or hooks."""

    sequence: GrowingSequence
    options: dict[str, Any] = field(default_factory=dict)


def edited(run: PairRun, kind: Edit, other: int, seed: int) -> Variant:
    """The ablation that edits the separators of the prompt itself; `other` is the token for "substitute"."""
    sequence = run.sequence
    breaks = sequence.breaks
    if kind == "delete":
        return Variant(_deleted(sequence))
    if kind == "substitute":
        return Variant(sequence.separated([other] * len(breaks), breaks))
    if kind == "extra_digits":
        return Variant(sequence.separated([sequence.content[b - 1] for b in breaks], breaks))
    if kind == "random_places":
        return Variant(sequence.scattered(f"places {seed}"))
    if sequence.ending is not None:
        raise InputError(
            "delete_keep_positions is not defined for a sequence with an ending: its position after a gap is unclear.",
            "Build the sequence without ending=, or leave 'delete_keep_positions' out of kinds=.",
        )
    require_position_ids(run.model)
    without = sequence.separated((), ())
    longest = len(without.stem(run.lengths[-1]))
    kept = [p for p in range(len(sequence.trunk)) if p not in set(sequence.separator_places())][:longest]
    return Variant(without, {"positions": (*kept, kept[-1] + 1)})


def require_position_ids(model: Bridge) -> None:
    """Raise for a model that does not use the position ids of a forward pass, such as BLOOM, Falcon with ALiBi and MPT.

    Without them a gap in the position ids has no effect, and `delete_keep_positions` would be the same as `delete`.
    """
    if not proved(model, "given position ids", lambda: _uses_position_ids(model)):
        raise UnsoundModelError(
            f"{type(model.original_model).__name__} does not take position ids and a mask in a forward pass (models "
            "with ALiBi compute both themselves), so that delete_keep_positions cannot be measured.",
            "Leave 'delete_keep_positions' out of kinds=. The hook 'mask' in every block measures the same.",
        )


def _uses_position_ids(model: Bridge) -> bool:
    """Whether a token that the mask hides and a token that is missing, with a gap in the position ids, are the same."""
    ids = probe_ids(model)[:, :5]
    whole, kept = torch.arange(5), torch.tensor([0, 2, 3, 4])
    hidden = causal(5)
    hidden[2:, 1] = False  # no later token attends to token 1
    try:
        with torch.inference_mode(False), torch.no_grad(), without_ambient(model):
            masked = next_logits(model, ids, context=context(model, whole, whole, hidden))
            missing = next_logits(model, ids[:, kept], context=context(model, kept, kept, causal(4)))
    except SquashlensError:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError):  # the model does not take them
        return False
    return agree(missing, masked, dtype_of(model))


def _deleted(sequence: GrowingSequence) -> GrowingSequence:
    """The sequence without its separator tokens; all remaining tokens after the prefix are content."""
    removed = set(sequence.separator_places())
    left = [token for place, token in enumerate(sequence.trunk) if place not in removed]
    return replace(sequence, content=tuple(left[len(sequence.prefix) :]), breaks=(), separators=())


def separators_within(run: PairRun) -> tuple[int, ...]:
    """The positions of the separators in the longest prompt. A separator after its last content token is not in it."""
    return run.sequence.separator_places(run.lengths[-1])


def hooked(run: PairRun, kind: Ablation, from_block: int, make: MakeHooks) -> Variant:
    """The unchanged sequence with hooks on its separators in all blocks from `from_block` on.

    Raises if a hook point has no effect on the logits.
    """
    blocks = tuple(run.layers[from_block:-1])
    places = separators_within(run)
    everywhere = make(places, blocks)
    sites = [site for hook in everywhere for site in hook.points(len(run.layers) - 1)]
    require_effective(run.model, sites, kind)

    def on_trunk(tokens: int) -> list[Hook]:
        inside = [p for p in places if p < tokens]  # at later positions a branch has its own tokens
        return make(inside, blocks) if inside else []

    # In a pass on the cache, attention to the separators must still be changed; changed values and residual streams
    # are in the cache already.
    options = {"hooks": on_trunk, "branch_hooks": everywhere if kind in ("mask", "zero_pattern") else ()}
    return Variant(run.sequence, options)


def makers(
    run: PairRun, kinds: Sequence[Ablation], source: Sequence[GrowingSequence] | None, seed: int
) -> dict[Ablation, MakeHooks]:
    """A function for each kind that makes its hooks; reference prompts are run only if one of the kinds needs them."""
    factories = {
        "mask": mask_tokens, "zero_pattern": zero_pattern, "zero_values": zero_values, "zero_residual": zero_residual,
    }  # fmt: skip
    found: dict[Ablation, MakeHooks] = {}
    ids = None
    for kind in kinds:
        if kind in factories:
            found[kind] = partial(_one_hook, factories[kind])
            continue
        ids = _source_ids(run, source, seed).to(device_of(run.model)) if ids is None else ids
        chosen = ids if kind == "mean_residual" else drawn_from(ids, seed)
        inserted = mean_activations(run.model, chosen, STREAMS, run.layers[:-1])
        found[kind] = partial(_replacing, f"{kind} of {inserted.name}", inserted)
    return found


def _one_hook(factory: Callable[..., Hook], places: Sequence[int], blocks: tuple[int, ...]) -> list[Hook]:
    return [factory(places, blocks)]


def _replacing(name: str, source: Activations, places: Sequence[int], blocks: tuple[int, ...]) -> list[Hook]:
    """The hooks that put the residual streams of reference prompts at the positions of the separators."""
    return stream_hooks(name, source, blocks, tuple(places), tuple(places))


def _source_ids(run: PairRun, source: Sequence[GrowingSequence] | None, seed: int) -> Tensor:
    """Token ids of the reference prompts: those that were given, or of the same form with other random content."""
    sequence, rng = run.sequence, Random(f"reference {seed}")
    given = [sequence.unrelated(rng) for _ in range(REFERENCES)] if source is None else list(source)
    if not given or not all(isinstance(one, GrowingSequence) for one in given):
        raise InputError(
            "source= is not a list of growing sequences.", "Give at least one sequence from `squashlens.prompts`."
        )
    return stacked(given)


def substitute_for(run: PairRun, token: Token | None, seed: int) -> int:
    """The token that replaces separators: the given one, or a random one that the sequence does not contain."""
    model, sequence = run.model, run.sequence
    if token is not None:
        return one_token(model, token)
    special = set() if model.tokenizer is None else set(model.tokenizer.all_special_ids)
    used = {*sequence.trunk, *sequence.suffix, *sequence.alphabet, *special}
    free = [t for t in range(int(model.cfg.d_vocab)) if t not in used]
    if not free:
        raise InputError(
            "The sequence contains every token of the vocabulary, so that no token is left as a substitute.",
            "Give substitute=.",
        )
    return Random(f"substitute {seed}").choice(free)
