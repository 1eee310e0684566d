"""Placebos of a verdict: words that differ between two prompts in the same places, and are the answer to neither.

That a word is likelier after the prompt that has it than after the other one says that it was mentioned. An answer that
occurs in its own prompt alone must therefore lead by more than such words do.
"""

import re
from difflib import SequenceMatcher

# Han, kana, Thai, Lao, Burmese and Khmer are written without spaces: there a character counts as a word.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
)
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+|[^\w\s]")
MOST = 8  # pairs of words: each is forced on both prompts


def changed_words(text: str, other: str) -> list[tuple[str, str]]:
    """Pairs of different words that stand in the same place of two texts.

    >>> changed_words("Words: sun, cat. First:", "Words: moon, dog. First:")
    [('sun', 'moon'), ('cat', 'dog')]
    >>> changed_words("法国的首都是", "德国的首都是")
    [('法', '德')]
    """
    words = WORD.findall(text)
    others = WORD.findall(other)
    matcher = SequenceMatcher(None, words, others, autojunk=False)
    pairs: list[tuple[str, str]] = []
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        if (
            kind == "replace"
        ):  # if one side has more words, its last ones have no partner
            pairs += zip(words[start:end], others[other_start:other_end], strict=False)
    return list(dict.fromkeys(pairs))


def placebos_of(
    texts: tuple[str, str], answers: tuple[str, str]
) -> list[tuple[str, str]]:
    """Pairs of changed words of which neither is one of the answers, or a part of one."""
    answer, other_answer = answers
    words_of_answers = set(WORD.findall(answer) + WORD.findall(other_answer))
    pairs = changed_words(*texts)
    return [pair for pair in pairs if words_of_answers.isdisjoint(pair)][:MOST]


def is_mentioned_alone(texts: tuple[str, str], answers: tuple[str, str]) -> bool:
    """Whether an answer occurs in its own prompt and not in the other one, so that being mentioned may suffice."""
    text, other = texts
    answer, other_answer = answers
    is_alone = answer.strip() in text and answer.strip() not in other
    is_other_alone = other_answer.strip() in other and other_answer.strip() not in text
    return is_alone or is_other_alone
