"""What `squashlens` says without a verb: the first commands, and all verbs by the question that they answer."""

import shutil
import textwrap
from collections.abc import Mapping

from squashlens.cli._verbs import PACKAGE, VERBS

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


def overview(others: Mapping[str, str]) -> str:
    """The first commands, and the verbs; `others` are verbs that are no measurements, with what they do."""
    lines = ["Begin with:", ""]
    lines += [f"  {command}\n      {what}" for command, what in FIRST]
    rooms: dict[str, dict[str, str]] = {title: {} for title in ROOMS.values()}
    for verb in VERBS.values():
        parts = verb.source.relative_to(PACKAGE).parts
        rooms[ROOMS[parts[1] if parts[0] == "measure" else ""]][verb.name] = verb.summary
    for title, verbs in (*rooms.items(), ("Tasks, studies, models", others)):
        lines += ["", title]
        lines += [_line(name, summary) for name, summary in verbs.items()]
    lines += ["", *END]
    return "\n".join(lines)


def _line(name: str, summary: str) -> str:
    """A verb and what it does, within the width of the terminal."""
    width = max(40, shutil.get_terminal_size().columns - 1)
    return textwrap.fill(summary, width, initial_indent=f"  {name:<20}  ", subsequent_indent=24 * " ")
