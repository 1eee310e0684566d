"""The cells of a study: one call of a measurement each, named by a hash of all that its numbers depend on."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from squashlens._typing import DtypeName, full_name
from squashlens.bars import quiet
from squashlens.checks.arguments import validated
from squashlens.errors import InputError, SquashlensError
from squashlens.model.digests import sha256
from squashlens.model.loading import sources
from squashlens.records.provenance import versions
from squashlens.study import measurements as known
from squashlens.study.description import Grid
from squashlens.study.identity import plain
from squashlens.study.scans import Shard, over

BATCHES = ("batch_size", "vjp_batch_size")  # how the work is divided: no part of a key
PUBLIC = "squashlens."  # modules whose functions count by their names and the version


@validated
@dataclass(frozen=True)
class Model:
    """What `load` takes. A hub model has its commit; with `untrained`, a seed, its weights are random."""

    model: str | Path = ""
    dtype: DtypeName = "float32"
    revision: str | None = None
    untrained: int | None = None

    def resolved(self, identity: Callable[..., str]) -> "Model":
        """The model with the full name of its dtype, and, if it is one of the hub, at the commit that it has now."""
        resolved = replace(self, dtype=full_name(self.dtype))
        # "commit 1a2b…", or a digest of the files of a folder
        kind, _, commit = identity(self.model, self.revision).partition(" ")
        if kind == "commit":
            resolved = replace(resolved, revision=commit)
        return resolved

    def described(self) -> list[Any]:
        """What numbers depend on: how it is opened, and the content of the checkpoint."""
        with quiet():
            checkpoint = sources.identity(str(self.model), self.revision)
        return [self.dtype, self.untrained, checkpoint]


@dataclass(frozen=True)
class Cell:
    """One call of a measurement, or one call for each row of a shard of a scan.

    Arguments and hooks are as described: calls by name are not yet made. `key` names the files of the cell.
    """

    grid: str
    labels: dict[str, Any]  # along the axes of its grid
    function: Callable[..., Any]
    arguments: dict[str, Any]
    hooks: Any
    model: Model | None
    shard: Shard | None
    key: str = ""

    def key_with(self, code: Any) -> str:
        """The hash of what its numbers depend on: code, arguments, hooks, checkpoint, prompts, versions.

        `code` is what `_code` gives for the function, once for all cells of a grid.
        """
        call = known.signature(self.function).bind_partial(**self.arguments)
        call.apply_defaults()
        for name in BATCHES:
            call.arguments.pop(name, None)
        about = {
            "measurement": code,
            "arguments": plain(call.arguments),
            "hooks": plain(known.hooks_of(self.hooks)),
            "model": None if self.model is None else self.model.described(),
            "rows": None if self.shard is None else self.shard.digest,
            "versions": versions() | {"python": None},  # that of Python does not count
        }
        return sha256(json.dumps(about, sort_keys=True))[:32]

    def require_current(self) -> None:
        """Raise an error if the key stands for other code, or another checkpoint, than those here."""
        if self.key_with(_code(self.function)) != self.key:
            raise InputError(
                f"Code, checkpoint or versions of {self.grid!r} changed after the study was described, or are "
                "others on this machine.",
                "Make the Study again, with the same files and packages on all machines.",
            )


def cells_of(grids: Iterable[Grid]) -> list[Cell]:
    """All cells, checked against the signatures of their measurements; those with the same model are neighbours."""
    identity = cache(sources.identity)  # looked up once for each model
    cells: list[Cell] = []
    for grid in grids:
        try:
            cells += _cells_of(grid, identity)
        except SquashlensError as error:
            raise InputError(f"{grid.name}: {error.cause}", error.remedy) from error
        except TypeError as error:  # an argument is missing, or given twice
            cause = f"{grid.name}: {error}."
            raise InputError(cause, "Correct its arguments.") from error
    by_model: dict[Model | None, list[Cell]] = {}
    for cell in cells:
        by_model.setdefault(cell.model, []).append(cell)
    return list(itertools.chain(*by_model.values()))


def _cells_of(grid: Grid, identity: Callable[..., str]) -> Iterator[Cell]:
    """The cells of one grid. Each value of each argument is checked once, with the first values of all others."""
    function = known.function_of(grid.measurement)
    code = _code(function)
    shards: list[Shard | None] = [None]  # one cell for each combination
    scanned: dict[str, Any] = {}  # a stand-in for what a scan gives
    if grid.over is not None:
        shards = list(over(**grid.over))
        scanned = known.scanned_argument(function)
    # the first label of each axis
    first = {name: next(iter(values)) for name, values in grid.axes.items()}
    for combination in itertools.product(*grid.axes.values()):
        labels = dict(zip(grid.axes, combination, strict=True))
        arguments = grid.arguments_at(labels)
        hooks = arguments.pop("hooks", [])
        model = _model(function, arguments)
        if model is not None:
            model = model.resolved(identity)
        n_not_first = len(labels.items() - first.items())
        if n_not_first <= 1:
            known.require_arguments(function, dict(**arguments, **scanned))
        for shard in shards:
            cell = Cell(
                grid=grid.name,
                labels={n.replace(".", "_"): label for n, label in labels.items()},
                function=function,
                arguments=arguments,
                hooks=hooks,
                model=model,
                shard=shard,
            )
            yield replace(cell, key=cell.key_with(code))


def _model(function: Callable[..., Any], arguments: dict[str, Any]) -> Model | None:
    """The model of a cell, whose arguments (`model`, `dtype`, …) are taken out of those of its measurement.

    An argument such as `dtype` that the measurement has too stays with the measurement.
    """
    parameters = known.signature(function).parameters
    if "model" not in parameters:
        return None
    names = {"model"} | {field.name for field in fields(Model)} - parameters.keys()
    of_model: dict[str, Any] = {}
    for name in sorted(names & arguments.keys()):
        of_model[name] = arguments.pop(name)
    return Model(**of_model)


def _code(function: Callable[..., Any]) -> Any:
    """What a function of your own does, or the name of a public one, for which the version stands."""
    module = str(getattr(function, "__module__", None))
    if module.startswith(PUBLIC):
        return f"{module}.{function.__qualname__}"
    return plain(function)
