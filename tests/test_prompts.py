"""Sequences and pairs: what is a pair, what is refused, where separators stand, how text becomes tokens."""

import copy
import dataclasses
import shutil
import warnings
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import squashlens as sl
from squashlens import example_models
from squashlens.errors import InputError
from squashlens.prompts import GrowingSequence, Pair, answers_after
from tests.references import raw

QUESTION = "How many ones are in the following sequence?"


@settings(deadline=None, max_examples=60)
@given(
    content=st.lists(st.integers(3, 6), min_size=1, max_size=12),
    every=st.integers(1, 4),
    prefix=st.lists(st.integers(7, 9), max_size=3),
    suffix=st.lists(st.integers(10, 12), max_size=3),
    ending=st.none() | st.integers(3, 6),
)
def test_pairs_by_hand(
    content: list[int],
    every: int,
    prefix: list[int],
    suffix: list[int],
    ending: int | None,
) -> None:
    """Every length of every form against a pair spelt out with lists."""
    breaks = tuple(range(every, len(content) + 1, every))
    sequence = GrowingSequence(
        "any",
        tuple(content),
        (3, 4),
        tuple(prefix),
        tuple(suffix),
        breaks,
        (99,) * len(breaks),
        ending,
    )
    for length in range(1, len(content) + 1):
        stem = list(prefix)
        for number in range(1, length + 1):
            stem.append(
                content[number - 1] if ending is None or number < length else ending
            )
            if number in breaks and number < length:
                stem.append(99)
        pair = sequence.pair(length)
        assert [ids.tolist() for ids in pair.tensors()] == [
            stem + suffix,
            [*stem, stem[-1], *suffix],
        ]
        assert sequence.before_separator(length) == (length % every == 0)
        assert [p for p, token in enumerate(stem) if token == 99] == list(
            sequence.separator_places(length)
        )
        contrast = sequence.contrast(length).ids(sequence.trunk)
        assert list(contrast) == [*stem[:-1], 4 if stem[-1] == 3 else 3, *suffix]
    assert [sequence.trunk[p] for p in sequence.separator_places()] == [99] * len(
        breaks
    )
    assert len(sequence.trunk) == len(prefix) + len(content) + len(breaks)


def test_a_sequence_belongs_to_a_vocabulary(tiny: Any) -> None:
    """Ids that are other words in another model are refused, wherever a sequence is taken."""
    prose = sl.load("tiny-prose", device="cpu")
    own, other = (
        sl.prompts.repeated(model, "1", 6, separator=",") for model in (prose, tiny)
    )
    digits = sl.prompts.digits(tiny, 6, seed=1)
    uses: list[Any] = [
        lambda: sl.collapse(prose, other),
        lambda: sl.capture(prose, other.every(2, own.separators[0])),
        lambda: sl.compare_interventions(
            prose, own, {"another sequence": lambda _: other}
        ),
        lambda: sl.collapse(
            prose,
            dataclasses.replace(
                own, alphabet=digits.alphabet, texts=own.texts | digits.texts
            ),
        ),
    ]
    for use in uses:
        with pytest.raises(InputError):
            use()


def test_a_vocabulary_is_that_of_the_tokens_used(
    tiny: Any, bridge_of: Any, tmp_path: Path
) -> None:
    """A model with the same words for these ids, ids that nobody named, and a model without words are accepted."""
    ones = sl.prompts.repeated(tiny, "1", 4)
    sister = shutil.copytree(example_models.folder("tiny-gemma"), tmp_path / "sister")
    words = sister / "tokenizer.json"
    words.write_text(words.read_text().replace('"tree"', '"bush"'))
    expected = sl.collapse(tiny, ones)["distance"]
    np.testing.assert_array_equal(
        sl.collapse(sl.load(sister, device="cpu"), ones)["distance"], expected
    )
    unnamed = GrowingSequence("by hand", ones.content, ones.alphabet, ones.prefix)
    np.testing.assert_array_equal(sl.collapse(tiny, unnamed)["distance"], expected)
    assert sl.collapse(bridge_of("llama"), ones).sizes["length"] == 4
    for kept in (
        copy.deepcopy(ones),
        ones.scattered("0"),
        ones.unrelated(Random(0)),
        ones.every(2, 5),
    ):
        assert kept.texts == ones.texts
        assert kept.texts[ones.content[0]] == "1"


def test_text_and_token_space_agree(tiny: Any) -> None:
    cases = {
        f"{QUESTION} 11111 =": sl.prompts.repeated(
            tiny, "1", 5, prefix=QUESTION, suffix="="
        ),
        f"{QUESTION} 111,11": sl.prompts.repeated(
            tiny, "1", 5, prefix=QUESTION, separator=","
        ),
        f"{QUESTION} 10101": sl.prompts.build(tiny, "10101", prefix=QUESTION),
        "car tree car tree car": sl.prompts.build(
            tiny, ["car", "tree", "car", "tree", "car"]
        ),
    }
    for text, sequence in cases.items():
        assert (
            list(sequence.pair(5).v) == sl.prompts.tokenize(tiny, text)[0].tolist()
        ), text


def test_draws_are_what_they_say(tiny: Any) -> None:
    vocabulary = tiny.tokenizer.get_vocab()
    digits = sl.prompts.digits(tiny, 4000, seed=3)
    assert digits.content == sl.prompts.digits(tiny, 4000, seed=3).content
    assert digits.content != sl.prompts.digits(tiny, 4000, seed=4).content
    assert set(digits.content) == {vocabulary[d] for d in "0123456789"}
    coin = sl.prompts.bernoulli(tiny, 4000, seed=0, p=0.7)
    assert abs(coin.content.count(vocabulary["1"]) / 4000 - 0.7) < 0.03
    for p, digit in ((0.0, "0"), (1.0, "1")):
        assert set(sl.prompts.bernoulli(tiny, 9, seed=0, p=p).content) == {
            vocabulary[digit]
        }
    words = sl.prompts.words(tiny, 50, ["car", "tree"], seed=0)
    assert (
        set(words.content)
        == {vocabulary["car"], vocabulary["tree"]}
        == set(words.alphabet)
    )
    other = words.unrelated(Random(5))
    assert other.content != words.content
    assert set(other.content) <= set(words.alphabet)


REFUSED: list[Any] = [
    lambda m: sl.prompts.repeated(m, "1 1", 3),
    lambda m: sl.prompts.repeated(m, "zebra", 3),
    lambda m: sl.prompts.build(m, ""),
    lambda m: sl.prompts.repeated(m, "1", 3, separator=",", every=0),
    lambda m: sl.prompts.repeated(m, "1", 3, every=4),
    lambda m: sl.prompts.bernoulli(m, 3, seed=0, p=1.5),
    lambda m: sl.prompts.words(m, 3, [], seed=0),
    lambda m: sl.prompts.digits(m, 3, seed=-1),
    lambda m: sl.prompts.bernoulli(m, 3, seed=-1),
    lambda m: sl.prompts.repeated(m, "car", 3).contrast(2),
    lambda _: GrowingSequence("x", (3, 4), (3,), breaks=(3,), separators=(5,)),
    lambda _: GrowingSequence("x", (3, 4), (3,), breaks=(1,)),
    *(
        lambda m, n=n: raw(GrowingSequence.pair)(sl.prompts.repeated(m, "1", 6), n)
        for n in (0, 7, -1, True)
    ),
    lambda _: Pair((2, 3, 3, 3), (2, 3, 3, 3, 9)),
]


@pytest.mark.parametrize("make", REFUSED, ids=range(len(REFUSED)))
def test_refusals(make: Any, tiny: Any) -> None:
    with pytest.raises(InputError):
        make(tiny)


def test_without_a_tokenizer_ids_do(bridge_of: Any) -> None:
    model = bridge_of("llama")
    sequence = sl.prompts.build(
        model, [7, 8, 7], prefix=[2, 5], suffix=[9], separator=11, every=2
    )
    assert sequence.pair(3).v == (2, 5, 7, 8, 11, 7, 9)
    assert sequence.alphabet == (7, 8)
    for text in (
        {"content": ["1"]},
        {"content": [7], "prefix": "Hello"},
        {"content": [7], "suffix": "="},
    ):
        with pytest.raises(InputError):
            sl.prompts.build(model, **text)


@pytest.mark.slow
def test_chat_templates_split_in_token_space(chatty: Any) -> None:
    sequence = sl.prompts.repeated(
        chatty, "1", 4, prefix="How many ones?", suffix=" Please check", template="chat"
    )
    whole = chatty.tokenizer("question: How many ones? 1111 Please check answer :")[
        "input_ids"
    ]
    assert list(sequence.pair(4).v) == whole
    assert sequence.pair(4).suffix == 4
    assert Path(chatty.tokenizer.name_or_path).name == "model"
    ds = sl.collapse(chatty, sequence)
    assert ds["tokens"].values.tolist() == [len(whole) - 3 + k for k in range(4)]


@pytest.mark.parametrize(
    ("before", "answer", "remarks"),
    [(" unto", "Aaron", 1), (" unto", " Aaron", 0), ("(", "Aaron", 0)],
)
def test_an_answer_that_continues_a_word_is_remarked(
    before: str, answer: str, remarks: int
) -> None:
    prose = sl.load("tiny-prose", device="cpu")
    prompt = sl.prompts.tokenize(prose, f"He said{before}")[0].tolist()
    with warnings.catch_warnings(record=True) as seen:
        (ids,) = answers_after(prose, prompt, [answer])
    assert prose.tokenizer.decode(ids) == answer
    assert len(seen) == remarks


def test_text_is_encoded_and_never_looked_up() -> None:
    """The vocabulary of tiny-prose has entries for bytes, whose names look like letters that have two bytes."""
    prose = sl.load("tiny-prose", device="cpu")
    assert "é" in prose.tokenizer.get_vocab()
    with pytest.raises(InputError):
        sl.prompts.repeated(prose, "é", 6)
    ones = sl.prompts.repeated(prose, "1", 64, prefix="Count:", separator=",")
    start = list(ones.trunk[:8])
    assert prose.tokenizer.decode(start, skip_special_tokens=True) == "Count:111,"
    assert start[-4:-1] == [ones.content[0]] * 3
