"""The verb `study`: plan, run, look at, combine and retry the study that a YAML file describes.

Each action is a method of `squashlens.Study`, and its options are the parameters of the method.
"""

import difflib
import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from squashlens._typing import short_repr
from squashlens.cli._reading._help import about, first_sentence, help_for
from squashlens.errors import InputError

ACTIONS = ("plan", "run", "status", "combine", "retry")
SHOWN = 5  # reasons of failures that are printed
FILE = "YAML file that describes the study."
STORE = "Folder or URL of the store; by default the one that the file names."
OUT = "Save the combined results to this file: .nc or .json (lossless), or .csv."
DRY = "Show what would be done, and do nothing."
RESOURCES = (
    "For Ray, options of an actor; for Slurm, parameters of submitit's executor: NAME=VALUE, with spaces between."
)


def study(given: list[str], parsed: Callable[[Any, list[str], str, str | None], Any]) -> None:
    """Do what follows `squashlens study` on a command line."""
    if not given or given[0] in ("-h", "--help"):
        kinds: Any = [Annotated[_bare(name), tyro.conf.subcommand(name)] for name in ACTIONS]
        parsed(_union(kinds), given or ["--help"], "squashlens study", "Plan, run and combine many measurements.")
        return
    action = given[0]
    if action not in ACTIONS:
        near = difflib.get_close_matches(action, ACTIONS, n=1, cutoff=0.5)
        raise InputError(
            f"`study` has no action {short_repr(action)}.", f"Did you mean {near[0]!r}?" if near else f"Use one of: "
            f"{', '.join(ACTIONS)}.",
        )  # fmt: skip
    if not {"-h", "--help"} & {*given} and (len(given) == 1 or given[1].startswith("-")):
        raise InputError(f"`study {action}` needs a file.", "Give the YAML file first, then the options.")
    filled = parsed(parameters(action), given[1:], f"squashlens study {action}", None)
    _run(action, dict(vars(filled)))


def parameters(action: str) -> type:
    """A dataclass with the options of an action, which tyro fills."""
    method = _method(action)
    fields: list[Any] = [
        ("file", Annotated[Path, tyro.conf.Positional, tyro.conf.arg(help=FILE)]),
        _option("store", str | None, None, STORE),
    ]
    for name, parameter in inspect.signature(method).parameters.items():
        if name == "resources":
            fields.append(_option(name, tuple[str, ...], (), RESOURCES))
        elif name != "self":
            fields.append(_option(name, parameter.annotation, parameter.default, _help(action, name)))
    if action == "combine":
        fields.append(_option("out", Path | None, None, OUT))
    if action in ("run", "retry"):
        fields.append(_option("dry_run", bool, False, DRY))
    made = make_dataclass(action, fields, frozen=True)
    made.__doc__ = about(method)
    return made


def _option(name: str, kind: Any, default: Any, text: str) -> Any:
    hint = "" if default in (None, ()) else None
    return name, Annotated[kind, tyro.conf.arg(help=text, help_behavior_hint=hint)], field(default=default)


def _method(action: str) -> Callable[..., Any]:
    from squashlens.study.study import Study

    return getattr(Study, action)


def _help(action: str, name: str) -> str:
    text = help_for(_method(action), name)
    return help_for(_method("run"), name) if text.startswith("As in run") else text


def _bare(action: str) -> type:
    made = make_dataclass(action, [])
    made.__doc__ = first_sentence(inspect.getdoc(_method(action)) or "")
    return made


def _union(kinds: list[Any]) -> Any:
    from typing import Union

    return Union[tuple(kinds)]  # noqa: UP007


def _run(action: str, given: dict[str, Any]) -> None:
    import squashlens as sl
    from squashlens.saving.files import require_output
    from squashlens.saving.stored import ENDINGS

    out, dry = given.pop("out", None), given.pop("dry_run", False)
    if out is not None:
        require_output(out, ENDINGS, "--out")
    if not given["file"].is_file():
        raise InputError(f"There is no file {str(given['file'])!r}.", "Give a YAML file that describes the study.")
    if os.getcwd() not in sys.path:  # for measurements of the user's own; a program's path has only its own folder
        sys.path.append(os.getcwd())
    made = sl.Study(given.pop("file"), given.pop("store"))
    if dry or action == "plan":
        print(made.plan().to_string(index=False, na_rep=""))
        return
    if "resources" in given:
        given["resources"] = _pairs(given["resources"])
    found = getattr(made, action)(**given)
    if action == "combine":
        print(found)
        if out is not None:
            print(f"saved: {sl.results.save(found.load(), out).resolve()}")
        return
    print(found.to_string(index=False))
    reasons = made.failures()["reason"].value_counts()
    for reason, many in reasons.head(SHOWN).items():
        print(f"failed: {many} × {reason}")
    if len(reasons) > SHOWN:
        print(f"failed: {reasons.iloc[SHOWN:].sum()} for other reasons, which Study.failures() lists")


def _pairs(given: tuple[str, ...]) -> dict[str, Any] | None:
    """Names and values; a value is read as JSON if it is JSON, and is text otherwise."""
    found: dict[str, Any] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InputError(f"--resources {short_repr(word)} is not NAME=VALUE.", "Write for example num_gpus=0.5.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found or None
