"""The line below the title: the model, what it was asked, hooks, and options that are not the usual ones."""

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import xarray as xr

from squashlens._typing import short_repr
from squashlens.checks.results import is_relative
from squashlens.figures.drawing.text import shortened
from squashlens.records.provenance import facts_of, models_of

Result = xr.Dataset | xr.DataArray
NORMS = {"linf": "L∞", "l1": "L1", "l2": "L2", "kl": "KL"}
# Options that say how numbers are computed, not what they are, and what is said already.
TECHNICAL = (
    "function",
    "prompt",
    "seed",
    "vjp_batch_size",
    "batch_size",
    "resume",
    "device",
)
# Single labels of a result that are no selection from it.
NO_SELECTION = (
    "n_tokens",
    "target",
    "against",
    "selected_",
    "able",
    "above_null",
    "baseline",
    "chance",
    "provenance",
)
LONG = 40  # characters of a prompt, a hook or a label
FEW = 3  # names that are listed


def notes_of(found: Result | Iterable[Result]) -> list[str]:
    """What was measured, from the facts and the labels of results; each only once."""
    several = [found] if isinstance(found, xr.Dataset | xr.DataArray) else list(found)
    facts = [facts_of(one) for one in several]
    told = {
        "models": [models_of(one) for one in several],
        "dtypes": [_texts(one.get("dtype")) for one in facts],
        "prompts": [_prompts(_part(one, "call").get("prompt")) for one in facts],
        "sequences": [_texts(_part(one, "sequence").get("name")) for one in facts],
        "tasks": [_texts(_part(one, "task").get("name")) for one in facts],
        "hooks": [_hooks(one) for one in facts],
    }
    notes = {
        what: _few([text for texts in each for text in texts], what)
        for what, each in told.items()
    }
    hooked = sum(map(bool, told["hooks"]))
    if 0 < hooked < len(several):
        notes["hooks"] += f" in {hooked} of {len(several)} results"
    labels = []
    for one, fact in zip(several, facts, strict=True):
        labels += _options(_part(fact, "call")) + _selected(one)
    return list(dict.fromkeys(filter(None, [*notes.values(), *labels])))


def distance_of(found: xr.Dataset) -> str:
    """The title of an axis of D: whether it is relative, and the norm, if it is recorded."""
    norm = _part(facts_of(found), "call").get("norm")
    title = "D ÷ rms(v)" if is_relative(found["distance"]) else "D"
    return f"{title} ({NORMS.get(norm, norm)})" if isinstance(norm, str) else title


def _part(facts: Mapping[str, Any], about: str) -> Mapping[str, Any]:
    """The facts about one thing; none where the parts of a result differ in it."""
    part = facts.get(about)
    return part if isinstance(part, dict) else {}


def _texts(facts: Any) -> list[str]:
    """The texts of a fact, which is a list where the parts of a result differ."""
    if isinstance(facts, list | tuple):
        return [text for part in facts for text in _texts(part)]
    return [] if facts is None else [str(facts)]


def _few(texts: list[str], what: str) -> str:
    once = list(dict.fromkeys(texts))
    return ", ".join(once) if len(once) <= FEW else f"{len(once)} {what}"


def _prompts(given: Any) -> list[str]:
    """Prompts in short: texts, or lists of ids."""
    several = isinstance(given, list) and all(
        isinstance(one, str | list) for one in given
    )
    prompts = given if several else [given]
    return [shortened(short_repr(prompt), LONG) for prompt in prompts if prompt]


def _hooks(facts: Mapping[str, Any]) -> list[str]:
    """The hooks on the model, without the points where they act."""
    names = [name.partition(": ")[2] for name in _texts(facts.get("ambient_hooks"))]
    return [shortened(" ".join(name.replace("·", "").split()), LONG) for name in names]


def _options(call: Mapping[str, Any]) -> list[str]:
    """The options of a call that are single values, and not the usual ones; the norm always."""
    usual = _defaults(str(call.get("function")))
    told = {name: value for name, value in call.items() if name not in TECHNICAL}
    return [
        f"{name} {shortened(str(NORMS.get(str(value), value)), LONG)}".replace("_", " ")
        for name, value in told.items()
        if isinstance(value, str | int | float)
        and (name == "norm" or value != usual.get(name, inspect.Parameter.empty))
    ]


@functools.cache
def _defaults(function: str) -> dict[str, Any]:
    """The usual values of the options of a measurement."""
    import squashlens

    places = (squashlens, squashlens.paths, squashlens.synthetic, squashlens.results)
    named = [getattr(place, function, None) for place in places]
    public = [one for one in named if callable(one)]  # `hosted` is a module
    if not public:
        return {}
    parameters = inspect.signature(public[0]).parameters
    return {name: one.default for name, one in parameters.items()}


def _selected(found: Result) -> list[str]:
    """The single labels that were selected from a result."""
    single = {str(name): one for name, one in found.coords.items() if one.ndim == 0}
    return [
        f"{name.replace('_', ' ')} {shortened(str(label.values), LONG)}"
        for name, label in single.items()
        if not name.startswith(NO_SELECTION)
    ]
