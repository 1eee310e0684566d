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
    if AS_IT_IS in interventions:
        raise InputError(
            f"interventions= has the name {AS_IT_IS!r}, which is reserved for the unchanged model.",
            "Give the intervention another name.",
        )
    parts = {name: one_or_several(change) for name, change in interventions.items()}
    return {AS_IT_IS: (), **parts}


def form_under(parts: Iterable[Any], sequence: GrowingSequence) -> GrowingSequence:
    """The form of a sequence under an intervention: another sequence, or what its function returns for this one."""
    forms = [part for part in parts if not are_hooks(part)]
    if not forms:
        return sequence
    form = forms[0]
    if not isinstance(form, GrowingSequence):
        form = form(sequence)
    is_one_sequence = len(forms) == 1 and isinstance(form, GrowingSequence)
    if not is_one_sequence or len(form) != len(sequence):
        raise InputError(
            "An intervention gives no sequence, several, or one with another number of content tokens.",
            f"Give one of length {len(sequence)}, or a function such as `lambda sequence: sequence.every(3, comma)`. A "
            'function of activations needs its hook point, as in ("blocks.0.attn.hook_z", function).',
        )
    return form


def are_hooks(part: object) -> bool:
    """Whether a part of an intervention is one or several hooks, and not a sequence or a function that makes one."""
    return is_pair(part) or isinstance(part, Hook | Recipe)
