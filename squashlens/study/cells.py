"""The cells of a study: one call of a measurement each, named by a hash of all that its numbers depend on."""

import itertools
import json
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from squashlens._typing import dtype_name, short_repr
from squashlens.bars import quiet
from squashlens.errors import InputError
from squashlens.model.agreement import dtype_to_run_in
from squashlens.model.digests import sha256
from squashlens.records.provenance import versions
from squashlens.study import measurements as known
from squashlens.study.description import Grid
from squashlens.study.identity import plain
from squashlens.study.scans import Source, source_of

BATCHES = ("batch_size", "vjp_batch_size")  # how the work is divided: no part of a key
# Arguments that say which model is measured.
OF_MODELS = ("model", "dtype", "revision", "untrained")
_told = set[str]()  # models whose origin was told


@dataclass(frozen=True)
class Model:
    """What `load` takes. A hub model has its commit; with `untrained`, a seed, its weights are random."""

    name: str
    dtype: str = "float32"
    revision: str | None = None
    untrained: int | None = None

    def checkpoint(self) -> str:
        """What identifies the weights, the configuration and the tokenizer; a model's origin is told once."""
        from squashlens.model.loading.sources import identity

        with quiet() if self.name in _told else nullcontext():
            _told.add(self.name)
            return identity(self.name, self.revision)


@dataclass(frozen=True)
class Cell:
    """One call of a measurement, or of a scan, one call for each of some rows of a file."""

    grid: str
    labels: dict[str, Any]  # along the axes of its grid
    measurement: known.Measurement
    arguments: dict[str, Any]
    hooks: Any
    model: Model | None
    source: Source | None = None
    span: tuple[int, int] | None = None
    key: str = ""

    def require_current(self) -> None:
        """Raise an error if the key stands for other code, another checkpoint or other prompts than those here."""
        if self.source is not None:
            self.source.rows()  # which raises an error for another file
        if _key(self, _code(self.measurement)) != self.key:
            raise InputError(
                f"Code, checkpoint or versions of {self.grid!r} changed after the study was described, or are others "
                "on this machine.",
                "Make the Study again, with the same files and packages on all machines.",
            )

    @property
    def about(self) -> dict[str, Any]:
        """What the record of a failure says."""
        about = {"grid": self.grid, "labels": self.labels, "arguments": self.arguments}
        return about | {"model": self.model and asdict(self.model)}


def cells_of(grids: Iterable[Grid]) -> list[Cell]:
    """All cells, checked against the signatures of their measurements; those with the same model are neighbours."""
    cells = [cell for grid in grids for cell in _of_grid(grid)]
    models = list(dict.fromkeys(cell.model for cell in cells))
    return sorted(cells, key=lambda cell: models.index(cell.model))


def _of_grid(grid: Grid) -> Iterable[Cell]:
    """The cells of one grid. Each value of each argument is checked once, with the first values of all others."""
    source = None if grid.over is None else source_of(grid.over)
    spans = [None] if source is None else source.spans()
    own = known.parameters(known.function_of(grid.measurement))
    code, model_of = _code(grid.measurement), cache(_model)
    first = {name: next(iter(values)) for name, values in grid.axes.items()}
    combinations = itertools.product(*grid.axes.values())
    for labels, span in itertools.product(combinations, spans):
        by_name = dict(zip(grid.axes, labels, strict=True))
        arguments = grid.arguments_at(by_name)
        hooks, model = arguments.pop("hooks", ()), None
        if "model" in own:
            given = [name for name in OF_MODELS if name in arguments]
            asked = [name for name in given if name == "model" or name not in own]
            stated = {name: _named(name, arguments.pop(name)) for name in asked}
            model = model_of(**stated)
        if sum(first[name] != label for name, label in by_name.items()) <= 1:
            _require(grid, arguments, hooks)
        along = {name.replace(".", "_"): label for name, label in by_name.items()}
        named = (grid.name, along, grid.measurement)
        cell = Cell(*named, arguments, hooks, model, source, span)
        yield replace(cell, key=_key(cell, code))


def _require(grid: Grid, arguments: Mapping[str, Any], hooks: Any) -> None:
    """Raise an error unless the measurement of a grid can be called with these arguments."""
    function = known.function_of(grid.measurement)
    scanned = {}
    if grid.over is not None:
        name = known.scanned_argument(function)
        if name not in known.parameters(function) or name in arguments:
            cause = f"{grid.name}: a scan gives {name}=, which the measurement does not take or has already."
            raise InputError(cause, "Leave out over, or the argument.")
        scanned[name] = "text" if name == "prompt" else {"build": {"content": ["1"]}}
    known.hooks_of(hooks)
    known.require_arguments(grid.name, function, {**arguments, **scanned})


def _named(name: str, value: Any) -> Any:
    """An argument that says which model is measured, by name."""
    if name == "dtype":
        return dtype_name(dtype_to_run_in(value))
    value = str(value) if isinstance(value, Path) else value
    if not isinstance(value, str | int | None):
        cause = f"{name}={short_repr(value)} is a {type(value).__name__}."
        raise InputError(
            cause, "Give the name of a model or the folder it was saved to."
        )
    return value


def _model(model: str = "", **options: Any) -> Model:
    """The model of a cell; one of the hub stays at the commit that it has now."""
    asked = Model(model, **options)
    kind, _, commit = asked.checkpoint().partition(" ")
    return replace(asked, revision=commit) if kind == "commit" else asked


def _code(measurement: known.Measurement) -> Any:
    """The name of a public function, for which the version stands, or what a function of your own does."""
    is_public = measurement in known.measurements()
    return measurement if is_public else plain(known.function_of(measurement))


def _key(cell: Cell, code: Any) -> str:
    """The hash of what a cell's numbers depend on."""
    function, model = known.function_of(cell.measurement), cell.model
    stated = {
        name: value for name, value in cell.arguments.items() if name not in BATCHES
    }
    about = {
        "measurement": code,
        "arguments": _defaults(function) | plain(stated),
        "hooks": plain(known.hooks_of(cell.hooks)),
        "model": model and [model.checkpoint(), model.dtype, model.untrained],
        "rows": cell.source and [cell.source.identity, cell.source.column, cell.span],
        "versions": versions() | {"python": None},
    }
    return sha256(json.dumps(about, sort_keys=True))[:32]


@cache
def _defaults(function: Any) -> dict[str, Any]:
    """The arguments that a function has by itself."""
    filled = {}
    for name, parameter in known.parameters(function).items():
        if parameter.default is not parameter.empty and name not in BATCHES:
            filled[name] = plain(parameter.default)
    return filled
