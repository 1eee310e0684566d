"""Text and figures as LaTeX. Whatever a caption contains, a token or a model's name, is typeset as text."""

import re
import unicodedata

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "`": r"\textasciigrave{}", '"': r"{\char34}",
}  # fmt: skip
LIGATURES = re.compile(r"([-',])(?=\1)")  # two of these in a row would become another character
SYMBOLS = {
    "δ": r"$\delta$", "ρ": r"$\rho$", "∞": r"$\infty$", "−": r"$-$", "÷": r"$\div$", "×": r"$\times$",
    "½": r"$\frac{1}{2}$", "…": r"\ldots{}", "“": "``", "”": "''", "→": r"$\to$", "≤": r"$\le$", "≥": r"$\ge$",
    "–": "{--}", "—": "{---}", "·": r"$\cdot$", "∝": r"$\propto$", "\u00a0": "~",
}  # fmt: skip
ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"'}

HEAD = r"""% The preamble needs \usepackage{graphicx} and \graphicspath{{FOLDER/}}; FOLDER is the folder of this file.
\providecommand{\squashlenswidth}[1]{\dimexpr\ifdim\linewidth<#1\linewidth\else#1\fi\relax}
"""


def text(plain: str) -> str:
    r"""Any text, so that LaTeX typesets it unchanged. A character that plain LaTeX lacks becomes its code point.

    >>> text("50 % of a_b"), text("δ ≤ \\input{x}"), text("中")
    ('50 \\% of a\\_b', '$\\delta$ $\\le$ \\textbackslash{}input\\{x\\}', '[U+4E2D]')
    """
    return "".join(map(_character, LIGATURES.sub("\\1\0", plain)))


def _character(character: str) -> str:
    if character in SPECIAL or character in SYMBOLS or character == "\0":
        return {**SPECIAL, **SYMBOLS, "\0": "{}"}[character]
    if " " <= character <= "~":
        return character
    base, *marks = unicodedata.normalize("NFD", character)
    if len(marks) == 1 and marks[0] in ACCENTS and base.isascii() and base.isalpha():
        return rf"\{ACCENTS[marks[0]]}{{{base}}}"
    return f"[U+{ord(character):04X}]"


def environment(number: int, picture: str, caption: str, *, inches: float, wide: bool) -> str:
    """A figure with its picture, caption and label, at most as wide as the text."""
    name = "figure*" if wide else "figure"
    size = f"width=\\squashlenswidth{{{inches:g}in}},height=0.8\\textheight,keepaspectratio"
    lines = [
        f"\\begin{{{name}}}[tp]",
        "  \\centering",
        f"  \\includegraphics[{size}]{{{picture}}}",
        f"  \\caption{{{text(caption)}}}",
        f"  \\label{{fig:squashlens-{number}}}",
        f"\\end{{{name}}}",
    ]
    return "\n".join([*lines, ""])


def comment(plain: str) -> str:
    """One line that LaTeX does not read."""
    return f"% {text(' '.join(plain.split()))}\n"
