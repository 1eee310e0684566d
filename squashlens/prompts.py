"""Make growing sequences of tokens: repeated content, separators, and a prefix and suffix around it.

Text is tokenized once, piece by piece, and everything else is done on token ids. A tokenizer may merge digits or drop a
space, and then two texts that look like the pair of Theorem 4.2 are no pair of token sequences.
`GrowingSequence.pair(n)` gives the pair at n content tokens: v, and v* with the last content token repeated. Both end
in the suffix, at whose last token representations are compared.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from typing_extensions import TypeAliasType

from squashlens._typing import Bridge, Template, positive, short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.model.proof import without_passes
from squashlens.model.text import context, tokens
from squashlens.model.text.start import start_of
from squashlens.model.text.tokens import encode, tokenize
from squashlens.remarks import remark
from squashlens.sequences import GrowingSequence, Ids, Pair
from squashlens.tasks.paper import COPY, COUNT

__all__ = [
    "GrowingSequence",
    "Pair",
    "bernoulli",
    "build",
    "digits",
    "figure5",
    "one_token",
    "repeated",
    "stacked",
    "tokenize",
    "words",
]

Token = str | int
# What stands before or after the content.
Lead = TypeAliasType("Lead", str | Sequence[int])
DIGITS = tuple("0123456789")
EVERY = 3  # content tokens between separators, as in the paper
# A private-use character that marks the place of the content while a template is rendered.
MARK = "\ue000"


class Surroundings(NamedTuple):
    """What stands around and between content tokens, as the arguments of `build` say it."""

    prefix: Lead
    suffix: Lead
    separator: Token | None
    every: int
    ending: Token | None
    template: Template


def __dir__() -> list[str]:
    return [*__all__]


@without_passes
def repeated(
    model: Bridge,
    token: Token,
    n: int,
    *,
    prefix: Lead = "",
    suffix: Lead = "",
    separator: Token | None = None,
    every: int = EVERY,
    ending: Token | None = None,
    alphabet: Sequence[Token] | None = None,
    template: Template = "none",
) -> GrowingSequence:
    """A sequence of the same token n times: figure 5 (a) and (c).

    Args:
        model: the model whose tokenizer is used.
        token: text that is one token, with its own space as in ``" one"`` or without one; or a token id.
        n: number of content tokens.
        prefix, suffix, separator, every, ending, alphabet, template: as in `build`.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ones = sl.prompts.repeated(model, "1", 50, prefix="Can you copy the following number?", suffix="=")
    >>> len(ones)
    50
    """
    positive(n, "n", "a number of content tokens")
    around = Surroundings(prefix, suffix, separator, every, ending, template)
    return _sequence(model, f"{token} repeated", [token] * n, alphabet, around)


@without_passes
def bernoulli(
    model: Bridge,
    n: int,
    *,
    seed: int,
    p: float = 0.7,
    alphabet: Sequence[Token] = ("0", "1"),
    prefix: Lead = "",
    suffix: Lead = "",
    separator: Token | None = None,
    every: int = EVERY,
    ending: Token | None = None,
    template: Template = "none",
) -> GrowingSequence:
    """A sequence of independent draws: the second token of `alphabet` with probability p, otherwise the first.

    Args:
        model, n: as in `repeated`.
        seed: random seed of the draws.
        p: probability of the second token, from 0 to 1.
        alphabet: two tokens, each as text that is one token, or as an id.
        prefix, suffix, separator, every, ending, template: as in `build`.
    """
    if len(alphabet) != 2 or not 0 <= p <= 1:
        raise InputError(
            f"p={p!r} and an alphabet of {len(alphabet)} tokens define no Bernoulli draw.",
            "Use a p from 0 to 1 and two tokens.",
        )
    positive(n, "n", "a number of content tokens")
    rng = _generator(seed)
    content = []
    for _ in range(n):
        is_second = rng.random() < p
        content.append(alphabet[int(is_second)])
    around = Surroundings(prefix, suffix, separator, every, ending, template)
    name = f"Bernoulli({p:g}), seed {seed}"
    return _sequence(model, name, content, alphabet, around)


@without_passes
def digits(
    model: Bridge,
    n: int,
    *,
    seed: int,
    prefix: Lead = "",
    suffix: Lead = "",
    separator: Token | None = None,
    every: int = EVERY,
    ending: Token | None = None,
    template: Template = "none",
) -> GrowingSequence:
    """A sequence of independent draws from the ten digits, with equal probabilities: figure 5 (b).

    Args:
        model, n: as in `repeated`.
        seed: random seed of the draws.
        prefix, suffix, separator, every, ending, template: as in `build`.
    """
    around = Surroundings(prefix, suffix, separator, every, ending, template)
    return _uniform_draws(model, n, DIGITS, seed, around)


@without_passes
def words(
    model: Bridge,
    n: int,
    alphabet: Sequence[Token],
    *,
    seed: int,
    prefix: Lead = "",
    suffix: Lead = "",
    separator: Token | None = None,
    every: int = EVERY,
    ending: Token | None = None,
    template: Template = "none",
) -> GrowingSequence:
    """A sequence of independent draws from a list of words, with equal probabilities.

    Args:
        model, n: as in `repeated`.
        alphabet: the words, each as text that is one token, or as an id.
        seed: random seed of the draws.
        prefix, suffix, separator, every, ending, template: as in `build`.
    """
    around = Surroundings(prefix, suffix, separator, every, ending, template)
    return _uniform_draws(model, n, alphabet, seed, around)


@without_passes
def figure5(
    model: Bridge,
    n: int,
    *,
    seed: int = 0,
    suffix: Lead = "",
    ending: Token | None = None,
    template: Template = "none",
) -> dict[str, GrowingSequence]:
    """The four sequences of figure 5, by the letter of their panel.

    They are ones to count (a), random digits to count (b), ones to copy (c), and ones with commas to copy (d). In (b)
    the repeated token is the last digit drawn. The paper's sequences end in ones; ``ending="1"`` does the same. In (d)
    a comma follows every third digit.

    Args:
        model, n: as in `repeated`.
        seed: random seed of the digits in (b).
        suffix, ending, template: as in `build`.

    Returns:
        The sequences under the keys ``"a"``, ``"b"``, ``"c"`` and ``"d"``.
    """
    form: dict[str, Any] = {"suffix": suffix, "ending": ending, "template": template}
    return {
        "a": repeated(model, "1", n, prefix=COUNT, **form),
        "b": digits(model, n, seed=seed, prefix=COUNT, **form),
        "c": repeated(model, "1", n, prefix=COPY, **form),
        "d": repeated(model, "1", n, prefix=COPY, separator=",", **form),
    }


@without_passes
def build(
    model: Bridge,
    content: Sequence[Token],
    *,
    prefix: Lead = "",
    suffix: Lead = "",
    separator: Token | None = None,
    every: int = EVERY,
    ending: Token | None = None,
    alphabet: Sequence[Token] | None = None,
    template: Template = "none",
) -> GrowingSequence:
    """A `GrowingSequence` from given content tokens, with a prefix, a suffix and separators.

    Args:
        model: the model whose tokenizer is used; with token ids everywhere, a model without a tokenizer works too.
        content: the content tokens, each as text that is one token, or as a token id.
        prefix: text or token ids before the content. Text is tokenized once and begins as the tokenizer begins a text;
            ids are used unchanged, such as those of ``tokenize(model, text, bos="none")[0]``.
        suffix: text or token ids after the content. Text is tokenized as it follows a content token.
        separator: a token to insert between content tokens; none by default.
        every: number of content tokens between separators, 3 by default.
        ending: the last content token at every length; by default the one that the content has there.
        alphabet: tokens that contrasts and unrelated sequences are drawn from. By default the ten digits if the content
            consists of digits, otherwise the tokens that occur in the content.
        template: ``"chat"`` wraps prefix, content and suffix in the tokenizer's chat template as one user message, and
            ends where the model would answer; ``"none"`` uses no template.

    Returns:
        The sequence.

    Raises:
        InputError: if a content text is not one token, or the tokenizer cannot write the suffix after the content.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ones = sl.prompts.build(model, "111", prefix="How many ones are in the following sequence?", suffix="=")
    >>> text = sl.prompts.tokenize(model, "How many ones are in the following sequence? 111 =")
    >>> tuple(text[0].tolist()) == ones.pair(3).v
    True
    """
    around = Surroundings(prefix, suffix, separator, every, ending, template)
    return _sequence(model, "given content", content, alphabet, around)


def _uniform_draws(
    model: Bridge, n: int, alphabet: Sequence[Token], seed: int, around: Surroundings
) -> GrowingSequence:
    """A sequence of n tokens of an alphabet, drawn with equal probabilities."""
    positive(n, "n", "a number of content tokens")
    if not alphabet:
        raise InputError("alphabet= is empty.", "Give at least one token.")
    rng = _generator(seed)
    content = [rng.choice(alphabet) for _ in range(n)]
    name = f"uniform draws, seed {seed}"
    return _sequence(model, name, content, alphabet, around)


def _generator(seed: int) -> Random:
    """A random generator; a negative seed would draw what the positive one draws."""
    positive(seed, "seed", "a random seed", or_zero=True)
    return Random(seed)


def _sequence(
    model: Bridge,
    name: str,
    content: Sequence[Token],
    alphabet: Sequence[Token] | None,
    around: Surroundings,
) -> GrowingSequence:
    """A sequence of given content tokens under the name that results give it.

    `alphabet` may be None, which stands for the ten digits or the tokens of the content; see `build`.
    """
    if around.separator is None and around.every != EVERY:
        raise InputError(
            f"every={around.every} has no effect without a separator.",
            "Leave it out, or give one.",
        )
    if not content:
        raise InputError("content= is empty.", "Give at least one token.")
    distinct = tuple(dict.fromkeys(content))
    id_of = {token: one_token(model, token) for token in distinct}
    if alphabet is None:
        alphabet = DIGITS if set(distinct) <= set(DIGITS) else distinct
    # A suffix is tokenized as it follows a content token; the first one stands for all.
    prefix, suffix = _prefix_and_suffix(model, around, id_of[content[0]])
    sequence = GrowingSequence(
        name=name,
        content=tuple(id_of[token] for token in content),
        alphabet=tuple(one_token(model, token) for token in alphabet),
        prefix=prefix,
        suffix=suffix,
        ending=None if around.ending is None else one_token(model, around.ending),
    )
    if around.separator is not None:
        separator = one_token(model, around.separator)
        sequence = sequence.every(around.every, separator)
    return replace(sequence, texts=tokens.vocabulary_of(model, sequence.used))


@validated
def stacked(sequence: Sequence[GrowingSequence]) -> Int[Tensor, "prompt position"]:
    """The token ids of several sequences as the rows of one tensor, each sequence at its full length.

    Args:
        sequence: several sequences with the same number of tokens.

    Returns:
        Token ids, of shape (prompt, position), suffixes included.

    Raises:
        InputError: if the sequences do not all have the same number of tokens.
    """
    rows = []
    for growing in sequence:
        rows.append(growing.plain(len(growing)).ids(growing.trunk))
    lengths = set(map(len, rows))
    if len(lengths) != 1:
        raise InputError(
            f"The sequences have different numbers of tokens: {sorted(lengths)}.",
            "Stack at least one sequence, all of one length.",
        )
    return torch.tensor(rows)


@without_passes
def one_token(model: Bridge, token: Token) -> int:
    """The id of a token that is given as text or as an id.

    Text is encoded as it stands inside a prompt, with its own space or without one (``" one"`` or ``"one"``), and never
    looked up in the vocabulary: some entries, such as the bytes of a character, have names that look like other texts.

    Args:
        model, token: as in `repeated`.

    Raises:
        InputError: if the text is several tokens, or not known to the tokenizer.
    """
    if not isinstance(token, str):
        return int(token)
    ids = context.tokenize_inside(model, token)
    if len(ids) != 1:
        raise InputError(
            f"{short_repr(token)} is {len(ids)} tokens for this tokenizer.",
            "Give text that is one token, such as a word with the space before it, or a token id.",
        )
    return ids[0]


def _prefix_and_suffix(
    model: Bridge, around: Surroundings, first: int
) -> tuple[Ids, Ids]:
    """Token ids of the prefix, with its BOS token, and of the suffix as it follows a content token.

    `first` is the id of the first content token, which stands for all of them here.
    """
    prefix = around.prefix
    suffix = around.suffix
    if around.template == "chat":
        if not (isinstance(prefix, str) and isinstance(suffix, str)):
            raise InputError(
                "A chat template wraps text, not token ids.",
                "Give prefix= and suffix= as text.",
            )
        # The template is rendered with a mark in place of the content, and cut there.
        chat = tokens.as_chat(model, f"{prefix}{MARK}{suffix}")
        if chat.count(MARK) != 1:
            raise InputError(
                f"The tokenizer's chat template contains the message {chat.count(MARK)} times instead of once.",
                "Use template='none', with prefix= and suffix= as token ids.",
            )
        before, suffix = chat.split(MARK)
        prefix_ids = tuple(encode(model, before))
    elif isinstance(prefix, str):
        prefix_ids = tuple(start_of(model).ids)
        if prefix.strip():
            prefix_ids += tuple(encode(model, prefix))
    else:
        prefix_ids = tuple(int(token_id) for token_id in prefix)
    if isinstance(suffix, str):
        return prefix_ids, context.tokenize_after(model, (*prefix_ids, first), suffix)
    return prefix_ids, tuple(suffix)


def answers_after(model: Bridge, ids: Sequence[int], texts: Sequence[str]) -> list[Ids]:
    """Token ids of different answers as they follow a prompt, for all measurements of one spelling.

    Raises if an answer is empty, or begins another one, than which it could then never be less likely. Warns of one
    that continues the last word of the prompt, if it has no fewer tokens than with a space before it.
    """
    answers = [context.tokenize_after(model, ids, text) for text in texts]
    # An empty answer begins every other one.
    for first, second in permutations(range(len(texts)), 2):
        if answers[second][: len(answers[first])] == answers[first]:
            raise InputError(
                f"The answer {texts[first]!r} is the same as {texts[second]!r}, empty, or its beginning.",
                "Give different answers, each with what the model writes after it, such as '9<eos>' and '90<eos>'.",
            )
    if not all(answers):
        raise InputError("The answer is empty.", "Give its text.")
    if not _ends_in_a_word(model, ids):
        return answers
    for text, answer in zip(texts, answers, strict=True):
        if not text[0].isalnum():
            continue
        with_space = context.tokenize_after(model, ids, f" {text}")
        if with_space != answer and len(with_space) <= len(answer):
            remark(
                f"{text!r} is measured without a space before it. For an answer that is a word, give ' {text}'."
            )
            break
    return answers


def _ends_in_a_word(model: Bridge, ids: Sequence[int]) -> bool:
    """Whether a prompt ends in a letter, a digit, or a mark that a space usually follows."""
    tokenizer = tokens.require_tokenizer(model)
    last = context.decoded(tokenizer, context.end_of(model, ids))[-1:]
    return last.isalnum() or last in set(".,:;?!")
