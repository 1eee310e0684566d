"""The description of a study, in Python or YAML: grids of cells."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from squashlens._typing import short_repr
from squashlens.checks.arguments import converted, validated
from squashlens.errors import InputError
from squashlens.study.measurements import Measurement


@validated
@dataclass(frozen=True)
class Grid:
    """A measurement, the arguments of all cells, and for each varied argument its values.

    For a scan, `over` says which file has the prompts. `name` is what the grid is called in tables.
    """

    measurement: Measurement = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    each: Mapping[str, Any] = field(default_factory=dict)
    over: Mapping[str, Any] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        """Name the grid after its measurement by default; raise for an argument that is given twice."""
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.measurement))
        for name in self.axes:
            if name in self.arguments:
                cause = f"{name!r} is in `arguments` and in `each`."
                raise InputError(cause, "Give it in one of them.")

    @cached_property
    def axes(self) -> dict[str, dict[Any, Any]]:
        """For each varied argument, its values by label."""
        return {name: _by_label(name, values) for name, values in self.each.items()}

    def arguments_at(self, labels: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of one cell. A dot reaches into an argument: `sequence.n` is the n of the sequence."""
        arguments = dict(self.arguments)
        for name, label in labels.items():
            outer, dot, inner = name.partition(".")
            value = self.axes[name][label]
            if dot:
                value = _with(arguments.get(outer), inner, value, name)
            arguments[outer] = value
        return arguments


def _with(described: Any, inner: str, value: Any, name: str) -> Any:
    """A described argument with `value` as its item `inner`; a call by name, ``{name: {…}}``, gets it as an argument.

    >>> _with({"repeated": {"token": "1", "n": 48}}, "n", 96, "sequence.n")
    {'repeated': {'token': '1', 'n': 96}}
    """
    if not isinstance(described, Mapping):
        cause = f"each: {name} has nothing to be set in."
        raise InputError(cause, "Give the argument as a mapping in `arguments`.")
    changed = copy.deepcopy(dict(described))
    content = list(changed.values())
    if len(content) == 1 and isinstance(content[0], dict):
        content[0][inner] = value
    else:
        changed[inner] = value
    return changed


def read(described: Any) -> tuple[list[Grid], str | Path | None]:
    """The grids of a description (a grid, several, or a YAML file with both), and its store if it names one."""
    if isinstance(described, str | Path):
        described = _from_yaml(Path(described))
    store = None
    given = described
    if isinstance(described, Mapping) and "grids" in described:
        store = described.get("store")
        given = described["grids"]
    if isinstance(given, Mapping):
        given = [given]
    described_grids = converted(given, list[Mapping[str, Any]], "grids")
    grids = [Grid(**grid) for grid in described_grids]
    names = {grid.name for grid in grids}
    if len(names) < len(grids) or not grids:
        cause = f"grids={short_repr(given)} has no grid, or two with one name."
        raise InputError(cause, "Give each a `name` of its own.")
    return grids, store


def _from_yaml(file: Path) -> Any:
    """The content of a YAML file."""
    import yaml

    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        cause = f"{str(file)!r} cannot be read as YAML: {' '.join(str(error).split())}."
        remedy = "Give the name of a YAML file, and correct it."
        raise InputError(cause, remedy) from error


def _by_label(argument: str, values: Any) -> dict[Any, Any]:
    """The values of a varied argument by label; a value without a label is its own, as text if it is no number."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(values, Mapping):
        pairs += values.items()
    else:
        items = converted(values, list[Any], f"each: {argument}")
        kinds = {type(item) for item in items}
        for item in items:
            label = item if kinds <= {int, float} else _label(item)
            pairs.append((label, item))
    texts = {str(label) for label, _ in pairs}
    if len(texts) < len(pairs) or not pairs:
        cause = f"each: {argument} has no value, or a value or a label twice."
        raise InputError(cause, "Give each once, or each a label: {label: value}.")
    return dict(pairs)


def _label(value: Any) -> str:
    if isinstance(value, str | Path):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=_name_of)


def _name_of(value: Any) -> str:
    """What a measurement, a hook or another object is called."""
    if isinstance(value, str):
        return value
    return str(getattr(value, "__name__", getattr(value, "name", value)))
