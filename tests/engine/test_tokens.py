"""Tokens in: what prompts may be given as, what they may not, and how they begin."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from transformers import BatchEncoding

import squashlens as sl
from squashlens.engine.text.tokens import each_of, escape
from squashlens.errors import InputError
from tests.references import raw

IDS = [2, 4, 4, 3, 76]


@pytest.mark.parametrize(
    "given",
    [
        IDS, tuple(IDS), [IDS], (tuple(IDS),), np.array(IDS), np.array([IDS], dtype=np.int16), torch.tensor(IDS),
        np.array(IDS, dtype=np.uint64), [np.int64(i) for i in IDS], [torch.tensor(i) for i in IDS],
        [torch.tensor(IDS)], [np.array(IDS)], torch.tensor([IDS], dtype=torch.int32), "110 =", ["110 ="],
        np.array(["110 ="]), np.str_("110 ="), pd.Series(IDS), pd.Series(["110 ="]),
        pd.Series(IDS, index=range(5, 0, -1)), xr.DataArray(IDS), pd.DataFrame([IDS]),
        np.array([IDS], dtype=object), [torch.tensor([IDS])],
    ],
    ids=repr,
)  # fmt: skip
def test_ids_in_any_form_are_the_prompt(tiny: Any, given: Any) -> None:
    assert raw(sl.prompts.tokenize)(tiny, given).tolist() == [IDS]


def test_ids_are_a_prompt_wherever_one_is_taken(tiny: Any) -> None:
    bound = sl.path_bound(tiny, "110 =")
    for given in (IDS, (tuple(IDS),), np.array(IDS)):
        np.testing.assert_array_equal(sl.path_bound(tiny, given), bound)
        assert sl.capture(tiny, given).ids.tolist() == [IDS]
        assert sl.hooks.find_positions(tiny, given, "1") == (1, 2)
        assert int(sl.top_tokens(tiny, given)["token_id"][0]) == int(sl.top_tokens(tiny, "110 =")["token_id"][0])
        assert sl.paths.hops(tiny, given).equals(sl.paths.hops(tiny, "110 ="))
        with sl.applied(tiny, sl.hooks.mean_residual([1], given)):
            pass
    both = sl.prompts.tokenize(tiny, [IDS, [2, 3, 3, 4, 76]])
    assert both.tolist() == [IDS, [2, 3, 3, 4, 76]]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("  ", "empty"), (["1", ""], "empty"), ([[]], "empty"), ([IDS, []], "empty"), ([2, 9999], "vocabulary"),
        ([2] + [5] * 3000, "the model's context"), (np.zeros((0, 3), dtype=int), "empty"),
        ([2, 4.0], r"integers, got 4\.0 \(float\)"), ([2, True], r"got True \(bool\)"), ([2, None], "got None"),
        (np.array(IDS) * 1.0, r"got 2\.0 \(float\)"), (torch.tensor([True]), r"got True \(bool\)"),
        ([2, -1], "run from -1"), ([2, 10**30], "not a token id"),
        (np.array([2, 2**63], dtype=np.uint64), "not a token id"), (np.ma.array([2, 4], mask=[0, 1]), "got None"),
        (["110 =", 2], "mixture of int and str"), ([IDS, "110 ="], "mixture of a list and"),
        ([[IDS]], "a list inside a list"), (np.array([[[2]]]), "a list inside a list"),
        (np.array(7), "no order of tokens"),
        ({2, 4}, "are of type set"), (b"110 =", "are of type bytes"), (None, "are of type NoneType"),
        ([torch.tensor([IDS, IDS])], "a list inside a list"), (iter(IDS), "no order of tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,  # addresses differ between workers
)  # fmt: skip
def test_what_is_no_prompt_is_refused_with_what_was_found(tiny: Any, given: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        raw(sl.prompts.tokenize)(tiny, given)


@pytest.mark.parametrize("given", [{"input_ids": IDS}, BatchEncoding({"input_ids": IDS})])
def test_what_a_tokenizer_returns_is_told_how_to_give(tiny: Any, given: Any) -> None:
    for function in (sl.prompts.tokenize, raw(sl.prompts.tokenize)):
        with pytest.raises(InputError, match=r'\["input_ids"\]'):
            function(tiny, given)


def test_strings_of_digits_are_texts() -> None:
    assert each_of(["1", "2"]) == ["1", "2"]
    assert each_of(np.array([[2, 4], [3, 5]])) == [[2, 4], [3, 5]]


def test_text_gets_one_bos(tiny: Any) -> None:
    ids = sl.prompts.tokenize(tiny, "How many ones?")
    assert ids.tolist() == [[2, *tiny.tokenizer("How many ones?", add_special_tokens=False)["input_ids"]]]
    assert sl.prompts.tokenize(tiny, "How many ones?", bos="none").tolist()[0] == ids.tolist()[0][1:]


def test_several_prompts(tiny: Any) -> None:
    assert sl.prompts.tokenize(tiny, ["1 0", "0 1"]).shape == (2, 3)
    with pytest.raises(InputError, match="3 to 4 tokens; padding"):
        sl.prompts.tokenize(tiny, ["1 0", "0 1 1"])


def test_unknown_words_are_named_with_near_ones(tiny: Any) -> None:
    with pytest.raises(InputError, match=r"'sequense'.*sequence"):
        sl.prompts.tokenize(tiny, "How many ones in the sequense")
    with pytest.raises(Exception, match="UNK"):  # the tokenizer itself refuses too; nothing stands in silently
        tiny.tokenizer("sequense")


def test_ids_are_taken_as_they_are_with_a_warning(tiny: Any, bridge_of: Callable[..., Any]) -> None:
    qwen = bridge_of("qwen2")  # which adds nothing; one BOS is common all the same
    usual = [(tiny, [2, 5, 6]), (qwen, [5, 6, 7]), (qwen, [2, 5, 6, 7])]
    odd = [(tiny, [5, 6]), (tiny, [2, 2, 5]), (tiny, [[2, 5], [5, 2]]), (qwen, [2, 2, 5])]
    for number, (model, ids) in enumerate((*usual, *odd)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = sl.path_bound(model, ids)
        assert np.array_equal(found["token_id"], ids)
        assert sum("begins a text with" in str(one.message) for one in said) == (number >= len(usual)), ids
    assert sl.results.provenance(sl.path_bound(qwen, [5, 6, 7]))["bos_count"] == 0
    assert sl.results.provenance(sl.path_bound(qwen, [2, 5, 6, 7]))["bos_count"] == 1


def test_only_text_gets_a_start(tiny: Any) -> None:
    with pytest.raises(InputError, match="is for text"):
        sl.prompts.tokenize(tiny, [5, 6], bos="none")
    with pytest.raises(InputError, match="'family', 'one', 'none'"):
        raw(sl.prompts.tokenize)(tiny, "1", bos="two")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb", "a\\nb"), ("\x00", "\\x00"), ("\u200b", "\\u200b"), ("\u2028", "\\u2028"), ("é 1", "é 1"), ("🙂", "🙂")],
)
def test_escape(text: str, shown: str) -> None:
    assert escape(text) == shown
