"""The cells of a study: one call of a measurement each, named by a hash of all that its numbers depend on."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from squashlens._typing import full_name
from squashlens.errors import InputError
from squashlens.model.digests import sha256
from squashlens.study.describing.description import Grid
from squashlens.study.describing.measurements import (
    LOADING,
    code_for,
    identity_of,
    parameters,
    require_arguments,
    scanned_argument,
)
from squashlens.study.scans import Source, source_of

Span = tuple[int, int]


@dataclass(frozen=True)
class Model:
    """What `load` takes, and the checkpoint's identity when the study was described. A hub model has its commit.

    With `untrained`, a seed, it is the same architecture with random weights.
    """

    name: str
    dtype: str = "float32"
    revision: str | None = None
    untrained: int | None = None
    checkpoint: str = ""

    def identity(self) -> str:
        """The identity that the checkpoint has now."""
        from squashlens.model.loading.sources import identity

        return identity(self.name, self.revision)


@dataclass(frozen=True)
class Cell:
    """One call of a measurement, or of a scan, one call for each of some rows of a dataset."""

    key: str
    grid: str
    measurement: str
    arguments: dict[str, Any]
    model: Model | None
    hooks: list[Any]
    labels: dict[str, Any]  # along the axes of its grid
    source: Source | None = None
    span: Span | None = None
    code: str = ""  # digest of the code of your own measurement

    def require_described(self, *, code: bool = False) -> None:
        """An error if the checkpoint or the file of a scan (or the `code`) is not what the key stands for."""
        changed = ""
        if self.model is not None and self.model.identity() != self.model.checkpoint:
            changed = f"The checkpoint of {self.model.name!r}"
        elif self.source is not None and not self.source.is_current():
            changed = f"The file or dataset of {self.grid!r}"
        elif code and code_for(self.measurement) != self.code:
            changed = f"The code of {self.measurement!r}"
        if changed:
            raise InputError(
                f"{changed} changed after the study was described.",
                "Make the Study again.",
            )

    @property
    def about(self) -> dict[str, Any]:
        """What the header of the cell's file and the record of its failure say."""
        about = {
            "measurement": self.measurement,
            "arguments": self.arguments,
            "hooks": self.hooks,
        }
        about |= {"model": vars(self.model)} if self.model else {}
        about |= (
            {"rows": list(self.span), "over": vars(self.source.given)}
            if self.span and self.source
            else {}
        )
        return about


def cells_of(grids: Iterable[Grid]) -> list[Cell]:
    """All cells, checked against the signatures of their measurements; those with the same model are neighbours."""
    known: dict[Model, Model] = {}
    cells = [cell for grid in grids for cell in _of_grid(grid, known)]
    order = {
        model: place
        for place, model in enumerate(dict.fromkeys(cell.model for cell in cells))
    }
    return sorted(cells, key=lambda cell: order[cell.model])


def by_model(cells: Iterable[Cell]) -> dict[Model | None, list[Cell]]:
    """The cells of each model, those with the same name once."""
    groups: dict[Model | None, list[Cell]] = {}
    for cell in {cell.key: cell for cell in cells}.values():
        groups.setdefault(cell.model, []).append(cell)
    return groups


def _of_grid(grid: Grid, known: dict[Model, Model]) -> Iterable[Cell]:
    source = source_of(grid.over) if grid.over is not None else None
    code = code_for(grid.measurement)
    for labels in itertools.product(*grid.axes.values()):
        named = dict(zip(grid.axes, labels, strict=True))
        arguments = _arguments(grid, named)
        hooks = arguments.get("hooks") or []
        require_arguments(
            grid.measurement,
            arguments if source is None else _with_prompt(grid, arguments),
        )
        model = _model(grid, arguments, known)
        own = parameters(grid.measurement)
        rest = {
            name: value
            for name, value in arguments.items()
            if name in own and name != "model"
        }
        along = {name.replace(".", "_"): label for name, label in named.items()}
        common = (grid.name, grid.measurement, rest, model, hooks, along)
        loaded = model and {
            name: getattr(model, name) for name in ("checkpoint", "dtype", "untrained")
        }
        about = identity_of(grid.measurement, rest, code) | {
            "hooks": hooks,
            "model": loaded,
        }
        if source is None:
            yield Cell(_key(about), *common, code=code)
            continue
        for span in source.spans():
            yield Cell(
                _key(about | {"over": source.identity, "rows": list(span)}),
                *common,
                source,
                span,
                code,
            )


def require_current(cells: Sequence[Cell]) -> None:
    """An error if a file that the cells depend on has changed since they were described: their keys would be others."""
    for cell in {(cell.grid, cell.model): cell for cell in cells}.values():
        cell.require_described(code=True)


def _with_prompt(grid: Grid, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a scan with a prompt, or with the sequence that a prompt grows into."""
    own = parameters(grid.measurement)
    name = scanned_argument(grid.measurement)
    if name not in own:
        raise InputError(
            f"{grid.name}: {grid.measurement} measures neither prompts nor sequences.",
            "Leave out over.",
        )
    if name in arguments:
        raise InputError(
            f"{grid.name}: {name}= is given, and a scan takes it from the dataset.",
            "Leave it out.",
        )
    return {
        **arguments,
        name: {"build": {"content": ["1"]}} if name == "sequence" else "text",
    }


def _arguments(grid: Grid, labels: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one cell. A dot in a name reaches into an argument: `sequence.n` is the n of the sequence."""
    arguments = json.loads(json.dumps(grid.arguments))
    for name, label in labels.items():
        value = grid.axes[name][label]
        outer, dot, inner = name.partition(".")
        if not dot:
            arguments[name] = value
            continue
        target = arguments.get(outer)
        if outer == "sequence" and isinstance(target, dict) and len(target) == 1:
            (maker,) = target
            target[maker] = target[maker] or {}
            target = target[maker]
        if not isinstance(target, dict):
            raise InputError(
                f"each: {name} has nothing to be set in.",
                f"Give {outer} as a mapping in `arguments`.",
            )
        target[inner] = value
    return arguments


def _model(
    grid: Grid, arguments: Mapping[str, Any], known: dict[Model, Model]
) -> Model | None:
    """The model of a cell, with the identity of its checkpoint; `known` has those that were looked at before."""
    own = parameters(grid.measurement)
    if "model" not in own:
        return None
    options = {
        name: arguments[name]
        for name in (*LOADING, "untrained")
        if name in arguments and name not in own
    }
    if "dtype" in options:
        options["dtype"] = full_name(options["dtype"])
    asked = Model(arguments["model"], **options)
    if asked not in known:
        checkpoint = asked.identity()
        kind, _, commit = checkpoint.partition(" ")
        known[asked] = replace(
            asked,
            checkpoint=checkpoint,
            revision=commit if kind == "commit" else asked.revision,
        )
    return known[asked]


def _key(about: Mapping[str, Any]) -> str:
    return sha256(json.dumps(about, sort_keys=True, ensure_ascii=False))[:32]
