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
WHY: dict[Why, str] = {
    "read": "read",
    "none": "no number",
    "several": "several numbers",
    "words": "a number in words",
    "form": "a number, not as asked",
    "cut": "cut off before it was over",
}


@dataclass(frozen=True)
class Reading:
    """What was read, as canonical text (digits 0–9), and ``"read"``; or nothing, and why not."""

    value: str
    why: Why


# What a model said, the words its answer opens with (may be empty), whether it ended by itself.
Reader = Callable[[str, str, bool], Reading]

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)")
_PLACEHOLDER = re.compile(r"x{3,}|<answer>", re.IGNORECASE)  # the model repeats what it was asked, not an answer
_AROUND = " \t\r'\"`*_<>()[]{}$‘’“”«»"  # quotes, brackets and emphasis that may stand around an answer
_BEHIND = _AROUND + ".!。"  # and what may end a sentence
_UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_WORDS = re.compile(
    rf"\b(?:{'|'.join(_UNITS)}|ten|eleven|twelve|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand)"
    r"(?:\b|-)",
    re.IGNORECASE,
)


def number(text: str, opening: str, ended: bool) -> Reading:
    """A whole number: the one that the sentence ends in, or the one that is all there is.

    Digits of any one script are read as the number they write, and so are thousands in groups of three. A sentence
    given twice with different numbers, a fraction, a sum, a number with words around it, or one that may have been cut
    in the middle is not read.

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
    """What stands behind the sentence, on its line, or all there is, with runs of white space as one space."""
    said = _behind(text, opening) if opening else [(text.strip(), "")]
    found = {" ".join(line.strip(_AROUND).split()) for line, _ in said} - {""}
    if len(found) == 1 and (ended or all(rest for _, rest in said)):
        return Reading(found.pop(), "read")
    return Reading("", "several" if len(found) > 1 else "none" if ended else "cut")


def _read(text: str, opening: str, ended: bool, convert: Callable[[str], Reading]) -> Reading:
    said = _behind(text, opening) if opening else []
    if not said:
        return convert(text.strip()) if ended else Reading("", "cut")
    found = []
    for line, rest in said:
        reading = convert(line)
        # A number at the very end of an answer that was cut may go on, unless something closes it.
        open_ended = not ended and not rest and (line[-1:].isalnum() or line[-1:] in ".,")
        found.append(Reading("", "cut") if open_ended else reading)
    return found[0] if len(set(found)) == 1 else Reading("", "several")


def _behind(text: str, opening: str) -> list[tuple[str, str]]:
    """Each answer behind the opening words: its line, and what comes after that line."""
    pattern = re.compile(r"\s+".join(map(re.escape, opening.split())), re.IGNORECASE)
    found = []
    for match in pattern.finditer(text):
        line, newline, rest = text[match.end() :].lstrip(" \t*_\r\n").partition("\n")
        if not _PLACEHOLDER.search(line):
            found.append((line, newline + rest))
    return found


def _as_number(line: str) -> Reading:
    core = _plain_digits(line.lstrip(_AROUND).rstrip(_BEHIND)).replace("−", "-")
    if _NUMBER.fullmatch(core):
        return Reading(str(int(core.replace(",", ""))), "read")
    numbers = re.findall(r"\d[\d,.]*", core)
    if numbers:
        return Reading("", "several" if len(numbers) > 1 else "form")
    return Reading("", "words" if _WORDS.search(core) else "none")


def _as_digit(line: str) -> Reading:
    word = line.lstrip(_AROUND).rstrip(_BEHIND).lower()
    if word in _UNITS:
        return Reading(str(_UNITS.index(word)), "read")
    reading = _as_number(line)
    return reading if reading.why != "read" or reading.value in set("0123456789") else Reading("", "form")


def _as_digits(line: str) -> Reading:
    core = _plain_digits("".join(line.lstrip(_AROUND).rstrip(_BEHIND).split()))
    if re.fullmatch(r"[0-9,]*[0-9]", core):
        return Reading(core, "read")
    return Reading("", "form" if re.search(r"\d", core) else "none")


def _plain_digits(text: str) -> str:
    """Decimal digits of any script as 0–9, where all are of one script; otherwise the text as it is."""
    decimals = {ord(c) - unicodedata.decimal(c) for c in text if unicodedata.category(c) == "Nd"}
    if len(decimals) != 1:
        return text
    return "".join(str(unicodedata.decimal(c)) if unicodedata.category(c) == "Nd" else c for c in text)
