"""Decide whether the text after an answer takes the answer back.

The text is read sentence by sentence, up to a new question (a line that begins like one: "Please count", "How many",
"Q:"), since models that are not tuned for dialogue continue with other text. An answer is not valid

- if a sentence states another number and nothing else, apart from words of correction and doubt ("Actually 8",
  "maybe 8"): then there are several answers;
- if a sentence corrects it ("Wait", "No.", "I miscounted", "That is wrong"), offers another number ("or 8, if …") or
  denies its number ("not 7"), unless the answer is repeated later.

Only the words below are recognized; other ways to take an answer back are missed.
"""

import re
from collections.abc import Callable
from typing import Literal

from squashlens.tasks.numerals import ANSWER, spoken

Status = Literal["read", "several", "retracted"]

# A sentence that begins with one of these takes the answer back, unless it goes on to say a number.
CORRECTIONS = (
    r"wait(?! for)|hold on|no(?=\s*(?:[,.;:!—–-]|wait\b|$))|nope|nah|actually|correction|typo|oops|err"
    r"|(?:i(?: a|')?m )?(?:so |very )?sorry(?! for)|i apologi[sz]e(?! for the (?:delay|length|long|late))"
    r"|my (?:apologies|mistake|error|bad)|i made an? (?:mistake|error)|on (?:second thoughts?|reflection|recount)"
    r"|never ?mind|scratch that|recount\w*|let(?:'s| me| us) (?:re-?(?:count|check|do|think)|count|correct|fix)"
    r"|new answer|i change"
)
DOUBTS = r"or|maybe|perhaps|possibly|probably|alternatively"  # with a number, these offer another answer
# These words change nothing, and what is left of a sentence may state another number.
FILLERS = (
    r"oh|ah|hm+|um+|well|but|and|so|ok|okay|yes|then|thus|edit|updated?|now|also|really|in fact|instead|rather|is it"
    r"|likely|i (?:now )?(?:think|believe|guess|mean|meant)(?: to say)?|i should have said|make (?:that|it)"
)
# These mean an error if the sentence is about itself or this answer, and neither denies nor supposes the error.
ERRORS = (
    r"wrong|incorrect|mistaken|mistakes?|errors?|mis-?count\w*|miscalculat\w*|(?:over|under)-?count\w*|off by|missed"
    r"|forgot|overlooked|ignore|disregard|should (?:be|have been)"
    r"|not (?:(?:quite|exactly|the|seem|look) )*(?:right|correct|true|answer)\b"
)
_ITSELF = re.compile(r"\b(?:i|we|my|this|that|it|previous|answer|count|result)\b")
_ERROR = re.compile(rf"\b(?:{ERRORS})")
_SUPPOSED = re.compile(r"\b(?:no|not|any|without|never|avoid|whether)\b[^,;:.]{0,25}$|\bif\b")

_GAP = r"(?!\w)[\s,.:;!?—]*"
_START = re.compile(rf"(?:(?:{CORRECTIONS}|{DOUBTS}|{FILLERS}){_GAP})+")
_CORRECTS = re.compile(rf"(?:(?:{FILLERS}){_GAP})*(?:{CORRECTIONS})(?!\w)")
_OFFERS = re.compile(rf"(?:(?:{FILLERS}){_GAP})*(?:{DOUBTS}){_GAP}(?=\d)")
_LEFT_OUT = re.compile(rf"[\s,]*\b(?:{FILLERS}|{DOUBTS}|actually|sorry)\b[\s,]*")
_QUESTION = re.compile(
    r"[\W\d_]*(?:(?:user|human|student|teacher)\s*:\s*)?(?:(?:now|next|then),? )?"
    r"(?:(?:q|question|problem|exercise|example|task|input|prompt|instructions?)\s*\d*\s*(?:[:.)#-]|$)"
    r"|please (?!note|ignore|disregard|forgive|excuse|correct|see)"
    r"|(?:consider|how many|how much|who|where|which|find|compute|calculate|write|count the(?!.*\bagain\b)"
    r"|answer the|given the)\b|what (?:is|are|was|were|does|do|would|will)\b)",
    re.IGNORECASE,
)


def sentences(text: str) -> list[str]:
    """The sentences of a text; a line break ends a sentence too."""
    return [part.strip() for part in re.split(r"\n|(?<=[.!?])\s+", text) if part.strip()]


def retraction_status(after: str, value: str, convert: Callable[[str], str] | None = None) -> Status:
    """Whether an answer is still valid after the text that follows it ("read", "several" or "retracted").

    `convert` returns the number that a sentence states, or an empty text.

    >>> [retraction_status(text, "7") for text in ("Wait, that is wrong.", "Please count 8 more.", "I am not wrong.")]
    ['retracted', 'read', 'read']
    """
    taken, convert = False, convert or (lambda sentence: "")
    lines = [line for line in _up_to_a_question(after) if line.strip()]
    first = lines[0].strip().lstrip("/=>→ ").rstrip("? ") if lines else ""
    if _alone(first) and "=" not in first and convert(first) not in ("", value):
        return "several"
    for sentence in map(_lower, sentences("\n".join(lines))):
        step = "=" in sentence and not ANSWER.search(sentence)  # of arithmetic ("5 + 5 = 10"), which is no answer
        said = "" if step else convert(_without_doubt(sentence))
        if said == value:
            taken = False
        elif said and not _alone(sentence):
            return "several"
        elif _takes_back(sentence, value):
            taken = True
    return "retracted" if taken else "read"


def _alone(text: str) -> bool:
    """Whether a text has digits and signs but no word. Among other text this is a list, a date or a sequence."""
    return not re.search(r"[^\W\d_]", text)


def _lower(text: str) -> str:
    """The text in lower case, without leading emphasis and bullets, and with "not" written out."""
    text = re.sub(r"[^\S\n]+", " ", text.lower().replace("’", "'"))
    return re.sub(r"^(?:[*_#>•( '\"]|-\s)+", "", text.replace("n't", " not").replace("cannot", "can not"))


def _up_to_a_question(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[: next((i for i, line in enumerate(lines) if _QUESTION.match(line)), len(lines))]


def _without_doubt(sentence: str) -> str:
    """The sentence without words of correction and doubt."""
    text = sentence[found.end() :] if (found := _START.match(sentence)) else sentence
    return _LEFT_OUT.sub("\t", text).strip().rstrip("?")


def _takes_back(sentence: str, value: str) -> bool:
    """Whether a sentence corrects the answer, offers another number, mentions an error in it, or denies its number."""
    numbers = [said for _, _, said in spoken(sentence)]
    if _CORRECTS.match(sentence) or (_OFFERS.match(sentence) and value not in numbers):
        return True
    about = _ITSELF.search(sentence) or value in numbers
    if about and any(not _SUPPOSED.search(sentence[: found.start()]) for found in _ERROR.finditer(sentence)):
        return True
    return bool(re.search(rf"\b(?:not|never) {re.escape(value.lower())}(?!\w|[.,]\d)", sentence))
