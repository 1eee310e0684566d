"""Text in figures: what a token looks like as a label, and where text is broken into lines, which plotly never does."""

import html
import re
import textwrap

from squashlens.records import sentences

EM = 0.57  # width of a character, in units of the font size: wider than in common fonts
TOKEN = 14  # characters of a token that a label shows


def escape(text: str) -> str:
    r"""Any text, of tokens, prompts and users, so that plotly shows it unchanged; what is not seen is escaped.

    Where MathJax is loaded, plotly reads what is between two `$` as mathematics; in a template of hover text it reads
    `%{`. Quotation marks stay: plotly does not know `&quot;` and would show it.

    >>> escape('<b> & "'), escape("&quot;"), escape("$5 to $9"), escape("%{x}\n\u202e")
    ('&lt;b&gt; &amp; "', '&amp;quot;', '&#36;5 to &#36;9', '&#37;{x}⏎\\u202e')
    """
    markup = html.escape(_visible(text), quote=False)
    return markup.replace("$", "&#36;").replace("%{", "&#37;{")


def label(token: str) -> str:
    """A token as figure text: HTML escaped, outer spaces and line breaks made visible, long text shortened.

    >>> label(" the"), label("<b>"), label("a" * 30)
    ('␣the', '&lt;b&gt;', 'aaaaaaaaaaaaa…')
    """
    if token != token.strip(" "):
        token = token.replace(" ", "␣")
    return escape(shortened(_visible(token), TOKEN))


def number_token(position: int, token: str) -> str:
    """A token with its position, as figure text; tokens may be repeated, and positions are not."""
    return f"{position}: {label(token)}"


def shortened(text: str, most: int) -> str:
    """The text, or its beginning with a sign that it goes on."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def lines_of(text: str, pixels: float, size: float) -> list[str]:
    """Plain text as lines of markup, at most about so many pixels wide in a font of `size` pixels."""
    fit = max(4, int(pixels / (EM * size)))
    return [escape(line) for line in textwrap.wrap(_visible(text), fit)]


def wrap(markup: str, pixels: float, size: float, most: int | None = None) -> str:
    """Markup broken at spaces and hyphens into lines, at most so many pixels wide in a font of `size` pixels.

    There are at most `most` lines. Earlier breaks are undone. A longer word is a line of its own.

    >>> wrap("one two<br>three", 60, 13), wrap("one two<br>three", 600, 13)
    ('one two<br>three', 'one two three')
    >>> wrap("one two three", 60, 13, most=1), wrap(wrap("over-squashing", 60, 13), 600, 13)
    ('one two…', 'over-squashing')
    """
    fit = max(4, int(pixels / (EM * size)))
    whole_words = re.sub(r"(?<=\w-)<br>", "", markup)  # those broken at a hyphen
    words = whole_words.replace("<br>", " ")
    lines = textwrap.wrap(
        words,
        fit,
        break_long_words=False,
        max_lines=most,
        placeholder="…",
    )
    return "<br>".join(lines)


def _visible(text: str) -> str:
    """The text with a sign for each line break and tab, and an escape for what else is not seen."""
    return sentences.escape(text.replace("\n", "⏎").replace("\t", "⇥"))
