"""What a figure says of its results: the model, the task, hooks on the model, options, and the norm of a distance."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args, get_origin

import numpy as np
import xarray as xr

from squashlens._typing import ATTENTION
from squashlens.checks.arguments import frozen
from squashlens.checks.results import EACH, is_relative
from squashlens.figures.drawing.text import escape
from squashlens.records.provenance import facts_of, joined_along, models_of
from squashlens.records.sentences import plural

Result = xr.Dataset | xr.DataArray
NORMS = {
    "linf": "L∞",
    "l1": "L1",
    "l2": "L2",
    "kl": "KL",
    "cosine": "cosine",
    "frobenius": "Frobenius",
}
PLACES = {  # options of a measurement: what is usual, and the text for other values
    "from_layer": (0, "from layer "),
    "to_layer": ("y", "to layer "),
    "query": (-1, "query at position "),
}
HEADS = {"value": "heads: their outputs", "slice": "heads: slices of the stream"}
WAYS = {"sketch": "estimates", "sketch_upper": "upper bounds"}
# Further options that change what is measured: what they are, of one part, and the text.
OPTIONS: dict[str, tuple[Any, Callable[[Any], str]]] = {
    "round_to": (str, lambda form: f"rounded to {form}"),
    "by_head": (str, lambda heads: HEADS.get(heads, "")),
    "substitute": (str, lambda token: f"substitute “{token}”"),
    "prefix": (str, lambda text: f"after “{_short(text)}”" if text else ""),
    "attention": (str, lambda kind: ATTENTION.get(kind, "")),
    "method": (str, lambda way: f"Jacobian: {WAYS[way]}" if way in WAYS else ""),
    "candidates": (list[int], lambda ids: f"replacements: {plural(len(ids), 'token')}"),
    "freeze": (list[str], frozen),
    "missing": (
        str,
        lambda way: "in its place: the mean of other prompts" if way == "mean" else "",
    ),
    "kind": (str, lambda kind: "embeddings set to 0" if kind == "embedding" else ""),
}
TITLED = (
    "path_bound",
    "jacobian_norms",
)  # whose long names, which are titles, have all options
LONG = 40  # characters of a label
FEW = 3  # names that the line under the title lists


def notes_of(found: Result | Iterable[Result], *notes: str) -> str:
    """The line under the title: models, tasks, hooks on the model, layers and query if they are not the usual ones,
    then `notes`, which are markup already."""
    several = [found] if isinstance(found, xr.Dataset | xr.DataArray) else list(found)
    facts = [facts_of(one) for one in several]
    models = _few([name for one in several for name in models_of(one)], "models")
    named = [task.get("name") or [] for one in facts for task in _each(one, "task")]
    tasks = _few([name for names in named for name in np.atleast_1d(names)], "tasks")
    changed = _edits(facts)
    places = dict.fromkeys(
        place
        for one, fact in zip(several, facts, strict=True)
        for place in _places(one, fact)
    )
    return " · ".join(
        filter(None, [models, tasks, changed, *map(escape, places), *notes])
    )


def norm_of(found: Result) -> str:
    """The norm of a result's distances, as text; empty if it is not recorded."""
    norm = option_of(found, "norm")
    return NORMS.get(norm, escape(norm)) if isinstance(norm, str) else ""


def option_of(found: Result, name: str) -> Any:
    """An option of the measurement; None if it is not recorded, or if merged results have different ones."""
    values = [call.get(name) for call in _each(facts_of(found), "call")]
    return values[0] if values and all(value == values[0] for value in values) else None


def norm_note(found: Result) -> list[str]:
    """The norm for the line under the title, if it is recorded."""
    norm = norm_of(found)
    return [f"{norm} norm"] if norm else []


def distance_of(found: xr.Dataset, name: str = "distance") -> str:
    """The title of an axis of D: whether it is relative, and the norm."""
    norm = norm_of(found)
    return ("D ÷ rms(v)" if is_relative(found[name]) else "D") + (
        f" ({norm})" if norm else ""
    )


def _each(facts: dict[str, Any], about: str) -> list[dict[str, Any]]:
    """The facts about one thing; several, if results were merged."""
    found = facts.get(about)
    return [
        one
        for one in (found if isinstance(found, list) else [found])
        if isinstance(one, dict)
    ]


def _edits(facts: list[dict[str, Any]]) -> str:
    """The hooks on the models of several results: their names, and in how many of the results."""
    hooks = []
    for one in facts:  # those that were on the model in all parts of a result; a joined one has a list for each part
        first, *others = _lists(one.get("ambient_hooks") or [])
        hooks.append([name for name in first if all(name in other for other in others)])
    names = [
        _short(one.partition(": ")[2].replace("·", ""))
        for each in hooks
        for one in each
    ]  # without their points
    named, having = _few(names, "hooks"), sum(map(bool, hooks))
    return named + (
        f" in {having} of {len(hooks)} results" if 0 < having < len(hooks) else ""
    )


def _short(text: str) -> str:
    """A text on one line; a long one ends after a word."""
    text = " ".join(text.split())
    return (
        text
        if len(text) <= LONG
        else f"{text[:LONG].rpartition(' ')[0] or text[:LONG]} …"
    )


def _lists(names: list[Any]) -> Iterator[list[str]]:
    """The innermost lists, of names: a result that was joined twice has lists of lists of them."""
    inner = [part for part in names if isinstance(part, list)]
    if not inner:
        yield [*map(str, names)]
    for part in inner:
        yield from _lists(part)


def _places(found: Result, facts: dict[str, Any]) -> Iterator[str]:
    """Where a result was measured, if not from the first layer to the output of the last token, and selected labels."""
    calls = _each(facts, "call")
    call = calls[0] if len(calls) == 1 else {}
    for name, (usual, text) in PLACES.items():
        value = call.get(name, usual)
        if value != usual and name not in found.coords and isinstance(value, int | str):
            yield text + str(value).replace("-", "−")
    for name, (kind, tell) in OPTIONS.items():
        value = call.get(name)
        if (
            call.get("function") not in TITLED
            and name not in found.coords
            and _is(value, kind)
        ):
            yield from filter(None, [tell(value)])


def selections(found: Result) -> Iterator[str]:
    """The labels that were selected."""
    for name in (*EACH, *PLACES, *joined_along(found)):
        values = found.coords.get(name)
        if values is not None and not values.ndim:
            label = PLACES[name][1] if name in PLACES else f"{name} ".replace("_", " ")
            yield label + _short(str(values.values))


def _is(value: Any, kind: Any) -> bool:
    """Whether a recorded option is that of one part, and no list of those of several."""
    if get_origin(kind) is list:
        return isinstance(value, list) and all(
            isinstance(one, get_args(kind)) for one in value
        )
    return isinstance(value, kind)


def _few(names: list[str], what: str) -> str:
    once = list(dict.fromkeys(map(str, names)))
    return escape(", ".join(once)) if len(once) <= FEW else f"{len(once)} {what}"
