"""Texts that repeat something, as ids: what is written, what belongs to the text, what one repeat more changes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch

from squashlens._typing import Bridge, positive, shown
from squashlens.errors import InputError
from squashlens.model.branches import Ids
from squashlens.model.tokens import display_tokens, encode, escape, require_tokenizer
from squashlens.results import Variable

BETWEEN = "·"  # stands between the pieces of a text where they are shown in a row
SPACE = "␣"


@dataclass(frozen=True)
class Text:
    """A text of some repeats: as written, as ids behind the prompt's own, and where the text's own ids start."""

    repeats: int
    written: str
    ids: Ids
    start: int

    @property
    def content(self) -> Ids:
        return self.ids[self.start :]


@dataclass(frozen=True)
class _Holder:
    """A tokenizer without its model, held as `squashlens.model.tokens` wants it."""

    tokenizer: Any


def held_by(given: Any) -> Bridge:
    """What has the tokenizer: a model, or a holder of a tokenizer given by itself."""
    if hasattr(given, "tokenizer"):
        require_tokenizer(given)
        return given
    if not (callable(given) and hasattr(given, "get_vocab") and hasattr(given, "convert_ids_to_tokens")):
        raise InputError(
            f"{type(given).__name__} is no Hugging Face tokenizer and no model that has one.",
            "Give `AutoTokenizer.from_pretrained(…)`, or `PreTrainedTokenizerFast(tokenizer_object=…)` around it.",
        )
    return cast(Bridge, _Holder(given))


def written_texts(held: Bridge, n: Any, repeat: Any, forms: Any, prompt: Any) -> dict[str, list[Text]]:
    """The texts of 1 … n + 1 repeats in every form."""
    positive(n, "n", "a number of repeats")
    if not isinstance(repeat, str) or not repeat.strip():
        raise InputError(f"repeat={repeat!r} is nothing to write.", "Give a digit or a word, such as '1' or 'one'.")
    if not isinstance(prompt, str):
        raise InputError(
            f"prompt={prompt!r} is not text.", "Tokenisation is a matter of text: give the prompt as it reads."
        )
    named = isinstance(forms, Mapping) and all(isinstance(t, str) for pair in forms.items() for t in pair)
    if not named or not forms:
        raise InputError(
            f"forms={shown(forms)} does not say what is written between repeats.",
            "Give names with texts: forms={'joined': '', 'spaced': ' '}.",
        )
    for form, between in forms.items():
        both = f"{repeat}{between}{repeat}"
        if between and sum(both.startswith(repeat, place) for place in range(len(both))) > 2:
            raise InputError(
                f"In {both!r}, the form {form!r}, there are more than two {repeat!r}.", "Write something else between."
            )
        if between.strip():
            _encoded(held, form, between)  # a tokenizer without bytes would leave it out and not say so
    before = tuple(encode(held, prompt)) if prompt.strip() else ()
    return {
        form: [_text(held, form, k, between.join([repeat] * k), prompt, before) for k in range(1, n + 2)]
        for form, between in forms.items()
    }


def _text(held: Bridge, form: str, repeats: int, written: str, prompt: str, before: Ids) -> Text:
    """One text behind its prompt. Its own tokens begin where the ids depart from those of the prompt alone."""
    ids = _encoded(held, form, prompt + written)
    start = next((k for k, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), min(len(before), len(ids)))
    if start == len(ids):
        raise InputError(f"{written!r} adds no token to the prompt.", "Repeat something that the tokenizer keeps.")
    return Text(repeats, written, ids, start)


def _encoded(held: Bridge, form: str, text: str) -> Ids:
    try:
        return tuple(encode(held, text))
    except InputError as error:
        raise InputError(
            f"The form {form!r} cannot be tokenised as {text!r}: {error.cause}",
            f"{error.remedy} Or leave the form out of forms=.",
        ) from error


def coords_of(n: int, forms: Mapping[str, str]) -> dict[str, Any]:
    """Coordinates over forms and numbers of repeats."""
    return {
        "form": np.array(list(forms), dtype=object),
        "repeats": np.arange(1, n + 1),
        "between": ("form", np.array(list(forms.values()), dtype=object)),
    }


def facts_of(held: Bridge) -> dict[str, Any]:
    """What the provenance says of the tokenizer."""
    return {"tokenizer": type(held.tokenizer).__name__, "vocabulary_size": len(held.tokenizer.get_vocab())}


def table_of(held: Bridge, texts: dict[str, list[Text]], repeat: str) -> dict[str, Variable]:
    """Everything that is told from ids alone, over (form, repeats) and (form, repeats, place)."""
    steps = [list(pairwise(row)) for row in texts.values()]
    every = {token for row in steps for text, _ in row for token in text.content}
    shown = {token: _piece(held, token) for token in every}
    width = max(len(text.content) for row in steps for text, _ in row)
    once = _bare(held, encode(held, repeat))
    repeats = {token for token in every if _bare(held, [token]) == once}

    def over(dtype: Any, value: Callable[[Text, Text], Any]) -> np.ndarray:
        return np.array([[value(text, longer) for text, longer in row] for row in steps], dtype)

    def places(dtype: Any, value: Callable[[int], Any], beyond: Any) -> np.ndarray:
        return over(dtype, lambda text, _: [*map(value, text.content), *[beyond] * (width - len(text.content))])

    def row(text: Text, _: Text) -> str:
        return BETWEEN.join(shown[token] for token in text.content)

    def uniform(text: Text, _: Text) -> bool:
        return any(_repeats(held, text, token) for token in repeats)

    def grows(text: Text, longer: Text) -> bool:
        return longer.ids[: len(text.ids)] == text.ids

    def pair(text: Text, longer: Text) -> bool:
        return longer.ids == (*text.ids, text.ids[-1])

    dims, by_place = ("form", "repeats"), ("form", "repeats", "place")
    return {
        "text": (dims, over(object, lambda text, _: text.written), "what is written", "text"),
        "tokens": (dims, over(int, lambda text, _: len(text.content)), "tokens of the text", "1"),
        "pieces": (dims, over(object, row), "tokens of the text, in a row", "text"),
        "distinct": (dims, over(int, lambda text, _: len(set(text.content))), "different tokens of the text", "1"),
        "uniform": (dims, over(bool, uniform), "whether every repeat is the same one token", "1"),
        "grows": (dims, over(bool, grows), "whether one repeat more leaves the tokens so far as they are", "1"),
        "pair": (dims, over(bool, pair), "whether one repeat more is the last token once more", "1"),
        "piece": (by_place, places(object, shown.__getitem__, ""), "token as text", "text"),
        "token_id": (by_place, places(int, int, -1), "token", "id"),
    }


def _repeats(held: Bridge, text: Text, token: int) -> bool:
    """Whether a token that reads as the repeat is each of them: as many, in tokens that hold no part of the prompt.

    As `written_texts` refuses forms in which the repeat is to be read elsewhere, as many can only be these. Behind a
    prompt that ends in 11, “111 111” may fall into 111·11·␣·111: two, and not those that were written.
    """
    as_many = text.content.count(token) == text.repeats
    return as_many and _bare(held, text.content) == _bare(held, encode(held, text.written))


def _bare(held: Bridge, ids: Iterable[int]) -> str:
    """Ids as text without the spaces around it."""
    return held.tokenizer.decode(list(ids)).strip()


def _piece(held: Bridge, token: int) -> str:
    """A token as text, its spaces visible, also where the tokenizer would drop them from a token by itself."""
    raw = held.tokenizer.convert_ids_to_tokens(token)
    if "▁" in raw:  # SentencePiece's sign for a space
        return escape(raw.replace("▁", SPACE))
    return display_tokens(held, torch.tensor([[token]]))[0][0].replace(" ", SPACE)
