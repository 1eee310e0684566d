"""The verb `study`: run, look at and combine the study that a YAML file describes.

Each action is a method of `squashlens.Study`, and its options are the parameters of the method.
"""

import inspect
import json
import os
import sys
from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

import squashlens as sl
from squashlens._typing import short_repr
from squashlens.cli._options import about, as_field, first_sentence, help_for
from squashlens.errors import InputError
from squashlens.saving.files import require_output
from squashlens.saving.stored import ENDINGS

ACTIONS = ("run", "status", "failures", "combine", "sql")
SHOWN = 5  # reasons of failures that are printed
FILE = "YAML file that describes the study."
STORE = "Folder or URL of the store; by default the one that the file names."
OUT = "Save the combined results to this file: .nc or .json (lossless), or .csv."
RESOURCES = (
    "For Ray, options of an actor; for Slurm, parameters of submitit's executor: NAME=VALUE, with spaces between."
)


def study(given: list[str]) -> None:
    """Do what follows `squashlens study` on a command line."""
    kinds = [Annotated[parameters(name), tyro.conf.subcommand(name, description=_summary(name))] for name in ACTIONS]
    actions: Any = Union[tuple(kinds)]  # noqa: UP007
    filled = tyro.cli(actions, args=given, prog="squashlens study")
    _run(type(filled).__name__, dict(vars(filled)))


def parameters(action: str) -> type:
    """A dataclass with the options of an action, which tyro fills."""
    method = getattr(sl.Study, action)
    fields: list[Any] = [
        ("file", Annotated[Path, tyro.conf.Positional, tyro.conf.arg(help=FILE)]),
        as_field("store", str | None, None, STORE),
    ]
    for name, parameter in inspect.signature(method).parameters.items():
        if name == "resources":
            fields.append(as_field(name, tuple[str, ...], (), RESOURCES))
        elif name == "query":
            fields.insert(1, (name, Annotated[str, tyro.conf.Positional, tyro.conf.arg(help=help_for(method, name))]))
        elif name != "self":
            fields.append(as_field(name, parameter.annotation, parameter.default, help_for(method, name)))
    if action == "combine":
        fields.append(as_field("out", Path | None, None, OUT))
    made = make_dataclass(action, fields, frozen=True)
    made.__doc__ = about(method)
    return made


def _summary(action: str) -> str:
    return first_sentence(inspect.getdoc(getattr(sl.Study, action)) or "")


def _run(action: str, given: dict[str, Any]) -> None:
    out = given.pop("out", None)
    if out is not None:
        require_output(out, ENDINGS, "--out")
    if not given["file"].is_file():
        raise InputError(f"There is no file {str(given['file'])!r}.", "Give a YAML file that describes the study.")
    if os.getcwd() not in sys.path:  # for measurements of the user's own; a program's path has only its own folder
        sys.path.append(os.getcwd())
    made = sl.Study(given.pop("file"), given.pop("store"))
    if "resources" in given:
        given["resources"] = dict(map(_pair, given["resources"])) or None
    found = getattr(made, action)(**given)
    if action == "combine":
        print(found)
        if out is not None:
            print(f"saved: {sl.results.save(found, out).resolve()}")
        return
    print(found.to_string(index=False) if len(found) else "none")
    if action not in ("run", "status"):
        return
    reasons = made.failures()["reason"].value_counts()
    for reason, many in reasons.head(SHOWN).items():
        print(f"failed: {many} × {reason}")
    if len(reasons) > SHOWN:
        print(f"failed: {reasons.iloc[SHOWN:].sum()} for other reasons: squashlens study failures")


def _pair(word: str) -> tuple[str, Any]:
    """A name and its value, which is read as JSON if it is JSON, and is text otherwise."""
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise InputError(f"--resources {short_repr(word)} is not NAME=VALUE.", "Write for example num_gpus=0.5.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
