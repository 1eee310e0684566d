"""The verbs `study` and `atlas`: each action is a method of `squashlens.Study` or of `squashlens.Atlas`.

The options of an action are the parameters of its method, and how the study or atlas is opened.
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

ACTIONS = {
    "study": ("run", "status", "estimate", "failures", "combine", "sql"),
    "atlas": ("run", "pin", "compare", "page", "publish", "pull"),
}
NEEDS_MANIFEST = ("run", "pin")
TYPED = ("query", "model", "to", "source")  # parameters that are typed without their names
SHOWN = 5  # reasons of failures that are printed
FILE = {"study": "YAML file that describes the study.", "atlas": "YAML file with the models."}
STORE = "Folder or URL of the store; by default the one that the file names."
FOLDER = "Folder of the atlas: its cells, data set and card."
OUT = "Save the combined results to this file: .nc or .json (lossless), or .csv."
RESOURCES = (
    "For Ray, options of an actor; for Slurm, parameters of submitit's executor: NAME=VALUE, with spaces between."
)


def study(given: list[str]) -> None:
    """Do what follows `squashlens study` on a command line."""
    action, options = _read("study", given)
    out, file = options.pop("out", None), options.pop("file")
    if out is not None:
        require_output(out, ENDINGS, "--out")
    if os.getcwd() not in sys.path:  # for measurements of the user's own; a program's path has only its own folder
        sys.path.append(os.getcwd())
    made = sl.Study(file, options.pop("store"))
    found = getattr(made, action)(**options)
    print(found if action == "combine" else found.to_string(index=False) if len(found) else "none")
    if out is not None:
        print(f"saved: {sl.results.save(found, out).resolve()}")
    if action not in ("run", "status"):
        return
    reasons = made.failures()["reason"].value_counts()
    for reason, many in reasons.head(SHOWN).items():
        print(f"failed: {many} × {reason}")
    if len(reasons) > SHOWN:
        print(f"failed: {reasons.iloc[SHOWN:].sum()} for other reasons: squashlens study failures")


def atlas(given: list[str]) -> None:
    """Do what follows `squashlens atlas` on a command line; only a file stands for `run` and the file."""
    words = ["run", *given] if given[0] not in ACTIONS["atlas"] and not given[0].startswith("-") else given
    action, options = _read("atlas", words)
    opened = sl.Atlas(options.pop("folder"), options.pop("file", None))
    found = getattr(opened, action)(**options)
    if isinstance(found, list):
        print("\n".join(found) or "nothing new")
    else:
        print(found.resolve() if isinstance(found, Path) else found.to_string(index=False, na_rep=""))


def _read(verb: str, given: list[str]) -> tuple[str, dict[str, Any]]:
    """The action of a command line, and its options by name."""
    kinds = [
        Annotated[made, tyro.conf.subcommand(made.__name__, description=first_sentence(made.__doc__ or ""))]
        for made in (parameters(verb, action) for action in ACTIONS[verb])
    ]
    actions: Any = Union[tuple(kinds)]  # noqa: UP007
    filled = tyro.cli(actions, args=given, prog=f"squashlens {verb}")
    found = dict(vars(filled))
    if "resources" in found:
        found["resources"] = dict(map(_pair, found["resources"])) or None
    return type(filled).__name__, found


def parameters(verb: str, action: str) -> type:
    """A dataclass with the options of an action, which tyro fills."""
    method = getattr({"study": sl.Study, "atlas": sl.Atlas}[verb], action)
    positional: list[Any] = []
    if verb == "study" or action in NEEDS_MANIFEST:
        positional.append(("file", Annotated[Path, tyro.conf.Positional, tyro.conf.arg(help=FILE[verb])]))
    named = [
        as_field("store", str | None, None, STORE) if verb == "study" else as_field("folder", str, "atlas", FOLDER)
    ]
    for name, parameter in inspect.signature(method, eval_str=True).parameters.items():
        if name == "resources":
            named.append(as_field(name, tuple[str, ...], (), RESOURCES))
        elif name in TYPED and parameter.default is parameter.empty:
            positional.append((name, Annotated[str, tyro.conf.Positional, tyro.conf.arg(help=help_for(method, name))]))
        elif name != "self":
            kind = Path if parameter.default is parameter.empty else parameter.annotation
            default = Path("atlas.html") if parameter.default is parameter.empty else parameter.default
            named.append(as_field(name, kind, default, help_for(method, name)))
    if action == "combine":
        named.append(as_field("out", Path | None, None, OUT))
    made = make_dataclass(action, [*positional, *named], frozen=True)
    made.__doc__ = about(method)
    return made


def _pair(word: str) -> tuple[str, Any]:
    """A name and its value, which is read as JSON if it is JSON, and is text otherwise."""
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise InputError(f"--resources {short_repr(word)} is not NAME=VALUE.", "Write for example num_gpus=0.5.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
