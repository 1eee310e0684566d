"""Positions of given tokens in a prompt, found by the tokens' text, for hooks and readouts."""

from collections.abc import Callable

from squashlens._typing import Bos, Bridge
from squashlens.engine.locks import exclusive
from squashlens.engine.text.tokens import Prompts, display_tokens, require_tokenizer, tokenize
from squashlens.errors import InputError


@exclusive
def find_positions(
    model: Bridge, prompt: Prompts, token: str | Callable[[str], bool], *, bos: Bos = "family"
) -> tuple[int, ...]:
    """Positions of the tokens of a prompt that equal a given text, or for which a given function is true.

    Args:
        model: a model with a tokenizer.
        prompt: one prompt, as text or token ids.
        token: the text of a token, compared without surrounding spaces; or a function from a token's text to True or
            False. The text of a token is the one in the `token` coordinate of every result.
        bos: how the prompt gets its BOS token, as in `squashlens.prompts.tokenize`.

    Returns:
        The positions, counted from 0, in ascending order.

    Raises:
        InputError: if no token fits, or if there are several prompts.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> prompt = "Can you copy the following number? 110 ="
    >>> sl.hooks.find_positions(model, prompt, "1"), sl.hooks.find_positions(model, prompt, str.isdigit)
    ((8, 9), (8, 9, 10))
    """
    require_tokenizer(model)
    ids = tokenize(model, prompt, bos=bos)
    if len(ids) != 1:
        raise InputError(f"find_positions takes one prompt, and there are {len(ids)}.", "Call it once for each prompt.")
    texts = display_tokens(model, ids)[0]
    wanted = token if callable(token) else lambda text: text.strip() == token.strip()
    found = tuple(place for place, text in enumerate(texts) if wanted(text))
    if not found:
        wanted_text = "one for which token= is true" if callable(token) else repr(token)
        raise InputError(f"No token of this prompt is {wanted_text}.", f"Its tokens are {', '.join(map(repr, texts))}.")
    return found
