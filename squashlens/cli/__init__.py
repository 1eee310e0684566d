"""The command line: one verb per measurement, nothing of its own.

`--help` must answer at once, so nothing heavy is imported before a verb runs.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version

from squashlens.cli import audit, behaviour, collapse, mitigations, sensitivity
from squashlens.cli._app import Job, app
from squashlens.errors import InputError, SquashlensError

__all__ = ["audit", "behaviour", "collapse", "main", "mitigations", "sensitivity"]


def _parse(arguments: Sequence[str]) -> Job:
    """Let tyro read the arguments; what it would say in a box is said in one line."""
    for word in arguments:
        if not _is_text(word):
            raise InputError(f"{word!a} has bytes that are not UTF-8.", "Correct it.")
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return app.cli(
                args=list(arguments),
                prog="squashlens",
                description="Measure how decoder-only transformers lose information on the way to the last token. "
                "`squashlens --version` prints the version.",
            )
    except ImportError as error:  # tyro's completion for tcsh
        raise InputError(f"{error}.", "bash and zsh need nothing more.") from None
    except SystemExit as stop:
        if stop.code:
            raise InputError(_one_line(complaint.getvalue()), "See squashlens --help.") from None
        raise


UNREAD = {  # what tyro and Python say of a value that they cannot read, and the same in plain words
    r"no type matching (.*) could be instantiated from (\[.*?\])\.\s+Got errors:.*": r"\2 cannot be read as \1",
    r"invalid literal for int\(\) with base 10: (.*)": r"\1 is not a whole number",
    r"could not convert string to float: (.*)": r"\1 is not a number",
    r"Exceeds the limit .*": "the number has too many digits",
}


def _one_line(box: str) -> str:
    """The message inside a box: what stands above the first rule. On a terminal without Unicode, below its title."""
    rows = [re.sub(r"^[│\s]+|[│\s]+$", "", row) for row in box.splitlines() if not row.startswith(("╭", "╰"))]
    rules = [place for place, row in enumerate(rows) if row and set(row) <= {"─", "-"}]
    if "╭" not in box and rules:
        rows, rules = rows[rules[0] + 1 :], [place - rules[0] - 1 for place in rules[1:]]
    message = " ".join(rows[: rules[0]] if rules else rows).strip() or "The arguments could not be read"
    for said, plain in UNREAD.items():
        message = re.sub(said, plain, message)
    return message if message.endswith(".") else f"{message}."


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:  # Python reads other bytes as halves of surrogate pairs
        return False
    return True


def _printable(text: str) -> str:
    """Text in one line; control characters and bytes that are no UTF-8 as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `squashlens`: exit code 0, or 2 with one line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a character that the terminal lacks is printed as an escape
        sys.stdout.reconfigure(errors="backslashreplace")
    if given == ["--version"]:
        print(f"squashlens {version('squashlens')}")
        return
    try:
        _parse(given)()
    except SquashlensError as error:
        print(f"squashlens: {_printable(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # whoever read the output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
