r"""Read the value from a model's answer, or give the reason why no value is read.

An answer has one of three forms. It follows the words that were asked for; or a sentence announces it ("The answer is
7."); or it is the whole text. `turns` removes markers, thoughts and markup first, and `numerals` decides whether a
sentence states one number. If a later sentence has another number, the answer is one of several.

Every answer is read in two ways: *strict* accepts only the requested form, *lenient* every unambiguous answer
(docs/answers.md). If both read a value, it is the same value. `Reading.as_asked` says whether the strict reading
succeeded too.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from typing import NamedTuple

from squashlens.tasks.numerals import (
    ANSWER,
    LONGEST,
    SPELT,
    find_stated,
    has_another_number,
    result_of_sum,
    unread,
    value,
)
from squashlens.tasks.turns import final_text, without_markup

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
Why = str  # one of WHY


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
        if not self.is_read:
            object.__setattr__(self, "as_asked", False)

    @property
    def is_read(self) -> bool:
        """Whether a value was read."""
        return self.why == "read"


def _unread(why: Why) -> Reading:
    return Reading("", why)


# A reader's arguments: the model's text, the words that an answer opens with (may be empty), whether the model stopped.
Reader = Callable[[str, str, bool], Reading]
Convert = Callable[[str], Reading]

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)")
_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_AROUND = f" \t\r\u00a0{_INVISIBLE}'\"`*_()[]{{}}$‘’“”«»"  # quotes, brackets and emphasis around an answer
_STOPS = ".!。"  # characters that may end a sentence
_CLOSING = "'\"`’”»"  # a text that stops after one of these holds a complete answer
_NOUNS = ("answer", "result", "solution")
_COUNTS = (*_NOUNS, "count", "sum", "total", "number")
# The opening words are repeated, with the placeholder of the question.
_PLACEHOLDER = r"[\W_]*(?:x{3,}|answer>)"
# Models that are not tuned for dialogue continue with other text; a line that begins like this is a new question.
_QUESTION = re.compile(
    r"(?im)\n(?:[^\w\n]|[\d_])*(?:(?:user|human|student|teacher|q|question|problem|exercise|example|task|input)"
    r"[ \t]*\d*[ \t]*(?:[:.)#-]|$)|please (?:count|answer|give|perform)"
    r"|(?:consider|how many|what is|write|compute|find)\b)"
)
_LINE_ENDS = re.compile(r"\n\s*")
_SENTENCE_ENDS = re.compile(r"\n\s*|(?<=[.!?])\s+")
_LIST_MARKS = re.compile(r"(?m)^[ \t]*(?:\d\d?[.)]|[-*•])[ \t]+(?=\S)")
# Words that begin a correction. The rest of the sentence may say the same number again.
_CORRECTION = re.compile(
    r"^\W*(?:(?:oh|but|and|so|well|ok|okay)\W+)?(?:(?:wait(?! for)|hold on|no(?= wait|\W*$|[,.;:!—])|actually"
    r"|oops|correction|sorry(?! for)|my (?:mistake|error)|on second thoughts?|scratch that"
    r"|i (?:mean|meant|change)|let me (?:re)?(?:count|check))\b[\s,.:;*—]*)+",
    re.IGNORECASE,
)
_NUMBERS = "|".join(word for word in SPELT if word != "one")
_ERROR = re.compile(
    r"(?:(?<!if )\b(?:i|this|that|it|answer)\b|^\d+)[^,;]*(?<!not )"
    r"\b(?:wrong|incorrect|mistaken?|miscounted|missed|should be)\b"
    r"|\b(?:is|was|am)(?: not|n['’]t) (?:right|correct)\b"
    rf"|(?:\bnot|n['’]t) (?:[-−]?\d|(?:{_NUMBERS})\b)",
    re.IGNORECASE,
)


def is_number(text: str) -> bool:
    """Whether a text is a whole number in the form that `number` returns."""
    return text.removeprefix("-").isdecimal()


def number(
    text: str, opening: str, ended: bool, units: tuple[str, ...] = ()
) -> Reading:
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
    lenient = partial(_lenient_number, units=units)
    return _read(text, opening, ended, _strict_number, lenient)


@cache
def counted(*units: str) -> Reader:
    """A reader like `number` for counting tasks: it also reads "7 ones" and "There are 7 ones in the sequence" as 7.

    Args:
        *units: words for the counted items.

    >>> counted("ones")("7 ones", "", True).value, counted("ones")("7 zeros", "", True).why
    ('7', 'form')
    """

    @wraps(number)
    def read(text: str, opening: str, ended: bool) -> Reading:
        return number(text, opening, ended, units)

    return read  # the same for the same units, so tasks can be compared


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
    """Read any text in the same places as `number`, with the same arguments; each run of white space becomes one space.

    After the opening words it is read up to the end of the line.
    """
    text, ended = final_text(text, ended)
    places = _after_opening(text, opening, _LINE_ENDS)
    if places:
        reading = _common_reading(places, ended, _as_words)
        return _unless_revised(reading, _sentences(places[-1].later), _as_words)
    if not ended:
        return _unread("cut")
    return _as_words(text)


class Place(NamedTuple):
    """A sentence that may hold the answer, whether its end was seen (`closed`), and the text after it (`later`)."""

    sentence: str
    closed: bool
    later: str


def _read(
    text: str, opening: str, ended: bool, strict: Convert, lenient: Convert
) -> Reading:
    """The lenient reading, with `as_asked` if the strict reading gives the same value.

    `strict` and `lenient` read a value from a line. The rest is as in `number`.
    """
    text, ended = final_text(text, ended)
    bare = without_markup(text)
    places = _after_opening(bare, without_markup(opening))
    if places:
        non_empty = [place for place in places if place.sentence]
        last = non_empty[-1] if non_empty else places[-1]
        reading = _common_reading(places, ended, lenient)
        reading = _unless_revised(reading, _sentences(last.later), lenient)
    elif ended:
        reading = _without_opening(bare, lenient)
    else:  # the opening words may have been cut off
        reading = _unread("cut")
    # Strict reading sees the text with its markup.
    strict_value = _value_as_asked(text, opening, strict)
    return replace(reading, as_asked=strict_value == reading.value)


def _value_as_asked(text: str, opening: str, strict: Convert) -> str:
    """The value that the strict reading finds after the opening words, or in the whole text without them."""
    places = _after_opening(text, opening)
    if places:
        return _agreed([strict(place.sentence) for place in places]).value
    return strict(text.strip()).value


def _after_opening(
    text: str, opening: str, ends: re.Pattern[str] = _SENTENCE_ENDS
) -> list[Place]:
    """The sentence after each occurrence of the opening words, up to a line that begins a new question.

    `ends` matches the end of a sentence. Occurrences that only repeat what the question asks for are left out.
    """
    if not opening:
        return []
    words_of_opening = map(re.escape, opening.split())
    spaced = r"\s+".join(words_of_opening)
    answering = re.compile(rf"{spaced}(?!{_PLACEHOLDER})", re.IGNORECASE)
    places = []
    for following in answering.split(text)[1:]:
        following = following.lstrip(" \t*_\r\n")
        question = _QUESTION.search(following)
        if question:  # the line break before it ends the sentence
            following = following[: question.start() + 1]
        sentence, *later = ends.split(following, maxsplit=1)
        places.append(Place(sentence, bool(later), "".join(later)))
        if question:
            break
    return places


def _common_reading(places: Sequence[Place], ended: bool, convert: Convert) -> Reading:
    """The reading that all places share; none if the text may have been cut off in the last one."""
    readings = [convert(place.sentence) for place in places]
    last = places[-1]
    is_closed = ended or last.closed
    is_quoted = readings[-1].is_read and last.sentence[-1:] in _CLOSING
    if not is_closed and not is_quoted:
        return _unread("cut")
    return _agreed(readings)


def _agreed(readings: Sequence[Reading]) -> Reading:
    """The common reading of all places that have one; "several" if they differ."""
    different = set(readings) - {_unread("none")}
    if len(different) > 1:
        return _unread("several")
    if different:
        return different.pop()
    return _unread("none")


def _without_opening(text: str, convert: Convert) -> Reading:
    """The reading of the whole text; failing that, of the last sentence that announces an answer.

    No earlier sentence may state another number, nor may the last sum before it have another result.
    """
    whole = convert(text.strip())
    sentences = _sentences(text)
    readings = list(map(convert, sentences))
    last = -1  # the sentence that announces the answer
    for place, sentence in enumerate(sentences):
        if ANSWER.search(sentence) and readings[place].is_read:
            last = place
    if whole.is_read or last < 0:
        return whole
    # Sums before the last one are steps on the way.
    sums = [place for place in range(last) if _is_sum(sentences[place])]
    stated = []
    for place in range(last + 1):
        if readings[place].is_read and place not in sums[:-1]:
            stated.append(readings[place])
    return _unless_revised(_agreed(stated), sentences[last + 1 :], convert)


def _sentences(text: str) -> list[str]:
    """The sentences of a text, without the numbers of a list; a line break ends a sentence too."""
    parts = _SENTENCE_ENDS.split(_LIST_MARKS.sub("", text))
    return [part.strip() for part in parts if part.strip()]


def _is_sum(sentence: str) -> bool:
    return result_of_sum(sentence) is not None


def _unless_revised(
    reading: Reading, later: Sequence[str], convert: Convert
) -> Reading:
    """The reading of an answer, unless a later sentence has another number, corrects the answer, or calls it wrong.

    If the same is said again after a correction, the answer counts. Of sums only the last result is another number.
    `convert` reads a value from a sentence.
    """
    if not reading.is_read:
        return reading
    sums = list(filter(_is_sum, later))
    is_retracted = False
    for sentence in later:
        corrected = _CORRECTION.sub("", sentence, count=1)  # "Wait, 7" becomes "7"
        if convert(corrected).value == reading.value:
            is_retracted = False
        elif sentence in sums:
            if sentence == sums[-1] and str(result_of_sum(sentence)) != reading.value:
                return _unread("several")
        elif is_number(reading.value) and has_another_number(
            sentence, int(reading.value)
        ):
            return _unread("several")
        elif corrected != sentence or _ERROR.search(sentence):
            is_retracted = True
    if is_retracted:
        return _unread("retracted")
    return reading


def _core(line: str, around: str = _AROUND + "\n", stops: str = _STOPS + ";,") -> str:
    """A line without the characters that may surround an answer, with its digits as 0–9.

    `around` are characters to remove on both sides, and `stops` also at the end.
    """
    core = line.lstrip(around).rstrip(around + stops)
    # A single angle bracket means "less than" or "greater than".
    bracketed = re.fullmatch(r"<([^<>]*)>", core)
    if bracketed:
        core = bracketed[1]
    return _with_ascii_digits(core)


def _with_ascii_digits(text: str) -> str:
    """The text with its digits as 0–9, unless they are of several scripts."""
    # The code point of each digit's zero, of which a script has one.
    zeros = {
        ord(digit) - unicodedata.decimal(digit) for digit in re.findall(r"\d", text)
    }
    if len(zeros) != 1:
        return text
    (zero,) = zeros
    return text.translate({zero + digit: str(digit) for digit in range(10)})


def _strict_core(line: str) -> str:
    """A line without what the requested form may have around an answer, and with a hyphen as the minus sign."""
    return _core(line, _AROUND, _STOPS).replace("−", "-")


def _strict_number(line: str) -> Reading:
    """The number that is all of a line: digits, a sign, and commas between groups of three."""
    core = _strict_core(line)
    digits = core.replace(",", "")
    if _NUMBER.fullmatch(core) and len(digits.lstrip("+-")) <= LONGEST:
        return Reading(str(int(digits)), "read")
    return _unread("form")


def _lenient_number(line: str, units: tuple[str, ...] = ()) -> Reading:
    """The number that a line states, if it states nothing else."""
    core = _core(line)
    stated = find_stated(core, _COUNTS, units)
    if stated is None:
        return _unread(unread(core))
    whole_part = stated.partition(".")[0]
    if len(re.findall(r"\d", whole_part)) > LONGEST:
        return _unread("long")
    return Reading(str(value(stated)), "read")


def _strict_digit(line: str) -> Reading:
    """The digit that is all of a line."""
    return _one_digit(_strict_core(line), "form")


def _lenient_digit(line: str) -> Reading:
    """The digit that a line states, if it states nothing else."""
    core = _core(line)
    stated = find_stated(core, _NOUNS)
    if stated is None:
        return _unread(unread(core))
    return _one_digit(stated, "digit")


def _one_digit(text: str, otherwise: Why) -> Reading:
    """The digit that a text is, also as an English word; `otherwise` is the reason why none is read from another."""
    digit = str(SPELT.get(text.lower(), text))
    if re.fullmatch("[0-9]", digit):
        return Reading(digit, "read")
    return _unread(otherwise)


def _as_words(line: str) -> Reading:
    """The text of a line, without quotes, brackets and stops around it."""
    core = line.lstrip(_AROUND + "<").rstrip(_AROUND + _STOPS + ">")
    core = " ".join(core.split())
    if not core:
        return _unread("none")
    return Reading(core, "read")


def _strict_digits(line: str) -> Reading:
    """The digits and commas that are all of a line, white space aside."""
    return _as_digits(_strict_core("".join(line.split())))


def _lenient_digits(line: str) -> Reading:
    """The digits and commas that are all of a line but words before them, as in "The number is: 01"."""
    announced = r"^.{0,60}?\b(?:answer|result|sequence|number)\s*(?:is|:|=)[\s:=]*"
    core = _core(re.sub(announced, "", _core(line), count=1))
    return _as_digits("".join(core.removeprefix("=").split()))


def _as_digits(core: str) -> Reading:
    """The reading of a text that is digits and commas, the last a digit, and of any other text."""
    if re.fullmatch(r"[0-9,]*[0-9]", core):
        return Reading(core, "read")
    if re.search(r"\d", core):
        return _unread("form")
    return _unread("none")
