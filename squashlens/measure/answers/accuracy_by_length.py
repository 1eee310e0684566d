"""Next tokens: accuracy on growing sequences by greedy decoding, and the most likely tokens after a prompt."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from typing_extensions import TypeAliasType

from squashlens._typing import Bridge, positive
from squashlens.errors import InputError
from squashlens.measure.answers.frequencies import judge_ability
from squashlens.measure.collapse.metric import with_sequence
from squashlens.measure.registration import measurement, this_call
from squashlens.model.anatomy import n_outcomes, outputs_are_tokens
from squashlens.model.text.context import end_of, neutral, text_after
from squashlens.model.text.tokens import (
    require_same_vocabulary,
    require_tokenizer,
    tokenize,
)
from squashlens.prompts import answers_after
from squashlens.run.activations import at_last_tokens
from squashlens.run.captured import PromptOrCapture
from squashlens.run.captures.pairs import prepare_growing
from squashlens.run.forward import next_logits
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence, Ids
from squashlens.tasks.task import SHORT
from squashlens.theory.statistics.ranks import share_interval

# Computes the text of the right answer from the texts of the content tokens.
Answer = TypeAliasType("Answer", Callable[[tuple[str, ...]], str])


class Asked(NamedTuple):
    """A growing sequence, and the number of content tokens at which it is asked about."""

    sequence: GrowingSequence
    length: int


@measurement()
def accuracy_by_length(
    model: Bridge,
    sequence: GrowingSequence | Iterable[GrowingSequence],
    answer: Answer,
    *,
    lengths: Iterable[int] | None = None,
    n_baseline: int = 16,
) -> xr.DataArray:
    """The share of sequences that the model answers correctly at each length, with greedy decoding and current hooks.

    The prompt at length n is the sequence up to its n-th content token, and the suffix. The answer is correct if greedy
    decoding gives the tokens of `answer`, and then a token that does not start with a letter or digit. Therefore 12
    does not count as the answer 1.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        sequence: a growing sequence from `squashlens.prompts`, or several with equal numbers of content tokens;
            `GrowingSequence.unrelated` draws others of the same form.
        answer: function from the texts of the content tokens, each with its own space as in ``" one"``, to the text of
            the right answer.
        lengths: numbers of content tokens; all from 1 by default.
        n_baseline: largest number of different short questions, with 1 to 8 content tokens, that show whether the model
            can do the task at all; 16 by default, 0 for none. The content of each is drawn from the tokens that occur
            in one of the sequences, so that those of repeated tokens are its own short lengths. Solved examples for
            all questions can be given as the sequence's prefix.

    Returns:
        DataArray (length), dimensionless: the share of correct answers, with its exact 95 % interval (Clopper–Pearson)
        as the coordinates `low` and `high`, NaN where all prompts are equal: that is one answer. Coordinates without a
        dimension say whether the model can do the task at short lengths: `able`, `able_reason`, `baseline`, `chance`
        and so on, as in `evaluate_task`. Unless `able` is ``"yes"``, longer lengths cannot be judged.

    Raises:
        InputError: no sequences or sequences of different lengths, an `answer` that does not give text, or a model
            whose outputs are not tokens.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> form = {"prefix": "How many ones are in the following sequence?", "suffix": "="}
    >>> drawn = [sl.prompts.bernoulli(model, 12, seed=seed, **form) for seed in range(5)]
    >>> found = sl.accuracy_by_length(model, drawn, lambda digits: str(digits.count("1")), lengths=[6, 12])
    >>> found.dims, bool(found.min() > 0.7)
    (('length',), True)
    """
    given = [sequence] if isinstance(sequence, GrowingSequence) else list(sequence)
    if len({len(each) for each in given}) != 1:
        raise InputError(
            f"The {len(given)} sequences of sequence= do not have equal numbers of content tokens.",
            "Give at least one sequence, all with the same number of content tokens.",
        )
    run = Run.open(model, **this_call())
    growing = prepare_growing(run, given[0], lengths, "separate")
    for other in given[1:]:
        require_same_vocabulary(growing.run.model, other)
    run = with_sequence(run, growing)
    asked = [Asked(*each) for each in product(given, growing.lengths)]
    right = _are_right(run, asked, answer).reshape(len(given), len(growing.lengths))
    facts = {"prompts": len(given), "sequences": [each.name for each in given][:8]}
    _, low, high = share_interval(torch.from_numpy(right.T).double())
    for place, length in enumerate(growing.lengths):
        different = {each.plain(length).ids(each.trunk) for each in given}
        if len(different) == 1:  # one prompt has no interval
            low[place] = torch.nan
            high[place] = torch.nan
    able = judge_ability(_short_answers(run, given, answer, n_baseline))
    coords = {
        "length": np.array(growing.lengths),
        "low": ("length", low.numpy()),
        "high": ("length", high.numpy()),
    }
    coords |= able._asdict()
    shares = (
        ("length",),
        right.mean(axis=0),
        "share of right answers, greedy decoding",
        "1",
    )
    return run.array("accuracy", coords, shares, **facts)


def _short_answers(
    run: Run, given: Sequence[GrowingSequence], answer: Answer, most: int
) -> list[tuple[bool, str]]:
    """Whether different short questions of the sequences' form and tokens are answered correctly, and their answers."""
    positive(most, "n_baseline", "a number of questions", or_zero=True)
    if not most:
        return []
    # Not of the whole alphabet: ones are counted, and other digits may be another task, or have another right answer.
    kinds = [
        replace(sequence, alphabet=tuple(sorted(set(sequence.content))))
        for sequence in given
    ]
    asked: dict[Ids, Asked] = {}  # different prompts
    for number in range(SHORT):
        drawn = kinds[number % len(kinds)].unrelated(Random(f"short {number}"))
        for length in range(1, min(SHORT, len(given[0])) + 1):
            asked[drawn.plain(length).ids(drawn.trunk)] = Asked(drawn, length)
    chosen = list(asked.values())[:most]
    right = _are_right(run, chosen, answer).tolist()
    answers = [
        right_answer(run, short.sequence, short.length, answer) for short in chosen
    ]
    return list(zip(right, answers, strict=True))


def _are_right(run: Run, asked: Sequence[Asked], answer: Answer) -> np.ndarray:
    """Whether each of several sequences, at a length of its own, is answered correctly."""
    tokenizer = require_tokenizer(run.model)
    if not outputs_are_tokens(run.model):
        raise InputError(
            "The outputs of this model are not tokens, so that it cannot give an answer in text.",
            "Use `top_tokens`.",
        )
    special = set(tokenizer.all_special_ids)

    def ends_answer(answered: Ids, token: int) -> bool:
        if token in special:
            return True
        text = text_after(tokenizer, end_of(run.model, answered), [token])
        return not text[:1].isalnum()

    prompts: list[Ids] = []
    expected: list[int | None] = []  # None: any token that ends the answer
    row_of_prompt: list[int] = []
    for row, question in enumerate(asked):
        prompt, answer_ids = _prompt_and_answer(run, question, answer)
        for step, token in enumerate([*answer_ids, None]):
            prompts.append((*prompt, *answer_ids[:step]))
            expected.append(token)
            row_of_prompt.append(row)
    predicted = at_last_tokens(run, prompts, label="answers").next.tolist()
    right = np.ones(len(asked), dtype=bool)
    for row, prompt, token, said in zip(
        row_of_prompt, prompts, expected, predicted, strict=True
    ):
        right[row] &= ends_answer(prompt, said) if token is None else said == token
    return right


def right_answer(
    run: Run, sequence: GrowingSequence, length: int, answer: Answer
) -> str:
    """The text of the right answer that `answer` gives for the content at one length."""
    # The last content token may be the sequence's `ending`.
    last = sequence.stem(length).ids(sequence.trunk)[-1]
    content = (*sequence.content[: length - 1], last)
    tokenizer = require_tokenizer(run.model)
    texts = {
        token: text_after(tokenizer, neutral(run.model), [token])
        for token in set(content)
    }
    text = answer(tuple(texts[token] for token in content))
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"answer= gave {text!r} for {length} content tokens.",
            "Return the text of the right answer, not empty.",
        )
    return text


def _prompt_and_answer(run: Run, asked: Asked, answer: Answer) -> tuple[Ids, Ids]:
    """The tokens of a prompt and of its right answer, which fit into the context."""
    sequence, length = asked
    prompt = sequence.plain(length).ids(sequence.trunk)
    text = right_answer(run, sequence, length, answer)
    (answer_ids,) = answers_after(run.model, prompt, [text])
    tokenize(run.model, torch.tensor((*prompt, *answer_ids)))  # checks the context
    return prompt, answer_ids


@measurement("top_tokens", prompts="equal")
def top_tokens(model: Bridge, prompt: PromptOrCapture, *, k: int = 3) -> xr.DataArray:
    """The `k` most likely next tokens after a prompt, and their probabilities.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompt: one or several prompts as text or token ids, or a `capture` of prompts of equal length.
        k: number of tokens, from 1 to the size of the vocabulary; 3 by default.

    Returns:
        DataArray (rank), or (prompt, rank) for several prompts, dimensionless: the probabilities in decreasing order,
        with the coordinates `token` and `token_id`.

    Raises:
        InputError: a `k` above the size of the vocabulary.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> str(sl.top_tokens(model, "What is the last digit in this sequence? 0007 =")["token"].values[0])
    '7'
    """
    run = Run.of(model, prompt, **this_call())
    positive(k, "k", "a number of tokens", most=n_outcomes(run.model))
    logits = next_logits(run, run.ids)
    best = logits.double().softmax(dim=-1).topk(k)
    rows = best.indices.tolist()
    if outputs_are_tokens(run.model):
        texts = run.tokens_of(best.indices)
    else:  # those of a compiled program have no text
        texts = [[f"#{token}" for token in row] for row in rows]
    texts = np.array(texts, dtype=object)
    token_ids = np.array(rows)
    probabilities = best.values
    dims: tuple[str, ...] = ("prompt", "rank")
    coords: dict[str, Any] = {"rank": np.arange(k)}
    if len(rows) == 1:
        dims = ("rank",)
        texts = texts[0]
        token_ids = token_ids[0]
        probabilities = probabilities[0]
    else:
        coords["prompt"] = np.arange(len(rows))
    coords |= {"token": (dims, texts), "token_id": (dims, token_ids)}
    values = dims, probabilities, "probability of the next token", "1"
    return run.array("top_tokens", coords, values)
