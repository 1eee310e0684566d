"""The description of a study, in Python or YAML: grids of cells."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from squashlens._typing import short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.study.measurements import Measurement, call, named


@validated
@dataclass(frozen=True)
class Grid:
    """A measurement, the arguments of all cells, and for each varied argument its values.

    For a scan, `over` says which file has the prompts. `name` is what the grid is called in tables.
    """

    measurement: Measurement
    arguments: Mapping[str, Any] = field(default_factory=dict)
    each: Mapping[str, Any] = field(default_factory=dict)
    over: Mapping[str, Any] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "measurement", named(self.measurement))
        object.__setattr__(self, "name", self.name or _name_of(self.measurement))
        if both := self.axes.keys() & self.arguments.keys():
            cause = f"{min(both)!r} is in `arguments` and in `each`."
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
                value = _with(arguments.get(outer), outer, inner, value)
            arguments[outer] = value
        return arguments


def _with(target: Any, outer: str, inner: str, value: Any) -> Any:
    """A described argument with another value inside, for a sequence among the arguments of its maker."""
    if outer == "sequence" and isinstance(target, str):
        target = {target: None}
    if not isinstance(target, Mapping):
        cause = f"each: {outer}.{inner} has nothing to be set in."
        raise InputError(cause, f"Give {outer} as a mapping in `arguments`.")
    if outer == "sequence" and len(target) == 1:
        ((maker, arguments),) = target.items()
        return {maker: {**(arguments or {}), inner: value}}
    return {**target, inner: value}


def read(described: Any) -> tuple[list[Grid], str | None]:
    """The grids of a description, and its store if it names one."""
    if isinstance(described, str | Path):
        described = _from_yaml(Path(described))
    store = None
    if isinstance(described, Mapping) and "grids" in described:
        if unknown := sorted(map(str, described.keys() - {"grids", "store"})):
            cause = f"A study has no entry {unknown[0]!r}."
            raise InputError(cause, "Its entries are: grids, store.")
        store, described = described.get("store"), described["grids"]
    grids = [described] if isinstance(described, Mapping) else described
    entries = grids if isinstance(grids, Sequence) else []
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        cause = f"grids={short_repr(described)} is no list of grids."
        raise InputError(cause, "Give mappings: {'measurement': 'path_bound', …}.")
    made = [call(Grid, entry, "A grid") for entry in grids]
    names = [grid.name for grid in made]
    if twice := [name for name in names if names.count(name) > 1]:
        cause = f"Several grids have the name {twice[0]!r}."
        raise InputError(cause, "Give each a `name` of its own.")
    return made, store


def _from_yaml(file: Path) -> Any:
    """The content of a YAML file; PyYAML itself keeps the last of two equal keys without a word."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [(key.tag, str(key.value)) for key, _ in node.value]
            if twice := [name for tag, name in keys if keys.count((tag, name)) > 1]:
                raise ValueError(
                    f"{twice[0]!r} stands twice in one mapping,{node.start_mark}"
                )
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader)  # noqa: S506 (it is a SafeLoader)
    except (OSError, yaml.YAMLError, ValueError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:300]
        cause = f"{str(file)!r} cannot be read as YAML: {reason}."
        raise InputError(
            cause, "Give the name of a YAML file, and correct it."
        ) from error


def _by_label(argument: str, values: Any) -> dict[Any, Any]:
    """The values of a varied argument by label; a value without a label is its own, as text if it is no number."""
    if isinstance(values, Mapping) and values:
        labels, items = list(values), list(values.values())
    else:
        items = values.tolist() if isinstance(values, np.ndarray) else values
        if not isinstance(items, list | tuple | range) or not items:
            cause = f"each: {argument}={short_repr(values)} is not a list of values."
            raise InputError(cause, "Give at least one.")
        numbers = {type(value) for value in items} <= {int, float}
        labels = list(items) if numbers else [_label(value) for value in items]
    if len({str(label) for label in labels}) < len(labels):
        cause = f"each: {argument} has a value or a label twice."
        raise InputError(cause, "Give each once, or each a label: {label: value}.")
    return dict(zip(labels, items, strict=True))


def _label(value: Any) -> str:
    if isinstance(value, str | Path):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=_name_of)


def _name_of(value: Any) -> str:
    """What a measurement, a hook or another object is called."""
    name = getattr(value, "__name__", getattr(value, "name", value))
    return value if isinstance(value, str) else str(name)
