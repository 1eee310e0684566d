"""Text in figures: how wide it is, where it is broken into lines, and how tokens are written as labels.

A figure is laid out before a browser has drawn it, so widths are estimates: those of DejaVu Sans, which is wider than
other common fonts. Text then takes at most the space that was kept for it.
"""

import functools
import html
import re
import unicodedata

from squashlens.records import sentences

# Widths of the characters from space to ~ in hundredths of the font size: the larger of DejaVu Sans and DejaVu Serif.
WIDTHS = bytes.fromhex(
    "20282e54405f591b2727325420242022404040404040404040402222545454366448494d504945505728284b42665852"
    "43524b45435448674742452722275432323d4038403e254040201f3d2061403d4040303428403b563b3b3540224054"
)
OTHER, FULL = (
    0.84,
    1.0,
)  # other characters: mathematical signs, and those of East Asian scripts
TAG = re.compile(r"<[^<>]*>")
PIECE = re.compile(
    r"<su[bp]>.*?</su[bp]>|<[^<>]*>|&[^&;\s]{1,9};|.", re.DOTALL
)  # what a break must not divide
AFTER = set(
    "/-_.,:"
)  # a word that is too long is divided after one of these, if it has one
INSIDE = "\u200b<br>"  # a break inside of a word
SMALL = re.compile(r"<su[bp]>(.*?)</su[bp]>")
LINE = 1.3  # height of a line of text, in units of its size
TOKEN = 14  # characters of a token that a label shows


def width_of(text: str, size: float) -> float:
    """The width in pixels of a text in a font of `size` pixels, at its longest line.

    >>> width_of("mm", 10) > width_of("ii", 10)
    True
    >>> width_of("a<br>abc", 10) == width_of("abc", 10)
    True
    """
    return size * _ems(text)


@functools.lru_cache(maxsize=10_000)
def _ems(text: str) -> float:
    """The width of the longest line, in units of the font size."""
    return max(sum(map(_em, _plain(line))) for line in text.split("<br>"))


def _em(character: str) -> float:
    if " " <= character <= "~":
        return WIDTHS[ord(character) - 32] / 100
    if unicodedata.category(character) in (
        "Mn",
        "Me",
        "Cf",
    ):  # on top of another character, or not seen
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return FULL
    return 0.65 if character.isalpha() or character in "‖·′" else OTHER


def _plain(line: str) -> str:
    """A line as it is seen: without markup; raised and lowered characters count as a narrow one each."""
    return html.unescape(
        TAG.sub("", SMALL.sub(lambda found: "i" * (1 + len(found[1])), line))
    )


def wrap(text: str, width: float, size: float) -> str:
    """The text broken at spaces into lines of at most `width` pixels; earlier breaks are undone.

    A word that is wider than a line is divided.

    >>> wrap("one two<br>three", 60, 13)
    'one two<br>three'
    >>> wrap("one two<br>three", 600, 13)
    'one two three'
    """
    lines: list[str] = []
    for word in unbreak(text).split(" "):
        if lines and width_of(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines += (
                [word] if width_of(word, size) <= width else _divide(word, width, size)
            )
    return "<br>".join(lines)


def _divide(word: str, width: float, size: float) -> list[str]:
    """The parts of a word that is wider than a line; all but the last end in a space without width."""
    parts, line = list[str](), list[str]()
    for piece in PIECE.findall(word):
        if line and width_of("".join((*line, piece)), size) > width:
            end = 1 + max(
                (at for at, one in enumerate(line) if one in AFTER),
                default=len(line) - 1,
            )
            parts.append("".join(line[:end]) + INSIDE[0])
            line = line[end:]
        line.append(piece)
    return [*parts, "".join(line)]


def unbreak(text: str) -> str:
    """The text in one line."""
    return text.replace(INSIDE, "").replace("<br>", " ")


def height_of(text: str, size: float) -> float:
    """The height in pixels of a text with its lines; 0 if it is empty."""
    return LINE * size * (1 + text.count("<br>")) if text else 0.0


def label(token: str) -> str:
    """A token as figure text: HTML escaped, outer spaces and line breaks made visible, long text shortened.

    >>> label(" the"), label("<b>"), label("a" * 30)
    ('␣the', '&lt;b&gt;', 'aaaaaaaaaaaaa…')
    """
    shown = _visible(token.replace(" ", "␣") if token != token.strip(" ") else token)
    return escape(shown if len(shown) <= TOKEN else f"{shown[: TOKEN - 1]}…")


def number_token(position: int, token: str) -> str:
    """A token with its position, as figure text; tokens may be repeated, and positions are not."""
    return f"{position}: {label(token)}"


def escape(text: str) -> str:
    r"""Any text, of tokens, prompts and users, so that plotly shows it unchanged; what is not seen is escaped.

    Where MathJax is loaded, plotly reads what is between two `$` as mathematics; in a template of hover text it reads
    `%{`. Quotation marks stay: plotly does not know `&quot;` and would show it.

    >>> escape('<b> & "'), escape("&quot;"), escape("$5 to $9"), escape("%{x}\n\u202e")
    ('&lt;b&gt; &amp; "', '&amp;quot;', '&#36;5 to &#36;9', '&#37;{x}⏎\\u202e')
    """
    return (
        html.escape(_visible(text), quote=False)
        .replace("$", "&#36;")
        .replace("%{", "&#37;{")
    )


def _visible(text: str) -> str:
    """The text with a sign for each line break and tab, and an escape for what else is not seen."""
    return sentences.escape(text.replace("\n", "⏎").replace("\t", "⇥"))
