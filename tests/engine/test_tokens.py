"""Tokens in, and every way in which they can be wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.engine.text.tokens import _display, escape
from squashlens.errors import InputError
from tests.references import raw

BOS = 2


def test_text_gets_one_bos(tiny: Any) -> None:
    ids = sl.prompts.tokenize(tiny, "How many ones?")
    assert ids.tolist() == [[BOS, *tiny.tokenizer("How many ones?", add_special_tokens=False)["input_ids"]]]
    assert sl.prompts.tokenize(tiny, "How many ones?", bos="none").tolist()[0] == ids.tolist()[0][1:]


def test_same_text_same_tokens(tiny: Any) -> None:
    assert sl.prompts.tokenize(tiny, "11,1 =").tolist() == sl.prompts.tokenize(tiny, " 1 1 , 1=").tolist()


def test_several_prompts(tiny: Any) -> None:
    assert sl.prompts.tokenize(tiny, ["1 0", "0 1"]).shape == (2, 3)
    with pytest.raises(InputError, match="3 to 4 tokens; padding"):
        sl.prompts.tokenize(tiny, ["1 0", "0 1 1"])


@pytest.mark.parametrize("bad", ["", "   ", [], ["1", ""]])
def test_empty_text(tiny: Any, bad: Any) -> None:
    with pytest.raises(InputError, match="empty"):
        sl.prompts.tokenize(tiny, bad)


def test_unknown_words_are_named_with_near_ones(tiny: Any) -> None:
    with pytest.raises(InputError, match=r"'sequense'.*sequence"):
        sl.prompts.tokenize(tiny, "How many ones in the sequense")
    with pytest.raises(Exception, match="UNK"):  # the tokenizer itself refuses too; nothing stands in silently
        tiny.tokenizer("sequense")


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        ([5, 6], "0 BOS tokens"),
        ([BOS, BOS, 5], "2 BOS tokens"),
        ([[BOS, 5], [5, 6]], "Some prompts"),
        ([BOS, 9999], "vocabulary"),
        ([BOS, -1], "vocabulary"),
        ([], "empty"),
        ([[[BOS]]], "3 axes"),
    ],
)
def test_ids_that_are_refused(tiny: Any, ids: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        sl.prompts.tokenize(tiny, torch.tensor(ids, dtype=torch.long))


def test_other_dtypes_are_refused(tiny: Any) -> None:
    with pytest.raises(InputError, match="integers"):
        sl.prompts.tokenize(tiny, torch.tensor([2.0, 5.0]))


def test_bos_overrides(tiny: Any) -> None:
    assert sl.prompts.tokenize(tiny, torch.tensor([5, 6]), bos="none").tolist() == [[5, 6]]
    assert sl.prompts.tokenize(tiny, torch.tensor([BOS, BOS, 5]), bos="as-given").tolist() == [[BOS, BOS, 5]]
    with pytest.raises(InputError, match="1 BOS tokens"):
        sl.prompts.tokenize(tiny, torch.tensor([BOS, 5]), bos="none")
    with pytest.raises(InputError, match="'family', 'one', 'none'"):
        raw(sl.prompts.tokenize)(tiny, "1", bos="maybe")


def test_a_family_without_bos_allows_one_and_records_it(bridge_of: Callable[..., Any]) -> None:
    qwen = bridge_of("qwen2")
    without, given = torch.tensor([5, 6, 7]), torch.tensor([BOS, 5, 6, 7])
    assert sl.results.provenance(sl.path_bound(qwen, without))["bos_count"] == 0
    assert sl.results.provenance(sl.path_bound(qwen, given))["bos_count"] == 1
    with pytest.raises(InputError, match="2 BOS tokens"):
        sl.prompts.tokenize(qwen, torch.tensor([BOS, BOS, 5]))


def test_longer_than_the_context(bridge_of: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="65 tokens, the model's context 64"):
        sl.prompts.tokenize(bridge_of("gemma"), torch.tensor([BOS] + [5] * 64))


def test_no_tokenizer_no_text(bridge_of: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="has no tokenizer"):
        sl.prompts.tokenize(bridge_of("gpt2"), "hello")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb", "a\\nb"), ("\x00", "\\x00"), ("\u200b", "\\u200b"), ("\u2028", "\\u2028"), ("é 1", "é 1"), ("🙂", "🙂")],
)
def test_escape(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_half_a_character_is_shown_raw() -> None:
    class Halves:
        def decode(self, ids: list[int]) -> str:
            return "\ufffd"

        def convert_ids_to_tokens(self, token_id: int) -> str:
            return "<0xF0>"

    assert _display(Halves(), 3) == "⟨<0xF0>⟩"
    assert _display(None, 3) == "#3"
