"""Every way of taking separators away, as another sequence, other positions, or hooks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from torch import Tensor

from squashlens._typing import Ablation, Edit
from squashlens.errors import InputError
from squashlens.measure._pairs import Runs
from squashlens.model.anatomy import device_of
from squashlens.model.hooks import Hook
from squashlens.model.interventions import mask_tokens, zero_pattern, zero_residual, zero_values
from squashlens.model.live import require_live
from squashlens.model.reference import StandIn, mean_of, one_of_them
from squashlens.prompts import Token, one_token, stacked
from squashlens.sequences import Sequence as Tokens

REFERENCES = 8  # sequences of other content that are drawn where none are given

# A hook on the separators before so many tokens, from one block on.
Act = Callable[[Sequence[int], tuple[int, ...]], list[Hook]]


@dataclass(frozen=True)
class Variant:
    """One way of taking separators away: another sequence, other positions, or hooks."""

    sequence: Tokens
    options: dict[str, Any] = field(default_factory=dict)


def edited(runs: Runs, kind: Edit, other: int, seed: int) -> Variant:
    """The sequence with its separators edited in the prompt."""
    sequence = runs.sequence
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
            "delete_keep_positions does not know where an `ending` stands behind a gap.", "Build it without ending=."
        )
    without = sequence.separated((), ())
    longest = len(without.stem(runs.lengths[-1]))
    kept = [p for p in range(len(sequence.trunk)) if p not in set(sequence.separator_places())][:longest]
    return Variant(without, {"positions": (*kept, kept[-1] + 1)})


def _deleted(sequence: Tokens) -> Tokens:
    """What is left of the ids when the separators are struck out of them: all of it content."""
    gone = set(sequence.separator_places())
    left = [token for place, token in enumerate(sequence.trunk) if place not in gone]
    return replace(sequence, content=tuple(left[len(sequence.prefix) :]), breaks=(), separators=())


def separators_within(runs: Runs) -> tuple[int, ...]:
    """Positions of the separators that the longest prompt has; one behind its last content token is not in it."""
    return runs.sequence.separator_places(runs.lengths[-1])


def hooked(runs: Runs, kind: Ablation, from_block: int, act: Act) -> Variant:
    """The sequence as it is, with a hook on its separators from a block on; the hook is proved live."""
    blocks = tuple(runs.layers[from_block:-1])
    places = separators_within(runs)
    everywhere = act(places, blocks)
    sites = [site for hook in everywhere for site in hook.points(len(runs.layers) - 1)]
    require_live(runs.session.model, sites, kind)

    def on_trunk(tokens: int) -> list[Hook]:
        inside = [p for p in places if p < tokens]  # behind the trunk, a branch has tokens of its own there
        return act(inside, blocks) if inside else []

    # On a cache, attention is still to be kept from them; values and streams that were changed stand in it already.
    options = {"hooks": on_trunk, "branch_hooks": everywhere if kind in ("mask", "zero_pattern") else ()}
    return Variant(runs.sequence, options)


def acts(runs: Runs, kinds: Sequence[Ablation], reference: Sequence[Tokens] | None, seed: int) -> dict[Ablation, Act]:
    """What each kind of hook does; reference prompts are run only if a kind asks for them."""
    plain = {"mask": mask_tokens, "zero_pattern": zero_pattern, "zero_value": zero_values, "zero_resid": zero_residual}
    found: dict[Ablation, Act] = {kind: _simply(plain[kind]) for kind in kinds if kind in plain}
    if len(found) < len(kinds):
        model, places = runs.session.model, separators_within(runs)
        ids = _reference_ids(runs, reference, seed).to(device_of(model))
        if "mean_resid" in kinds:
            found["mean_resid"] = _standing_in(mean_of(model, ids, places))
        if "resample_resid" in kinds:
            found["resample_resid"] = _standing_in(one_of_them(model, ids, places, seed))
    return {kind: found[kind] for kind in kinds}


def _simply(factory: Callable[..., Hook]) -> Act:
    return lambda places, blocks: [factory(places, blocks)]


def _standing_in(stand_in: StandIn) -> Act:
    return lambda places, blocks: stand_in.hooks(blocks, tokens=max(places) + 1)


def _reference_ids(runs: Runs, reference: Sequence[Tokens] | None, seed: int) -> Tensor:
    """Prompts of the same form: those given, or some with other content."""
    sequence, rng = runs.sequence, Random(f"reference {seed}")
    given = [sequence.unrelated(rng) for _ in range(REFERENCES)] if reference is None else list(reference)
    if not given or not all(isinstance(one, Tokens) for one in given):
        raise InputError("reference= is not a list of sequences.", "Give sequences of `squashlens.prompts`.")
    return stacked(given)


def substitute_for(runs: Runs, token: Token | None, seed: int) -> int:
    """The token that stands in for separators: as given, or any that has no part in the sequence."""
    model, sequence = runs.session.model, runs.sequence
    if token is not None:
        return one_token(model, token)
    special = set() if model.tokenizer is None else set(model.tokenizer.all_special_ids)
    used = {*sequence.trunk, *sequence.suffix, *sequence.alphabet, *special}
    free = [t for t in range(int(model.cfg.d_vocab)) if t not in used]
    if not free:
        raise InputError("Every token of the vocabulary has a part in the sequence.", "Give substitute=.")
    return Random(f"substitute {seed}").choice(free)
