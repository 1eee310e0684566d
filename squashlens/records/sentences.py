"""How numbers, shares and texts are said."""

import unicodedata
from collections.abc import Sequence

# Categories of characters that are not seen.
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
UNKNOWN = "\ufffd"  # stands for bytes that are no character
LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def number(value: object) -> str:
    """A number with three digits and a true minus sign.

    >>> number(2971.2), number(-0.25), number(1.2e-7)
    ('2,970', '−0.25', '1.2e−07')
    """
    short = f"{float(value):.3g}"  # pyright: ignore[reportArgumentType]
    if 1000 <= abs(float(short)) < 1e6:
        short = f"{float(short):,.0f}"
    return short.replace("-", "−")


def plural(count: int, noun: str) -> str:
    """A number of things, as "1 length", "2 lengths" and "2 queries"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("ry") else f"{count} {noun}s"


def times(factor: float) -> str:
    """A factor in words, with two digits from a million on, and three below.

    >>> times(3.2), times(23456), times(367_900_000)
    ('3.2 times', '23,500 times', '370 million times')
    """
    for size, word in LARGE:
        if factor >= size:
            return f"{number(float(f'{factor / size:.2g}'))} {word} times"
    short = f"{factor:.3g}"
    return f"{float(short):,.0f} times" if factor >= 1000 else f"{short} times"


def percent(share: float) -> str:
    """A share between 0 and 1 as a percentage of two digits, without claiming all or nothing.

    >>> percent(0.123), percent(0.9996), percent(0.0004), percent(1)
    ('12 %', 'over 99.9 %', 'under 0.1 %', '100 %')
    """
    if 0.999 < share < 1:
        return "over 99.9 %"
    if 0 < share < 0.001:
        return "under 0.1 %"
    digits = 3 if share >= 0.99 else 2
    return f"{100 * share:.{digits}g} %"


def listed(parts: Sequence[str]) -> str:
    """Parts of a sentence, as in "a, b and c"."""
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def escape(text: str) -> str:
    r"""The text with what cannot be seen escaped: control, format (also of direction), separator and surrogate
    characters, and U+FFFD. What was escaped stays as it is.

    >>> escape("a\n\x00\u200b\u202e\u2028\ufffdé 🙂")
    'a\\n\\x00\\u200b\\u202e\\u2028\\ufffdé 🙂'
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character == UNKNOWN or unicodedata.category(character) in HIDDEN:
        return character.encode("unicode_escape").decode("ascii")
    return character


def bare(answer: str) -> str:
    r"""An answer without the white space around it; white space alone as code writes it.

    >>> bare(" Paris"), bare("\n")
    ('Paris', '\\n')
    """
    return answer.strip() or repr(answer)[1:-1]


def quoted(token: object) -> str:
    """A token or an answer in quotation marks, with its spaces visible."""
    return f"“{escape(str(token)).replace(' ', '␣')}”"
