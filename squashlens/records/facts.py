"""The facts of a provenance: how several results' facts are stored together, and read for all or some of them.

The facts of a result are a dict that JSON can hold. A result that was joined from parts stores what all parts share
once, and beside it what each part has of its own, so that the facts of every part can be read again without a loss.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from squashlens._typing import short_repr
from squashlens.saving.stored import SIGNED

Facts = dict[str, Any]
CHANGED = ("labels", "types", "attributes")  # of a part, where joining changed them
BOOKS = (
    SIGNED,
    "sizes",
    "joined",
    *CHANGED,
)  # stored with the facts, and no facts themselves
WIDTH = 80  # characters of a line


def written(facts: Any) -> str:
    """Facts as JSON text without spaces, in the order in which they were stated."""
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":"), default=str)


def together(dim: str, labels: Sequence[Any], parts: Sequence[Facts | None]) -> Facts:
    """The stored facts of a result that was joined from parts along a dimension; None for a part that is missing."""
    there = [part for part in parts if part is not None]
    shared = {
        name: value
        for name, value in (there[0] if there else {}).items()
        if all(
            name in part and written(part[name]) == written(value) for part in there
        )  # as text, since 1 == True
    }
    own = [
        None
        if part is None
        else {name: part[name] for name in part if name not in shared}
        for part in parts
    ]
    return {
        "joined": {"dim": dim, "labels": list(labels), "shared": shared, "parts": own}
    }


def joints(stored: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The labels of the parts of a joined result, along each dimension on which it or a part was joined."""
    if "joined" not in stored:
        return {}
    joined = stored["joined"]
    along = {joined["dim"]: list(joined["labels"])}
    if not joined["parts"] or len(joined["parts"]) != len(joined["labels"]):
        raise KeyError("parts")
    for part in joined["parts"]:
        for dim, labels in joints(
            joined["shared"] | part if part is not None else {}
        ).items():
            along[dim] = [*dict.fromkeys([*along.get(dim, []), *labels])]
    return along


def read_facts(stored: Facts, labels_of: Callable[[str], list[Any] | None]) -> Facts:
    """The facts of a result, from what it stores; facts that differ between its parts are lists, None where missing.

    Only the parts with the labels of `labels_of` along a dimension are read, or all if it gives None or other labels.
    """
    own = {name: value for name, value in stored.items() if name not in BOOKS}
    if "joined" not in stored:
        return own
    joined = stored["joined"]
    labels, parts = joined["labels"], joined["parts"]
    here = labels_of(joined["dim"])
    known = here and all(label in labels for label in here)
    places = (
        [labels.index(label) for label in here] if here and known else range(len(parts))
    )
    chosen = [parts[place] for place in places]
    each = [
        read_facts(joined["shared"] | part, labels_of) if part is not None else {}
        for part in chosen
    ]
    return of_several(each) | own


def of_several(each: Sequence[Facts]) -> Facts:
    """The facts of several results; those that differ are lists, with None for a result without that fact."""
    names = dict.fromkeys(name for facts in each for name in facts)
    return {name: _merge([facts.get(name) for facts in each]) for name in names}


def part_facts(
    stored: Facts, labels_of: Callable[[str], list[Any] | None], dims: Collection[str]
) -> Facts:
    """What a result stores, or of a joined result from which one label was selected, what that part stored."""
    if "joined" not in stored or stored["joined"]["dim"] in dims:
        return stored
    joined = stored["joined"]
    here = labels_of(joined["dim"]) or [None]
    if here[0] not in joined["labels"]:
        return stored
    own = joined["parts"][joined["labels"].index(here[0])]
    part = joined["shared"] | own if own is not None else {}
    inner = part_facts(part, labels_of, dims)
    changed = {name: stored.get(name, {}) | inner.get(name, {}) for name in CHANGED}
    return (
        inner
        | changed
        | {name: value for name, value in stored.items() if name not in BOOKS}
    )


def _merge(facts: Sequence[Any]) -> Any:
    """The common value of all facts, or the list of their values; dicts with the same keys are merged key by key."""
    first = facts[0]
    if all(isinstance(each, dict) and each.keys() == first.keys() for each in facts):
        return {name: _merge([each[name] for each in facts]) for name in first}
    return first if all(each == first for each in facts) else list(facts)


def headline(facts: Mapping[str, Any]) -> dict[str, str]:
    """The model of a result and what it was given, in short: a prompt, a sequence or a task.

    >>> headline({"model": ["a", "b"], "call": {"prompt": "110 ="}})
    {'model': 'a, b', 'prompt': "'110 ='"}
    >>> headline({"call": {"prompt": ["110 =", "How many ones are in 1101? " * 3, "0 ="]}})["prompt"]
    "'110 =', … (3 prompts)"
    """
    stated = {"model": facts.get("model")} | subjects(facts)
    return {
        name: _in_short(name, value)
        for name, value in stated.items()
        if value is not None
    }


def subjects(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured: the prompt, the name of the sequence and of the task, as far as they are stated."""
    stated = {
        "prompt": ("call", "prompt"),
        "sequence": ("sequence", "name"),
        "task": ("task", "name"),
    }
    inner = {name: facts.get(about) for name, (about, _) in stated.items()}
    names = {
        name: part.get(stated[name][1])
        for name, part in inner.items()
        if isinstance(part, dict)
    }
    return {name: value for name, value in names.items() if value is not None}


def _in_short(name: str, value: Any) -> str:
    """A name or prompt on one line; of several that do not fit on it, the first."""
    several = isinstance(value, list) and any(
        isinstance(part, str | list) for part in value
    )
    shown = short_repr if name == "prompt" else lambda part: " ".join(str(part).split())
    texts = [shown(part) for part in (value if several else [value])]
    whole = ", ".join(texts if name == "prompt" else dict.fromkeys(texts))
    return (
        whole
        if len(whole) <= WIDTH or len(texts) == 1
        else f"{texts[0]}, … ({len(texts)} {name}s)"
    )


def named_models(facts: Mapping[str, Any]) -> list[str]:
    """The models of a result, each with what became of its weights if they are not the whole published ones.

    >>> named_models({"model": "a", "weights_origin": {"note": "dequantized from Q8_0; not the published weights"}})
    ['a (dequantized from Q8_0)']
    >>> named_models({"model": ["a", "b"], "weights_origin": None})
    ['a', 'b']
    """
    model, origin = facts.get("model"), facts.get("weights_origin")
    names = [model] if isinstance(model, str) else list(model or [])
    origins = origin if isinstance(origin, list) else [origin]
    notes: list[Any] = [
        part.get("note") if isinstance(part, dict) else None for part in origins
    ]
    notes = (
        notes[0] if len(notes) == 1 and isinstance(notes[0], list) else notes
    )  # merged from parts
    notes = notes if len(notes) == len(names) else notes[:1] * len(names)
    said = ("dequantized", "language model of")
    changed = [
        str(note).partition(";")[0] if str(note).startswith(said) else ""
        for note in notes
    ]
    return [
        f"{name} ({how})" if how else str(name)
        for name, how in zip(names, changed, strict=True)
    ]
