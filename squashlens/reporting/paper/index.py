"""The LaTeX file that includes the figures, and the page that lists them with their captions and provenance."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squashlens.engine.text.tokens import escape
from squashlens.errors import SquashlensError
from squashlens.reporting.paper import latex
from squashlens.reporting.sentences import fact
from squashlens.saving.files import write

TEX, PAGE = "figures.tex", "README.md"


@dataclass(frozen=True)
class Drawn:
    """A figure in the folder: its file, caption, tables, and width in inches."""

    number: int
    file: Path
    caption: str
    tables: tuple[Path, ...]
    wide: bool
    inches: float


def write_index(
    folder: Path, drawn: Mapping[int, Drawn], failed: Mapping[int, SquashlensError], facts: Mapping[str, Any]
) -> None:
    """Write both files for all figures in the folder."""
    write(folder / TEX, _tex(drawn, failed, facts).encode())
    write(folder / PAGE, _page(folder, drawn, failed, facts).encode())


def _tex(drawn: Mapping[int, Drawn], failed: Mapping[int, SquashlensError], facts: Mapping[str, Any]) -> str:
    version = facts["versions"]["squashlens"]
    parts = [latex.comment(f"Figures of {facts['model']}, written by squashlens {version}."), latex.HEAD]
    for number in sorted({*drawn, *failed}):
        if number not in drawn:
            parts.append(latex.comment(f"Figure {number} could not be measured. {failed[number]}"))
        elif drawn[number].file.suffix != ".pdf":
            parts.append(latex.comment(f"Figure {number} is {drawn[number].file.name}, which LaTeX cannot include."))
        else:
            one = drawn[number]
            parts.append(latex.environment(number, one.file.name, one.caption, inches=one.inches, wide=one.wide))
    return "\n".join(parts)


def _page(
    folder: Path, drawn: Mapping[int, Drawn], failed: Mapping[int, SquashlensError], facts: Mapping[str, Any]
) -> str:
    parts = [f"# The paper's figures for {_plain(facts['model'])}"]
    if any(one.file.suffix == ".pdf" for one in drawn.values()):
        parts.append(f"`{TEX}` includes the figures in a LaTeX document; its first lines say what the preamble needs.")
    if any(one.file.suffix != ".pdf" for one in drawn.values()):
        parts.append("Some figures are `.html` pages, which LaTeX cannot include: no browser was found to draw PDFs.")
    for number in sorted({*drawn, *failed}):
        parts.append(f"## Figure {number}")
        if number not in drawn:
            parts.append(f"Not measured: {_plain(failed[number])}")
            continue
        one = drawn[number]
        tables = ", ".join(f"[{table.name}]({table.relative_to(folder).as_posix()})" for table in one.tables)
        parts += [_plain(one.caption), f"Figure: [{one.file.name}]({one.file.name}). Data: {tables}."]
    parts.append("## Provenance")
    told = {name: value for name, value in facts.items() if name not in ("call", "bos_count")}
    parts.append("\n".join(f"- {name.replace('_', ' ')}: {_plain(fact(value))}" for name, value in told.items()))
    parts.append("Each `.nc` file in `data` has the provenance of its own result: `squashlens.results.open` reads it.")
    return "\n\n".join(parts) + "\n"


def _plain(value: object) -> str:
    r"""Any text on one line of Markdown, as it is.

    >>> print(_plain("a_b <script> [x](y)"))
    a\_b \<script\> \[x\](y)
    """
    return re.sub(r"([\\`*_\[\]<>#|&~$])", r"\\\1", escape(" ".join(str(value).split())))
