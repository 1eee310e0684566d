"""Where in a prompt something stands: positions for hooks and read-outs, by the token's own text."""

from collections.abc import Callable

from squashlens._typing import Bos, Bridge
from squashlens.errors import InputError
from squashlens.model.locks import exclusive
from squashlens.model.tokens import Prompts, display_tokens, require_tokenizer, tokens


@exclusive
def places(
    model: Bridge, prompt: Prompts, what: str | Callable[[str], bool], *, bos: Bos = "family"
) -> tuple[int, ...]:
    """Positions of one prompt's tokens that read exactly `what`, surrounding spaces apart, or of which `what` is true.

    Tokens read as in every result's `token` coordinate. Refuses a prompt without any.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> prompt = "Can you copy the following number? 110 ="
    >>> places(model, prompt, "1"), places(model, prompt, str.isdigit)
    ((8, 9), (8, 9, 10))
    """
    require_tokenizer(model)
    ids = tokens(model, prompt, bos=bos)
    if len(ids) != 1:
        raise InputError("places reads one prompt.", "Call it for each prompt.")
    texts = display_tokens(model, ids)[0]
    wanted = what if callable(what) else lambda text: text.strip() == what.strip()
    found = tuple(place for place, text in enumerate(texts) if wanted(text))
    if not found:
        asked = "what was asked for" if callable(what) else repr(what)
        raise InputError(f"No token of this prompt is {asked}.", f"Its tokens are {', '.join(map(repr, texts))}.")
    return found
