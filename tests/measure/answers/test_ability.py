"""Whether a model can do a task at all: by hand, on the model that was trained on it, and on its untrained twin."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.answers.frequencies import Answer, judge_ability, score_answers
from squashlens.model.loading.random_weights import with_random_weights
from tests.measurements import counted

CALL = {"call": {"function": "evaluate_task"}}

COUNT = sl.tasks.find("taught_count_bernoulli")


@pytest.mark.parametrize(
    ("right", "truths", "able"),
    [
        (16, "1234" * 4, "yes"),
        (13, "1234" * 4, "yes"),
        (12, "1234" * 4, "undecided"),
        (8, "1234" * 4, "undecided"),
        (4, "1234" * 4, "undecided"),
        (3, "1234" * 4, "no"),
        (0, "1234" * 4, "no"),
        (6, "123456", "yes"),
        (5, "12345", "undecided"),
        (1, "12345678123456", "no"),
        (16, "01" * 8, "yes"),
        (14, "0000000000001111", "undecided"),
        (16, "0" * 16, "undecided"),
        (9, "0" * 16, "no"),
        (0, "1", "undecided"),
        (0, "11111", "undecided"),
        (8, "0" * 14 + "11", "undecided"),
        (7, "0" * 14 + "11", "no"),
    ],
)
def test_verdicts_by_hand(right: int, truths: str, able: str) -> None:
    """With 16 questions at least 13 must be right; a model that a constant answer beats or equals is not able."""
    n = len(truths)
    found = judge_ability(np.arange(n) < right, list(truths))
    exact = binomtest(right, n).proportion_ci(method="exact")
    assert (found.able, found.baseline, found.baseline_questions) == (
        able,
        right / n,
        n,
    )
    np.testing.assert_allclose([found.baseline_low, found.baseline_high], exact)
    assert found.chance == max(map(truths.count, truths)) / n


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [1, 5, 16])
def test_a_model_as_good_as_the_best_constant_answer_is_seldom_called_unable(
    n: int,
) -> None:
    """At most 2.5 % for each of two reasons, though the constant is chosen on the same questions (share right: 0.6)."""
    rng = np.random.default_rng(n)
    right, truths = rng.random((2000, n)) < 0.6, rng.choice(list("00012"), (2000, n))
    drawn = [judge_ability(*each).able for each in zip(right, truths, strict=True)]
    assert drawn.count("no") <= 0.05 * len(drawn)


def test_a_table_of_answers_has_the_baseline_of_its_own_short_lengths() -> None:
    """As for hosted models: none, one, and all of the 8 short ones among 14 counts are right."""
    task = sl.tasks.find("count_ones")
    for right, able in ((0, "no"), (1, "undecided"), (8, "yes")):
        asked = task.asked(range(1, 15))
        told = {
            q: Answer(q.truth if place < right else "99", True)
            for place, q in enumerate(asked)
        }
        found = score_answers(task, told, CALL)
        assert found["able"].values.tolist() == [able]
        assert (found["baseline"].item(), found["baseline_questions"].item()) == (
            right / 8,
            8,
        )
        given = score_answers(
            task, told, CALL, short={q: Answer("99", True) for q in asked[:7]}
        )
        assert (
            given["able"].item(),
            given["baseline"].item(),
            given["baseline_questions"].item(),
        ) == ("no", 0, 7)
    long = {q: Answer(q.truth, True) for q in task.asked([20, 30])}
    assert score_answers(task, long, CALL)["able"].item() == "undecided"


@pytest.mark.parametrize(
    "name",
    [
        "copy_last",
        "taught_last_odd_last",
        "count_ones",
        "count_word",
        "taught_copy_random",
    ],
)
def test_short_questions_are_different_and_their_answers_vary(name: str) -> None:
    task = sl.tasks.find(name)
    found = task.short()
    assert len({q.prompt for q in found}) == len(found) >= 8
    assert {q.length for q in found[:8]} == set(range(1, 9))
    truths = [q.truth for q in found[:16]]
    assert max(map(truths.count, truths)) < 0.7 * len(truths)
    assert found == task.short()


@pytest.mark.parametrize("name", ["taught_last_random", "count_ones", "count_word"])
def test_examples_are_solved_and_never_the_question(name: str) -> None:
    task = sl.tasks.find(name)
    solved = {f"{q.prompt} {f'{task.opening} {q.truth}'.strip()}" for q in task.short()}
    for question in task.asked([1, 3, 8], range(3 if task.random else 1)):
        shown = task.after_examples(question, 4)
        *examples, last = shown.prompt.split("\n\n")
        assert last == question.prompt
        assert len({*examples}) == 4
        assert {*examples} <= solved
        assert not any(
            example.startswith(f"{question.prompt} ") for example in examples
        )
        doubled = task.doubled(shown)
        assert doubled.prompt == "\n\n".join([*examples, task.doubled(question).prompt])
        assert task.after_examples(question, 0) == question
    with pytest.raises(InputError):
        task.after_examples(question, 1000)


@pytest.fixture(scope="module")
def untrained(tiny: Any) -> Any:
    twin = with_random_weights(tiny, 0)
    twin.tokenizer = tiny.tokenizer
    return twin


def test_the_trained_model_can_and_its_untrained_twin_cannot(
    tiny: Any, untrained: Any
) -> None:
    how: dict[str, Any] = {"lengths": [24, 60], "seeds": 2, "max_new_tokens": 3}
    can, cannot = (sl.evaluate_task(model, COUNT, **how) for model in (tiny, untrained))
    assert (
        can["able"].item(),
        can["baseline"].item(),
        can["baseline_questions"].item(),
    ) == ("yes", 1, 16)
    assert (cannot["able"].item(), cannot["baseline"].item()) == ("no", 0)


def test_accuracy_on_sequences_has_a_baseline(tiny: Any, untrained: Any) -> None:
    ones = sl.prompts.bernoulli(
        tiny,
        20,
        seed=0,
        prefix="How many ones are in the following sequence?",
        suffix="=",
    )
    for model, able, share in ((tiny, "yes", 1), (untrained, "no", 0)):
        found = sl.compare_interventions(
            model, ones, {}, answer=counted, n_samples=3, lengths=[20]
        ).isel(change=0)
        assert (
            found["able"].item(),
            found["baseline"].item(),
            found["baseline_questions"].item(),
        ) == (able, share, 16)
        right = round(3 * found["accuracy"].item())
        exact = binomtest(right, 3).proportion_ci(method="exact")
        ends = [found["accuracy_low"].item(), found["accuracy_high"].item()]
        np.testing.assert_allclose(ends, exact)
