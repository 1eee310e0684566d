"""Decide whether the text after an answer takes the answer back.

The text is read sentence by sentence, up to a new question (a line that begins like one: "Please count", "How many",
"Q:"), since models that are not tuned for dialogue continue with other text. An answer is not valid

- if a sentence states another number and nothing else, apart from words of correction and doubt ("Actually 8",
  "maybe 8"), or offers one ("or 8", "7 or 8", "New answer: 8"): then there are several answers;
- if a sentence corrects it ("Wait", "No.", "I miscounted", "That is wrong") or denies its number ("not 7"), unless the
  answer is repeated later.

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
)
DOUBTS = r"or|maybe|perhaps|possibly|probably|alternatively"  # with a number, these offer another answer
# These words change nothing, and what is left of a sentence may state another number.
FILLERS = (
    r"oh|ah|hm+|um+|well|but|and|so|ok|okay|yes|then|thus|edit|updated?|now|also|really|in fact|instead|rather|is it"
    r"|likely|i (?:now )?(?:think|believe|guess|mean|meant)(?: to say)?|i should have said|make (?:that|it)"
)
# These mean an error if the sentence is about itself or this answer, and neither denies nor supposes the error.
ERRORS = (
    r"wrong|incorrect|mistaken|mistakes?|errors?|mis-?count\w*|miscalculat\w*|(?:over|under)-?count\w*|off by"
    r"|not (?:(?:quite|exactly|the|seem|look) )*(?:right|correct|true|answer)\b"
)
_ITSELF = re.compile(r"\b(?:i|we|my|this|that|it|previous|answer|count|result)\b")
_ERROR = re.compile(rf"\b(?:{ERRORS})")
_OWNED = re.compile(
    r"\b(?:i|we)(?: have|'ve)? (?:missed|forgot|overlooked|skipped|lied|retract|withdraw)\b"
    r"|\b(?:ignore|disregard|scratch|strike|forget) (?:that|this|it|the|my)\b"
)
_SUPPOSED = re.compile(r"\b(?:no|not|any|without|never|avoid|whether)\b[^,;:.]{0,25}$|\bif\b")
_DENIES = re.compile(r"\b(?:not|never|neither|rather than|instead of)\b[^.;:]{0,25}$")

_GAP = r"(?!\w)[\s,.:;!?—]*"
_START = re.compile(rf"(?:(?:{CORRECTIONS}|{DOUBTS}|{FILLERS}){_GAP})+")
_CORRECTS = re.compile(rf"(?:(?:{FILLERS}){_GAP})*(?:{CORRECTIONS})(?!\w)")
_LEFT_OUT = re.compile(rf"[\s,]*\b(?:{FILLERS}|{DOUBTS}|actually|sorry)\b[\s,]*")
_MIGHT = re.compile(r"\b(?:should|could|may|might|must) (?:also )?(?:be|read|have been)\b")
_DOUBTING = re.compile(rf"^(?:(?:{FILLERS}|{DOUBTS}){_GAP})*(?:{DOUBTS}){_GAP}$")
_ANSWERED = re.compile(
    r"\b(?:answer|count)\b(?! (?:of|to) [a-z])[^.;]{0,30}?(?:\bis|\bwas|\bbe|\bto|\bas|:|=)\s*['\"]?$"
)
_QUESTION = re.compile(
    r"[\W\d_]*(?:(?:user|human|student|teacher)\s*:\s*)?(?:(?:now|next|then),? )?"
    r"(?:(?:q|question|problem|exercise|example|task|input|prompt|instructions?)\s*\d*\s*(?:[:.)#-]|$)"
    r"|please (?!note|ignore|disregard|forgive|excuse|correct|see)"
    r"|(?:consider|how many|how much|who|where|which|find|compute|calculate|write|count the(?!.*\bagain\b)"
    r"|answer the|given the)\b|what (?:is|are|was|were|does|do|would|will)\b)",
    re.IGNORECASE,
)
# After these words on one line, the requested words are quoted as something not to be said.
_NOT_SAID = re.compile(
    r"\b(?:wrong|incorrect|false|mistake|lie|not|never|avoid|nobody)\b"
    r"(?:[^,;:.!?\n]*\b(?:say|saying|answer|write|claim|that))?\s*[:,]?\s*['\"“‘«`*_]*\s*$"
)


def sentences(text: str) -> list[str]:
    """The sentences of a text; a line break ends a sentence too."""
    return [part.strip() for part in re.split(r"\n|(?<=[.!?])\s+", text) if part.strip()]


def denied(before: str) -> bool:
    """Whether the text before an answer denies that it is an answer.

    >>> denied("It is wrong to say '"), denied("I am not sure, but ")
    (True, False)
    """
    return bool(_NOT_SAID.search(_lower(before.rpartition("\n")[2])))


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
        elif (said and not _alone(sentence)) or _offers_another(sentence, value):
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
    return _LEFT_OUT.sub("\t", _MIGHT.sub("is", text)).strip().rstrip("?")


def _takes_back(sentence: str, value: str) -> bool:
    """Whether a sentence corrects the answer, mentions an error in it, or denies its number."""
    own = _OWNED.search(sentence)
    if _CORRECTS.match(sentence) or (own and not _SUPPOSED.search(sentence[: own.start()])):
        return True
    numbers = spoken(sentence)
    if _ITSELF.search(sentence) or any(value == said for _, _, said in numbers):
        errors = _ERROR.finditer(sentence)
        if any(not _SUPPOSED.search(sentence[: found.start()]) for found in errors):
            return True
    # "not 8 but 7" denies 8 and not 7: only the words since the number before count.
    same = [start for start, _, said in numbers if said == value]
    same += [one.start() for one in re.finditer(rf"(?<![\w.,-]){re.escape(value.lower())}(?!\w)", sentence)]
    ends = [0, *(end for _, end, _ in numbers)]
    return any(_DENIES.search(sentence[max(end for end in ends if end <= start) : start]) for start in same)


def _offers_another(sentence: str, value: str) -> bool:
    """Whether a sentence offers another number: "or 8, if …", "7 or 8", "I change my answer to 8"."""
    for start, end, said in spoken(sentence):
        before, after = sentence[:start], sentence[end:]
        if said == value or sentence[start:end] == value:
            continue
        if sentence[start].isdecimal() and (_DOUBTING.search(before) or re.search(rf"\b{value}\W*\bor\W+$", before)):
            return True
        if _ANSWERED.search(before) and not re.search(r"\w", after):
            return True
    return False
