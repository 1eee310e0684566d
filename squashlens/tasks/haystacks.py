"""Needles in a haystack: facts at several depths of a filler text, with a question about each."""

import re
from collections.abc import Iterable, Sequence
from itertools import cycle, islice, product
from typing import Any

from squashlens.checks.arguments import validated
from squashlens.errors import InputError

SENTENCE = re.compile(r"(?<=[.!?])\s+")


@validated
def haystack(
    facts: Sequence[tuple[str, str, str]],
    filler: str,
    depths: Iterable[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    lengths: Iterable[int] = (200,),
) -> list[dict[str, Any]]:
    """Prompts that hide each fact at each depth of a text of each length, and ask for it at the end.

    The filler is cut into sentences, which are repeated up to the length; the text of each fact begins at another
    sentence, as long as there are so many. They are questions for `squashlens.answer_by_layer`, as its `prompts`: a
    fact is a cluster, since its prompts share it, and each depth and length is a group.

    Args:
        facts: at least two facts, each as a sentence, the question that ends the prompt, and the answer that follows it
            with its space. The answers of all are the choices.
        filler: text of several sentences, which has none of the answers.
        depths: where the fact stands: 0 for the beginning of the text, 1 for its end.
        lengths: numbers of words of the text, at least.

    Returns:
        A dictionary for each length, fact and depth, with `prompt`, `answer`, `choices`, `group` and `cluster`.

    Raises:
        InputError: fewer than two facts, a depth that is not from 0 to 1, or a filler that is empty or has an answer.

    Source: Hsieh et al. 2024, RULER, arXiv 2404.06654, single needles.

    >>> from squashlens.tasks import haystack
    >>> facts = [(f"The number of {name} is {k}.", f"The number of {name} is", f" {k}") for k, name in
    ...          enumerate(("Ann", "Bob"))]
    >>> items = haystack(facts, "The sun shone. It was warm.", depths=[0, 1], lengths=[6])
    >>> items[1]["prompt"], items[1]["group"]
    ('The sun shone. It was warm. The number of Ann is 0.\\n\\nThe number of Ann is', 'depth 1')
    """
    sentences = [part for part in SENTENCE.split(filler.strip()) if part]
    answers = [answer for _, _, answer in facts]
    depths = list(depths)
    lengths = list(lengths)
    has_an_answer = any(answer.strip() in filler for answer in answers)
    are_shares = all(0 <= depth <= 1 for depth in depths)
    if len(facts) < 2 or not sentences or has_an_answer or not are_shares:
        raise InputError(
            f"{len(facts)} facts and a filler of {len(sentences)} sentences make no haystack at depths {depths}.",
            "Give at least two facts, text of several sentences without their answers, and depths from 0 to 1.",
        )
    items = []
    for length, (number, fact), depth in product(lengths, enumerate(facts), depths):
        sentence, question, answer = fact
        # The facts' texts begin at sentences that are evenly spaced over the filler.
        hay = _hay(sentences, number * len(sentences) // len(facts), length)
        place = round(depth * len(hay))
        hay.insert(place, sentence)
        text = " ".join(hay)
        group = f"depth {depth:g}"
        if len(lengths) > 1:
            group = f"{length} words, {group}"
        items.append(
            {
                "prompt": f"{text}\n\n{question}",
                "answer": answer,
                "choices": answers,
                "group": group,
                "cluster": number,
            }
        )
    return items


def _hay(sentences: Sequence[str], start: int, length: int) -> list[str]:
    """Sentences from number `start` on, round and round, up to the first with which they have `length` words."""
    chosen: list[str] = []
    n_words = 0
    for sentence in islice(cycle(sentences), start, None):
        if n_words >= length:
            break
        chosen.append(sentence)
        n_words += len(sentence.split())
    return chosen
