"""The vocabulary: words, digits and marks, one token each; nothing unknown slips through."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.gemma.tokenizer import PAPER_PROMPTS, build_tokenizer, vocabulary

TOKENIZER = build_tokenizer()


def pieces(text: str) -> list[str]:
    return TOKENIZER.convert_ids_to_tokens(TOKENIZER(text)["input_ids"])  # type: ignore


@pytest.mark.parametrize("prompt", PAPER_PROMPTS)
def test_the_papers_prompts_are_covered(prompt: str) -> None:
    assert pieces(prompt) == ["<bos>", *re.findall(r"[A-Za-z]+|[^A-Za-z\s]", prompt)]


@given(
    st.lists(
        st.sampled_from(sorted(set(vocabulary()) - {"<pad>", "<eos>", "<bos>"})),
        min_size=1,
        max_size=20,
    )
)
def test_decoding_then_encoding_gives_the_same_ids(words: list[str]) -> None:
    ids = TOKENIZER(" ".join(words))["input_ids"]
    assert TOKENIZER(TOKENIZER.decode(ids[1:]))["input_ids"] == ids


@pytest.mark.parametrize("text", ["elephant", "How many émile", "1 ½", "ones;"])
def test_unknown_words_cannot_be_encoded(text: str) -> None:
    with pytest.raises(Exception, match="UNK"):
        TOKENIZER(text)
