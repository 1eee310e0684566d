"""The command line: one verb for each measurement, with the parameters of its function as options.

`--help` must answer at once, so that nothing heavy is imported before a verb is chosen.
"""

import contextlib
import difflib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import make_dataclass
from importlib.metadata import version
from typing import Annotated, Any, Union

from squashlens.cli._verbs import VERBS, Verb
from squashlens.errors import InputError, SquashlensError

__all__ = ["main"]

ABOUT = (
    "Measure how decoder-only transformers lose information on the way to the last token. Each verb but `tasks`, "
    "`study` and `cache` is a function of squashlens, or of squashlens.paths, with the same name. `squashlens VERB "
    "--help` lists its options; `squashlens --version` prints the version. In names of verbs and options, - and _ are "
    "the same."
)
TASKS = "List the tasks: name, source, and the prompt at four items."
STUDY = "Plan, run, look at, combine or retry the study that a YAML file describes."
CACHE = "List the models that were converted from GGUF files and kept, with their sizes, or delete one."
OTHERS = {"tasks": TASKS, "study": STUDY, "cache": CACHE}  # verbs that are no measurements


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `squashlens`: exit code 0, or 2 with one line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a character that the terminal lacks is printed as an escape
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _remark
            _command(given)
    except SquashlensError as error:
        print(f"squashlens: {_printable(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None


def _command(given: list[str]) -> None:
    """Do what a command line says."""
    for word in given:
        if not _is_text(word):
            raise InputError(f"{word!a} has bytes that are not UTF-8.", "Correct it.")
    first = given[0].replace("-", "_") if given else ""
    if given == ["--version"]:
        print(f"squashlens {version('squashlens')}")
    elif first in VERBS:
        from squashlens.cli._reading._options import options, parameters, values
        from squashlens.cli._reading._spelling import as_typed, flag
        from squashlens.cli._run import run

        verb = VERBS[first]
        flags = [flag(name) for name in options(verb)]
        flags += [flag(f"no_{name}") for name, option in options(verb).items() if option.kind is bool]
        filled = _parsed(parameters(verb), given[1:], f"squashlens {first}", flags=flags)
        try:
            run(verb, values(filled))
        except SquashlensError as error:
            error.args = (as_typed(str(error), options(verb)),)
            raise
    elif first == "tasks" and given[1:] not in (["-h"], ["--help"]):
        _parsed(_no_options(TASKS), given[1:], "squashlens tasks")
        _list_tasks()
    elif first == "cache":
        from squashlens.cli._cache import cache

        cache(given[1:], _parsed, CACHE)
    elif first == "study":
        from squashlens.cli._study import study

        study(given[1:], _parsed)
    elif first.startswith("_") or first in ("tasks", "_h"):
        complete = "completion" in first
        verbs: Any = Union[tuple(_subcommand(verb, complete) for verb in (*VERBS.values(), *OTHERS))]  # noqa: UP007
        _parsed(verbs, given, "squashlens", ABOUT)
    else:
        near = difflib.get_close_matches(first, (*VERBS, *OTHERS), n=3, cutoff=0.5)
        cause = f"There is no verb {given[0]!r}." if given else "No verb is given."
        raise InputError(cause, f"Similar names: {', '.join(near)}." if near else "See squashlens --help.")


def _subcommand(verb: Verb | str, complete: bool) -> Any:
    """A verb as a line of the list of verbs; with its options, for completion."""
    import tyro

    name, summary = (verb, OTHERS[verb]) if isinstance(verb, str) else (verb.name, verb.summary)
    if complete and not isinstance(verb, str):
        from squashlens.cli._reading._options import parameters

        kind = parameters(verb)
    else:
        kind = _no_options(summary)
    return Annotated[kind, tyro.conf.subcommand(name, description=summary)]


def _no_options(text: str) -> type:
    kind = make_dataclass("NoOptions", [])
    kind.__doc__ = text
    return kind


def _parsed(kind: Any, given: list[str], prog: str, description: str | None = None, flags: Sequence[str] = ()) -> Any:
    """Let tyro read the arguments. What it would complain about in a box is raised as one sentence."""
    import tyro

    def refuse(event: Any) -> None:
        from squashlens.cli._reading._complaints import complaint

        raise complaint(event, given, prog, flags)

    # Private in tyro: without it, tyro prints a box of its own and exits with code 2.
    listen = getattr(getattr(tyro, "_errors", None), "on_parse_error", contextlib.nullcontext)
    try:
        with listen(refuse):
            return tyro.cli(kind, args=given, prog=prog, description=description)
    except ImportError as error:  # tyro's completion for tcsh
        raise InputError(f"{error}.", "bash and zsh need no other package.") from None


def _list_tasks() -> None:
    from squashlens.tasks import find, names

    for name in names():
        task = find(name)
        print(f"{name} ({task.source or 'ours'})\n    {task.ask(4).prompt}")


def _remark(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"squashlens: {_printable(str(message))}", file=sys.stderr)


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:  # Python reads other bytes as halves of surrogate pairs
        return False
    return True


def _printable(text: str) -> str:
    """Text in one line; control characters and bytes that are no UTF-8 as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
