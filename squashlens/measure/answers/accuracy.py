"""Next tokens: accuracy on growing sequences by greedy decoding, and the most likely tokens after a prompt."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import torch
import xarray as xr
from typing_extensions import TypeAliasType

from squashlens._typing import Bridge, positive
from squashlens.errors import InputError
from squashlens.measure.answers.frequencies import judge_ability
from squashlens.measure.collapse.metric import with_sequence
from squashlens.measure.registration import measurement
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


@measurement()
def accuracy(
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
        and so on, as in `evaluate`. Unless `able` is ``"yes"``, longer lengths cannot be judged.

    Raises:
        InputError: no sequences or sequences of different lengths, an `answer` that does not give text, or a model
            whose outputs are not tokens.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> form = {"prefix": "How many ones are in the following sequence?", "suffix": "="}
    >>> drawn = [sl.prompts.bernoulli(model, 12, seed=seed, **form) for seed in range(5)]
    >>> found = sl.accuracy(model, drawn, lambda digits: str(digits.count("1")), lengths=[6, 12])
    >>> found.dims, bool(found.min() > 0.7)
    (('length',), True)
    """
    given = [sequence] if isinstance(sequence, GrowingSequence) else list(sequence)
    if len({len(one) for one in given}) != 1:
        raise InputError(
            f"The {len(given)} sequences of sequence= do not have equal numbers of content tokens.",
            "Give at least one sequence, all with the same number of content tokens.",
        )
    run = Run.open(model, "accuracy")
    growing = prepare_growing(run, given[0], lengths, "separate")
    for one in given[1:]:
        require_same_vocabulary(growing.run.model, one)
    run = with_sequence(
        run, growing, lengths=list(growing.lengths), n_baseline=n_baseline
    )
    asked = [(sequence, length) for sequence in given for length in growing.lengths]
    right = _are_right(run, asked, answer).reshape(len(given), len(growing.lengths))
    facts = {"prompts": len(given), "sequences": [one.name for one in given][:8]}
    _, low, high = share_interval(torch.from_numpy(right.T).double())
    alone = torch.tensor(
        [
            len({one.plain(n).ids(one.trunk) for one in given}) == 1
            for n in growing.lengths
        ]
    )
    low[alone] = high[alone] = torch.nan
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
    kinds = [replace(one, alphabet=tuple(sorted(set(one.content)))) for one in given]
    drawn = [
        kinds[number % len(kinds)].unrelated(Random(f"short {number}"))
        for number in range(SHORT)
    ]
    lengths = range(1, min(SHORT, len(given[0])) + 1)
    asked = list(
        {
            one.plain(n).ids(one.trunk): (one, n) for one in drawn for n in lengths
        }.values()
    )[:most]
    right = _are_right(run, asked, answer).tolist()
    return [
        (each, right_answer(run, one, n, answer))
        for each, (one, n) in zip(right, asked, strict=True)
    ]


def _are_right(
    run: Run, asked: Sequence[tuple[GrowingSequence, int]], answer: Answer
) -> np.ndarray:
    """Whether each of several sequences, at a length of its own, is answered correctly."""
    tokenizer = require_tokenizer(run.model)
    if not outputs_are_tokens(run.model):
        raise InputError(
            "The outputs of this model are not tokens, so that it cannot give an answer in text.",
            "Use `top_tokens`.",
        )
    special = set(tokenizer.all_special_ids)

    def ends_answer(answered: Ids, token: int) -> bool:
        return (
            token in special
            or not text_after(tokenizer, end_of(run.model, answered), [token])[
                :1
            ].isalnum()
        )

    questions = [
        (row, *each)
        for row, of in enumerate(asked)
        for each in _questions(run, *of, answer)
    ]
    predicted = at_last_tokens(
        run, [ids for _, ids, _ in questions], label="answers"
    ).next.tolist()
    right = np.ones(len(asked), dtype=bool)
    for (row, ids, token), said in zip(questions, predicted, strict=True):
        right[row] &= ends_answer(ids, said) if token is None else said == token
    return right


def right_answer(
    run: Run, sequence: GrowingSequence, length: int, answer: Answer
) -> str:
    """The text of the right answer that `answer` gives for the content at one length."""
    last = sequence.stem(length).ids(sequence.trunk)[
        -1
    ]  # which may be the sequence's `ending`
    content = (*sequence.content[: length - 1], last)
    texts = {
        token: text_after(require_tokenizer(run.model), neutral(run.model), [token])
        for token in {*content}
    }
    text = answer(tuple(texts[token] for token in content))
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"answer= gave {text!r} for {length} content tokens.",
            "Return the text of the right answer, not empty.",
        )
    return text


def _questions(
    run: Run, sequence: GrowingSequence, length: int, answer: Answer
) -> list[tuple[Ids, int | None]]:
    """A prompt for each token of the right answer, and one for the token after it, where any that ends it is right."""
    prompt = sequence.plain(length).ids(sequence.trunk)
    (ids,) = answers_after(
        run.model, prompt, [right_answer(run, sequence, length, answer)]
    )
    tokenize(run.model, torch.tensor((*prompt, *ids)))  # checks the context
    return [((*prompt, *ids[:step]), token) for step, token in enumerate((*ids, None))]


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
    run = Run.of(model, prompt, "top_tokens", k=k)
    most = n_outcomes(run.model)
    if not 1 <= k <= most:
        raise InputError(
            f"k={k!r} is not a number of tokens of this model.",
            f"Give a number from 1 to {most}.",
        )
    logits = next_logits(run, run.ids)
    best = logits.double().softmax(dim=-1).topk(k)
    known = outputs_are_tokens(
        run.model
    )  # those of a compiled program are not, and have no text
    rows = best.indices.tolist()
    texts = (
        run.tokens_of(best.indices)
        if known
        else [[f"#{token}" for token in row] for row in rows]
    )
    one = len(rows) == 1
    dims, part = (("rank",), 0) if one else (("prompt", "rank"), slice(None))
    tokens = {
        "token": (dims, np.array(texts, dtype=object)[part]),
        "token_id": (dims, np.array(rows)[part]),
    }
    coords = {"rank": np.arange(k), **tokens} | (
        {} if one else {"prompt": np.arange(len(rows))}
    )
    return run.array(
        "top_tokens",
        coords,
        (dims, best.values[part], "probability of the next token", "1"),
    )
