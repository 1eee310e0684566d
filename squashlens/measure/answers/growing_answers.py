"""Right answers to a growing sequence, and whether greedy decoding writes them.

The prompts are those of the sequence, as token ids: with its separators, and with or without BOS. A `Task` asks in
text.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import numpy as np
from typing_extensions import TypeAliasType

from squashlens.errors import InputError
from squashlens.measure.answers.forced_answers import answer_in, write_freely
from squashlens.model.text.context import neutral, text_after, tokenize_after
from squashlens.model.text.tokens import require_tokenizer
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence, Ids
from squashlens.tasks.task import SHORT

# Computes the text of the right answer from the texts of the content tokens.
Answer = TypeAliasType("Answer", Callable[[tuple[str, ...]], str])


class AskedSequence(NamedTuple):
    """A growing sequence, and the number of content tokens at which it is asked about."""

    sequence: GrowingSequence
    length: int

    @property
    def prompt(self) -> Ids:
        """The token ids of the prompt."""
        return self.sequence.plain(self.length).ids(self.sequence.trunk)

    def right_answer(self, run: Run, answer: Answer) -> str:
        """The text of the right answer, which `answer` gives for the texts of the content tokens."""
        # The last content token may be the sequence's `ending`.
        last = self.sequence.stem(self.length).ids(self.sequence.trunk)[-1]
        content = (*self.sequence.content[: self.length - 1], last)
        tokenizer = require_tokenizer(run.model)
        # Decoded after other text, so that a token keeps its own space.
        before = neutral(run.model)
        text_of: dict[int, str] = {}
        for token in set(content):
            text_of[token] = text_after(tokenizer, before, [token])
        text = answer(tuple(map(text_of.__getitem__, content)))
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"answer= gave {text!r} for {self.length} content tokens.",
                "Return the text of the right answer, not empty.",
            )
        return text


def are_answered(
    run: Run, asked: Sequence[AskedSequence], right: Sequence[str]
) -> np.ndarray:
    """Whether greedy decoding writes each right answer, and does not go on with the same word or number."""
    prompts = [question.prompt for question in asked]
    longest = 0  # tokens of a right answer
    for prompt, truth in zip(prompts, right, strict=True):
        longest = max(longest, len(tokenize_after(run.model, prompt, truth)))
    answered = []
    written = write_freely(run, prompts, longest)
    for prompt, truth, tokens in zip(prompts, right, written, strict=True):
        text = text_after(run.model.tokenizer, prompt, tokens) if tokens else ""
        answered.append(answer_in(text, [truth]) == truth)
    return np.array(answered)


def short_questions(
    sequences: Sequence[GrowingSequence], most: int
) -> list[AskedSequence]:
    """At most `most` different prompts of 1 to 8 content tokens, of the sequences' form and tokens.

    Their content is not drawn from the whole alphabet: ones are counted, and other digits may be another task.
    """
    different: dict[Ids, AskedSequence] = {}  # by prompt
    for number in range(SHORT):
        form = sequences[number % len(sequences)]  # in turn
        form = replace(form, alphabet=tuple(sorted(set(form.content))))
        drawn = form.unrelated(Random(f"short {number}"))
        for length in range(1, min(SHORT, len(drawn)) + 1):
            question = AskedSequence(drawn, length)
            different[question.prompt] = question
    return list(different.values())[:most]
