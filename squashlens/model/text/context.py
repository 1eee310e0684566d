"""What tokens add to a text, and the tokens that continue a text: a token by itself is no text.

A space is part of a token, a character may take several tokens, and a decoder may leave out the first space of a text
(Llama 2) or write one between any two tokens (words). So tokens are decoded after those before them, and a text is
encoded as it follows others.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from os.path import commonprefix
from typing import Any

from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bridge, short_repr
from squashlens.errors import InputError
from squashlens.model.text.start import start_of
from squashlens.model.text.tokens import encode, require_tokenizer
from squashlens.records.sentences import escape
from squashlens.sequences import Ids

UNFINISHED = "\ufffd"  # a decoder's sign for a part of a character
# How entries of a vocabulary begin that have a space of their own.
SPACES = (" ", "▁", "Ġ", "<0x20>")
# What a text is encoded after where it must not merge: none merges with all.
NEUTRAL = ("\n", "1", "a", ".", "")
NEAR = 64  # tokens at the end of a prompt that are encoded and decoded with the text after it


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of ids, with special tokens, and with every space that the decoder writes."""
    return str(
        tokenizer.decode(
            [*ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
    )


def texts_in_context(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds to those before it; "" for the first parts of a character. Joined, the whole text.

    A token's text ends where the text of all tokens up to it ends, or begins to differ from the whole text. So the sign
    that a decoder writes for an unfinished character is left out, unless the whole text has it too.
    """
    whole = decoded(tokenizer, ids)
    texts: list[str] = []
    start = 0
    for n_tokens in range(1, len(ids) + 1):
        # Never before the last end, even if a further token changes the text before it.
        end = max(start, _n_shared(decoded(tokenizer, ids[:n_tokens]), whole))
        texts.append(whole[start:end])
        start = end
    return texts


def text_after(tokenizer: Any, ids: Sequence[int], more: Sequence[int]) -> str:
    """The text that `more` adds to the text of `ids`, without a space that belongs to no token."""
    return _text_added(tokenizer, ids, decoded(tokenizer, ids), more)


def _text_added(
    tokenizer: Any, ids: Sequence[int], text: str, more: Sequence[int]
) -> str:
    """The text that `more` adds to `ids`, whose own text is `text`; see `text_after`."""
    whole = decoded(tokenizer, [*ids, *more])
    added = whole[_n_shared(text, whole) :]
    # Some decoders write a space between any two tokens.
    if text and added.startswith(" ") and not _has_space(tokenizer, more[0]):
        return added[1:]
    return added


def tokenize_after(model: Bridge, ids: Sequence[int], text: str) -> Ids:
    """The ids of `text` as it continues a prompt: those that the model would have to write after it.

    They are those that the prompt's text and `text` together have after the prompt's, unless the tokenizer merges the
    two. Then `text` is encoded after other text, so that its ids have this text after the prompt too.

    Args:
        ids: the ids of the prompt.

    Raises:
        InputError: no ids of the tokenizer have this text after the prompt.
    """
    if not text:
        return ()
    tokenizer = require_tokenizer(model)
    last_ids = end_of(model, ids)
    prompt = decoded(tokenizer, last_ids)
    for contexts in ([prompt], NEUTRAL):
        exact = _with_this_text(model, last_ids, contexts, text)
        if exact:
            return exact
    tokens = _continuation(model, prompt, text)
    if tokens:
        # The tokenizer writes the text in another way, such as in lower case.
        return tokens
    nearest = text_after(tokenizer, last_ids, encode(model, text))
    raise InputError(
        f"No tokens have the text {short_repr(text)} after a prompt that ends in {prompt[-20:]!r}.",
        f"Give {nearest!r}, which the tokenizer can write there, or token ids.",
    )


def tokenize_inside(model: Bridge, text: str) -> Ids:
    """The ids of `text` inside of another one: the fewest that have exactly this text there."""
    return _with_this_text(model, neutral(model), NEUTRAL, text) or tuple(
        encode(model, text)
    )


def _with_this_text(
    model: Bridge, ids: Sequence[int], contexts: Iterable[str], text: str
) -> Ids:
    """The fewest ids with exactly this text after `ids`; () if there are none.

    The text is encoded after each of the `contexts`, and those ids are tried.
    """
    tokenizer = require_tokenizer(model)
    exact: list[Ids] = []
    for context in contexts:
        tokens = _continuation(model, context, text)
        if tokens and text_after(tokenizer, ids, tokens) == text:
            exact.append(tokens)
    return min(exact, key=len, default=())


def end_of(model: Bridge, ids: Sequence[int]) -> Ids:
    """The last `NEAR` tokens of a prompt, or fewer: from the start of a character on, without those of every start."""
    tokenizer = require_tokenizer(model)
    start = start_of(model).ids
    ids = tuple(ids)
    if ids[: len(start)] == start:
        ids = ids[len(start) :]
    for begin in range(max(0, len(ids) - NEAR), len(ids)):
        if not decoded(tokenizer, ids[begin:]).startswith(UNFINISHED):
            return ids[begin:]
    return ids


def neutral(model: Bridge) -> Ids:
    """The ids of a short text, to decode other tokens after."""
    for text in NEUTRAL:
        try:
            return tuple(encode(model, text))
        except InputError:  # as of words that a tokenizer does not know
            continue
    return ()


def display_tokens(
    model: Bridge, ids: Int[Tensor, "prompt position"]
) -> list[list[str]]:
    """Each token as printable text with its own space; control characters escaped, parts of a character in raw form."""
    rows = ids.tolist()
    different = set(chain(*rows))  # each is decoded once
    texts = {token: f"#{token}" for token in different}
    if model.tokenizer is not None:
        texts = _printable(model, different)
    return [[texts[token] for token in row] for row in rows]


def _printable(model: Bridge, tokens: Iterable[int]) -> dict[int, str]:
    """The text of each token after other text, escaped; ``⟨entry⟩`` for a token without text or part of a character."""
    tokenizer: Any = model.tokenizer
    before = neutral(model)
    before_text = decoded(tokenizer, before)
    texts: dict[int, str] = {}
    for token in tokens:
        text = _text_added(tokenizer, before, before_text, [token])
        if UNFINISHED in text or not text:
            text = f"⟨{tokenizer.convert_ids_to_tokens(token)}⟩"
        texts[token] = escape(text)
    return texts


def _continuation(model: Bridge, context: str, text: str) -> Ids:
    """The ids that `text` adds to those of a context; none if they change, or the tokenizer cannot encode them."""
    try:
        before = encode(model, context) if context else []
        joint = encode(model, context + text)
    except InputError:
        return ()
    if joint[: len(before)] != before:
        return ()
    return tuple(joint[len(before) :])


def _has_space(tokenizer: Any, token: int) -> bool:
    return str(tokenizer.convert_ids_to_tokens(token)).startswith(SPACES)


def _n_shared(text: str, whole: str) -> int:
    """The number of characters with which both texts begin."""
    if whole.startswith(text):
        return len(text)
    return len(commonprefix([text, whole]))  # noqa: RUF071 - letters are meant
