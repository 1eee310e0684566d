"""Read the value from a model's answer, or give the reason why no value is read.

`markup` removes turn markers, Markdown and LaTeX. This module finds the place of the answer. `numerals` decides whether
the text there states one number, `retraction` whether the text around it takes the answer back. Every answer is read in
two ways: *strict* accepts only the requested form, *lenient* every unambiguous answer (docs/answers.md). If both read a
value, it is the same value. `Reading.as_asked` says whether the strict reading succeeded too.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from squashlens.tasks.markup import plain, turn
from squashlens.tasks.numerals import ANSWER, LONGEST, SPELT, spoken, stated, unread, value
from squashlens.tasks.retraction import retraction_status, sentences

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
    """The value read from an answer, or the reason why none was read.

    Args:
        value: the value as canonical text (digits 0–9); empty if nothing was read.
        why: ``"read"``, or the reason why nothing was read; `WHY` has the reasons in words.
        as_asked: whether the answer had the requested form. True by default for a value that was read; your own reader
            decides what the requested form is.
    """

    value: str
    why: Why
    as_asked: bool = True

    def __post_init__(self) -> None:
        if self.why != "read":
            object.__setattr__(self, "as_asked", False)


# A reader's arguments: the model's text, the words that an answer opens with (may be empty), whether the model stopped.
Reader = Callable[[str, str, bool], Reading]
Convert = Callable[[str], Reading]

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)")
_PLACEHOLDER = re.compile(r"x{3,}|answer>", re.IGNORECASE)  # a repeated placeholder, which is no answer
_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_AROUND = f" \t\r\u00a0{_INVISIBLE}'\"`*_()[]{{}}$‘’“”«»"  # quotes, brackets and emphasis around an answer
_STOPS = ".!。"  # characters that may end a sentence
_CLOSING = "'\"`’”»"  # a text that stops after one of these holds a complete answer
_NOUNS = ("answer", "result", "solution")
_COUNTS = (*_NOUNS, "count", "sum", "total", "number")


def is_number(text: str) -> bool:
    """Whether a text is a whole number in the form that `number` returns."""
    return text.removeprefix("-").isdecimal()


def number(text: str, opening: str, ended: bool, units: tuple[str, ...] = ()) -> Reading:
    """Read a whole number: the one that follows the opening words, or the only one in the answer.

    Digits of any single script are read. Not read are: different numbers, a fraction, a hedged number ("about 7"), a
    number among words that may change it, a number of more than 15 digits, and a number that may be cut off.

    Args:
        text: the model's answer.
        opening: the words that the answer should open with; may be empty.
        ended: whether the model ended its answer itself.
        units: words for the counted items, so that "7 ones" is 7; see `counted`.

    >>> number("Six ones. The answer is: **6**.", "The answer is:", True)
    Reading(value='6', why='read', as_asked=True)
    >>> number("I count. The answer is six.", "The final answer is:", True)
    Reading(value='6', why='read', as_asked=False)
    >>> number("There may be 6 or 7.", "The answer is:", True)
    Reading(value='', why='several', as_asked=False)
    """
    return _read(text, opening, ended, _strict_number, partial(_lenient_number, units=units))


def counted(*units: str) -> Reader:
    """A reader like `number` for counting tasks: it also reads "7 ones" and "There are 7 ones in the sequence" as 7.

    Args:
        *units: words for the counted items.

    >>> counted("ones")("7 ones", "", True).value, counted("ones")("7 zeros", "", True).why
    ('7', 'form')
    """
    return _Counted(units)


@dataclass(frozen=True)
class _Counted:
    """`number` with its units, as a dataclass: readers with the same units are equal, so tasks can be compared."""

    units: tuple[str, ...]
    __name__ = "number"

    def __call__(self, text: str, opening: str, ended: bool) -> Reading:
        return number(text, opening, ended, self.units)


def digit(text: str, opening: str, ended: bool) -> Reading:
    """Read a single digit, or its English word, in the same places as `number`, with the same arguments.

    >>> digit("The answer to your question is: one", "The answer to your question is:", True)
    Reading(value='1', why='read', as_asked=True)
    """
    return _read(text, opening, ended, _strict_digit, _lenient_digit)


def digits(text: str, opening: str, ended: bool) -> Reading:
    """Read a sequence of digits and commas, in the same places as `number`; spaces are ignored."""
    return _read(text, opening, ended, _strict_digits, _lenient_digits)


def words(text: str, opening: str, ended: bool) -> Reading:
    """Read any text in the same places as `number`; each run of white space becomes one space."""
    text, ended = turn(text, ended)
    found, places = _found(text, opening, ended, _as_words), _after_opening(text, opening) if opening else []
    return _unless_retracted(found, places[-1][2]) if places else found


def _read(text: str, opening: str, ended: bool, strict: Convert, lenient: Convert) -> Reading:
    """The lenient reading, and whether the strict reading gives the same value."""
    text, ended = turn(text, ended)
    bare, asked = plain(text), plain(opening)
    places = _after_opening(bare, asked) if asked else []
    found = _found(bare, asked, ended, lenient) if places else _announced(bare, ended, lenient)
    if places:
        found = _unless_retracted(found, places[-1][2], lambda sentence: lenient(sentence).value)
    return replace(found, as_asked=_found(text, opening, ended, strict).value == found.value)


def _unless_retracted(found: Reading, after: str, convert: Callable[[str], str] | None = None) -> Reading:
    """The reading, unless the text after the answer takes it back or gives another one."""
    why = retraction_status(after, found.value, convert) if found.why == "read" else "read"
    return found if why == "read" else Reading("", why)


def _found(text: str, opening: str, ended: bool, convert: Convert) -> Reading:
    """The reading of the text after each occurrence of the opening words, or of the whole text if they do not occur."""
    said = _after_opening(text, opening) if opening else []
    if not said:
        return convert(text.strip()) if ended else Reading("", "cut")
    found = [convert(line) for line, _, _ in said]
    last, closed, _ = said[-1]
    # If the text was cut off, its last number, sum or word may be incomplete.
    if not (ended or closed) and not (found[-1].why == "read" and last[-1:] in _CLOSING):
        return Reading("", "cut")
    return _one(found)


def _one(found: list[Reading]) -> Reading:
    """The common reading of all places that have one; "several" if they differ."""
    different = set(found) - {Reading("", "none")} or set(found)
    return different.pop() if len(different) == 1 else Reading("", "several")


def _announced(text: str, ended: bool, convert: Convert) -> Reading:
    """The reading of an answer without the opening words.

    The whole text is read; failing that, the last sentence, if it announces an answer and no other sentence states
    another number.
    """
    if not ended:
        return Reading("", "cut")
    whole = convert(text.strip())
    if whole.why == "read":
        return whole
    parts = sentences(text)
    if not parts or not ANSWER.search(parts[-1]) or convert(parts[-1]).why != "read":
        return whole
    # A step of arithmetic ("5 + 5 = 10") is no other answer, unless it is the last. Other sentences with a number are.
    steps = [each for each in parts if "=" in each and not ANSWER.search(each)]
    found = [convert(each) for each in parts if each not in steps[:-1]]
    return _one([reading for reading in found if reading.why == "read"])


def _after_opening(text: str, opening: str) -> list[tuple[str, bool, str]]:
    """The line after each occurrence of the opening words, whether a line break ends it, and the text after it.

    Occurrences that only repeat the question are left out.
    """
    pattern = re.compile(r"\s+".join(map(re.escape, opening.split())), re.IGNORECASE)
    found = []
    for match in pattern.finditer(text):
        line, newline, rest = text[match.end() :].lstrip(" \t*_\r\n").partition("\n")
        again = pattern.search(line)  # the words occur twice on one line: the number between them counts too
        line = _first(line[: again.start()]) if again else line
        only_asked = _PLACEHOLDER.match(line.lstrip(_AROUND + "<")) or (again and not line)
        if not only_asked:
            found.append((line, bool(newline), rest))
    return found


def _first(text: str) -> str:
    """The first clause of a text if it begins with a number; otherwise an empty text."""
    begins = text.lstrip(_AROUND)
    if not any(start == 0 for start, _, _ in spoken(begins)):
        return ""
    return re.split(r"[.!?;,:](?=\s)|['\"’”»*`_](?=\s)|\s(?=(?:and|or|but)\W*$)", begins)[0]


def _core(line: str, around: str = _AROUND + "\n", stops: str = _STOPS + ";,") -> str:
    """A line without the characters that may surround an answer, with its digits as 0–9."""
    core = line.lstrip(around).rstrip(around + stops)
    bracketed = re.fullmatch(r"<([^<>]*)>", core)  # a single angle bracket means "less than" or "greater than"
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
    """The text with decimal digits as 0–9 if all are of one script; otherwise the text unchanged."""
    decimals = {ord(c) - unicodedata.decimal(c) for c in text if unicodedata.category(c) == "Nd"}
    if len(decimals) != 1:
        return text
    return "".join(str(unicodedata.decimal(c)) if unicodedata.category(c) == "Nd" else c for c in text)
