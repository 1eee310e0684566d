"""What tokens add to a text, and the tokens that continue a text: a token by itself is no text.

A space is part of a token, a character may take several tokens, and a decoder may leave out the first space of a text
(Llama 2) or write one between any two tokens (words). So tokens are decoded after those before them, and a text is
encoded as it follows others.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
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

    Of the text of the first tokens, the sign for an unfinished character is not in the whole text, and a real one is.
    """
    whole = decoded(tokenizer, ids)
    ends = range(1, len(ids) + 1)
    shared = [_shared(decoded(tokenizer, ids[:end]), whole) for end in ends]
    return [whole[start:end] for start, end in pairwise([0, *accumulate(shared, max)])]


def text_after(tokenizer: Any, ids: Sequence[int], more: Sequence[int]) -> str:
    """The text that `more` adds to the text of `ids`, without a space that belongs to no token."""
    return _text_added(tokenizer, ids, decoded(tokenizer, ids), more)


def _text_added(
    tokenizer: Any, ids: Sequence[int], text: str, more: Sequence[int]
) -> str:
    """The same for `ids` whose text is known."""
    whole = decoded(tokenizer, [*ids, *more])
    added = whole[_shared(text, whole) :]
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
    near = end_of(model, ids)
    prompt = decoded(tokenizer, near)
    for contexts in ([prompt], NEUTRAL):
        exact = _with_this_text(model, near, contexts, text)
        if exact:
            return exact
    tokens = _continuation(model, prompt, text)
    if tokens:
        # The tokenizer writes the text in another way, such as in lower case.
        return tokens
    nearest = text_after(tokenizer, near, encode(model, text))
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
    """The fewest ids that have exactly this text after `ids`, of those that it has after several contexts; or none."""
    tokenizer = require_tokenizer(model)
    exact: list[Ids] = []
    for context in contexts:
        tokens = _continuation(model, context, text)
        if tokens and text_after(tokenizer, ids, tokens) == text:
            exact.append(tokens)
    return min(exact, key=len, default=())


def end_of(model: Bridge, ids: Sequence[int]) -> Ids:
    """The last tokens of a prompt, from the start of a character on; without those that begin every text."""
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
    tokens = {*chain(*rows)}
    texts = {token: f"#{token}" for token in tokens}
    if model.tokenizer is not None:
        texts = _printable(model, tokens)
    return [list(map(texts.__getitem__, row)) for row in rows]


def _printable(model: Bridge, tokens: Iterable[int]) -> dict[int, str]:
    """The text of each token after other text, escaped."""
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
    return tuple(joint[len(before) :]) if joint[: len(before)] == before else ()


def _has_space(tokenizer: Any, token: int) -> bool:
    return str(tokenizer.convert_ids_to_tokens(token)).startswith(SPACES)


def _shared(text: str, whole: str) -> int:
    """The number of characters with which both texts begin."""
    if whole.startswith(text):
        return len(text)
    return len(commonprefix([text, whole]))  # noqa: RUF071 - letters are meant
