"""Whether an answer still stands, after what is said around it.

What follows an answer is read up to a new question (a line that begins as questions do: "Please count", "How many",
"Q:"), sentence by sentence. Models that are not tuned for dialogue go on with other text, so most of it is no part of
the answer. Three things are:

- *Another number*: a sentence that says another number and nothing else, once words of correction and doubt
  ("actually", "sorry", "or", "maybe", "it should be") are left out; or digits alone, on the very next line.
  So does a sentence that offers one: "or 8, if", "7 or 8", "I change my answer to 8". Then there are several answers.
- *Taking back*: a sentence that begins with a word of correction ("wait", "no", "oops"), speaks of an error of its own
  ("I miscounted", "this is wrong"), or denies the number ("not 7").
- *Saying it again* behind that: then it stands.

The lists of words below are all there is: what else may take an answer back is not known here.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

from squashlens.tasks.numerals import ANSWER, spoken

Standing = Literal["read", "several", "retracted"]

# For something other than the number.
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
FAULTS = r"wrong|incorrect|mistake|error|not quite"  # the same, also where a number follows
# A sentence that begins with one of these and a number in digits doubts the answer.
DOUBTS = r"or|maybe|perhaps|possibly|probably|alternatively|otherwise"
# These change nothing by themselves.
_FILLERS = r"oh|ah|h+m+|um+|uh|er|well|but|and|so|ok|okay|yes|then|thus|edit|updated?|note|now|even|that said"
# Left out wherever they stand: what remains may say another number.
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

# An error, where the sentence speaks of itself or of this answer, and does not deny or suppose it.
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
# Behind these, on one line, what was asked for is quoted as what is not to be said.
_NO = r"(?:\b(?:wrong|incorrect|false|mistaken|a mistake|a lie|not|never|avoid|nobody|no one)\b)"
_QUOTES = r"\s*[:,]?\s*['\"“‘«`*_]*\s*$"
_NOT_SAID = re.compile(
    rf"{_NO}[^,;:.!?\n]*\b(?:say|saying|answer|write|reply|respond|state|claim|conclude|think|believe|that){_QUOTES}"
    rf"|(?:{_NO}|\binstead of\b|\brather than\b){_QUOTES}"
)


def sentences(text: str) -> list[str]:
    """A text in sentences; a new line ends one too."""
    return [part.strip() for part in re.split(r"\n|(?<=[.!?])\s+", text) if part.strip()]


def denied(before: str) -> bool:
    """Whether what stands before an answer denies that it is one.

    >>> denied("It is wrong to say '"), denied("I am not sure, but ")
    (True, False)
    """
    return bool(_NOT_SAID.search(_lower(before.rpartition("\n")[2])))


def standing(behind: str, value: str, convert: Callable[[str], str] | None = None) -> Standing:
    """Whether an answer stands, by what is said behind it. `convert` gives the number that a sentence says, or "".

    >>> standing("Wait, that is wrong.", "7"), standing("Please count 8 more.", "7"), standing("I am not wrong.", "7")
    ('retracted', 'read', 'read')
    """
    taken, convert = False, convert or (lambda sentence: "")
    lines = [line for line in _up_to_a_question(behind) if line.strip()]
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
    """In lower case, without emphasis and bullets before it, with "not" in full."""
    text = re.sub(r"[^\S\n]+", " ", text.lower().replace("’", "'"))
    return re.sub(r"^(?:[*_#>•( '\"]|-\s)+", "", text.replace("n't", " not").replace("cannot", "can not"))


def _up_to_a_question(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[: next((i for i, line in enumerate(lines) if _QUESTION.match(line)), len(lines))]


def _alone(text: str) -> bool:
    """Digits and signs without a word. They are no answer among other text: a list, a date, a sequence."""
    return not re.search(r"[^\W\d_]", text)


def _is_step(sentence: str) -> bool:
    """A step of arithmetic, "5 + 5 = 10", is no other answer."""
    return "=" in sentence and not ANSWER.search(sentence)


def _without_doubt(sentence: str) -> str:
    """A sentence without words of correction and doubt."""
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
    """Whether "not" stands before the number; "not 8 but 7" denies 8."""
    same = [start for start, _, said in numbers if said == value]
    same += [one.start() for one in re.finditer(rf"(?<![\w.,-]){re.escape(value.lower())}(?![\w])", sentence)]
    ends = [0, *(end for _, end, _ in numbers)]
    return any(_DENIES.search(sentence[max(end for end in ends if end <= start) : start]) for start in same)


def _has_another(sentence: str, value: str) -> bool:
    """Whether another number is offered: "or 8, if …", "7 or 8", "I change my answer to 8"."""
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
