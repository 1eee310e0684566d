"""Placebos of a verdict: words that differ between two prompts in the same places, and are the answer to neither.

That a word is likelier after the prompt that has it than after the other one says that it was mentioned. An answer that
occurs in its own prompt alone must therefore lead by more than such words do.
"""

import re
from collections.abc import Iterable
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
    words, others = WORD.findall(text), WORD.findall(other)
    pairs: list[tuple[str, str]] = []
    for kind, start, end, other_start, other_end in SequenceMatcher(
        None, words, others, False
    ).get_opcodes():
        if kind == "replace":
            pairs += zip(words[start:end], others[other_start:other_end], strict=False)
    return list(dict.fromkeys(pairs))


def placebos_of(
    texts: tuple[str, str], answers: tuple[str, str]
) -> list[tuple[str, str]]:
    """Pairs of changed words of which neither is one of the answers, or a part of one."""
    spoken = {word for answer in answers for word in WORD.findall(answer)}
    return [pair for pair in changed_words(*texts) if not spoken & {*pair}][:MOST]


def is_mentioned_alone(texts: tuple[str, str], answers: tuple[str, str]) -> bool:
    """Whether an answer occurs in its own prompt and not in the other one, so that being mentioned may suffice."""
    text, other = texts
    answer, other_answer = (each.strip() for each in answers)
    return (answer in text and answer not in other) or (
        other_answer in other and other_answer not in text
    )


def words_of(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """All words of some pairs, each once."""
    return list(dict.fromkeys(word for pair in pairs for word in pair))
