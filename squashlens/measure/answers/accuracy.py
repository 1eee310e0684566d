"""Next tokens: accuracy on growing sequences by greedy decoding, and the most likely tokens after a prompt."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bridge
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.capturing.pairs import prepare_run
from squashlens.engine.native import n_outcomes, outputs_are_tokens
from squashlens.engine.running.forward import next_logits
from squashlens.engine.running.last_tokens import at_last_tokens
from squashlens.engine.text.tokens import display_tokens, require_tokenizer, tokenize
from squashlens.errors import InputError
from squashlens.measure.collapse.metric import sequence_session
from squashlens.measure.session import Session, measurement
from squashlens.prompts import tokenize_after
from squashlens.sequences import GrowingSequence, Ids

# Computes the text of the right answer from the texts of the content tokens.
Answer = Callable[[tuple[str, ...]], str]


@measurement(command=False)
def accuracy(
    model: Bridge,
    sequence: GrowingSequence | Iterable[GrowingSequence],
    answer: Answer,
    *,
    lengths: Iterable[int] | None = None,
) -> xr.DataArray:
    """The share of sequences that the model answers correctly at each length, with greedy decoding and current hooks.

    The prompt at length n is the sequence up to its n-th content token, and the suffix. The answer is correct if greedy
    decoding gives the tokens of `answer`, and then a token that does not start with a letter or digit. Therefore 12
    does not count as the answer 1.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        sequence: a growing sequence from `squashlens.prompts`, or several with equal numbers of content tokens;
            `GrowingSequence.unrelated` draws others of the same form.
        answer: function from the texts of the content tokens to the text of the right answer.
        lengths: numbers of content tokens, in increasing order; all from 1 by default.

    Returns:
        DataArray (length), dimensionless: the share of correct answers.

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
    if not all(isinstance(one, GrowingSequence) for one in given) or len({len(one) for one in given}) != 1:
        raise InputError(
            "sequence= has parts that are not growing sequences with equal numbers of content tokens.",
            "Give at least one sequence from `squashlens.prompts`, all with the same number of content tokens.",
        )
    run = prepare_run(model, given[0], lengths, "separate", tokens_per_pass=None)
    session = sequence_session(run.model, run, "accuracy")
    right = answered_right(run.model, given, answer, run.lengths)
    facts = {"prompts": len(given), "sequences": [one.name for one in given][:8]}
    shares = (("length",), right.mean(axis=0), "share of right answers, greedy decoding", "1")
    return session.array("accuracy", {"length": np.array(run.lengths)}, shares, **facts)


def answered_right(
    model: Bridge, sequences: Sequence[GrowingSequence], answer: Answer, lengths: Sequence[int]
) -> np.ndarray:
    """Whether each sequence is answered correctly at each length: truth values of shape (sequence, length)."""
    tokenizer = require_tokenizer(model)
    if not outputs_are_tokens(model):
        raise InputError(
            "The outputs of this model are not tokens, so that it cannot give an answer in text.", "Use `top_tokens`."
        )
    special = set(tokenizer.all_special_ids)

    def ends_answer(token: int) -> bool:
        return token in special or not tokenizer.decode([token])[:1].isalnum()

    questions = [
        (row, column, *question)
        for row, sequence in enumerate(sequences)
        for column, length in enumerate(lengths)
        for question in _questions(model, sequence, length, answer)
    ]
    prompts = [ids for *_, ids, _ in questions]
    predicted = at_last_tokens(model, prompts, label="answers").next.tolist()
    right = np.ones((len(sequences), len(lengths)), dtype=bool)
    for (row, column, _, token), said in zip(questions, predicted, strict=True):
        right[row, column] &= ends_answer(said) if token is None else said == token
    return right


def right_answer(model: Bridge, sequence: GrowingSequence, length: int, answer: Answer) -> str:
    """The text of the right answer that `answer` gives for the content at one length."""
    content = display_tokens(model, torch.tensor([sequence.content_at(length)]))[0]
    text = answer(tuple(token.strip() for token in content))
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"answer= gave {text!r} for {length} content tokens.", "Return the text of the right answer, not empty."
        )
    return text


def _questions(model: Bridge, sequence: GrowingSequence, length: int, answer: Answer) -> list[tuple[Ids, int | None]]:
    """A prompt for each token of the right answer, and one for the token after it, where any that ends it is right."""
    prompt = sequence.plain(length).ids(sequence.trunk)
    ids = tokenize_after(model, prompt[-1], right_answer(model, sequence, length, answer))
    tokenize(model, torch.tensor((*prompt, *ids)))  # checks the context
    return [((*prompt, *ids[:step]), token) for step, token in enumerate((*ids, None))]


@measurement("top_tokens")
def top_tokens(model: Bridge, prompt: PromptOrCapture, *, k: int = 3) -> xr.DataArray:
    """The `k` most likely next tokens after a prompt, and their probabilities.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompt: the prompt as text or token ids of shape (position), or a `capture` of it; a single prompt.
        k: number of tokens, from 1 to the size of the vocabulary; 3 by default.

    Returns:
        DataArray (rank), dimensionless: the probabilities in decreasing order, with the coordinates `token` and
        `token_id`.

    Raises:
        InputError: several prompts, or a `k` above the size of the vocabulary.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> str(sl.top_tokens(model, "What is the last digit in this sequence? 0007 =")["token"].values[0])
    '7'
    """
    session = Session.start(model, prompt, "top_tokens", k=k)
    session.require_one()
    most = n_outcomes(session.model)
    if not 1 <= k <= most:
        raise InputError(f"k={k!r} is not a number of tokens of this model.", f"Give a number from 1 to {most}.")
    with torch.no_grad():
        logits = next_logits(session.model, session.ids)
    best = logits[0].double().softmax(dim=-1).topk(k)
    ids = best.indices[None]
    known = outputs_are_tokens(session.model)  # those of a compiled program are not, and have no text
    texts = display_tokens(session.model, ids)[0] if known else [f"#{int(i)}" for i in ids[0]]
    tokens = {"token": ("rank", np.array(texts, dtype=object)), "token_id": ("rank", ids[0].cpu().numpy())}
    coords = {"rank": np.arange(k), **tokens}
    return session.array("top_tokens", coords, (("rank",), best.values, "probability of the next token", "1"))
