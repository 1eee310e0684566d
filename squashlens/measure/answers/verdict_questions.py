"""The prompts of a verdict, their right answers, and which two of them are compared."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import torch

from squashlens.errors import InputError
from squashlens.measure.answers.choices import require_an_answer_each
from squashlens.measure.answers.growing_answers import AskedSequence
from squashlens.model.text.context import tokenize_after
from squashlens.model.text.tokens import require_tokenizer, tokenize
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence, Ids


@dataclass(frozen=True)
class Questions:
    """The prompts of a verdict as ids and texts, their right answers, and the pairs that are compared.

    `labels` are coordinates of the pairs.
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
        """The tokens of each text after a prompt; with and without a space, if no answer is written with one."""
        spaced = any(answer != answer.lstrip() for answer in self.right)
        forms = ("",) if spaced else ("", " ")
        spelled: dict[str, list[Ids]] = {}
        for text in texts:
            tokens = [
                tokenize_after(self.run.model, self.prompts[prompt], form + text)
                for form in forms
            ]
            spelled[text] = list(dict.fromkeys(tokens))
        return spelled


def prepare_pairs(
    run: Run, prompts: Any, answers: Any, lengths: Iterable[int] | None
) -> Questions:
    """The checked prompts, right answers and pairs."""
    labels: dict[str, Any] = {}
    if callable(answers) != isinstance(prompts, GrowingSequence):
        raise InputError(
            f"answers= is of type {type(answers).__name__}.",
            "Give a function of a growing sequence, such as lambda items: str(len(items)), and a list of texts.",
        )
    if isinstance(prompts, GrowingSequence):
        chosen = list(range(1, len(prompts) + 1) if lengths is None else lengths)
        asked = [AskedSequence(prompts, n) for n in chosen]
        ids = [each.prompt for each in asked]
        texts = [
            require_tokenizer(run.model).decode(row, skip_special_tokens=True)
            for row in ids
        ]
        right = [each.right_answer(run, answers) for each in asked]  # pyright: ignore[reportArgumentType]
        pairs = list(pairwise(range(len(ids))))
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
    facts = {
        "answers": answers if not callable(answers) else right,
        "token_ids": [list(row) for row in ids],
    }
    run = run.with_prompts(torch.tensor(max(ids, key=len)), **facts)
    labels |= {"answer": ("pair", [right[first] for first, _ in pairs])}
    labels |= {"answer_after": ("pair", [right[second] for _, second in pairs])}
    return Questions(run, ids, texts, right, pairs, labels)


def _listed(
    prompts: Any, answers: Any
) -> tuple[list[str], list[str], list[tuple[int, int]]]:
    """The texts of prompts and right answers, and the pairs: successive prompts, or those that were given as pairs."""
    given = list(prompts)
    right = list(answers)
    require_an_answer_each(given, right)
    in_pairs = bool(given) and not isinstance(given[0], str)
    if in_pairs:
        both = given + right
        if not all(isinstance(item, list | tuple) and len(item) == 2 for item in both):
            raise InputError(
                "prompts= and answers= are not both texts, or both pairs of texts.",
                "Give prompts=[(prompt, counterpart), …] and answers=[(answer, its answer), …].",
            )
        pairs = [(2 * pair, 2 * pair + 1) for pair in range(len(given))]
        given = list(chain.from_iterable(given))
        right = list(chain.from_iterable(right))
    else:
        pairs = list(pairwise(range(len(given))))
    for text in right:
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"answers= has {text!r} as a right answer.",
                "Give the texts of the answers, not empty.",
            )
    return given, right, pairs
