"""What a model's answer says, strictly: read, or not read and why.

Where a prompt asks for a sentence ("The final answer to your maths question is: xxxx"), the answer is what that
sentence ends in, and nothing else; an answer that is the number alone is taken too, since it cannot be misread. What is
not read is told apart, so that a share of unread answers can be reported and looked into, and is never dropped.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Why = Literal["read", "none", "several", "words", "form", "cut"]
WHY: dict[str, str] = {
    "read": "read",
    "none": "no number",
    "several": "several numbers",
    "words": "a number in words",
    "form": "not as asked",
    "cut": "cut off",
}


@dataclass(frozen=True)
class Reading:
    """What was read, as canonical text (digits 0–9), and ``"read"``; or nothing, and why not."""

    value: str
    why: Why


# What a model said, the words its answer opens with (may be empty), whether it ended by itself.
Reader = Callable[[str, str, bool], Reading]

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)")
LONGEST = 15  # digits of a number; what is longer is the sequence said again
_PLACEHOLDER = re.compile(r"x{3,}|answer>", re.IGNORECASE)  # the model repeats what it was asked, not an answer
_AROUND = " \t\r\u00a0\u200b'\"`*_<>()[]{}$‘’“”«»"  # quotes, brackets and emphasis that may stand around an answer
_BEHIND = _AROUND + ".!。"  # and what may end a sentence
_CLOSING = "'\"`’”»"  # what shows that an answer is over, where the text stops behind it
_UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_WORDS = re.compile(
    rf"\b(?:{'|'.join(_UNITS)}|ten|eleven|twelve|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand)"
    r"(?:\b|-)",
    re.IGNORECASE,
)


def is_number(text: str) -> bool:
    """Whether a text is a whole number, as `number` gives it."""
    return text.removeprefix("-").isdecimal()


def number(text: str, opening: str, ended: bool) -> Reading:
    """A whole number: the one that the sentence ends in, or the one that is all there is.

    Digits of any one script are read as the number they write, and so are thousands in groups of three. A sentence
    given twice with different numbers, a fraction, a sum, a number with words around it, one of more than 15 digits, or
    one that may have been cut in the middle is not read.

    >>> number("Six ones. The final answer to your maths question is: **6**.", "The final answer to your maths question is:", True)
    Reading(value='6', why='read')
    >>> number("There are 6 ones.", "The final answer to your maths question is:", True)
    Reading(value='', why='form')
    """  # noqa: E501
    return _read(text, opening, ended, _as_number)


def digit(text: str, opening: str, ended: bool) -> Reading:
    """One digit, in the same places as `number`; also its English word, which leaves nothing to guess.

    >>> digit("The answer to your question is: one", "The answer to your question is:", True)
    Reading(value='1', why='read')
    """
    return _read(text, opening, ended, _as_digit)


def digits(text: str, opening: str, ended: bool) -> Reading:
    """A sequence of digits and commas, in the same places as `number`; spaces in it mean nothing."""
    return _read(text, opening, ended, _as_digits)


def words(text: str, opening: str, ended: bool) -> Reading:
    """What stands in the same places as a `number` would, with runs of white space as one space."""
    return _read(text, opening, ended, _as_words)


def _read(text: str, opening: str, ended: bool, convert: Callable[[str], Reading]) -> Reading:
    said = _behind(text, opening) if opening else []
    if not said:
        return convert(text.strip()) if ended else Reading("", "cut")
    found = [convert(line) for line, _ in said]
    last, closed = said[-1]
    # Where the text was cut, whatever stands last may go on: a number, a sum, a word.
    if not (ended or closed) and not (found[-1].why == "read" and last[-1:] in _CLOSING):
        return Reading("", "cut")
    different = set(found) - {Reading("", "none")} or set(found)
    return different.pop() if len(different) == 1 else Reading("", "several")


def _behind(text: str, opening: str) -> list[tuple[str, bool]]:
    """The line behind each time the opening words are said, but for where what was asked is only repeated; and whether
    a new line has closed it, whatever follows."""
    pattern = re.compile(r"\s+".join(map(re.escape, opening.split())), re.IGNORECASE)
    lines = [text[match.end() :].lstrip(" \t*_\r\n").partition("\n") for match in pattern.finditer(text)]
    return [
        (line, bool(newline))
        for line, newline, _ in lines
        if not _PLACEHOLDER.match(line.lstrip(_AROUND)) and not pattern.search(line)
    ]


def _core(line: str) -> str:
    """A line without what may stand around an answer, its digits as 0–9."""
    return _plain_digits(line.lstrip(_AROUND).rstrip(_BEHIND)).replace("−", "-")


def _as_number(line: str) -> Reading:
    core = _core(line)
    plain = core.replace(",", "")
    if _NUMBER.fullmatch(core) and len(plain.lstrip("+-")) <= LONGEST:
        return Reading(str(int(plain)), "read")
    numbers = re.findall(r"\d[\d,.]*", core)
    if numbers:
        return Reading("", "several" if len(numbers) > 1 else "form")
    return Reading("", "words" if _WORDS.search(core) else "none")


def _as_digit(line: str) -> Reading:
    core = _core(line).lower()
    if core in _UNITS:
        return Reading(str(_UNITS.index(core)), "read")
    reading = _as_number(line)
    return Reading("", "form") if reading.why == "read" and core not in set("0123456789") else reading


def _as_words(line: str) -> Reading:
    said = " ".join(line.lstrip(_AROUND).rstrip(_BEHIND).split())
    return Reading(said, "read") if said else Reading("", "none")


def _as_digits(line: str) -> Reading:
    core = _core("".join(line.split()))
    if re.fullmatch(r"[0-9,]*[0-9]", core):
        return Reading(core, "read")
    return Reading("", "form" if re.search(r"\d", core) else "none")


def _plain_digits(text: str) -> str:
    """Decimal digits of any script as 0–9, where all are of one script; otherwise the text as it is."""
    decimals = {ord(c) - unicodedata.decimal(c) for c in text if unicodedata.category(c) == "Nd"}
    if len(decimals) != 1:
        return text
    return "".join(str(unicodedata.decimal(c)) if unicodedata.category(c) == "Nd" else c for c in text)
