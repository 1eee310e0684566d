"""Read whole numbers from text, and from sentences that state one number and nothing else.

A number is read from a sentence only if every other word of the sentence is known not to change it. The vocabulary is
closed: a hedge, a negation, a unit of something else, or any unknown word means that no number is read.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Literal

Unclear = Literal["none", "several", "words", "fraction", "grouping", "long", "form"]
LONGEST = 15  # digits of a number; float64 cannot represent every whole number with more digits

_UNITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
]
_TEENS = [
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SPELT = {word: n for n, word in enumerate(_UNITS + _TEENS)} | {
    word: 10 * n for n, word in enumerate(_TENS, start=2)
}

_GAP = r"[ \u00a0\u2009\u202f]"  # white space allowed between groups of three digits
_SIGN = "[+\\-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d]"  # a hyphen, an en dash and a minus; not an em dash


def _digits(group: str) -> str:
    """The pattern of a whole number in digits; `group` names the group that matches the thousands separator."""
    return (
        rf"{_SIGN}?(?:[1-9][0-9]{{0,2}}(?P<{group}>['’_]|{_GAP})[0-9]{{3}}(?:(?P={group})[0-9]{{3}})*"
        r"|[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.0{1,2})?(?![0-9])"
    )


_UNIT, _TEEN, _TEN = "|".join(_UNITS[1:]), "|".join(_TEENS), "|".join(_TENS)
_HYPHEN = f"(?:[-\u2010\u2011]|{_GAP}+)"
_MORE = f"{_GAP}+(?:and{_GAP}+)?"  # never a line break: "twenty" and "one" on two lines are two numbers
_HUNDRED = rf"(?:(?:{_TEN})(?:{_HYPHEN}(?:{_UNIT}))?|{_TEEN}|{_UNIT})"
_THOUSAND = rf"(?:(?:{_UNIT}|a){_HYPHEN}hundred(?:{_MORE}{_HUNDRED})?|{_HUNDRED})"
_WORDS = rf"\b(?:zero|(?:{_THOUSAND}|a){_GAP}+thousand(?:,?{_MORE}{_THOUSAND})?|{_THOUSAND})\b"
_IN_WORDS = re.compile(_WORDS, re.IGNORECASE)
_IN_DIGITS = re.compile(_digits("gap"))
_SCALES = re.compile(
    r"\b(?:dozens?|hundreds?|thousands?|millions?|billions?|half|couple|score)\b",
    re.IGNORECASE,
)
_RUNS = re.compile(r"\d(?:[\d.,'’_\u00a0\u2009\u202f]*\d)?")

_SEQUENCE = r"(?:sequence|sentence|string|text|list|series)"
_WHERE = rf"(?:\s+(?:in|of|for)\s+(?:the|this|your)\s+(?:(?:given|following|above|whole|entire)\s+)*{_SEQUENCE})"
_JUST = r"(?:\s+(?:exactly|only|just|precisely|a\s+total\s+of))?"
_IS = rf"(?:['\"’”]?\s*(?:\b(?:is|was|are|equals|would\s+be)\b(?:{_JUST})\s*[:=]?|[:=]|[\t\n])\s*['\"“]?)"
_SURE = r"(?:(?:sure|certainly|of course|okay|ok|so|thus|therefore|hence|here is the answer)\b\s*[,!.:]?\s+)"
_TITLE = (
    r"(?:(?:the|my|our|your)\s+)?(?:(?:final|correct|exact|right|total|overall)\s+)*"
)
_TO = r"(?:\s+(?:to|of|for)\s+(?:your|the|this)\s+(?:maths?\s+)?(?:question|problem|sum))?"
_TOTAL = r"(?:\s+(?:in\s+total|altogether|in\s+all))?"
_OPERAND = r"\(*\d+\)*"
_SUM = rf"{_OPERAND}(?:[ \t]*[-+*×·][ \t]*{_OPERAND})"
_SUMS = re.compile(rf"[ \t]*{_SUM}+(?:[ \t]*=[ \t]*{_SUM}+)*[ \t]*")
ANSWER = re.compile(r"\b(?:answer|result|solution|total)\b", re.IGNORECASE)
MOST = 400  # characters of a sentence that states one number and nothing else


@cache
def _sentences(
    nouns: tuple[str, ...], units: tuple[str, ...]
) -> tuple[re.Pattern[str], ...]:
    """Patterns of sentences that state one number. `units` are words for the counted items, `nouns` for an answer."""
    counted, single = (
        _quoted(units),
        _quoted([re.sub(r"'?s(?=\s|$)", "", unit, count=1) for unit in units]),
    )
    again = f"(?:\\s*[(\\[]\\s*(?P<again>{_digits('gap2')}|{_WORDS})\\s*[)\\]]?)?"
    number = f"(?P<number>{_digits('gap')}|{_WORDS}){again}"
    of = rf"(?:\s+of\s+(?:all\s+)?(?:the\s+)?{counted})?" if units else ""
    announced = rf"{_TITLE}(?:{'|'.join(nouns)}){of}{_TO}{_WHERE}?{_IS}"
    there = r"there\s+(?:is|are|was|were)"
    told = (
        rf"(?:{there}|(?:i|we)\s+(?:have\s+)?(?:count|counted|found|find|see|get|got)"
        rf"|(?:it|that)(?:\s+is|['’]s|\s+equals|\s+makes)){_JUST}\s*:?\s+"
    )
    said = rf"(?:{announced}|{told}|[:=]\s*|[a-z]\s*=\s*)*"
    bodies = [f"{said}{number}" + (rf"(?:\s+{counted})?" if units else "")]
    if units:
        single_item = (
            f"(?P<number>1|one){again}"  # of which the item is in the singular
        )
        bodies.append(
            rf"{said}{single_item}(?!\s+['\"‘“]?(?P=number)\b)\s+{single}"
        )  # "1 1" may be the sequence again
        holds = (
            rf"(?:(?:the|this|your)\s+(?:given\s+)?{_SEQUENCE}|it)\s+(?:has|contains)"
        )
        occurs = rf"(?:the\s+(?:word|digit|number)\s+)?{counted}\s+(?:appears?|occurs?)"
        for amount in (rf"{number}\s+{counted}", rf"{single_item}\s+{single}"):
            bodies.append(rf"(?:{holds}|{occurs}|{there}){_JUST}\s+{amount}")
    return tuple(
        re.compile(f"{_SURE}*{body}{_TOTAL}{_WHERE}?{_TOTAL}", re.IGNORECASE)
        for body in bodies
    )


def _quoted(units: Sequence[str]) -> str:
    """The pattern of one of some units, which may be in quotes."""
    return (
        "['\"‘“]?(?:"
        + "|".join(re.escape(unit).replace("\\ ", r"\s+") for unit in units)
        + ")['\"’”]?"
    )


def value(text: str) -> int:
    """The value of a number written in digits or in English words."""
    if any(c.isdecimal() for c in text):
        sign = -1 if re.match(_SIGN, text) and not text.startswith("+") else 1
        return sign * int(re.sub(r"[^0-9]", "", text.partition(".")[0]))
    whole = part = 0
    for word in re.findall(r"[a-z]+", text.lower()):
        if word == "hundred":
            part = max(part, 1) * 100
        elif word == "thousand":
            whole, part = max(part, 1) * 1000, 0
        else:
            part += SPELT.get(word, 0)  # "and" and "a" add nothing
    return whole + part


def begins_with_number(text: str) -> bool:
    """Whether a text begins with a number, in digits or words. The word "one" counts as a pronoun."""
    match = _IN_DIGITS.match(text) or _IN_WORDS.match(text)
    return match is not None and match[0].lower() != "one"


def find_stated(
    text: str, nouns: tuple[str, ...], units: tuple[str, ...] = ()
) -> str | None:
    """The number that a text states, as written, if the text states nothing else; otherwise None.

    >>> find_stated("The answer is 7", ("answer",)), find_stated("There are seven (7) ones", (), ("ones",))
    ('7', 'seven')
    >>> find_stated("about 7", ("answer",)), find_stated("7 (eight)", ()), find_stated("7 zeros", (), ("ones",))
    (None, None, None)
    """
    text = _right_side(text)
    patterns = _sentences(nouns, units) if len(text) <= MOST else (_IN_DIGITS,)
    match = next(filter(None, (pattern.fullmatch(text) for pattern in patterns)), None)
    if match is None:
        return None
    said, again = (
        match.groupdict().get("number", match[0]),
        match.groupdict().get("again"),
    )
    # The same number in digits and in words counts once; anything else is two numbers.
    if again is not None and (
        said[-1].isdecimal() == again[-1].isdecimal() or value(said) != value(again)
    ):
        return None
    return said


def unread(text: str) -> Unclear:
    """The reason why no number is read from a text that does not state exactly one."""
    runs, spelt = (
        _RUNS.findall(text),
        [word.lower() for word in _IN_WORDS.findall(text)],
    )
    if re.fullmatch(r"[+-]?\d+\s*/\s*\d+", text):
        return "fraction"
    alone = not re.search(r"[a-z]", re.sub(_IN_WORDS, "", text), re.IGNORECASE)
    several = len(runs) + sum(
        alone or word != "one" for word in spelt
    )  # in a sentence, "one" is usually a pronoun
    if several > 1:
        return "several"
    scripts = any(
        c.isdecimal() and not c.isascii() for c in text
    )  # a single script was already replaced by 0–9
    if runs and not scripts and not _IN_DIGITS.fullmatch(runs[0]):
        decimal = re.fullmatch(r"\d+\.\d+", runs[0]) and not re.fullmatch(
            r"[1-9]\d{0,2}\.\d{3}", runs[0]
        )
        return "fraction" if decimal else "grouping"
    if runs and len(re.sub(r"\D", "", runs[0])) > LONGEST:
        return "long"
    if _SCALES.search(re.sub(_IN_WORDS, "", text)):
        return "words"
    return "form" if runs or spelt else "none"


def _right_side(text: str) -> str:
    """The text after the last "=" if everything before it is arithmetic; otherwise the whole text."""
    before, equals, after = text.rpartition("=")
    return (
        after.strip()
        if equals and "\n" not in text and _SUMS.fullmatch(before)
        else text
    )
