"""The command line: one verb for each measurement, with the parameters of its function as options.

`--help` must answer at once, so that nothing heavy is imported before a verb is chosen.
"""

import io
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import make_dataclass
from importlib.metadata import version
from typing import Annotated, Any, Union

from squashlens.bars import quiet
from squashlens.cli._verbs import PACKAGE, VERBS
from squashlens.errors import SquashlensError

__all__ = ["main"]

# What is said without a verb: the first commands, and all verbs by the question that they answer.
FIRST = (
    (
        'squashlens report --prompt "11 ="',
        "a page: what the model predicts, on which tokens that depends, what is lost",
    ),
    ("squashlens collapse --figure collapse.html", "how close a sequence and the same with one more token come"),
    ("squashlens tasks", "the questions that `squashlens evaluate` can ask"),
)
END = (
    "Each measurement is the function of the same name in squashlens, or squashlens.paths, and runs without options.",
    "`squashlens VERB --help` lists its options; --quiet shows no progress; `squashlens --version` prints the version.",
    "In names of verbs and options, - and _ are the same.",
)
ROOMS = {
    "": "Pages and figures",
    "squashing": "How much does each token influence the last one?",
    "collapse": "Do two sequences become one?",
    "remedies": "What helps?",
    "answers": "What does the model answer, and what does it know?",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `squashlens`: exit code 0, or 2 with a message on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a character that the terminal lacks is printed as an escape
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _say(message)
            with quiet() if "--quiet" in given else nullcontext():
                _command([word for word in given if word != "--quiet"])
    except SquashlensError as error:
        _say(error)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None


def _command(given: list[str]) -> None:
    """Do what a command line says."""
    first = given[0].replace("-", "_") if given else ""
    if given in ([], ["-h"], ["--help"]):
        print(_overview())
    elif given == ["--version"]:
        print(f"squashlens {version('squashlens')}")
    elif first in VERBS:
        from squashlens.cli._run import run

        run(VERBS[first], given[1:])
    elif callable(other := OTHERS.get(first)):
        import tyro

        tyro.cli(other, args=given[1:], prog=f"squashlens {first}")
    elif other is not None:
        from squashlens.cli import _study

        getattr(_study, first)(given[1:] or ["--help"])
    else:  # completion, or a word that tyro refuses with a message
        import tyro

        complete = "completion" in first
        verbs: Any = Union[tuple(_subcommand(name, complete) for name in (*VERBS, *OTHERS))]  # noqa: UP007
        tyro.cli(verbs, args=given, prog="squashlens")


def _overview() -> str:
    """The first commands, and all verbs by the question that they answer."""
    width = max(40, shutil.get_terminal_size().columns - 1)
    lines = ["Begin with:", "", *(f"  {command}\n      {what}" for command, what in FIRST)]
    rooms: dict[str, dict[str, str]] = {title: {} for title in ROOMS.values()}
    for verb in VERBS.values():
        parts = verb.source.relative_to(PACKAGE).parts
        rooms[ROOMS[parts[1] if parts[0] == "measure" else ""]][verb.name] = verb.summary
    rooms["Tasks, studies, models"] = {name: _summary(name) for name in OTHERS}
    for title, verbs in rooms.items():
        lines += ["", title]
        for name, summary in verbs.items():
            lines.append(textwrap.fill(summary, width, initial_indent=f"  {name:<20}  ", subsequent_indent=24 * " "))
    return "\n".join([*lines, "", *END])


def _subcommand(name: str, complete: bool) -> Any:
    """A verb as a line of the list of verbs; with its options, for completion."""
    import tyro

    kind = make_dataclass("NoOptions", [])
    if complete and name in VERBS:
        from squashlens.cli._options import parameters

        kind = parameters(VERBS[name])
    return Annotated[kind, tyro.conf.subcommand(name, description=_summary(name))]


def _summary(name: str) -> str:
    """The first sentence about a verb."""
    if name in VERBS:
        return VERBS[name].summary
    other = OTHERS[name]
    return other if isinstance(other, str) else (other.__doc__ or "").partition("\n")[0]


def _list_tasks() -> None:
    """List the tasks: name, source, and the prompt at four items."""
    from squashlens.tasks import find, names

    for name in names():
        task = find(name)
        print(f"{name} ({task.source or 'ours'})\n    {task.ask(4).prompt}")


def _list_cache(delete: str = "") -> None:
    """List the models that were converted from GGUF files and kept, with their sizes, or delete one.

    Args:
        delete: Name of the folder to delete, or how its name starts; none by default.
    """
    from squashlens.bars import human
    from squashlens.engine.loading import cache as kept

    if delete:
        gone = kept.delete(delete)
        print(f"Deleted {gone.name} ({human(gone.n_bytes)}).")
        return
    entries = kept.entries()
    for entry in entries:
        print(f"{human(entry.n_bytes):>9}  {entry.name}")
    total = human(sum(entry.n_bytes for entry in entries))
    print(f"{len(entries)} models, {total}, in {kept.location()}. SQUASHLENS_CACHE sets another folder.")


def _list_families() -> None:
    """List the types of decoders in transformers, with what works for each, what is refused, and why."""
    import csv
    from pathlib import Path

    import squashlens

    file = Path(squashlens.__file__).with_name("families.csv")
    for found in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        works = ", ".join(name for name, said in found.items() if said == "yes")
        print(f"{found['type']} ({found['class']})\n    works: {works or 'nothing'}")
        if found["why not"]:
            print(f"    {found['why not']}")


# Verbs that are no measurements: a function, or what a verb of `_study` does.
OTHERS: dict[str, Callable[..., None] | str] = {
    "tasks": _list_tasks,
    "families": _list_families,
    "study": "Run, look at or combine the study that a YAML file describes.",
    "atlas": "Measure the models of a manifest with one battery, and compare: run, pin, compare, page, publish, pull.",
    "cache": _list_cache,
}


def _say(message: Warning | SquashlensError | str) -> None:
    """Print a message in one line on standard error, control characters as escapes."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(str(message).split()))
    print(f"squashlens: {line}", file=sys.stderr)
