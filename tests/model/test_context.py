"""Tokens in context: what they add to a text, and which continue it, for every kind of tokenizer."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from squashlens.model.text.context import (
    decoded,
    display_tokens,
    end_of,
    text_after,
    texts_in_context,
    tokenize_after,
)
from tests.references import raw
from tests.tokenizer_kinds import EXACT, KINDS, tokenizer_of

# Of prompts, and answers: characters of one token and of several, spaces, words, and an unfinished character.
ENDS = [":", "=", "é", "日本", "🙂", " ", "\n", " 12", " the", "\ufffd ", ""]
ANSWERS = [" Paris", "Paris", ",", "1", "345", "é", " é", "日本", "🙂", "\n", "  two"]


def model_of(kind: str) -> Any:
    """What reads and writes text in a model."""
    tokenizer = tokenizer_of(kind)
    return _Held(tokenizer)


class _Held:
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.cfg = SimpleNamespace(d_vocab=len(tokenizer), default_prepend_bos=True)
        self.original_model = SimpleNamespace(
            config=SimpleNamespace(bos_token_id=tokenizer.bos_token_id)
        )


@pytest.mark.parametrize("kind", EXACT)
def test_answers_have_their_text_after_every_prompt(kind: str) -> None:
    """The ids are those of the joint text wherever these begin with the prompt's."""
    model = model_of(kind)
    tokenizer = model.tokenizer
    for start in ("The capital of France is", "1"):
        for end in ENDS:
            ids = tokenizer(start + end)["input_ids"]
            for answer in ANSWERS:
                tokens = tokenize_after(model, ids, answer)
                before, whole = (
                    decoded(tokenizer, ids),
                    decoded(tokenizer, [*ids, *tokens]),
                )
                assert whole == before + answer, (start + end, answer)
                joint = tokenizer(start + end + answer)["input_ids"]
                if joint[: len(ids)] == ids:
                    assert tokens == (*joint[len(ids) :],), (start + end, answer)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_join_to_the_whole(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    text = "The capital of France is 1234: one, Paris paris."
    if kind in EXACT:
        text += "é€ … 日本 \ufffd and 🙂\n\nand  one العربية \ufffd"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    texts = texts_in_context(tokenizer, ids)
    assert "".join(texts) == decoded(tokenizer, ids)
    assert kind in ("words", "pieces") or decoded(tokenizer, ids) == text
    if kind in EXACT:  # the words after a U+FFFD are their own tokens' text
        after = text.index("\ufffd") + 1
        ends = [sum(map(len, texts[: k + 1])) for k in range(len(texts))]
        assert after in ends


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_is_its_text_in_context(kind: str) -> None:
    model = model_of(kind)
    before = model.tokenizer("and 1", add_special_tokens=False)["input_ids"]
    for text in (
        ",",
        "1",
        "=",
        "and",
        *([] if kind in ("words", "letters", "pieces") else [" and", " Paris"]),
    ):
        if kind == "letters" and len(text) > 1:
            continue
        token = raw(sl.prompts.one_token)(model, text)
        assert text_after(model.tokenizer, before, [token]) == text
        assert display_tokens(model, torch.tensor([[token]])) == [[text]]


@pytest.mark.parametrize("kind", EXACT)
def test_only_the_end_of_a_long_prompt_is_read(kind: str) -> None:
    """Cut anywhere inside a character of several tokens, too."""
    model = model_of(kind)
    tokenizer = model.tokenizer
    for end in ("", "日", "日本", "é", "🙂"):
        prompt = "1" + 30 * "日本é🙂" + end
        ids = tokenizer(prompt)["input_ids"]
        assert prompt.endswith(decoded(tokenizer, end_of(model, ids)))
        for answer in ("日", " one", "é, 🙂"):
            tokens = tokenize_after(model, ids, answer)
            assert (
                decoded(tokenizer, [*ids, *tokens]) == decoded(tokenizer, ids) + answer
            )
            assert [*ids, *tokens] == tokenizer(prompt + answer)["input_ids"]


@pytest.mark.parametrize("text", ["and", " and", ",", " ,", "1", "and one", " and one"])
def test_words_are_tokens_with_and_without_a_space(text: str) -> None:
    """A vocabulary of words has no spaces, so that the ids are the same; what it does not know is refused."""
    model = model_of("words")
    ids = model.tokenizer("The sum is one")["input_ids"]
    assert tokenize_after(model, ids, text) == tuple(
        model.tokenizer(text, add_special_tokens=False)["input_ids"]
    )
    with pytest.raises(InputError):
        tokenize_after(model, ids, f"{text} berlin")
