"""The description of a study, in Python or YAML: grids of cells. Everything in it can be written as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from squashlens._typing import short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.study.describing.measurements import call
from squashlens.synthetic import Stack


@validated
@dataclass(frozen=True)
class Grid:
    """A measurement by its name, the arguments of all cells, and for each varied argument its values.

    For a scan, `over` says which file has the prompts. `name` is what the grid is called in tables.
    """

    measurement: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    each: Mapping[str, Any] = field(default_factory=dict)
    over: Mapping[str, Any] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.measurement)
        if both := self.axes.keys() & self.arguments.keys():
            raise InputError(
                f"{min(both)!r} is in `arguments` and in `each`.",
                "Give it in one of them.",
            )

    @cached_property
    def axes(self) -> dict[str, dict[Any, Any]]:
        """For each varied argument, its values by label."""
        return {
            argument: _by_label(argument, values)
            for argument, values in self.each.items()
        }


def read(described: Any) -> tuple[list[Grid], str | None]:
    """The grids of a description, and its store if it names one."""
    if isinstance(described, str | Path):
        described = from_yaml(Path(described))
    store = None
    if isinstance(described, Mapping) and "grids" in described:
        if unknown := sorted(map(str, described.keys() - {"grids", "store"})):
            raise InputError(
                f"A study has no entry {unknown[0]!r}.",
                "Its entries are: grids, store.",
            )
        store, described = described.get("store"), described["grids"]
    grids = [described] if isinstance(described, Mapping) else described
    if (
        not isinstance(grids, Sequence)
        or not grids
        or not all(isinstance(entry, Mapping) for entry in grids)
    ):
        raise InputError(
            f"grids={short_repr(described)} is no list of grids.",
            "Give mappings: {'measurement': 'path_bound', …}.",
        )
    made = [call(Grid, _json(entry), "A grid") for entry in grids]
    names = [grid.name for grid in made]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"Several grids have the name {twice[0]!r}.",
            "Give each a `name` of its own.",
        )
    return made, store


def from_yaml(file: Path) -> Any:
    """The content of a YAML file."""
    import yaml

    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{str(file)!r} cannot be read: {error.strerror}.",
            "Give the name of a YAML file.",
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"{str(file)!r} cannot be read as YAML: {reason}.", "Correct it."
        ) from error


def _json(grid: Mapping[Any, Any]) -> dict[str, Any]:
    """The description as JSON has it, so that every engine and every process sees the same values."""
    try:
        return json.loads(json.dumps(grid, allow_nan=False, default=_plain))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"A grid has a value that JSON cannot hold: {error}.",
            "Use text, finite numbers, lists and mappings; for a model, its name or the folder it was saved to.",
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, range):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Stack):
        return vars(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {short_repr(value)}")


def _by_label(argument: str, values: Any) -> dict[Any, Any]:
    """The values of a varied argument by label; a value without a label is its own, as text if it is a list."""
    if not isinstance(values, dict | list) or not values:
        raise InputError(
            f"each: {argument}={short_repr(values)} is not a list of values.",
            "Give at least one.",
        )
    if isinstance(values, dict):
        return values
    kinds = {str if isinstance(value, str) else type(value) for value in values}
    plain = kinds == {str} or kinds <= {int, float}
    labels = (
        values
        if plain
        else [
            v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)
            for v in values
        ]
    )
    if len(set(labels)) < len(labels):
        raise InputError(
            f"each: {argument} has a value twice.", "Give each value once."
        )
    return dict(zip(labels, values, strict=True))
