"""Whole numbers in text, and sentences that state one number and nothing else.

A number is read from a sentence only if every other word of the sentence is known not to change it. The vocabulary is
closed: a hedge, a negation, a unit of something else, or any unknown word means that no number is read.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Literal

# Why no number is read:
# - none: there is no number ("no idea");
# - several: there are several ("6 or 7");
# - words: words of unclear size ("two dozen");
# - fraction: no whole number ("2.5", "7/2");
# - grouping: digits in unclear groups ("1.234" may be 1234);
# - long: more than `LONGEST` digits;
# - form: one number with other text ("about 7").
Unclear = Literal["none", "several", "words", "fraction", "grouping", "long", "form"]
LONGEST = 15  # digits of a number; float64 cannot represent every whole number with more digits
MOST = 400  # characters of a sentence that states one number and nothing else
ANSWER = re.compile(r"\b(?:answer|result|solution|total)\b", re.IGNORECASE)

_UNIT = "one|two|three|four|five|six|seven|eight|nine"
_TEEN = (
    "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
)
_TEN = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_BELOW_TWENTY = f"zero|{_UNIT}|{_TEEN}".split("|")
SPELT = {word: number for number, word in enumerate(_BELOW_TWENTY)} | {
    word: 10 * tens for tens, word in enumerate(_TEN.split("|"), start=2)
}

_GAP = r"[ \u00a0\u2009\u202f]"  # white space allowed between groups of three digits
_SIGN = "[+\\-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d]"  # a hyphen, an en dash and a minus; not an em dash


def _digits(group: str) -> str:
    """The pattern of a whole number in digits; `group` names the group that matches the thousands separator."""
    return (
        rf"{_SIGN}?(?:[1-9][0-9]{{0,2}}(?P<{group}>['’_]|{_GAP})[0-9]{{3}}(?:(?P={group})[0-9]{{3}})*"
        r"|[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.0{1,2})?(?![0-9])"
    )


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
_DIGIT_RUN = r"\d(?:[\d.,'’_\u00a0\u2009\u202f]*\d)?"
_DIGIT_RUNS = re.compile(_DIGIT_RUN)
_SIGNED_RUNS = re.compile(rf"(?<![\w)]){_SIGN}\d(?:[\d.,'’_]*\d)?|{_DIGIT_RUN}")

# Sums ("2 * 5 + 2 = 10 + 2 = 12"), and numbers that are no answer: dates, places, lists of three or more.
_OPERAND = r"\(*\d+\)*"
_SUM = rf"{_OPERAND}(?:[ \t]*[-+*×·][ \t]*{_OPERAND})"
_SUMS = rf"[ \t]*{_SUM}+(?:[ \t]*=[ \t]*{_SUM}+)*[ \t]*"
_EQUATION = re.compile(rf"{_SUMS}=\s*(?P<result>-?\d+)(?!\d|[.,]\d)")
_ASIDE = re.compile(
    r"\b\d{4}-\d\d?-\d\d?\b|\b\d\d?[/.]\d\d?[/.]\d{2,4}\b|\bin (?:19|20)\d\d\b"
    r"|\b(?:step|part|group|line|section|position|place|digit) #?\d+(?=\W)",
    re.IGNORECASE,
)
_LIST = re.compile(
    r"(?:[^\d:]*:)?\W*\d+(?:[\s,;()\[\]]+(?:and\s+)?\d+){2,}\W*", re.IGNORECASE
)

# The closed vocabulary of sentences that state a number.
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
_THERE = r"there\s+(?:is|are|was|were)"
_TOLD = (
    rf"(?:{_THERE}|(?:i|we)\s+(?:have\s+)?(?:count|counted|found|find|see|get|got)"
    rf"|(?:it|that)(?:\s+is|['’]s|\s+equals|\s+makes)){_JUST}\s*:?\s+"
)
_HOLDS = rf"(?:(?:the|this|your)\s+(?:given\s+)?{_SEQUENCE}|it)\s+(?:has|contains)"


@cache
def _statements(
    nouns: tuple[str, ...], units: tuple[str, ...]
) -> tuple[re.Pattern[str], ...]:
    """Patterns of sentences that state one number. `units` are words for the counted items, `nouns` for an answer.

    A match has the group ``number``; and ``restated`` if the number is given again in brackets, as in "seven (7)". With
    the noun "answer" and the unit "ones" the patterns match, in this order, "So the answer to your question is: 7
    ones", "There is 1 one", "The sequence contains exactly 7 ones" and "It has 1 one".
    """
    counted = _quoted(units)
    single = _quoted([re.sub(r"'?s(?=\s|$)", "", unit, count=1) for unit in units])
    restated = f"(?:\\s*[(\\[]\\s*(?P<restated>{_digits('gap2')}|{_WORDS})\\s*[)\\]]?)?"
    number = f"(?P<number>{_digits('gap')}|{_WORDS}){restated}"
    of_units = rf"(?:\s+of\s+(?:all\s+)?(?:the\s+)?{counted})?" if units else ""
    # "The final answer to your question is:"
    announced = rf"{_TITLE}(?:{'|'.join(nouns)}){of_units}{_TO}{_WHERE}?{_IS}"
    # This, "there are", ":" or "x =", one after the other.
    lead = rf"(?:{announced}|{_TOLD}|[:=]\s*|[a-z]\s*=\s*)*"
    bodies = [f"{lead}{number}"]
    if units:
        # An item in the singular, of which there is one; but "1 1" may be the sequence again.
        one = f"(?P<number>1|one){restated}"
        occurs = rf"(?:the\s+(?:word|digit|number)\s+)?{counted}\s+(?:appears?|occurs?)"
        subject = rf"(?:{_HOLDS}|{occurs}|{_THERE}){_JUST}"
        bodies = [
            rf"{lead}{number}(?:\s+{counted})?",
            rf"{lead}{one}(?!\s+['\"‘“]?(?P=number)\b)\s+{single}",
            rf"{subject}\s+{number}\s+{counted}",
            rf"{subject}\s+{one}\s+{single}",
        ]
    patterns = []
    for body in bodies:
        sentence = f"{_SURE}*{body}{_TOTAL}{_WHERE}?{_TOTAL}"
        patterns.append(re.compile(sentence, re.IGNORECASE))
    return tuple(patterns)


def _quoted(units: Sequence[str]) -> str:
    """The pattern of one of some units, which may be in quotes."""
    spaced = [re.escape(unit).replace("\\ ", r"\s+") for unit in units]
    return f"['\"‘“]?(?:{'|'.join(spaced)})['\"’”]?"


def value(text: str) -> int:
    """The value of a number written in digits or in English words.

    >>> value("−1,234.0"), value("two thousand and twenty-one")
    (-1234, 2021)
    """
    if re.search(r"\d", text):
        size = int(re.sub(r"[^0-9]", "", text.partition(".")[0]))
        if re.match(_SIGN, text) and not text.startswith("+"):
            return -size
        return size
    thousands = 0
    below = 0  # what the words since "thousand" say
    for word in re.findall(r"[a-z]+", text.lower()):
        if word == "hundred":
            below = max(below, 1) * 100  # "a hundred" is one
        elif word == "thousand":
            thousands = max(below, 1) * 1000
            below = 0
        else:
            below += SPELT.get(word, 0)  # "and" and "a" add nothing
    return thousands + below


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
    if len(text) > MOST:
        if _IN_DIGITS.fullmatch(text):
            return text
        return None
    for statement in _statements(nouns, units):
        match = statement.fullmatch(text)
        if match and _is_restated(match["number"], match["restated"]):
            return match["number"]
        if match:
            return None
    return None


def _is_restated(number: str, restated: str | None) -> bool:
    """Whether a number in digits is followed by the same one in words, or the other way round, or by nothing."""
    if restated is None:
        return True
    is_other_form = number[-1].isdecimal() != restated[-1].isdecimal()
    return is_other_form and value(number) == value(restated)


def _right_side(text: str) -> str:
    """The text after the last "=" if everything before it is arithmetic; otherwise the whole text."""
    before, equals, after = text.rpartition("=")
    if equals and "\n" not in text and re.fullmatch(_SUMS, before):
        return after.strip()
    return text


def result_of_sum(sentence: str) -> int | None:
    """The result of a sentence that has one sum, and no number besides; otherwise None.

    >>> result_of_sum("So 2 * 5 + 2 = 10 + 2 = 12."), result_of_sum("x = 12")
    (12, None)
    """
    sentence = _ASIDE.sub("", sentence)
    equation = _EQUATION.search(sentence)
    if equation is None:
        return None
    besides = sentence[: equation.start()] + sentence[equation.end() :]
    if _DIGIT_RUNS.search(besides):
        return None
    return int(equation["result"])


def has_another_number(sentence: str, than: int) -> bool:
    """Whether a sentence has another whole number; dates, places and lists of three or more are none.

    The word "one" alone is a pronoun.

    >>> has_another_number("Recounting gives 6.", 5), has_another_number("Digits of 2024-01-02: 1, 0, 1.", 5)
    (True, False)
    """
    sentence = _ASIDE.sub("", sentence)
    if _LIST.fullmatch(sentence):
        return False
    numbers = _SIGNED_RUNS.findall(sentence) + _counting_words(sentence)
    for number in numbers:
        is_whole = _IN_DIGITS.fullmatch(number) or _IN_WORDS.fullmatch(number)
        if not is_whole or value(number) != than:
            return True
    return False


def _counting_words(text: str) -> list[str]:
    """The numbers in words, without the word "one", which is usually a pronoun."""
    return [word for word in _IN_WORDS.findall(text) if word.lower() != "one"]


def unread(text: str) -> Unclear:
    """The reason why no number is read from a text that does not state exactly one.

    >>> unread("6 or 7"), unread("two dozen"), unread("1.23"), unread("1.234"), unread("about 7"), unread("no idea")
    ('several', 'words', 'fraction', 'grouping', 'form', 'none')
    """
    if re.fullmatch(r"[+-]?\d+\s*/\s*\d+", text):
        return "fraction"
    in_digits = _DIGIT_RUNS.findall(text)
    in_words = _IN_WORDS.findall(text)
    other_text = _IN_WORDS.sub("", text)
    counting_words = in_words
    if re.search(r"[a-z]", other_text, re.IGNORECASE):  # "one" may be a pronoun
        counting_words = _counting_words(text)
    if len(in_digits) + len(counting_words) > 1:
        return "several"
    # Digits of a single script were replaced by 0–9 before; those that are left are of several.
    mixes_scripts = bool(re.search(r"[^\D0-9]", text))
    if in_digits and not mixes_scripts and not _IN_DIGITS.fullmatch(in_digits[0]):
        may_be_thousands = re.fullmatch(r"[1-9]\d{0,2}\.\d{3}", in_digits[0])
        is_decimal = re.fullmatch(r"\d+\.\d+", in_digits[0])
        if is_decimal and not may_be_thousands:
            return "fraction"
        return "grouping"
    if in_digits and len(re.sub(r"\D", "", in_digits[0])) > LONGEST:
        return "long"
    if _SCALES.search(other_text):
        return "words"
    if in_digits or in_words:
        return "form"
    return "none"
