"""The prompts of a verdict, their right answers, and which two of them are compared."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch

from squashlens.errors import InputError
from squashlens.measure.answers.choices import require_an_answer_each
from squashlens.measure.answers.growing_answers import AskedSequence
from squashlens.model.text.context import tokenize_after
from squashlens.model.text.tokens import require_tokenizer, tokenize
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence, Ids


@dataclass(frozen=True)
class ComparedPrompts:
    """The prompts of a verdict as ids and texts, their right answers, and the pairs that are compared.

    A pair has the numbers of its two prompts; `labels` are coordinates of the pairs.
    """

    run: Run
    prompts: list[Ids]
    texts: list[str]
    right: list[str]
    pairs: list[tuple[int, int]]
    labels: dict[str, Any]

    def answers_of(self, first: int, second: int) -> tuple[str, str]:
        """The right answers of two prompts."""
        return self.right[first], self.right[second]

    def spellings(self, prompt: int, texts: Iterable[str]) -> dict[str, list[Ids]]:
        """The tokens of each text after a prompt, in one or two spellings.

        They are with and without a space before the text, unless a right answer is written with one.
        """
        has_spaces = any(answer != answer.lstrip() for answer in self.right)
        leads = ("",) if has_spaces else ("", " ")
        spellings: dict[str, list[Ids]] = {}
        ids_after = partial(tokenize_after, self.run.model, self.prompts[prompt])
        for text in texts:
            tokens = [ids_after(lead + text) for lead in leads]
            spellings[text] = list(dict.fromkeys(tokens))
        return spellings


def prepare_pairs(
    run: Run, prompts: Any, answers: Any, lengths: Iterable[int] | None
) -> ComparedPrompts:
    """The checked prompts, right answers and pairs, from the arguments of `diagnose`.

    `prompts` and `answers` are lists of texts or of pairs, or a growing sequence and a function of its content.
    """
    if callable(answers) != isinstance(prompts, GrowingSequence):
        raise InputError(
            f"answers= is of type {type(answers).__name__}.",
            "Give a function of a growing sequence, such as lambda items: str(len(items)), and a list of texts.",
        )
    labels: dict[str, Any] = {}
    if isinstance(prompts, GrowingSequence):
        chosen = list(range(1, len(prompts) + 1) if lengths is None else lengths)
        decode = require_tokenizer(run.model).decode
        ids = []
        texts = []
        right = []
        for length in chosen:
            asked = AskedSequence(prompts, length)
            ids.append(asked.prompt)
            texts.append(decode(asked.prompt, skip_special_tokens=True))
            right.append(asked.right_answer(run, answers))
        pairs = list(pairwise(range(len(ids))))  # each length and the next one
        labels = {"length": ("pair", chosen[:-1]), "length_after": ("pair", chosen[1:])}
    else:
        if lengths is not None:
            raise InputError(
                "lengths= is for a growing sequence, and prompts= is a list.",
                "Leave lengths= out.",
            )
        texts, right, pairs = _listed(prompts, answers)
        ids = [tuple(tokenize(run.model, text)[0].tolist()) for text in texts]
    if not pairs:
        raise InputError("prompts= has no pair to compare.", "Give at least two.")
    _require_different(pairs, right, ids)
    facts = {
        "answers": right if callable(answers) else answers,
        "token_ids": [list(row) for row in ids],
    }
    # The longest prompt stands for all: if it fits into the context, so do the others.
    run = run.with_prompts(torch.tensor(max(ids, key=len)), **facts)
    first, second = np.array(pairs).T
    labels["answer"] = ("pair", np.array(right)[first])
    labels["answer_after"] = ("pair", np.array(right)[second])
    return ComparedPrompts(run, ids, texts, right, pairs, labels)


def _require_different(
    pairs: Iterable[tuple[int, int]], right: Sequence[str], ids: Sequence[Ids]
) -> None:
    """Raise for two compared prompts with the same right answer or token ids: nothing can be lost between them."""
    for first, second in pairs:
        same = ""
        if right[first].strip() == right[second].strip():
            same = "right answer"
        elif ids[first] == ids[second]:
            same = "token ids"
        if same:
            raise InputError(
                f"Prompts {first} and {second}, which are compared, have the same {same}.",
                "Compare prompts that differ and whose right answers do: only then can something be lost. To compare "
                "each prompt with a counterpart of its own, give pairs: prompts=[(prompt, counterpart), …] and "
                "answers=[(answer, its answer), …].",
            )


def _listed(
    prompts: Any, answers: Any
) -> tuple[list[str], list[str], list[tuple[int, int]]]:
    """The texts of prompts and right answers, and the pairs: successive prompts, or those that were given as pairs."""
    texts = list(prompts)
    right = list(answers)
    require_an_answer_each(texts, right)
    are_pairs = bool(texts) and not isinstance(texts[0], str)
    if are_pairs:
        for item in texts + right:
            if not isinstance(item, list | tuple) or len(item) != 2:
                raise InputError(
                    "prompts= and answers= are not both texts, or both pairs of texts.",
                    "Give prompts=[(prompt, counterpart), …] and answers=[(answer, its answer), …].",
                )
        # Laid out one after the other, the prompts of pair k have the numbers 2k and 2k + 1.
        texts = list(chain.from_iterable(texts))
        right = list(chain.from_iterable(right))
        numbers = range(len(texts))
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
    else:
        pairs = list(pairwise(range(len(texts))))
    for text in right:
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"answers= has {text!r} as a right answer.",
                "Give the texts of the answers, not empty.",
            )
    return texts, right, pairs
