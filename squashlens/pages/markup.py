"""Any text as LaTeX and Markdown show it, on one line: a token looks there as it is."""

import re
import unicodedata

from squashlens.records.sentences import escape

LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': r"{\char34}",
    "*": "{*}",
    "[": "{[}",
    "]": "{]}",
    "δ": r"$\delta$",
    "ρ": r"$\rho$",
    "∞": r"$\infty$",
    "−": r"$-$",
    "÷": r"$\div$",
    "×": r"$\times$",
    "½": r"$\frac{1}{2}$",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    "→": r"$\to$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "–": "{--}",
    "—": "{---}",
    "·": r"$\cdot$",
    "∝": r"$\propto$",
    "\u00a0": "~",
    "␣": r"\textvisiblespace{}",
    "⟨": r"$\langle$",
    "⟩": r"$\rangle$",
    "▁": r"\_",
    "\0": "{}",
}
# Two of these in a row would become another character: -- a dash, '' and ,, quotation marks.
LIGATURES = re.compile(r"([-',])(?=\1)")
ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"'}
MARKDOWN = re.compile(r"([\\`*_\[\]<>#|&~$])")


def latex(text: str) -> str:
    r"""Any text, so that LaTeX typesets it unchanged; a character that pdflatex lacks as its code point.

    >>> latex("50 % of a_b --"), latex("δ ≤ \\input{x}"), latex("中")
    ('50 \\% of a\\_b -{}-', '$\\delta$ $\\le$ \\textbackslash{}input\\{x\\}', '{[}U+4E2D{]}')
    """
    line = escape(" ".join(text.split()))
    line = LIGATURES.sub("\\1\0", line)  # \0, which `LATEX` writes as {}, parts them
    return "".join(map(_character, line))


def _character(character: str) -> str:
    """One character as LaTeX: itself, an escape, a letter with an accent, or its code point, such as [U+4E2D]."""
    if character in LATEX or " " <= character <= "~":
        return LATEX.get(character, character)
    base, *marks = unicodedata.normalize("NFD", character)  # é is e and an accent
    if len(marks) == 1 and marks[0] in ACCENTS and base.isascii() and base.isalpha():
        return rf"\{ACCENTS[marks[0]]}{{{base}}}"
    return f"{{[}}U+{ord(character):04X}{{]}}"


def markdown(text: str) -> str:
    r"""Any text as Markdown shows it.

    >>> print(markdown("a_b <script> [x](y)"))
    a\_b \<script\> \[x\](y)
    """
    return MARKDOWN.sub(r"\\\1", escape(" ".join(text.split())))
