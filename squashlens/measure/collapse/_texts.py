"""Texts with repeats and their token ids: which tokens belong to the text, and what one more repeat changes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch

from squashlens._typing import Bridge, positive
from squashlens.engine.text.tokens import display_tokens, encode, escape, require_tokenizer
from squashlens.errors import InputError
from squashlens.records.results import Variable
from squashlens.sequences import Ids

BETWEEN = "·"  # separates tokens where several are displayed in a row
SPACE = "␣"


@dataclass(frozen=True)
class Text:
    """A text of some repeats: its characters, its token ids with the prefix, and the index where its own ids start."""

    repeats: int
    written: str
    ids: Ids
    start: int

    @property
    def content(self) -> Ids:
        """The token ids of the text without the prefix."""
        return self.ids[self.start :]


@dataclass(frozen=True)
class _Holder:
    """A tokenizer without a model, in an object with the attribute that `squashlens.engine.text.tokens` expects."""

    tokenizer: Any


def held_by(given: Any) -> Bridge:
    """An object with the attribute `tokenizer`: the given model, or a holder of the given tokenizer."""
    if hasattr(given, "tokenizer"):
        require_tokenizer(given)
        return given
    if not (callable(given) and hasattr(given, "get_vocab") and hasattr(given, "convert_ids_to_tokens")):
        raise InputError(
            f"model= is of type {type(given).__name__}, neither a model with a tokenizer nor a Hugging Face tokenizer.",
            "Load a model, give `AutoTokenizer.from_pretrained(…)`, or `PreTrainedTokenizerFast(tokenizer_object=…)`.",
        )
    return cast(Bridge, _Holder(given))


def written_texts(
    held: Bridge, n: int, repeat: str, separator: Mapping[str, str], prefix: str
) -> dict[str, list[Text]]:
    """The texts of 1 … n + 1 repeats in each form."""
    positive(n, "n", "a number of repeats")
    if not repeat.strip():
        raise InputError(f"repeat={repeat!r} is not non-empty text.", "Give a digit or a word, such as '1' or 'one'.")
    if not separator:
        raise InputError(
            "separator= has no forms.", "Give names with texts, such as separator={'joined': '', 'spaced': ' '}."
        )
    for form, between in separator.items():
        both = f"{repeat}{between}{repeat}"
        if between and sum(both.startswith(repeat, place) for place in range(len(both))) > 2:
            raise InputError(
                f"The form {form!r} of separator= writes two repeats as {both!r}, which has more than two {repeat!r}.",
                f"Use a separator that does not form {repeat!r}.",
            )
        if between.strip():
            _encoded(held, form, between)  # a tokenizer without a byte fallback would silently drop it
    before = tuple(encode(held, prefix)) if prefix.strip() else ()
    return {
        form: [_text(held, form, k, between.join([repeat] * k), prefix, before) for k in range(1, n + 2)]
        for form, between in separator.items()
    }


def _text(held: Bridge, form: str, repeats: int, written: str, prefix: str, before: Ids) -> Text:
    """A text after its prefix. Its own tokens start where the ids differ from those of the prefix alone."""
    ids = _encoded(held, form, prefix + written)
    start = next((k for k, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), min(len(before), len(ids)))
    if start == len(ids):
        raise InputError(
            f"{written!r} adds no token to the prefix.", "Give a repeat= that the tokenizer does not drop."
        )
    return Text(repeats, written, ids, start)


def _encoded(held: Bridge, form: str, text: str) -> Ids:
    """The token ids of a text of a form. Raises an error that names the form."""
    try:
        return tuple(encode(held, text))
    except InputError as error:
        raise InputError(
            f"The form {form!r} of separator= cannot be tokenized as {text!r}: {error.cause}",
            f"{error.remedy} Or leave the form out of separator=.",
        ) from error


def coords_of(n: int, separator: Mapping[str, str]) -> dict[str, Any]:
    """The coordinates of results over forms and numbers of repeats."""
    return {
        "form": np.array(list(separator), dtype=object),
        "repeats": np.arange(1, n + 1),
        "between": ("form", np.array(list(separator.values()), dtype=object)),
    }


def facts_of(held: Bridge) -> dict[str, Any]:
    """The facts that the provenance states about the tokenizer."""
    return {"tokenizer": type(held.tokenizer).__name__, "vocabulary_size": len(held.tokenizer.get_vocab())}


def table_of(held: Bridge, texts: dict[str, list[Text]], repeat: str) -> dict[str, Variable]:
    """All variables that follow from the token ids, over (form, repeats) and (form, repeats, place)."""
    steps = [list(pairwise(row)) for row in texts.values()]
    every = {token for row in steps for text, _ in row for token in text.content}
    text_of = {token: _piece(held, token) for token in every}
    width = max(len(text.content) for row in steps for text, _ in row)
    once = _bare(held, encode(held, repeat))
    repeats = {token for token in every if _bare(held, [token]) == once}

    def over(dtype: Any, value: Callable[[Text, Text], Any]) -> np.ndarray:
        return np.array([[value(text, longer) for text, longer in row] for row in steps], dtype)

    def places(dtype: Any, value: Callable[[int], Any], beyond: Any) -> np.ndarray:
        return over(dtype, lambda text, _: [*map(value, text.content), *[beyond] * (width - len(text.content))])

    def row(text: Text, _: Text) -> str:
        return BETWEEN.join(text_of[token] for token in text.content)

    def uniform(text: Text, _: Text) -> bool:
        return any(_repeats(held, text, token) for token in repeats)

    def grows(text: Text, longer: Text) -> bool:
        return longer.ids[: len(text.ids)] == text.ids

    def pair(text: Text, longer: Text) -> bool:
        return longer.ids == (*text.ids, text.ids[-1])

    dims, by_place = ("form", "repeats"), ("form", "repeats", "place")
    return {
        "text": (dims, over(object, lambda text, _: text.written), "the text", "text"),
        "tokens": (dims, over(int, lambda text, _: len(text.content)), "number of tokens of the text", "1"),
        "pieces": (dims, over(object, row), "the tokens of the text as text", "text"),
        "distinct": (dims, over(int, lambda text, _: len(set(text.content))), "number of distinct tokens", "1"),
        "uniform": (dims, over(bool, uniform), "whether every repeat is the same single token", "1"),
        "grows": (dims, over(bool, grows), "whether one more repeat leaves the earlier tokens unchanged", "1"),
        "pair": (dims, over(bool, pair), "whether one more repeat only repeats the last token", "1"),
        "piece": (by_place, places(object, text_of.__getitem__, ""), "token as text", "text"),
        "token_id": (by_place, places(int, int, -1), "token", "id"),
    }


def _repeats(held: Bridge, text: Text, token: int) -> bool:
    """Whether each repeat is the given token: it occurs as often, and no token contains a part of the prefix.

    After a prefix that ends in 11, “111 111” may be 111·11·␣·111: two tokens 111, one of which overlaps the prefix.
    """
    as_many = text.content.count(token) == text.repeats
    return as_many and _bare(held, text.content) == _bare(held, encode(held, text.written))


def _bare(held: Bridge, ids: Iterable[int]) -> str:
    """Token ids as text without leading and trailing spaces."""
    return held.tokenizer.decode(list(ids)).strip()


def _piece(held: Bridge, token: int) -> str:
    """A token as text with visible spaces, including those that the tokenizer drops from a single token."""
    raw = held.tokenizer.convert_ids_to_tokens(token)
    if "▁" in raw:  # SentencePiece's sign for a space
        return escape(raw.replace("▁", SPACE))
    return display_tokens(held, torch.tensor([[token]]))[0][0].replace(" ", SPACE)
