"""What a figure says of its results: the model, the task, hooks on the model, and the norm of a distance."""

from collections.abc import Iterable
from typing import Any

import xarray as xr

from squashlens.checks.results import is_relative
from squashlens.figures.drawing.text import escaped
from squashlens.results import provenance
from squashlens.seals import text_of

Result = xr.Dataset | xr.DataArray
NORMS = {"linf": "L∞", "l1": "L1", "l2": "L2", "kl": "KL", "cosine": "cosine"}
FEW = 3  # names that the line under the title lists


def facts_of(found: Result) -> dict[str, Any]:
    """The provenance of a result; empty for an array that squashlens did not measure."""
    return {} if text_of(found) is None else provenance(found)


def notes_of(found: Result | Iterable[Result], *notes: str) -> str:
    """The line under the title: models, tasks, hooks on the model, then `notes`, which are markup already."""
    facts = [facts_of(one) for one in ([found] if isinstance(found, xr.Dataset | xr.DataArray) else found)]
    models = _few([name for one in facts for name in _all(one.get("model"))], "models")
    tasks = _few([name for one in facts for name in _all((one.get("task") or {}).get("name"))], "tasks")
    hooks = max((_hooks(one.get("ambient_hooks")) for one in facts), default=0)
    changed = [f"hooks at {hooks} point{'s' * (hooks > 1)}"] if hooks else []
    return " · ".join(filter(None, [models, tasks, *changed, *notes]))


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
    parts = [set(map(str, part)) for part in names or [] if isinstance(part, list)]
    return len(set.intersection(*parts)) if parts else len(names or [])


def _few(names: list[str], what: str) -> str:
    once = list(dict.fromkeys(map(str, names)))
    return escaped(", ".join(once)) if len(once) <= FEW else f"{len(once)} {what}"
