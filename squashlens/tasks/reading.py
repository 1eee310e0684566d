r"""Read the value from a model's answer, or give the reason why no value is read.

Markup is removed first: turn markers, thoughts, Markdown, LaTeX and HTML. Then the place of the answer is found.
`numerals` decides whether the text there states one number. Text after it may take the answer back. Every answer is
read in two ways: *strict* accepts only the requested form, *lenient* every unambiguous answer (docs/answers.md). If
both read a value, it is the same value. `Reading.as_asked` says whether the strict reading succeeded too.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from itertools import takewhile
from typing import Literal

from typing_extensions import TypeAliasType

from squashlens.tasks.numerals import (
    ANSWER,
    LONGEST,
    SPELT,
    begins_with_number,
    find_stated,
    unread,
    value,
)

Why = TypeAliasType(
    "Why",
    Literal[
        "read",
        "none",
        "several",
        "words",
        "fraction",
        "grouping",
        "long",
        "digit",
        "form",
        "echo",
        "cut",
        "retracted",
    ],
)
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
_PLACEHOLDER = re.compile(
    r"x{3,}|answer>", re.IGNORECASE
)  # a repeated placeholder, which is no answer
_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_AROUND = f" \t\r\u00a0{_INVISIBLE}'\"`*_()[]{{}}$‘’“”«»"  # quotes, brackets and emphasis around an answer
_STOPS = ".!。"  # characters that may end a sentence
_CLOSING = "'\"`’”»"  # a text that stops after one of these holds a complete answer
_NOUNS = ("answer", "result", "solution")
_COUNTS = (*_NOUNS, "count", "sum", "total", "number")


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
    return _read(
        text, opening, ended, _strict_number, partial(_lenient_number, units=units)
    )


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
    return _read(
        text,
        opening,
        ended,
        lambda line: _one_digit(_strict_core(line), "form"),
        _lenient_digit,
    )


def digits(text: str, opening: str, ended: bool) -> Reading:
    """Read a sequence of digits and commas, in the same places as `number`; spaces are ignored."""
    return _read(
        text,
        opening,
        ended,
        lambda line: _as_digits(_strict_core("".join(line.split()))),
        _lenient_digits,
    )


def words(text: str, opening: str, ended: bool) -> Reading:
    """Read any text in the same places as `number`; each run of white space becomes one space."""
    text, ended = _turn(text, ended)
    reading, places = (
        _find(text, opening, ended, _as_words),
        _after_opening(text, opening),
    )
    return (
        _unless_retracted(reading, "", places[-1][2], lambda _: Reading("", "none"))
        if places
        else reading
    )


def _read(
    text: str, opening: str, ended: bool, strict: Convert, lenient: Convert
) -> Reading:
    """The lenient reading, and whether the strict reading gives the same value."""
    text, ended = _turn(text, ended)
    bare, asked = _without_markup(text), _without_markup(opening)
    places = _after_opening(bare, asked)
    if places:
        line, _, after = next(
            (place for place in reversed(places) if place[0]), places[-1]
        )
        reading = _unless_retracted(
            _find(bare, asked, ended, lenient), line, after, lenient
        )
    else:
        reading = _find_announced(bare, ended, lenient)
    return replace(
        reading, as_asked=_find(text, opening, ended, strict).value == reading.value
    )


def _find(text: str, opening: str, ended: bool, convert: Convert) -> Reading:
    """The reading of the text after each occurrence of the opening words, or of the whole text if they do not occur."""
    said = _after_opening(text, opening)
    if not said:
        return convert(text.strip()) if ended else Reading("", "cut")
    readings = [convert(line) for line, _, _ in said]
    last, closed, _ = said[-1]
    # If the text was cut off, its last number, sum or word may be incomplete.
    if not (ended or closed) and not (
        readings[-1].why == "read" and last[-1:] in _CLOSING
    ):
        return Reading("", "cut")
    return _one(readings)


def _one(readings: list[Reading]) -> Reading:
    """The common reading of all places that have one; "several" if they differ."""
    different = set(readings) - {Reading("", "none")} or set(readings)
    return different.pop() if len(different) == 1 else Reading("", "several")


def _find_announced(text: str, ended: bool, convert: Convert) -> Reading:
    """The reading of the whole text; failing that, of a last sentence that announces an answer.

    No other sentence may state another number.
    """
    if not ended:
        return Reading("", "cut")
    whole, parts = convert(text.strip()), _sentences(text)
    if (
        whole.why == "read"
        or not parts
        or not ANSWER.search(parts[-1])
        or convert(parts[-1]).why != "read"
    ):
        return whole
    # A step of arithmetic is no other answer, unless it is the last. Other sentences with a number are.
    steps = [each for each in parts if _is_step(each)]
    readings = [convert(each) for each in parts if each not in steps[:-1]]
    return _one([reading for reading in readings if reading.why == "read"])


def _sentences(text: str) -> list[str]:
    """The sentences of a text; a line break ends a sentence too."""
    return [
        part.strip() for part in re.split(r"\n|(?<=[.!?])\s+", text) if part.strip()
    ]


def _is_step(sentence: str) -> bool:
    """Whether a sentence is a step of arithmetic ("5 + 5 = 10")."""
    return "=" in sentence and not ANSWER.search(sentence.partition("=")[0])


def _after_opening(text: str, opening: str) -> list[tuple[str, bool, str]]:
    """The line after each occurrence of the opening words, whether a line break ends it, and the text after it.

    Occurrences that only repeat the question are left out, and so is all text from a line that begins a new question.
    """
    pattern = re.compile(
        r"\s+".join(map(re.escape, opening.split())) or r"(?!)", re.IGNORECASE
    )
    places, end = [], len(text)
    for match in pattern.finditer(text):
        line, newline, after = (
            text[match.end() : end].lstrip(" \t*_\r\n").partition("\n")
        )
        rest = "".join(
            takewhile(
                lambda each: not _QUESTION.match(each), after.splitlines(keepends=True)
            )
        )
        again = pattern.search(
            line
        )  # the words occur twice on one line: the number between them counts too
        line = _first_clause(line[: again.start()]) if again else line
        only_asked = _PLACEHOLDER.match(line.lstrip(_AROUND + "<")) or (
            again and not line
        )
        if match.start() < end and not only_asked:
            places.append((line, bool(newline), rest))
            end -= len(after) - len(rest)
    return places


def _first_clause(text: str) -> str:
    """The first clause of a text if it begins with a number, or all steps of a sum; otherwise an empty text."""
    begins = text.lstrip(_AROUND)
    if not begins_with_number(begins):
        return ""
    clause = re.split(
        r"[.!?;,:](?=\s)|['\"’”»*`_](?=\s)|\s(?=(?:and|or|but)\W*$)", begins
    )[0]
    return (
        begins if _is_step(clause) and _is_step(begins.removeprefix(clause)) else clause
    )


# Models that are not tuned for dialogue continue with other text; a line that begins like this is a new question.
_QUESTION = re.compile(
    r"[\W\d_]*(?:(?:user|human|student|teacher|q|question|problem|exercise|example|task|input)\s*\d*\s*(?:[:.)#-]|$)"
    r"|please (?:count|answer|give|perform)|(?:consider|how many|what is|write|compute|find)\b)",
    re.IGNORECASE,
)
# Words that begin a correction. What is left of the sentence may state another number.
_CORRECTION = re.compile(
    r"\W*(?:(?:oh|but|and|so|well|ok|okay)\W+)?(?:(?:wait(?! for)|hold on|no(?= wait|\W*$|[,.;:!—])|actually|oops"
    r"|correction|sorry(?! for)|my (?:mistake|error)|on second thoughts?|scratch that|i (?:mean|meant|change)"
    r"|let me (?:re)?(?:count|check))\b[\s,.:;*—]*)+",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    r"\W*(?:or|maybe|perhaps|new answer)\b[\s:,]*", re.IGNORECASE
)  # with a number: another answer
_ERROR = re.compile(
    r"(?i)(?:(?<!if )\b(?:i|this|that|it|answer)\b|^\d+)[^,;]*(?<!not )"
    r"\b(?:wrong|incorrect|mistaken?|miscounted|missed|should be)\b|\b(?:is|was|am)(?: not|n['’]t) (?:right|correct)\b"
)


def _unless_retracted(
    reading: Reading, line: str, after: str, convert: Convert
) -> Reading:
    """The reading of a line, unless the text after it gives another number, corrects it, or calls it wrong.

    If the same number is said again after that, the answer counts. A step of arithmetic is no other answer, unless the
    line is a step itself: then the sum goes on.
    """
    if reading.why != "read":
        return reading
    retracted, lines = False, [line for line in after.splitlines() if line.strip()]
    for sentence in _sentences("\n".join(lines)):
        rest = (
            _CORRECTION.sub("", sentence, count=1)
            if _CORRECTION.match(sentence)
            else sentence
        )
        if (
            _is_step(sentence)
            and _is_step(line)
            and convert(sentence.rpartition("=")[2]).value != reading.value
        ):
            return Reading("", "several")
        said = (
            "" if _is_step(sentence) else convert(_DOUBT.sub("", rest, count=1)).value
        )
        denied = re.search(
            rf"(?:\bnot|n['’]t) {re.escape(reading.value)}(?!\w|[.,]\d)", sentence
        )
        if said == reading.value:
            retracted = False
        elif said and (
            sentence == lines[0].strip() or re.search(r"[^\W\d_]", sentence)
        ):  # no list and no date
            return Reading("", "several")
        elif rest != sentence or denied or _ERROR.search(sentence):
            retracted = True
    return Reading("", "retracted") if retracted else reading


def _core(line: str, around: str = _AROUND + "\n", stops: str = _STOPS + ";,") -> str:
    """A line without the characters that may surround an answer, with its digits as 0–9."""
    core = line.lstrip(around).rstrip(around + stops)
    bracketed = re.fullmatch(
        r"<([^<>]*)>", core
    )  # a single angle bracket means "less than" or "greater than"
    core = bracketed[1] if bracketed else core
    decimals = {
        ord(c) - unicodedata.decimal(c) for c in core if unicodedata.category(c) == "Nd"
    }
    if len(decimals) != 1:  # no digits, or digits of several scripts
        return core
    return "".join(
        str(unicodedata.decimal(c)) if unicodedata.category(c) == "Nd" else c
        for c in core
    )


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
    said = find_stated(core, _COUNTS, units)
    if said is None:
        return Reading("", unread(core))
    if sum(c.isdecimal() for c in said.partition(".")[0]) > LONGEST:
        return Reading("", "long")
    return Reading(str(value(said)), "read")


def _lenient_digit(line: str) -> Reading:
    core = _core(line)
    said = find_stated(core, _NOUNS)
    return Reading("", unread(core)) if said is None else _one_digit(said, "digit")


def _one_digit(said: str, otherwise: Why) -> Reading:
    value = str(SPELT.get(said.lower(), said))
    return (
        Reading(value, "read") if value in set("0123456789") else Reading("", otherwise)
    )


def _as_words(line: str) -> Reading:
    said = " ".join(line.lstrip(_AROUND + "<").rstrip(_AROUND + _STOPS + ">").split())
    return Reading(said, "read") if said else Reading("", "none")


def _lenient_digits(line: str) -> Reading:
    core = _core(
        re.sub(
            r"^.{0,60}?\b(?:answer|result|sequence|number)\s*(?:is|:|=)[\s:=]*",
            "",
            _core(line),
            count=1,
        )
    )
    return _as_digits("".join(core.removeprefix("=").split()))


def _as_digits(core: str) -> Reading:
    if re.fullmatch(r"[0-9,]*[0-9]", core):
        return Reading(core, "read")
    return Reading("", "form" if re.search(r"\d", core) else "none")


# Turn markers that a decoder may leave in the text. Text after the end of a turn is not part of the answer.
_BEGIN = re.compile(
    r"\s*(?:<bos>|<s>|<\|begin_of_text\|>|<\|startoftext\|>|<\|start\|>assistant|<\|channel\|>final<\|message\|>"
    r"|<start_of_turn>model|<\|im_start\|>assistant|<\|assistant\|>"
    r"|<\|start_header_id\|>assistant<\|end_header_id\|>|\[/INST\]|<｜Assistant｜>)"
)
_END = re.compile(
    r"<end_of_turn>|<eos>|</s>|<turn\|>|<｜end▁of▁sentence｜>"
    r"|<\|(?:im_end|eot_id|eot|eom_id|end|endoftext|end_of_text|end_of_turn|return|END_OF_TURN_TOKEN)\|>"
)
# Text that HTML strikes out, as in "<s>8</s> 7". The same two tags may be the markers around a whole turn.
_STRUCK = re.compile(
    r"<s>((?:(?!</s>).)*)</s>(?!\s*(?:</?s>|<pad>|<unk>|<\||\[INST\]|$))", re.S
)
# What is removed, and what replaces it. A tab is white space and never part of a number, so \boxed{1}2 is not 12.
_MARKUP = (
    (
        re.compile(
            r"(?:^|[ \t])[ \t]*(```+|~~~+)[A-Za-z]*[ \t]*\n(.*?)\n[ \t]*\1[ \t]*$",
            re.M | re.S,
        ),
        "\t\\2\t",
    ),
    (
        re.compile(r"^[ \t]*(?:-{3,}[ \t]*$|#{1,6}[ \t]+)", re.M),
        "",
    ),  # a horizontal line, or the sign of a heading
    (re.compile(r"<br\s*/?>"), "\n"),
    (re.compile(r"\\,"), "\u2009"),
    (re.compile(r"\{,\}"), ","),
    (
        re.compile(
            r"\\(?:text(?:bf|it|rm|tt|sf)?|math(?:bf|rm|it|tt|sf)|mbox|emph)[ \t]*\{([^{}]*)\}"
        ),
        "\t\\1\t",
    ),
    (
        re.compile(r"\\(?:boxed|fbox)[ \t]*\{([^{}]*)\}"),
        "\tanswer: \\1\t",
    ),  # a box usually holds an answer
    (re.compile(r"\\[()\[\]]|\\displaystyle\b|(?<!\\)\$\$"), "\t"),
    (re.compile(r"(?<![\\\w])\$([^$\n]+)\$(?!\w)"), "\t\\1\t"),
    (
        re.compile(
            r"<(b|strong|i|em|p|div|span|code|answer|final|result)(?:\s[^<>]*)?>(.*?)</\1\s*>",
            re.I | re.S,
        ),
        "\t\\2\t",
    ),
    (re.compile(r"(\*{1,3}|`{1,3})(?=\S)([^*`\n]+?)(?<=\S)\1"), "\t\\2\t"),
    (re.compile(r"(?<!\w)(_{1,3})(?=\S)([^_\n]+?)(?<=\S)\1(?!\w)"), "\t\\2\t"),
)


def _turn(text: str, ended: bool) -> tuple[str, bool]:
    """The text of one turn, without byte-order mark, markers and thoughts; and whether the model ended it."""
    text = _STRUCK.sub(r"~~\1~~", text.removeprefix("\ufeff"))
    while begun := _BEGIN.match(text):
        text = text[begun.end() :]
    end = _END.search(text)
    text, ended = (text[: end.start()], True) if end else (text, ended)
    for name in (
        "think",
        "thinking",
    ):  # the beginning of a thought may be in the prompt
        text = text.rpartition(f"</{name}>")[2].partition(f"<{name}>")[0]
    return text.removeprefix("\ufeff"), ended


def _without_markup(text: str) -> str:
    """The text without Markdown, LaTeX and HTML."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text
