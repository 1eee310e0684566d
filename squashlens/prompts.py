"""Sequences in token space: what is repeated, what separates, what stands before and after.

Text is tokenised once, piece by piece, and everything else is done on ids: a tokenizer may merge digits or
swallow a space, and a pair that is not a pair measures nothing. `Sequence.pair(n)` gives the pair of Theorem 4.2
at n content tokens: v, and v* with the last content token repeated; both end in the suffix, where they are read.
"""

from collections.abc import Sequence as Items
from random import Random
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bos, Bridge, Template, one_of, positive, shown
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.model.branches import Ids
from squashlens.model.locks import exclusive
from squashlens.model.tokens import as_chat, encode, require_tokenizer, start_ids
from squashlens.paper import COPY, COUNT
from squashlens.sequences import Pair, Sequence

__all__ = [
    "Pair",
    "Sequence",
    "alternating",
    "bernoulli",
    "build",
    "digits",
    "figure5",
    "one_token",
    "repeated",
    "stacked",
    "words",
]

Token = str | int
DIGITS = tuple("0123456789")


@exclusive
def repeated(model: Bridge, token: Token, n: int, **form: Any) -> Sequence:
    """The same token n times: figure 5 (a) and (c). Keywords as in `build`."""
    return build(model, [token] * _checked(n), name=f"{token} repeated", **form)


@exclusive
def alternating(model: Bridge, n: int, *, alphabet: Items[Token] = ("1", "0"), **form: Any) -> Sequence:
    """The tokens of `alphabet` in turn: 1 0 1 0 …"""
    if not alphabet:
        raise InputError("alphabet is empty: there are no tokens to alternate.", "Give at least two.")
    content = [alphabet[i % len(alphabet)] for i in range(_checked(n))]
    return build(model, content, name="alternating", alphabet=alphabet, **form)


@exclusive
def bernoulli(
    model: Bridge, n: int, *, seed: int, p: float = 0.7, alphabet: Items[Token] = ("0", "1"), **form: Any
) -> Sequence:
    """Independent draws: the second token of `alphabet` with probability p, else the first."""
    if len(alphabet) != 2 or not 0 <= p <= 1:
        raise InputError(f"p={p!r} over {len(alphabet)} tokens is no Bernoulli draw.", "Use 0 ≤ p ≤ 1 and two tokens.")
    rng = Random(seed)
    content = [alphabet[rng.random() < p] for _ in range(_checked(n))]
    return build(model, content, name=f"Bernoulli({p:g}), seed {seed}", alphabet=alphabet, **form)


@exclusive
def digits(model: Bridge, n: int, *, seed: int, **form: Any) -> Sequence:
    """Independent draws from the ten digits: figure 5 (b)."""
    return words(model, n, DIGITS, seed=seed, **form)


@exclusive
def words(model: Bridge, n: int, alphabet: Items[Token], *, seed: int, **form: Any) -> Sequence:
    """Independent draws with equal probabilities from a list of words, each of which must be one token."""
    if not alphabet:
        raise InputError("There are no words to draw from.", "Give at least one.")
    rng = Random(seed)
    content = [rng.choice(alphabet) for _ in range(_checked(n))]
    return build(model, content, name=f"uniform draws, seed {seed}", alphabet=alphabet, **form)


@exclusive
def figure5(model: Bridge, n: int, *, seed: int = 0, **form: Any) -> dict[str, Sequence]:
    """The four panels of figure 5, by letter: ones and sampled digits to count, ones and ones with commas to copy.

    In (b) the last digit is whatever was drawn and is repeated; the paper's sequences end in ones, which is
    ``ending="1"``. The comma of (d) follows every third digit.
    """
    return {
        "a": repeated(model, "1", n, prompt=COUNT, **form),
        "b": digits(model, n, seed=seed, prompt=COUNT, **form),
        "c": repeated(model, "1", n, prompt=COPY, **form),
        "d": repeated(model, "1", n, prompt=COPY, separator=",", every=3, **form),
    }


@exclusive
def build(
    model: Bridge,
    content: Items[Token],
    *,
    name: str = "given content",
    prompt: str | Items[int] = "",
    suffix: str | Items[int] = "",
    separator: Token | None = None,
    every: int = 3,
    ending: Token | None = None,
    alphabet: Items[Token] | None = None,
    template: Template = "none",
    bos: Bos = "family",
) -> Sequence:
    """A `Sequence` from content tokens, each given as text that is one token, or as an id.

    Args:
        prompt: what stands before the content; text is tokenised once, ids are taken as they are.
        suffix: what stands behind it; text is tokenised as it comes after a content token.
        separator: a token to put after every `every`-th content token.
        ending: the last content token at every length; by default whichever the content has there.
        alphabet: tokens for contrasts and unrelated sequences; the ten digits where the content is digits,
            otherwise the tokens that occur in it.
        template: ``"chat"`` wraps prompt, content and suffix in the tokenizer's chat template as one user
            message and ends where the model would answer.
        bos: ``"family"``, ``"one"``, ``"none"``; with a chat template or ids, what is there must agree.

    Refuses: content that is not one token each, text the tokenizer merges with the content.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.build(model, "111", prompt="How many ones are in the following sequence?", suffix="=")
    >>> text = sl.tokens(model, "How many ones are in the following sequence? 111 =")
    >>> tuple(text[0].tolist()) == ones.pair(3).v
    True
    """
    one_of(template, Template, "template")
    if not content:
        raise InputError("The sequence has no content.", "Give at least one token.")
    ids = tuple(one_token(model, token) for token in content)
    if alphabet is None:
        alphabet = DIGITS if set(content) <= set(DIGITS) else tuple(dict.fromkeys(content))
    lead, tail = _around(model, prompt, suffix, ids[0], template, bos)
    plain = Sequence(
        name=name,
        content=ids,
        alphabet=tuple(one_token(model, t) for t in alphabet),
        prefix=lead,
        suffix=tail,
        ending=None if ending is None else one_token(model, ending),
        bos=bos,
    )
    return plain if separator is None else plain.every(every, one_token(model, separator))


@validated
def stacked(sequences: Items[Sequence]) -> Int[Tensor, "prompt position"]:
    """The ids of several sequences of the same form, each at its full length and with its suffix, one below the other.

    Refuses sequences that are not equally long.
    """
    rows = [sequence.plain(len(sequence)).ids(sequence.trunk) for sequence in sequences]
    if len({len(row) for row in rows}) != 1:
        raise InputError(f"The sequences have {sorted({len(r) for r in rows})} tokens.", "Stack those of one length.")
    return torch.tensor(rows)


def _checked(n: int) -> int:
    positive(n, "n", "a number of content tokens")
    return n


@exclusive
def one_token(model: Bridge, token: Token) -> int:
    """The id of a token given as text or as an id; text that is several tokens is refused."""
    if not isinstance(token, str):
        return int(token)
    known = require_tokenizer(model).get_vocab()
    if token in known:  # a tokenizer that leads with a space would make two tokens of a bare digit
        return known[token]
    ids = encode(model, token)
    if len(ids) != 1:
        raise InputError(
            f"{shown(token)} is {len(ids)} tokens for this tokenizer.", "Use text that is one token, or give the id."
        )
    return ids[0]


def _around(
    model: Bridge, prompt: str | Items[int], suffix: str | Items[int], token: int, template: Template, bos: Bos
) -> tuple[Ids, Ids]:
    """Prefix with its BOS, and suffix, as ids."""
    if template == "chat":
        if not (isinstance(prompt, str) and isinstance(suffix, str)):
            raise InputError("A chat template wraps text, not ids.", "Give prompt= and suffix= as text.")
        before, after = _render(model, prompt, suffix)
        return tuple(encode(model, before)), behind(model, token, after)
    trailing = behind(model, token, suffix) if isinstance(suffix, str) else tuple(suffix)
    if not isinstance(prompt, str):
        return tuple(prompt), trailing
    return (*start_ids(model, bos), *(encode(model, prompt) if prompt.strip() else ())), trailing


MARK = "\ue000"  # a private-use character: where the content goes while a template is rendered


def _render(model: Bridge, prompt: str, suffix: str) -> tuple[str, str]:
    text = as_chat(model, f"{prompt}{MARK}{suffix}")
    if text.count(MARK) != 1:
        raise InputError(
            f"The chat template shows the message {text.count(MARK)} times.", "Give prefix and suffix as ids."
        )
    before, after = text.split(MARK)
    return before, after


def behind(model: Bridge, token: int, text: str) -> Ids:
    """`text` tokenised as it comes behind a token: alone, some tokenizers would lead with a space."""
    if not text:
        return ()
    content = require_tokenizer(model).decode([token])
    alone, joint = encode(model, content), encode(model, content + text)
    if joint[: len(alone)] != alone or alone[-1] != token:
        raise InputError(f"The tokenizer merges {content!r} with the text behind it.", "Give that text as ids.")
    return tuple(joint[len(alone) :])
