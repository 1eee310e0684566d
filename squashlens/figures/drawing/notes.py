"""The line below the title: the model, what it was asked, hooks, and options that are not the usual ones."""

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import xarray as xr

from squashlens._typing import short_repr
from squashlens.checks.results import is_relative
from squashlens.figures.drawing.text import shortened
from squashlens.records.provenance import facts_of, models_of

Result = xr.Dataset | xr.DataArray
NORMS = {"linf": "L∞", "l1": "L1", "l2": "L2", "kl": "KL"}
# Options that say how numbers are computed, not what they are, and what is said already.
TECHNICAL = {
    *("function", "prompt", "seed", "vjp_batch_size", "batch_size", "resume", "device")
}
# Single labels of a result that are no selection from it, by the beginning of their names.
NO_SELECTION = (
    *("n_tokens", "target", "against", "selected_", "able", "above_null"),
    *("baseline", "chance", "provenance"),
)
LONG = 40  # characters of a prompt, a hook or a label
FEW = 3  # names that are listed


def notes_of(found: Result | Iterable[Result]) -> list[str]:
    """The parts of the line below the title: what was measured, from the facts and the labels of results.

    Of each kind of fact, such as models, it has the names, or their number if they are many; then options and selected
    labels. A part may be empty, or occur twice.
    """
    results = [found] if isinstance(found, xr.Dataset | xr.DataArray) else list(found)
    names: dict[str, list[str]] = {
        "models": [],
        "dtypes": [],
        "prompts": [],
        "sequences": [],
        "tasks": [],
        "hooks": [],
    }
    labels: list[str] = []
    n_with_hooks = 0
    for result in results:
        facts = facts_of(result)
        other = _part(facts, "other")  # the facts of the second of two models
        hooks = _hooks(facts) + _hooks(other)
        n_with_hooks += bool(hooks)
        names["models"] += models_of(result)
        names["dtypes"] += _texts(facts.get("dtype")) + _texts(other.get("dtype"))
        names["prompts"] += _prompts(_part(facts, "call").get("prompt"))
        names["sequences"] += _texts(_part(facts, "sequence").get("name"))
        names["tasks"] += _texts(_part(facts, "task").get("name"))
        names["hooks"] += hooks
        labels += _options(_part(facts, "call")) + _selected(result)
    notes = [_few(texts, kind) for kind, texts in names.items()]
    if 0 < n_with_hooks < len(results):  # the last kind is hooks
        notes[-1] += f" in {n_with_hooks} of {len(results)} results"
    return notes + labels


def distance_of(found: xr.Dataset) -> str:
    """The title of an axis of D: whether it is relative, and the norm, if it is recorded."""
    norm = _part(facts_of(found), "call").get("norm")
    title = "D ÷ rms(v)" if is_relative(found["distance"]) else "D"
    if isinstance(norm, str):
        title += f" ({NORMS.get(norm, norm)})"
    return title


def _part(facts: Mapping[str, Any], about: str) -> Mapping[str, Any]:
    """The facts about one thing; none where the parts of a result differ in it."""
    part = facts.get(about)
    return part if isinstance(part, dict) else {}


def _texts(facts: Any) -> list[str]:
    """The texts of a fact, which is a list, perhaps of lists, where the parts of a result differ."""
    if facts is None:
        return []
    if not isinstance(facts, list | tuple):
        return [str(facts)]
    texts = []
    for fact in facts:
        texts += _texts(fact)
    return texts


def _few(texts: Sequence[str], kind: str) -> str:
    """Up to three different names, as "a, b"; of more, their number and kind, as "4 models"."""
    names = list(dict.fromkeys(texts))
    return ", ".join(names) if len(names) <= FEW else f"{len(names)} {kind}"


def _prompts(given: Any) -> list[str]:
    """Prompts in short: texts, or lists of ids."""
    prompts = [given]
    if isinstance(given, list) and given and isinstance(given[0], str | list):
        prompts = given
    return [shortened(short_repr(prompt), LONG) for prompt in prompts if prompt]


def _hooks(facts: Mapping[str, Any]) -> list[str]:
    """The names of the hooks on the model, without the points where they act.

    A fact is such as "blocks.3.attn.hook_z: halve"; in the line below the title, a dot stands between its parts.
    """
    names = []
    for hook in _texts(facts.get("ambient_hooks")):
        _, _, name = hook.partition(": ")
        words = name.replace("·", "").split()
        names.append(shortened(" ".join(words), LONG))
    return names


def _options(call: Mapping[str, Any]) -> list[str]:
    """The options of a call that are single values, and not the usual ones; the norm always."""
    usual = _defaults(str(call.get("function")))
    options = []
    for name, value in call.items():
        if name in TECHNICAL or not isinstance(value, str | int | float):
            continue
        if name == "norm" or value != usual.get(name, inspect.Parameter.empty):
            text = shortened(str(NORMS.get(str(value), value)), LONG)
            options.append(f"{name} {text}".replace("_", " "))
    return options


@functools.cache
def _defaults(function: str) -> dict[str, Any]:
    """The usual values of the options of a public measurement, by the name of the function; none if it is unknown."""
    import squashlens

    for module in (squashlens, squashlens.attention_paths, squashlens.synthetic):
        public = getattr(module, function, None)
        if callable(public):  # `hosted` is a module
            parameters = inspect.signature(public).parameters.items()
            return {name: parameter.default for name, parameter in parameters}
    return {}


def _selected(found: Result) -> list[str]:
    """The single labels that were selected from a result, such as "layer 3"."""
    labels = []
    for name, label in found.coords.items():
        if label.ndim == 0 and not str(name).startswith(NO_SELECTION):
            text = shortened(str(label.values), LONG)
            labels.append(f"{str(name).replace('_', ' ')} {text}")
    return labels
