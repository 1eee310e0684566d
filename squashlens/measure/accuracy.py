"""How often the model answers rightly: greedy decoding against an answer that follows from the content."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bridge, positive
from squashlens.errors import InputError
from squashlens.measure._pairs import Runs
from squashlens.model.branches import Ids
from squashlens.model.ends import ends
from squashlens.model.native import says_tokens
from squashlens.model.registry import measured
from squashlens.model.tokens import display_tokens, require_tokenizer, tokens
from squashlens.prompts import behind
from squashlens.results import attributes
from squashlens.sequences import Sequence as Tokens

# The right answer's text, from the texts of the content tokens.
Answer = Callable[[tuple[str, ...]], str]


@measured
def accuracy(
    model: Bridge,
    sequences: Iterable[Tokens],
    answer: Answer,
    *,
    lengths: Iterable[int] | None = None,
    chunk: int | None = None,
    progress: bool = True,
) -> xr.DataArray:
    """Share of sequences that are answered rightly, (length), under whatever hooks stand.

    At each length a prompt is the sequence so far and its suffix. It is answered rightly if greedy decoding gives
    `answer` token by token and then something that does not carry it on: no token that begins with a letter or a digit,
    so that 1 is not taken for the start of 12.

    Args:
        sequences: of equal numbers of content tokens, from `squashlens.prompts`; `Sequence.unrelated` draws others.
        answer: from the texts of the content tokens to the text of the right answer, as it stands behind the prompt.
        lengths: numbers of content tokens; all if not given.
        chunk: prompts side by side; as many as fit in about a gigabyte if not given.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> form = {"prompt": "How many ones are in the following sequence?", "suffix": "="}
    >>> drawn = [sl.prompts.bernoulli(model, 12, seed=seed, **form) for seed in range(5)]
    >>> found = sl.accuracy(model, drawn, lambda digits: str(digits.count("1")), lengths=[6, 12], progress=False)
    >>> found.dims, bool(found.min() > 0.7)
    (('length',), True)
    """
    given = list(sequences)
    if not all(isinstance(one, Tokens) for one in given) or len({len(one) for one in given}) != 1:
        raise InputError("These are not sequences of one length.", "Give some, of equal numbers of content tokens.")
    if chunk is not None:
        positive(chunk, "chunk", "a number of prompts")
    runs = Runs.start(model, given[0], lengths, "accuracy", passes="separate", chunk=None, progress=progress)
    tokenizer = require_tokenizer(runs.session.model)
    if not says_tokens(runs.session.model):
        raise InputError("This model's outcomes are not its tokens, so none is an answer.", "Use `next_token`.")
    special = set(tokenizer.all_special_ids)

    def over(token: int) -> bool:
        return token in special or not tokenizer.decode([token])[:1].isalnum()

    questions = [
        question
        for number, sequence in enumerate(given)
        for length in runs.lengths
        for question in _questions(runs.session.model, sequence, number, length, answer)
    ]
    right = np.ones((len(given), len(runs.lengths)), dtype=bool)
    column = {length: place for place, length in enumerate(runs.lengths)}
    prompts = [question.ids for question in questions]
    said = ends(runs.session.model, prompts, chunk=chunk, progress=progress, label="answers").next.tolist()
    for question, token in zip(questions, said, strict=True):
        as_asked = over(token) if question.token is None else token == question.token
        right[question.sequence, column[question.length]] &= as_asked
    facts = {**runs.session.facts, "prompts": len(given), "sequences": [one.name for one in given][:8]}
    return xr.DataArray(
        right.mean(axis=0),
        dims=("length",),
        coords={"length": np.array(runs.lengths)},
        name="accuracy",
        attrs=attributes("share of prompts answered rightly, greedily", "1", facts),
    )


@dataclass(frozen=True)
class _Question:
    """What is said after `ids`: `token`, or, where the answer is over, whatever does not carry it on (`None`)."""

    sequence: int
    length: int
    ids: Ids
    token: int | None


def right_answer(model: Bridge, sequence: Tokens, length: int, answer: Answer) -> str:
    """What `answer` gives for the content at one length."""
    said = display_tokens(model, torch.tensor([sequence.said(length)]))[0]
    text = answer(tuple(token.strip() for token in said))
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"answer gave {text!r} at {length} content tokens.", "Let it give the right answer's text.")
    return text


def _questions(model: Bridge, sequence: Tokens, number: int, length: int, answer: Answer) -> list[_Question]:
    """One for each token of the right answer, and one for what follows it."""
    prompt = sequence.plain(length).ids(sequence.trunk)
    ids = behind(model, prompt[-1], right_answer(model, sequence, length, answer))
    tokens(model, torch.tensor((*prompt, *ids)), bos=sequence.bos)  # each fits the context and begins as it should
    return [_Question(number, length, (*prompt, *ids[:step]), token) for step, token in enumerate((*ids, None))]
