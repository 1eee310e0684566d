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


def _one_line(box: str) -> str:
    """The message inside a box drawn with lines: what stands above the first rule."""
    rows = [re.sub(r"^[│\s]+|[│\s]+$", "", row) for row in box.splitlines() if not row.startswith(("╭", "╰"))]
    message = []
    for row in rows:
        if set(row) == {"─"}:
            break
        message.append(row)
    return " ".join(message).strip() or "The arguments could not be read."


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `squashlens`: exit code 0, or 2 with one line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"squashlens {version('squashlens')}")
        return
    try:
        _parse(given)()
    except SquashlensError as error:
        print(f"squashlens: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # whoever read the output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
