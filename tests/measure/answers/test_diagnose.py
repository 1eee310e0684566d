"""Verdicts on changes of the right answer: prompts whose truth is known, and log-odds by plain transformers."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.measure.answers.forced_answers import answer_in
from squashlens.measure.answers.placebos import placebos_of
from squashlens.measure.answers.verdict_evidence import (
    ANSWERED,
    LOST,
    PREFERRED,
    REACHES,
    UNDECIDED,
    Evidence,
    decide,
)
from squashlens.model.loading.random_weights import with_random_weights
from tests.cases import CONFIGS, save_random

COUNT, LAST = (
    "How many ones are in the following sequence? {} =",
    "What is the last digit in this sequence? {} =",
)


def log_odds(plain: Any, ids: list[int], one: list[int], other: list[int]) -> float:
    """log p(one) − log p(other) after a prompt, by plain forward passes."""

    def whole(answer: list[int]) -> float:
        logits = (
            plain(torch.tensor([[*ids, *answer]]))
            .logits[0]
            .double()
            .log_softmax(dim=-1)
        )
        return sum(
            logits[len(ids) - 1 + k, token].item() for k, token in enumerate(answer)
        )

    return whole(one) - whole(other)


def test_log_odds_of_answers_of_several_tokens_equal_plain_forward_passes(
    tiny: Any, plain_tiny: Any
) -> None:
    ones = sl.prompts.repeated(tiny, "1", 52, prefix=COUNT[:-5].strip(), suffix="=")
    found = sl.diagnose(
        tiny,
        ones,
        lambda items: str(len(items)),
        lengths=[38, 40, 51, 52],
        n_random_models=0,
    )
    digits = {
        n: [sl.prompts.one_token(tiny, digit) for digit in str(n)]
        for n in (38, 40, 51, 52)
    }
    expected = [
        [
            log_odds(plain_tiny, list(ones.pair(n).v), digits[before], digits[after])
            for n in (before, after)
        ]
        for before, after in ((38, 40), (40, 51), (51, 52))
    ]
    given = np.stack([found["log_odds"], found["log_odds_after"]], axis=1)
    np.testing.assert_allclose(given, expected, atol=1e-4)
    assert found["verdict"].values.tolist() == [ANSWERED, REACHES, REACHES]
    for rank, n in zip(found["worst_rank"].values, (38, 40, 51), strict=True):
        order = (
            plain_tiny(torch.tensor([[*ones.pair(n).v, *digits[n]]]))
            .logits[0, -3:-1]
            .argsort(descending=True)
        )
        assert rank == 1 + max(
            row.index(digit)
            for row, digit in zip(order.tolist(), digits[n], strict=True)
        )


def test_an_answer_that_begins_the_other_one_counts_without_its_continuation(
    tiny: Any, plain_tiny: Any
) -> None:
    ids = sl.prompts.tokenize(tiny, COUNT.format("1"))[0].tolist()
    one, zero = (sl.prompts.one_token(tiny, digit) for digit in "10")
    logits = plain_tiny(torch.tensor([[*ids, one]])).logits[0].double().softmax(dim=-1)
    goes_on = float(logits[-1, zero])
    found = sl.diagnose(
        tiny,
        [COUNT.format("1"), COUNT.format("1" * 10)],
        ["1", "10"],
        n_random_models=0,
    )
    assert float(found["log_odds"][0]) == pytest.approx(
        np.log((1 - goes_on) / goes_on), rel=1e-5
    )


def truth(**changed: Any) -> Evidence:
    """What is known of a pair of which each prompt prefers its own answer, beyond all doubt."""
    known: dict[str, Any] = {
        "answers": ("3", "4"),
        "said": ("a lot", "a lot"),
        "writes": (False, False),
        "odds": np.full(3, 4.0),
        "odds_after": np.full(3, -5.0),
        "noise": 1e-3,
        "probabilities": (0.5, 0.5),
        "rank": 2,
        "behind": 1.0,
        "margins": np.array([0.0, 50.0, 90.0]),
        "recovered": np.array([0.0, 1.0, 1.0]),
        "dtype": "float32",
    }
    return Evidence(**known | changed)


NEAR = np.array([0.0, 0.7, 0.9])
HALF = np.array([0.0, 0.5, 0.5])
TWO_OF_38 = np.array([9.0] * 2 + [0.0] * 36)
EQUAL = {"margins": np.array([0.0, 2.0, 0.0]), "recovered": np.array([0.0, 1.0, 0.0])}
SAME_ODDS = {"odds": np.full(3, 4.0), "odds_after": np.full(3, 4.001)}
UNSURE = {"odds": np.array([4, 4, 0.1]), "odds_after": np.full(3, -5.0)}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (truth(writes=(True, True), **EQUAL), ANSWERED),
        (truth(writes=(True, None)), UNDECIDED),
        (truth(writes=(None, False)), PREFERRED),
        (truth(**EQUAL, **SAME_ODDS), LOST),
        (truth(margins=NEAR, recovered=HALF, **SAME_ODDS), LOST),
        (truth(margins=NEAR, recovered=np.ones(3), **SAME_ODDS), UNDECIDED),
        (truth(**SAME_ODDS), REACHES),
        (truth(odds=np.full(3, -4.0), odds_after=np.full(3, 5.0)), REACHES),
        (truth(**EQUAL), PREFERRED),  # of few coordinates; their odds cannot differ
        (truth(**UNSURE), UNDECIDED),
        (truth(noise=4.0), UNDECIDED),
        (truth(behind=7.0), UNDECIDED),
        (truth(placebos={("a", "b"): 3.2}), PREFERRED),
        (truth(placebos={("a", "b"): 3.5}), UNDECIDED),
        (truth(only_mentioned=True), UNDECIDED),
        (truth(only_mentioned=True, all_placebos=np.zeros(18)), UNDECIDED),
        (truth(only_mentioned=True, all_placebos=np.zeros(19)), PREFERRED),
        (truth(only_mentioned=True, all_placebos=TWO_OF_38), UNDECIDED),
        (truth(random=np.array([[5.0, 4.0]])), PREFERRED),
        (truth(random=np.array([[5.0, 3.0]])), UNDECIDED),
        (truth(random=np.array([[1.0, -1.0]])), UNDECIDED),
        (truth(random=np.array([[-2.0, 2.0]])), UNDECIDED),
    ],
)
def test_the_order_of_the_tests(known: Evidence, expected: str) -> None:
    assert decide(known)[0] == expected


def begun(plain: Any, ids: list[int], short: list[int], long: list[int]) -> float:
    """The log-odds of a text and a longer one that begins with it: the first one counts unless the other goes on."""
    logits = plain(torch.tensor([[*ids, *long]])).logits[0].double().log_softmax(dim=-1)
    steps = [logits[len(ids) - 1 + k, token].item() for k, token in enumerate(long)]
    goes_on = np.exp(steps[len(short)])
    return sum(steps[: len(short)]) + np.log1p(-goes_on) - sum(steps)


@pytest.mark.parametrize(
    ("prompts", "answers", "expected"),
    [
        ([COUNT.format("1101"), COUNT.format("11011")], ["3", "4"], ANSWERED),
        ([LAST.format("1101"), LAST.format("1107")], ["1", "7"], ANSWERED),
        ([LAST.format("1101"), LAST.format("1107")], ["7", "1"], REACHES),
        ([COUNT.format("1" * 7), COUNT.format("1" * 8)], ["6", "9"], UNDECIDED),
        ([COUNT.format("1" * 90), COUNT.format("1" * 91)], ["90", "91"], REACHES),
        (
            [
                (LAST.format("1107"), LAST.format("1108")),
                (LAST.format("17"), LAST.format("18")),
            ],
            [("7", "8")] * 2,
            ANSWERED,
        ),
    ],
    ids=[
        "count",
        "last digit",
        "answers exchanged",
        "answers of others",
        "ninety ones",
        "one answer at two depths",
    ],
)
def test_the_truth_is_known(
    tiny: Any, prompts: list[str], answers: list[str], expected: str
) -> None:
    found = sl.diagnose(tiny, prompts, answers)
    assert {*found["verdict"].values} == {expected}
    assert (found["margin_y"].values > 1).all()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "window"),
    [("llama", None), ("mistral", 1), ("gemma3", None), ("gemma3", 1)],
)
def test_what_no_token_can_see_is_lost(
    tiny: Any, tmp_path: Path, name: str, window: int | None
) -> None:
    """The only token that differs is hidden from all later ones, or each token sees itself alone: equal streams."""
    config = copy.deepcopy(CONFIGS[name])
    config.vocab_size = 128
    config.sliding_window = window or 64
    if window and name == "gemma3":
        config.layer_types = ["sliding_attention"] * config.num_hidden_layers
    model = sl.load(save_random(config, tmp_path / name), device="cpu")
    model.tokenizer = tiny.tokenizer
    prompts = ["How many? 1101 =", "How many? 1111 ="]
    place = int(
        (
            sl.prompts.tokenize(model, prompts[0])
            != sl.prompts.tokenize(model, prompts[1])
        )[0].nonzero()[0]
    )
    seen = sl.diagnose(model, prompts, ["3", "4"])
    with sl.applied(model, *([] if window else [sl.hooks.mask_tokens([place])])):
        hidden = sl.diagnose(model, prompts, ["3", "4"])
    assert (seen["verdict"].item() == LOST) == bool(window)
    assert (hidden["verdict"].item(), hidden["last_told_apart"].item()) == (LOST, -1)
    assert hidden["margin_y"].item() == 0
    assert hidden["log_odds"].item() == hidden["log_odds_after"].item()


def test_what_is_hidden_from_a_block_on_is_lost_after_it(tiny: Any) -> None:
    """Hidden from block 1 on, a token can still reach the last one in block 0."""
    prompts = [COUNT.format("1101"), COUNT.format("1111")]
    with sl.applied(tiny, sl.hooks.mask_tokens([12], blocks=range(1, 6))):
        early = sl.diagnose(tiny, prompts, ["3", "4"])
    assert early["verdict"].item() != LOST
    assert early["last_told_apart"].item() == 6


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_random_weights_never_prefer_an_answer(tiny: Any, seed: int) -> None:
    """Tied embeddings make an untrained model repeat its last token, which it writes; it prefers no more."""
    untrained = with_random_weights(tiny, seed)
    untrained.tokenizer = tiny.tokenizer
    ones = sl.prompts.repeated(tiny, "1", 12, prefix="How many?", suffix="=")
    found = sl.diagnose(untrained, ones, lambda items: str(7 * len(items) % 10))
    assert not {ANSWERED, PREFERRED} & {*found["verdict"].values}
    found = sl.diagnose(untrained, ["7 7 7 7", "3 3 3 3"], ["7", "3"])
    assert found["verdict"].item() in (ANSWERED, UNDECIDED)


def test_log_odds_of_placebos_and_random_weights_equal_plain_forward_passes(
    tiny: Any, plain_tiny: Any
) -> None:
    """Without its last MLP the model prefers both answers and writes neither: placebos and random weights are asked."""
    prompts, answers = [COUNT.format("10" * 3), COUNT.format("10" * 7)], ["3", "7"]
    with sl.applied(tiny, sl.hooks.zero_mlp([5])):
        found = sl.diagnose(tiny, prompts, answers)
    assert found["verdict"].item() == PREFERRED
    assert found["written"].item().strip().startswith("30")
    ids = [sl.prompts.tokenize(tiny, prompt)[0].tolist() for prompt in prompts]
    three, seven = (sl.prompts.one_token(tiny, digit) for digit in "37")
    untrained = with_random_weights(tiny, 0).original_model
    expected = [log_odds(untrained, prompt, [three], [seven]) for prompt in ids]
    np.testing.assert_allclose(
        [found["log_odds_random"].item(), found["log_odds_after_random"].item()],
        expected,
        atol=1e-4,
    )
    words = [
        sl.prompts.tokenize(tiny, "10" * n, bos="none")[0].tolist() for n in (3, 7)
    ]
    with torch.no_grad():
        for layer in plain_tiny.model.layers[-1:]:
            handle = layer.mlp.register_forward_hook(
                lambda module, given, output: 0 * output
            )
        echoes = [begun(plain_tiny, prompt, *words) for prompt in ids]
        handle.remove()
    assert found["placebo"].item() == pytest.approx(
        min(echoes[0], -echoes[1]), abs=1e-3
    )


def test_placebos_are_words_in_the_same_places() -> None:
    texts = "Words: sun, cat, door. First:", "Words: moon, dog, gate. First:"
    assert placebos_of(texts, (" sun", " moon")) == [("cat", "dog"), ("door", "gate")]
    assert placebos_of(texts, (" cat", " dog")) == [("sun", "moon"), ("door", "gate")]
    assert placebos_of(("one two", "one two three"), ("2", "3")) == []


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        (" Ann.", [" Ann", " Ann Lee"], " Ann"),
        (" Ann Lee.", [" Ann", " Ann Lee"], " Ann Lee"),
        ("\n90", ["9"], None),
        ("3.14", ["3"], None),
        ("3.", ["3"], "3"),
        ("twenty-one", ["twenty"], None),
        (" Paris.", [" Paris "], None),
        (" isn't", [" isn"], None),
        (" की", [" क"], None),
        (" pate\u0301", [" pate"], None),
        ("", ["3"], None),
    ],
)
def test_the_answer_that_a_text_begins_with(
    text: str, answers: list[str], expected: str | None
) -> None:
    assert answer_in(text, answers) == expected


def test_what_goes_on_after_the_answer_is_another_one_whatever_rounding_does(
    tiny: Any,
) -> None:
    """Twelve ones are counted right, as 12: the token 1 is the likeliest, and the answer 1 is not written."""
    found = sl.diagnose(
        tiny, [COUNT.format("1" * 12), COUNT.format("1" * 22)], ["1", "2"]
    )
    assert found["written"].item().strip() == "12"
    assert found["verdict"].item() != ANSWERED
