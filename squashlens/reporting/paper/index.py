"""The LaTeX file that includes the figures, and the page that lists them with their captions and provenance."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squashlens.errors import SquashlensError
from squashlens.maps.payload import said
from squashlens.reporting.markup import latex, markdown
from squashlens.saving.files import write

TEX, PAGE = "figures.tex", "README.md"
HEAD = r"""% The preamble needs \usepackage{graphicx} and \graphicspath{{FOLDER/}}; FOLDER is the folder of this file.
\providecommand{\squashlenswidth}[1]{\dimexpr\ifdim\linewidth<#1\linewidth\else#1\fi\relax}
"""


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
    parts = [_comment(f"Figures of {facts['model']}, written by squashlens {version}."), HEAD]
    for number in sorted({*drawn, *failed}):
        if number not in drawn:
            parts.append(_comment(f"Figure {number} could not be measured. {failed[number]}"))
        elif drawn[number].file.suffix != ".pdf":
            parts.append(_comment(f"Figure {number} is {drawn[number].file.name}, which LaTeX cannot include."))
        else:
            parts.append(_environment(drawn[number]))
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
    parts.append("\n".join(f"- {name.replace('_', ' ')}: {_plain(said(value))}" for name, value in told.items()))
    parts.append("Each `.nc` file in `data` has the provenance of its own result: `squashlens.results.open` reads it.")
    return "\n\n".join(parts) + "\n"


def _environment(one: Drawn) -> str:
    """A figure with its picture, caption and label, at most as wide as the text."""
    name = "figure*" if one.wide else "figure"
    size = f"width=\\squashlenswidth{{{one.inches:g}in}},height=0.8\\textheight,keepaspectratio"
    return f"""\\begin{{{name}}}[tp]
  \\centering
  \\includegraphics[{size}]{{{one.file.name}}}
  \\caption{{{latex(one.caption)}}}
  \\label{{fig:squashlens-{one.number}}}
\\end{{{name}}}
"""


def _comment(plain: str) -> str:
    """One line that LaTeX does not read."""
    return f"% {latex(' '.join(plain.split()))}\n"


def _plain(value: object) -> str:
    """Any text on one line of Markdown, as it is."""
    return markdown(" ".join(str(value).split()))
