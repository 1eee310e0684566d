"""The description of a study, in Python or YAML: grids of cells, each a measurement with arguments.

A grid has these entries; everything in it can be written as JSON.

    measurement  the name of a measurement
    arguments    arguments that are the same in all cells
    each         arguments that are varied: a list of values, or values by label. Cells are all combinations.
    over         for a scan: the file or dataset whose prompts are measured one by one
    name         what the grid is called in tables; by default the measurement
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from squashlens._typing import short_repr
from squashlens.errors import InputError

ENTRIES = ("measurement", "arguments", "each", "over", "name")
RESERVED = "cells"  # the table of all cells, for `sql`
EXAMPLE = "Give a mapping such as {'measurement': 'path_bound', 'arguments': {…}, 'each': {'model': […]}}."


@dataclass(frozen=True)
class Grid:
    """A measurement, its arguments, and the values of those that are varied, by label."""

    name: str
    measurement: str
    arguments: dict[str, Any]
    axes: dict[str, dict[Any, Any]]  # for each varied argument, its values by label
    over: dict[str, Any] | None = None
    given: dict[str, Any] = field(default_factory=dict)


def read(given: Any) -> tuple[list[Grid], str | None]:
    """The grids of a description, and its store if it names one."""
    store = None
    if isinstance(given, str | Path):
        given = _from_yaml(given)
    if isinstance(given, Mapping) and "grids" in given:
        if unknown := sorted(map(str, given.keys() - {"grids", "store"})):
            raise InputError(f"A study has no entry {unknown[0]!r}.", "Its entries are: grids, store.")
        store, given = given.get("store"), given["grids"]
    grids = [given] if isinstance(given, Mapping) else given
    if not isinstance(grids, Sequence) or isinstance(grids, str) or not grids:
        raise InputError(f"grids={short_repr(given)} has no grid of measurements.", EXAMPLE)
    found = [_grid(one) for one in grids]
    tables = [table_of(grid.name).lower() for grid in found]
    if twice := [grid.name for grid, table in zip(found, tables, strict=True) if tables.count(table) > 1]:
        raise InputError(f"These grids have one name in SQL: {', '.join(twice)}.", "Give each a `name` of its own.")
    return found, store


def table_of(grid: str) -> str:
    """What `sql` calls the table of a grid."""
    return re.sub(r"\W", "_", grid)


def _from_yaml(path: str | Path) -> Any:
    """The content of a YAML file; a key that a mapping has twice is an error, where YAML would use the last."""
    import yaml

    class Once(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if twice := [key for key in keys if keys.count(key) > 1]:
                line = node.start_mark.line + 1
                raise InputError(f"{file.name}: {twice[0]!r} is given twice, from line {line}.", "Give it once.")
            return super().construct_mapping(node, deep)

    file = Path(path)
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Once)  # noqa: S506 (it is a SafeLoader)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{str(file)!r} cannot be read: {error.strerror}.", "Give the name of a YAML file.") from error
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{str(file)!r} is not a YAML file: {reason}.", "Correct it.") from error


def _grid(given: Any) -> Grid:
    if not isinstance(given, Mapping):
        raise InputError(f"The grid {short_repr(given)} is not a mapping.", EXAMPLE)
    plain = _json(given)
    if unknown := [name for name in plain if name not in ENTRIES]:
        raise InputError(f"A grid has no entry {unknown[0]!r}.", f"Its entries are: {', '.join(ENTRIES)}.")
    measurement = plain.get("measurement")
    if not isinstance(measurement, str):
        raise InputError(f"The grid {short_repr(plain)} names no measurement.", EXAMPLE)
    parts = {name: plain.get(name) or {} for name in ("arguments", "each")}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise InputError(f"{name}={short_repr(part)} is not a mapping.", EXAMPLE)
    over, name = plain.get("over"), plain.get("name", measurement)
    if over is not None and not isinstance(over, dict):
        raise InputError(f"over={short_repr(over)} is not a mapping.", "Give {'file': …, 'column': …}.")
    if not isinstance(name, str) or not name or table_of(name).lower() == RESERVED:
        raise InputError(f"name={short_repr(name)} is not a name for a grid.", f"Give text, other than {RESERVED!r}.")
    axes = {argument: _labelled(argument, values) for argument, values in parts["each"].items()}
    for argument in axes:
        if argument in parts["arguments"]:
            raise InputError(f"{argument!r} is in `arguments` and in `each`.", "Give it in one of them.")
    return Grid(name, measurement, parts["arguments"], axes, over, plain)


def _json(given: Mapping[Any, Any]) -> dict[str, Any]:
    """The description as JSON has it, so that every engine and every process sees the same values."""
    try:
        return json.loads(json.dumps(given, allow_nan=False, default=_as_list))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"A grid has a value that JSON cannot hold: {error}.",
            "Use text, finite numbers, lists and mappings; for a model, its name or the folder it was saved to.",
        ) from error


def _as_list(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, range | tuple):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {short_repr(value)}")


def _labelled(argument: str, values: Any) -> dict[Any, Any]:
    """The values of a varied argument by label; a value without a label is its own, as text if it is a list."""
    if isinstance(values, dict) and values:
        return values
    if not isinstance(values, list) or not values:
        raise InputError(f"each: {argument}={short_repr(values)} is not a list of values.", "Give at least one.")
    plain = all(isinstance(value, str) for value in values) or all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    labels = values if plain else [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    if len(set(labels)) < len(labels):
        raise InputError(f"each: {argument} has a value twice.", "Give each value once.")
    return dict(zip(labels, values, strict=True))
