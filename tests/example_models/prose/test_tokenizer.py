"""Any text is encoded, and decoded unchanged, by the bundled tokenizer and by one that is trained afresh."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from squashlens import example_models
from training.prose.tokenizer import VOCABULARY, encode, train_tokenizer

BUNDLED: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(
    example_models.folder("tiny-prose")
)
FRESH = train_tokenizer(["the cat and the dog and the house"], vocabulary=270)


@settings(deadline=None)
@given(st.text(max_size=60))
@example("漢字 עברית ไทย\x00\u202e\U0001f469\u200d\U0001f680e\u0301\r\n\t  \ufeff")
@example("  two spaces, 12345 digits,\n\n and trailing ones  ")
@pytest.mark.parametrize("tokenizer", [BUNDLED, FRESH], ids=["bundled", "fresh"])
def test_any_text_round_trips(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = encode(text, tokenizer)
    assert ids[0] == tokenizer.bos_token_id
    assert ids[-1] == tokenizer.eos_token_id
    assert max(ids) < len(tokenizer)
    assert tokenizer.decode(ids[1:-1]) == text


def test_every_byte_is_a_token() -> None:
    assert len(BUNDLED) == VOCABULARY
    for byte in range(256):
        text = bytes([byte]).decode("latin-1")
        assert 1 <= len(BUNDLED(text, add_special_tokens=False)["input_ids"]) <= 2  # type: ignore[arg-type]


def test_digits_stand_alone_and_words_keep_their_space() -> None:
    assert BUNDLED.tokenize("1101, in the") == ["1", "1", "0", "1", ",", "Ġin", "Ġthe"]
