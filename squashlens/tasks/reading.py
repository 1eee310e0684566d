"""What a model's answer says: read, or not read and why.

Four layers: `markup` takes away what carries the answer (markers of turns, Markdown, LaTeX); this module finds where
the answer stands; `numerals` decides whether that says one number; `retraction` whether what is said around it takes it
back. Two readings are made of every answer.

*Strict*: the form that was asked for. Where a prompt asks for a sentence ("The final answer to your maths question is:
xxxx"), that sentence with digits behind it; or the digits alone. Commas may group them by three; quotes, brackets,
emphasis and a full stop may stand around them.

*Lenient*: what is unambiguous, strict or not: also markup, number words, "7 (seven)", "There are 7 ones", an answer
announced in other words at the end. A lenient reading never differs from a strict one: `Reading.as_asked` says whether
both give the value.

What is not read is counted by the reason why, and never dropped.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from squashlens.tasks.markup import plain, turn
from squashlens.tasks.numerals import ANSWER, LONGEST, SPELT, spoken, stated, unread, value
from squashlens.tasks.retraction import denied, sentences, standing

Why = Literal[
    "read", "none", "several", "words", "fraction", "grouping", "long", "digit", "form", "echo", "cut", "retracted"
]
WHY: dict[str, str] = {
    "read": "read",
    "none": "no number",
    "several": "several numbers",
    "words": "unclear number words",
    "fraction": "not a whole number",
    "grouping": "digits in unclear groups",
    "long": f"more than {LONGEST} digits",
    "digit": "not a single digit",
    "form": "a number with other text",
    "echo": "echo of the sequence",
    "cut": "cut off",
    "retracted": "taken back or doubted",
}


@dataclass(frozen=True)
class Reading:
    """What was read, as canonical text (digits 0–9), and ``"read"``; or nothing, and why not.

    `as_asked`: whether it was read and given in the form that was asked for. Yes, unless a reader says otherwise: what
    that form is, is for a reader of your own to say.
    """

    value: str
    why: Why
    as_asked: bool = True

    def __post_init__(self) -> None:
        if self.why != "read":
            object.__setattr__(self, "as_asked", False)


# What a model said, the words its answer opens with (may be empty), whether it ended by itself.
Reader = Callable[[str, str, bool], Reading]
Convert = Callable[[str], Reading]

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)")
_PLACEHOLDER = re.compile(r"x{3,}|answer>", re.IGNORECASE)  # the model repeats what it was asked, not an answer
_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_AROUND = f" \t\r\u00a0{_INVISIBLE}'\"`*_()[]{{}}$‘’“”«»"  # quotes, brackets and emphasis around an answer
_STOPS = ".!。"  # what may end a sentence
_CLOSING = "'\"`’”»"  # what shows that an answer is over, where the text stops behind it
_NOUNS = ("answer", "result", "solution")
_COUNTS = (*_NOUNS, "count", "sum", "total", "number")


def is_number(text: str) -> bool:
    """Whether a text is a whole number, as `number` gives it."""
    return text.removeprefix("-").isdecimal()


def number(text: str, opening: str, ended: bool, units: tuple[str, ...] = ()) -> Reading:
    """A whole number: the one that the sentence ends in, or the one that is all there is.

    `units` are words for what is counted, so that "7 ones" is 7: see `counted`. Digits of any one script are read as
    the number they write. An answer that gives different numbers, a fraction, a hedge ("about 7"), a number with words
    around it that are not known to leave it as it is, one of more than 15 digits, or one that may have been cut in the
    middle is not read.

    >>> number("Six ones. The final answer to your maths question is: **6**.", "The final answer to your maths question is:", True)
    Reading(value='6', why='read', as_asked=True)
    >>> number("I count. The answer is six.", "The final answer to your maths question is:", True)
    Reading(value='6', why='read', as_asked=False)
    >>> number("There may be 6 or 7.", "The final answer to your maths question is:", True)
    Reading(value='', why='several', as_asked=False)
    """  # noqa: E501
    return _read(text, opening, ended, _strict_number, partial(_lenient_number, units=units))


def counted(*units: str) -> Reader:
    """`number` for a task that counts what `units` name: "7 ones" and "There are 7 ones in the sequence" are 7.

    >>> counted("ones")("7 ones", "", True).value, counted("ones")("7 zeros", "", True).why
    ('7', 'form')
    """
    return _Counted(units)


@dataclass(frozen=True)
class _Counted:
    """`number` with its units, so that two of the same are equal and tasks compare."""

    units: tuple[str, ...]
    __name__ = "number"

    def __call__(self, text: str, opening: str, ended: bool) -> Reading:
        return number(text, opening, ended, self.units)


def digit(text: str, opening: str, ended: bool) -> Reading:
    """One digit, in the same places as `number`; also its English word, which leaves nothing to guess.

    >>> digit("The answer to your question is: one", "The answer to your question is:", True)
    Reading(value='1', why='read', as_asked=True)
    """
    return _read(text, opening, ended, _strict_digit, _lenient_digit)


def digits(text: str, opening: str, ended: bool) -> Reading:
    """A sequence of digits and commas, in the same places as `number`; spaces in it mean nothing."""
    return _read(text, opening, ended, _strict_digits, _lenient_digits)


def words(text: str, opening: str, ended: bool) -> Reading:
    """What stands in the same places as a `number` would, with runs of white space as one space."""
    text, ended = turn(text, ended)
    found, places = _found(text, opening, ended, _as_words), _behind(text, opening) if opening else []
    return _standing(found, places[-1][2]) if places else found


def _read(text: str, opening: str, ended: bool, strict: Convert, lenient: Convert) -> Reading:
    """What is unambiguous, and whether it was given as asked."""
    text, ended = turn(text, ended)
    bare, asked = plain(text), plain(opening)
    places = _behind(bare, asked) if asked else []
    found = _found(bare, asked, ended, lenient) if places else _announced(bare, ended, lenient)
    if places:
        found = _standing(found, places[-1][2], lambda sentence: lenient(sentence).value)
    return replace(found, as_asked=_found(text, opening, ended, strict).value == found.value)


def _standing(found: Reading, behind: str, convert: Callable[[str], str] | None = None) -> Reading:
    """A reading, unless what is said behind the answer takes it back or gives another."""
    why = standing(behind, found.value, convert) if found.why == "read" else "read"
    return found if why == "read" else Reading("", why)


def _found(text: str, opening: str, ended: bool, convert: Convert) -> Reading:
    """What stands behind the opening words, each time they are said; the whole text where they are not."""
    said = _behind(text, opening) if opening else []
    if not said:
        return convert(text.strip()) if ended else Reading("", "cut")
    found = [convert(line) for line, _, _ in said]
    last, closed, _ = said[-1]
    # Where the text was cut, whatever stands last may go on: a number, a sum, a word.
    if not (ended or closed) and not (found[-1].why == "read" and last[-1:] in _CLOSING):
        return Reading("", "cut")
    return _one(found)


def _one(found: list[Reading]) -> Reading:
    """The one reading there is, but for places without any; several otherwise."""
    different = set(found) - {Reading("", "none")} or set(found)
    return different.pop() if len(different) == 1 else Reading("", "several")


def _announced(text: str, ended: bool, convert: Convert) -> Reading:
    """Where the words that were asked for are missing: all that is said, or the last sentence if it announces an
    answer and no other sentence states another number."""
    if not ended:
        return Reading("", "cut")
    whole = convert(text.strip())
    if whole.why == "read":
        return whole
    parts = sentences(text)
    if not parts or not ANSWER.search(parts[-1]) or convert(parts[-1]).why != "read":
        return whole
    # A step of arithmetic, "5 + 5 = 10", is no other answer, unless it is the last; what else states a number is.
    steps = [each for each in parts if "=" in each and not ANSWER.search(each)]
    found = [convert(each) for each in parts if each not in steps[:-1]]
    return _one([reading for reading in found if reading.why == "read"])


def _behind(text: str, opening: str) -> list[tuple[str, bool, str]]:
    """The line behind each time the opening words are said, but for where what was asked is only repeated, or is
    denied; whether a new line has closed it, whatever follows; and what follows."""
    pattern = re.compile(r"\s+".join(map(re.escape, opening.split())), re.IGNORECASE)
    found, before = [], 0
    for match in pattern.finditer(text):
        line, newline, rest = text[match.end() :].lstrip(" \t*_\r\n").partition("\n")
        again = pattern.search(line)  # on the same line, said once more: the number before it counts too
        line = _first(line[: again.start()]) if again else line
        only_asked = _PLACEHOLDER.match(line.lstrip(_AROUND + "<")) or (again and not line)
        if not only_asked and not denied(text[before : match.start()]):
            found.append((line, bool(newline), rest))
        before = match.end()
    return found


def _first(text: str) -> str:
    """The first clause of a text if it begins with a number, nothing otherwise."""
    begins = text.lstrip(_AROUND)
    if not any(start == 0 for start, _, _ in spoken(begins)):
        return ""
    return re.split(r"[.!?;,:](?=\s)|['\"’”»*`_](?=\s)|\s(?=(?:and|or|but)\W*$)", begins)[0]


def _core(line: str, around: str = _AROUND + "\n", stops: str = _STOPS + ";,") -> str:
    """A line without what may stand around an answer, its digits as 0–9."""
    core = line.lstrip(around).rstrip(around + stops)
    bracketed = re.fullmatch(r"<([^<>]*)>", core)  # one angle bracket alone says less, or more
    return _plain_digits(bracketed[1] if bracketed else core)


def _strict_core(line: str) -> str:
    return _core(line, _AROUND, _STOPS).replace("−", "-")


def _strict_number(line: str) -> Reading:
    core = _strict_core(line)
    digits = core.replace(",", "")
    if _NUMBER.fullmatch(core) and len(digits.lstrip("+-")) <= LONGEST:
        return Reading(str(int(digits)), "read")
    return Reading("", "form")


def _lenient_number(line: str, units: tuple[str, ...] = ()) -> Reading:
    core = _core(line)
    said = stated(core, _COUNTS, units)
    if said is None:
        return Reading("", unread(core))
    if sum(c.isdecimal() for c in said.partition(".")[0]) > LONGEST:
        return Reading("", "long")
    return Reading(str(value(said)), "read")


def _strict_digit(line: str) -> Reading:
    core = _strict_core(line).lower()
    found = str(SPELT.get(core, core))
    return Reading(found, "read") if found in set("0123456789") else Reading("", "form")


def _lenient_digit(line: str) -> Reading:
    core = _core(line)
    said = stated(core, _NOUNS)
    if said is None:
        return Reading("", unread(core))
    found = str(SPELT.get(said.lower(), said))
    return Reading(found, "read") if found in set("0123456789") else Reading("", "digit")


def _as_words(line: str) -> Reading:
    said = " ".join(line.lstrip(_AROUND + "<").rstrip(_AROUND + _STOPS + ">").split())
    return Reading(said, "read") if said else Reading("", "none")


def _strict_digits(line: str) -> Reading:
    core = _strict_core("".join(line.split()))
    return Reading(core, "read") if re.fullmatch(r"[0-9,]*[0-9]", core) else Reading("", "form")


def _lenient_digits(line: str) -> Reading:
    core = _core(re.sub(r"^.{0,60}?\b(?:answer|result|sequence|number)\s*(?:is|:|=)[\s:=]*", "", _core(line), count=1))
    core = "".join(core.removeprefix("=").split())
    if re.fullmatch(r"[0-9,]*[0-9]", core):
        return Reading(core, "read")
    return Reading("", "form" if re.search(r"\d", core) else "none")


def _plain_digits(text: str) -> str:
    """Decimal digits of any script as 0–9, where all are of one script; otherwise the text as it is."""
    decimals = {ord(c) - unicodedata.decimal(c) for c in text if unicodedata.category(c) == "Nd"}
    if len(decimals) != 1:
        return text
    return "".join(str(unicodedata.decimal(c)) if unicodedata.category(c) == "Nd" else c for c in text)
