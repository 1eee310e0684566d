"""Verdicts on changes of the right answer: prompts whose truth is known, and log-odds by plain transformers."""

from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.engine.loading.random_weights import with_random_weights
from squashlens.measure.answers.verdict import exceeds_random

COUNT, LAST = "How many ones are in the following sequence? {} =", "What is the last digit in this sequence? {} ="


def log_odds(plain: Any, ids: list[int], one: list[int], other: list[int]) -> float:
    """log p(one) − log p(other) after a prompt, by plain forward passes."""

    def whole(answer: list[int]) -> float:
        logits = plain(torch.tensor([[*ids, *answer]])).logits[0].double().log_softmax(dim=-1)
        return sum(logits[len(ids) - 1 + k, token].item() for k, token in enumerate(answer))

    return whole(one) - whole(other)


def test_log_odds_of_answers_of_several_tokens_equal_plain_forward_passes(tiny: Any, plain_tiny: Any) -> None:
    ones = sl.prompts.repeated(tiny, "1", 52, prefix=COUNT[:-5].strip(), suffix="=")
    found = sl.verdict(tiny, ones, lambda items: str(len(items)), lengths=[38, 40, 51, 52], n_random_models=0)
    digits = {n: [sl.prompts.one_token(tiny, digit) for digit in str(n)] for n in (38, 40, 51, 52)}
    expected = [
        [log_odds(plain_tiny, list(ones.pair(n).v), digits[before], digits[after]) for n in (before, after)]
        for before, after in ((38, 40), (40, 51), (51, 52))
    ]
    given = np.stack([found["log_odds"], found["log_odds_after"]], axis=1)
    np.testing.assert_allclose(given, expected, atol=1e-4)
    assert found["verdict"].values.tolist() == ["used", "present, not used", "present, not used"]
    for rank, n in zip(found["rank"].values, (38, 40, 51), strict=True):
        order = plain_tiny(torch.tensor([[*ones.pair(n).v, *digits[n]]])).logits[0, -3:-1].argsort(descending=True)
        assert rank == 1 + max(row.index(digit) for row, digit in zip(order.tolist(), digits[n], strict=True))


def test_an_answer_that_begins_the_other_one_counts_without_its_continuation(tiny: Any, plain_tiny: Any) -> None:
    ids = sl.prompts.tokenize(tiny, COUNT.format("1"))[0].tolist()
    one, zero = (sl.prompts.one_token(tiny, digit) for digit in "10")
    logits = plain_tiny(torch.tensor([[*ids, one]])).logits[0].double().softmax(dim=-1)
    goes_on = float(logits[-1, zero])
    found = sl.verdict(tiny, [COUNT.format("1"), COUNT.format("1" * 10)], ["1", "10"], n_random_models=0)
    assert float(found["log_odds"][0]) == pytest.approx(np.log((1 - goes_on) / goes_on), rel=1e-5)


@pytest.mark.parametrize(
    ("prompts", "answers", "expected"),
    [
        ([COUNT.format("1101"), COUNT.format("11011")], ["3", "4"], "used"),
        ([LAST.format("1101"), LAST.format("1107")], ["1", "7"], "used"),
        ([LAST.format("1101"), LAST.format("1107")], ["7", "1"], "present, not used"),
        ([COUNT.format("1" * 7), COUNT.format("1" * 8)], ["6", "9"], "present, not used"),
        ([COUNT.format("1" * 90), COUNT.format("1" * 91)], ["90", "91"], "present, not used"),
    ],
    ids=["count", "last digit", "answers exchanged", "answers of others", "ninety ones"],
)
def test_the_truth_is_known(tiny: Any, prompts: list[str], answers: list[str], expected: str) -> None:
    found = sl.verdict(tiny, prompts, answers)
    assert found["verdict"].values.tolist() == [expected]
    assert found["margin_y"].values > 1


def test_a_change_of_a_hidden_token_is_not_resolved(tiny: Any) -> None:
    with sl.applied(tiny, sl.hooks.mask_tokens([12])):
        found = sl.verdict(tiny, [COUNT.format("1101"), COUNT.format("1111")], ["3", "4"])
    assert found["verdict"].values.tolist() == ["not resolved"]
    assert found["margin_y"].values <= 1
    assert (found["recovered_y"] < 1).all()


@pytest.mark.parametrize("seed", range(3))
def test_random_weights_never_use_an_answer(tiny: Any, seed: int) -> None:
    """Tied embeddings make an untrained model repeat its last token: another one, also untrained, does so too."""
    untrained = with_random_weights(tiny, seed)
    untrained.tokenizer = tiny.tokenizer
    ones = sl.prompts.repeated(tiny, "1", 12, prefix="How many?", suffix="=")
    found = sl.verdict(untrained, ones, lambda items: str(7 * len(items) % 10))
    assert not (found["verdict"] == "used").any()
    prompts = ["7 7 7 7", "3 3 3 3"]
    alone, beside = (sl.verdict(untrained, prompts, ["7", "3"], n_random_models=many) for many in (0, 1))
    assert [*alone["verdict"].values, *beside["verdict"].values] == ["used", "undecided"]
    ids, (one, other) = sl.prompts.tokenize(tiny, prompts[0])[0].tolist(), sl.prompts.tokenize(tiny, "7 3")[0, -2:]
    by_hand = log_odds(with_random_weights(untrained, 0).original_model, ids, [int(one)], [int(other)])
    assert float(beside["log_odds_random"][0, 0]) == pytest.approx(by_hand, abs=1e-4)
    assert abs(by_hand - float(beside["log_odds"][0])) > 0.1, "a model is no baseline of itself"


@pytest.mark.parametrize(
    ("random", "expected"),
    [((5, 4), True), ((5, 3), False), ((-6, -5), True), ((1, -1), False), ((0.5, -0.5), True), ((-2, 2), False)],
)
def test_a_preference_exceeds_that_of_random_weights(random: tuple[float, float], expected: bool) -> None:
    """Of 3 nats each: random weights prefer both answers by log 2 themselves, or move by (3 − log 2) ÷ 2 = 1.15."""
    assert bool(exceeds_random(np.array([[3.0], [-3.0]]), np.array(random)[None, :, None])[0]) == expected
