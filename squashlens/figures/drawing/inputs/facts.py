"""What a figure says of its results: the model, the task, hooks on the model, and the norm of a distance."""

from collections.abc import Iterable, Iterator
from typing import Any

import xarray as xr

from squashlens.checks.results import is_relative
from squashlens.figures.drawing.text import escaped
from squashlens.records.results import facts_of

Result = xr.Dataset | xr.DataArray
NORMS = {"linf": "L∞", "l1": "L1", "l2": "L2", "kl": "KL", "cosine": "cosine", "frobenius": "Frobenius"}
PLACES = {  # options of a measurement: what is usual, and the text for other values
    "from_layer": (0, "from layer "), "to_layer": ("y", "to layer "), "query": (-1, "query at position "),
}  # fmt: skip
SELECTED = ("prompt", "layer", "block", "hop", "run", "sink", "window", "change", *PLACES)  # dimensions to name
LONG = 40  # characters of a label
FEW = 3  # names that the line under the title lists


def notes_of(found: Result | Iterable[Result], *notes: str) -> str:
    """The line under the title: models, tasks, hooks on the model, layers and query if they are not the usual ones,
    what was selected, then `notes`, which are markup already."""
    several = [found] if isinstance(found, xr.Dataset | xr.DataArray) else list(found)
    facts = [facts_of(one) for one in several]
    models = _few([name for one in facts for name in _all(one.get("model"))], "models")
    tasks = _few([name for one in facts for name in _all((one.get("task") or {}).get("name"))], "tasks")
    hooks = [_hooks(one.get("ambient_hooks")) for one in facts]
    most, hooked = max(hooks, default=0), sum(map(bool, hooks))
    some = f" in {hooked} of {len(hooks)} results" if hooked < len(hooks) else ""
    changed = [f"hooks at {'up to ' * (min(hooks) not in (0, most))}{most} point{'s' * (most > 1)}{some}"] * bool(most)
    places = dict.fromkeys(place for one, fact in zip(several, facts, strict=True) for place in _places(one, fact))
    return " · ".join(filter(None, [models, tasks, *changed, *map(escaped, places), *notes]))


def norm_of(found: Result) -> str:
    """The norm of a result's distances, as text; empty if it is not recorded."""
    norm = (facts_of(found).get("call") or {}).get("norm")
    return NORMS.get(norm, escaped(norm)) if isinstance(norm, str) else ""


def norm_named(found: Result) -> list[str]:
    """The norm for the line under the title, if it is recorded."""
    norm = norm_of(found)
    return [f"{norm} norm"] if norm else []


def distance_of(found: xr.Dataset, name: str = "distance") -> str:
    """The title of an axis of D: whether it is relative, and the norm."""
    norm = norm_of(found)
    return ("D ÷ rms(v)" if is_relative(found[name]) else "D") + (f" ({norm})" if norm else "")


def _all(names: Any) -> list[Any]:
    """One name or several as a list."""
    return [names] if isinstance(names, str) else list(names or [])


def _hooks(names: Any) -> int:
    """The number of hook points that were edited in all parts of a result; a joined result has a list for each part."""
    parts = list(_lists(names or []))
    return len(set.intersection(*parts)) if parts else 0


def _lists(names: list[Any]) -> Iterator[set[str]]:
    """The innermost lists, of names, as sets: a result that was joined twice has lists of lists of them."""
    inner = [part for part in names if isinstance(part, list)]
    if not inner:
        yield set(map(str, names))
    for part in inner:
        yield from _lists(part)


def _places(found: Result, facts: dict[str, Any]) -> Iterator[str]:
    """Where a result was measured, if not from the first layer to the output of the last token, and selected labels."""
    call = facts.get("call") or {}
    for name, (usual, text) in PLACES.items():
        value = call.get(name, usual)
        if value != usual and name not in found.coords and isinstance(value, int | str):
            yield text + str(value).replace("-", "−")
    for name, values in found.coords.items():
        if not values.ndim and name in SELECTED:
            text = PLACES[str(name)][1] if name in PLACES else f"{name} "
            yield text + str(values.values)[:LONG]


def _few(names: list[str], what: str) -> str:
    once = list(dict.fromkeys(map(str, names)))
    return escaped(", ".join(once)) if len(once) <= FEW else f"{len(once)} {what}"
