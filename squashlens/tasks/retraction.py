"""Decide whether the text around an answer takes the answer back.

The text after an answer is read sentence by sentence, up to a new question (a line that begins like a question: "Please
count", "How many", "Q:"). Models that are not tuned for dialogue continue with other text, so most of it is not part of
the answer. Three things matter:

- *Another number*: a sentence that states another number and nothing else, apart from words of correction and doubt
  ("actually", "sorry", "or", "maybe", "it should be"); digits alone on the next line; or a sentence that offers another
  number ("or 8, if", "7 or 8", "I change my answer to 8"). Then there are several answers.
- *Retraction*: a sentence that begins with a word of correction ("wait", "no", "oops"), mentions the model's own error
  ("I miscounted", "this is wrong"), or denies the number ("not 7").
- *Repetition* of the answer after a retraction: then the answer is valid again.

Only the words listed below are recognized; other ways to take an answer back are missed.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

from squashlens.tasks.numerals import ANSWER, spoken

Status = Literal["read", "several", "retracted"]

# What must not follow an apology: a reason other than the number ("sorry for the delay").
_OTHERWISE = r"(?! (?:for|about) (?:the |my |any |being )?(?:long|late|delay|length|short|brief|inconvenience|wait))"
# A sentence that begins with one of these takes the answer back, unless it goes on to say a number.
CORRECTIONS = (
    r"wait(?! for| until| till)|hold on|hang on|nah|err|typo|(?:just )?kidding|failing that"
    r"|(?:after|upon|on) (?:re-?)?(?:checking|counting|reading)(?: again)?"
    r"|no(?=\s*(?:[,.;:!—–-]|wait\b|$))|nope|actually|corrections?|corrected|correcting"
    rf"|(?:i(?: a|')?m )?(?:so |very )?sorry{_OTHERWISE}|oops|whoops|(?:i (?:do )?)?apolog(?:y|ies|i[sz]e){_OTHERWISE}"
    rf"|my (?:apologies|mistake|error|bad){_OTHERWISE}|instead(?! of)"
    r"|rather(?=\s*[,:]|\s+(?:it|there|the|[0-9]))"
    r"|(?:on|upon) (?:(?:second|further) )?(?:thoughts?|reflection|look|recount)|never ?mind"
    r"|errat(?:a|um)|(?:i )?made an? (?:mistake|error)|recount\w*"
    r"|let(?:'s| me| us) (?:re-?(?:count|check|do|think|try|consider)|count|correct|fix|try|check|start)"
)
FAULTS = r"wrong|incorrect|mistake|error|not quite"  # these take the answer back even if a number follows
# A sentence that begins with one of these and a number in digits doubts the answer.
DOUBTS = r"or|maybe|perhaps|possibly|probably|alternatively|otherwise"
# These words alone change nothing.
_FILLERS = r"oh|ah|h+m+|um+|uh|er|well|but|and|so|ok|okay|yes|then|thus|edit|updated?|note|now|even|that said"
# These words are removed from a sentence; the rest may state another number.
_BETWEEN = (
    r"actually|really|in fact|instead|rather|more precisely|likely|probably|possibly|maybe|perhaps|now|also|sorry"
    r"|i (?:now )?(?:think|believe|guess|mean|meant)(?: to say)?"
    r"|i (?:would|should|could) (?:have said|say)|make (?:that|it)|is it"
    r"|it(?:'s| is) possible that|another possibility is"
)
_MIGHT = re.compile(
    r"\b(?:should|could|may|might|must|ought to|has to) (?:also |well |even )?(?:be|read|say|have been|have read)\b"
)
_CONFIRMED = re.compile(
    r"\s+(?:is|was|are)\s+(?:also |the )*(?:right|correct|possible|likely)(?: (?:answer|one|number|count|total))?\W*$"
)

# These mean an error if the sentence is about itself or this answer, and neither denies nor supposes the error.
ERRORS = (
    r"wrong(?:ly)?|incorrect(?:ly)?|inaccurate|mistaken|mistakes?|mis-?count\w*|miscalculat\w*|misread|over-?count\w*"
    r"|under-?count\w*|double-?counted|errors?|oversight|false|untrue|off by|re-?count\w*|count (?:it |them )?again"
    r"|not (?:(?:quite|exactly|really|actually|entirely|the|an|seem|look|sound|appear|to|be) )*"
    r"(?:right|correct|accurate|true|answer)\b"
)
_ITSELF = r"i|we|my|this|that|it|its|above|previous|earlier|answer|count|total|result"
_OWN = (
    r"\b(?:i|we)(?: have|'ve)? (?:missed|forgot|forgotten|overlooked|skipped|left out|lied|retract|withdraw)\b",
    r"\b(?:i|we) take (?:that|it|this) back\b",
    r"\bcorrect(?:ing|ed)? (?:myself|my)\b",
    r"\b(?:ignore|disregard|scratch|strike|forget) (?:that|this|it|the|my)\b",
)
_SUPPOSED = re.compile(r"\b(?:no|not|any|without|never|avoid|whether)\b[^,;:.]{0,25}$|\bif\b")
_DENIES = re.compile(r"\b(?:not|never|neither|no longer|rather than|instead of|other than)\b[^.;:]{0,25}$")

_GAP = r"(?!\w)[\s,.:;!?—]*"
_START = re.compile(rf"(?:(?:{CORRECTIONS}|{DOUBTS}|{_FILLERS}){_GAP})+")
_CORRECTS = re.compile(rf"(?:(?:{_FILLERS}){_GAP})*(?:{CORRECTIONS}|{FAULTS})(?!\w)")
_DOUBTING = re.compile(rf"(?:(?:{_FILLERS}|{DOUBTS}){_GAP})*(?:{DOUBTS}){_GAP}")
_ANSWERED = re.compile(
    r"\b(?:answer|count)\b(?! (?:of|to) [a-z])[^.;]{0,30}?(?:\bis|\bwas|\bbe|\bto|\bas|:|=)\s*['\"]?$"
)
_LEFT_OUT = re.compile(rf"[\s,]*\b(?:{_BETWEEN})\b[\s,]*")
_ERROR = re.compile(rf"\b(?:{ERRORS})")
_SELF = re.compile(rf"\b(?:{_ITSELF})\b")
_OWNED = re.compile("|".join(_OWN))

_QUESTION = re.compile(
    r"[\W\d_]*(?:(?:user|human|student|teacher)\s*:\s*)?(?:(?:now|next|then),? )?"
    r"(?:(?:q|question|problem|exercise|example|task|puzzle|input|prompt|instructions?)\s*\d*\s*(?:[:.)#-]|$)"
    r"|please (?!note|ignore|disregard|forgive|excuse|correct|see)"
    r"|(?:consider|how many|how much|who|where|which|find|compute|calculate|write|count the(?!.*\bagain\b)"
    r"|answer the|given the)\b"
    r"|what (?:is|are|was|were|does|do|would|will)\b)",
    re.IGNORECASE,
)
# After these words on one line, the requested words are quoted as something not to be said.
_NO = r"(?:\b(?:wrong|incorrect|false|mistaken|a mistake|a lie|not|never|avoid|nobody|no one)\b)"
_QUOTES = r"\s*[:,]?\s*['\"“‘«`*_]*\s*$"
_NOT_SAID = re.compile(
    rf"{_NO}[^,;:.!?\n]*\b(?:say|saying|answer|write|reply|respond|state|claim|conclude|think|believe|that){_QUOTES}"
    rf"|(?:{_NO}|\binstead of\b|\brather than\b){_QUOTES}"
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
        alone = _alone(sentence)
        said = "" if _is_step(sentence) else convert(sentence if alone else _without_doubt(sentence))
        if said == value:
            taken = False
        elif (said and not alone) or _has_another(sentence, value):
            return "several"
        elif _takes_back(sentence, value):
            taken = True
    return "retracted" if taken else "read"


def _lower(text: str) -> str:
    """The text in lower case, without leading emphasis and bullets, and with "not" written out."""
    text = re.sub(r"[^\S\n]+", " ", text.lower().replace("’", "'"))
    return re.sub(r"^(?:[*_#>•( '\"]|-\s)+", "", text.replace("n't", " not").replace("cannot", "can not"))


def _up_to_a_question(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[: next((i for i, line in enumerate(lines) if _QUESTION.match(line)), len(lines))]


def _alone(text: str) -> bool:
    """Whether a text has digits and signs but no word. Among other text this is a list, a date or a sequence."""
    return not re.search(r"[^\W\d_]", text)


def _is_step(sentence: str) -> bool:
    """Whether a sentence is a step of arithmetic ("5 + 5 = 10"), which is not another answer."""
    return "=" in sentence and not ANSWER.search(sentence)


def _without_doubt(sentence: str) -> str:
    """The sentence without words of correction and doubt."""
    text = sentence[found.end() :] if (found := _START.match(sentence)) else sentence
    text = re.sub(r"^this\b", "it", _MIGHT.sub("is", text))
    text = _CONFIRMED.sub("", _LEFT_OUT.sub("\t", text))
    return text.strip().rstrip("?")


def _takes_back(sentence: str, value: str) -> bool:
    own = _OWNED.search(sentence)
    if _CORRECTS.match(sentence) or (own and not _SUPPOSED.search(sentence[: own.start()])):
        return True
    numbers = spoken(sentence)
    about = bool(_SELF.search(sentence)) or any(value == said for _, _, said in numbers)
    if about and any(not _SUPPOSED.search(sentence[: found.start()]) for found in _ERROR.finditer(sentence)):
        return True
    return _denies(sentence, value, numbers)


def _denies(sentence: str, value: str, numbers: list[tuple[int, int, str]]) -> bool:
    """Whether "not" precedes the number; "not 8 but 7" denies 8, not 7."""
    same = [start for start, _, said in numbers if said == value]
    same += [one.start() for one in re.finditer(rf"(?<![\w.,-]){re.escape(value.lower())}(?![\w])", sentence)]
    ends = [0, *(end for _, end, _ in numbers)]
    return any(_DENIES.search(sentence[max(end for end in ends if end <= start) : start]) for start in same)


def _has_another(sentence: str, value: str) -> bool:
    """Whether the sentence offers another number: "or 8, if …", "7 or 8", "I change my answer to 8"."""
    numbers, doubt = spoken(sentence), _DOUBTING.match(sentence)
    for start, end, said in numbers:
        whole = sentence[start].isdecimal() or re.match(r"\W*$|[,.;!?]", sentence[end:])  # "two of them" is no number
        if said == value or sentence[start:end] == value:
            continue
        if doubt and start == doubt.end() and whole:
            return True
        if not re.search(r"\w", sentence[end:]) and _ANSWERED.search(sentence[:start]):
            return True
    pairs = [(one, two, sentence[one[1] : two[0]]) for one, two in pairwise(numbers)]
    return any(re.search(r"^\W*\bor\b", text) and {value} < {one[2], two[2]} for one, two, text in pairs)
