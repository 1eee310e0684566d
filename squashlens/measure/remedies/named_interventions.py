"""Interventions by name: hooks, other forms of a sequence, or both."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from typing_extensions import TypeAliasType

from squashlens.errors import InputError
from squashlens.model.hooking.hook import (
    Hook,
    HookPair,
    Recipe,
    is_pair,
    one_or_several,
)
from squashlens.records.labels import AS_IT_IS
from squashlens.sequences import GrowingSequence

Change = (
    Hook
    | Recipe
    | HookPair
    | GrowingSequence
    | Callable[[GrowingSequence], GrowingSequence]
)
Changes = TypeAliasType("Changes", Mapping[str, Change | Iterable[Change]])


def by_name(interventions: Changes) -> dict[str, tuple[Any, ...]]:
    """The parts of each intervention by its name; the first is the unchanged model, without any part."""
    every: dict[str, tuple[Any, ...]] = {AS_IT_IS: ()}
    for name, change in interventions.items():
        if name in every:
            raise InputError(
                f"interventions= has the name {name!r}, which is reserved for the unchanged model.",
                "Give the intervention another name.",
            )
        every[name] = one_or_several(change)
    return every


def form_under(parts: Iterable[Any], sequence: GrowingSequence) -> GrowingSequence:
    """The form of a sequence under an intervention: another sequence, or what its function returns for this one."""
    forms = [part for part in parts if not are_hooks(part)] or [sequence]
    try:
        found = [
            form if isinstance(form, GrowingSequence) else form(sequence)
            for form in forms
        ]
    except Exception as error:  # of a function that users write
        raise InputError(
            f"The function of an intervention failed for a growing sequence: {type(error).__name__}: {error}.",
            "Give a function from a sequence to a sequence; a function of activations needs its hook point, as in "
            '("blocks.0.attn.hook_z", function).',
        ) from error
    if not all(isinstance(form, GrowingSequence) for form in found):
        raise InputError(
            "The function of an intervention does not return a growing sequence.",
            "Return a changed sequence, as `lambda sequence: sequence.every(3, comma)` does.",
        )
    if len(found) > 1 or len(found[0]) != len(sequence):
        raise InputError(
            f"The numbers of sequences, and of content tokens in the first, are {len(found)} and {len(found[0])}.",
            f"Give one sequence, of length {len(sequence)}.",
        )
    return found[0]


def are_hooks(part: object) -> bool:
    """Whether a part of an intervention is one or several hooks, and not a sequence or a function that makes one."""
    return is_pair(part) or isinstance(part, Hook | Recipe)
