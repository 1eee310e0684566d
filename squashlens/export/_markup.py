"""Text cells of a table that are safe in LaTeX or Markdown, and look there as they do in the table."""

import re
from typing import Any, Literal

import pandas as pd

from squashlens.engine.text.tokens import escape as visible
from squashlens.reporting.paper.latex import SPECIAL

Markup = Literal["latex", "markdown"]
# Quotes, angle brackets and a dash before a dash would become other characters in LaTeX's own fonts. A star or bracket
# at the start of a row would belong to the end of the row above.
LATEX = SPECIAL | {
    **{character: f"{{{character}}}" for character in '"*[]'},
    "'": r"\textquotesingle{}",
    "␣": r"\textvisiblespace{}",
    "⟨": r"$\langle$",
    "⟩": r"$\rangle$",
    "▁": r"\_",
    "÷": r"$\div$",
}
MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$&!()+.-])")
SPACES = re.compile(r"^ +| +$| {2,}")  # which both leave out


def escaped(frame: pd.DataFrame, markup: Markup) -> pd.DataFrame:
    """A table with all its texts, names of rows and columns too, escaped; cells without a coordinate are empty."""
    safe = latex if markup == "latex" else markdown

    def cell(value: Any) -> Any:
        return safe(value) if isinstance(value, str) else value

    labels = [name for name in frame.columns if not pd.api.types.is_float_dtype(frame[name])]
    filled = {name: frame[name].astype(object).where(frame[name].notna(), "") for name in labels}
    found = frame.assign(**filled).map(cell)
    for axis in (found.index, found.columns):
        axis.names = [cell(name) for name in axis.names]
    return found.rename(index=cell, columns=cell)


def latex(text: str) -> str:
    r"""Text as LaTeX shows it in a cell of a table, on one line.

    >>> print(latex("a_b\n & --"))
    a\_b\textbackslash{}n \& -{}-
    """
    return re.sub("-(?=-)", "-{}", "".join(LATEX.get(one, one) for one in _on_one_line(text)))


def markdown(text: str) -> str:
    r"""Text as Markdown shows it in a cell of a table, on one line; what looks like a number stays text.

    >>> print(markdown("a|b"), markdown("<bos>"), markdown("1e3"))
    a\|b \<bos\> &#49;e3
    """
    found = MARKDOWN.sub(r"\\\1", _on_one_line(text))
    return f"&#{ord(found[0])};{found[1:]}" if _is_number(found) and not found.isdigit() else found


def _on_one_line(text: str) -> str:
    """The text with line breaks and control characters written out, and spaces that would be lost as ␣."""
    return SPACES.sub(lambda spaces: "␣" * len(spaces[0]), visible(text))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
