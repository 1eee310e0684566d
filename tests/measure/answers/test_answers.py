"""Answers of a scripted model as a result: every number it must get, by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.stats import binomtest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.answers.frequencies import (
    UNREAD,
    Answer,
    score_answers,
)
from squashlens.tasks import Question, Task

COUNT = sl.tasks.find("count_ones")
OPENING = "The final answer to your maths question is:"
FACTS = {
    "call": {"function": "evaluate_task"},
    "model": "scripted",
    "nested": {"deep": [1, "é"]},
}
Say = Callable[[Question], Answer]


def answered(task: Task, say: Say, **extent: Any) -> dict[Question, Answer]:
    return {question: say(question) for question in task.asked(**extent)}


def right(question: Question) -> Answer:
    return Answer(
        f"I count.\n\n{OPENING} {question.truth}", True, 80 + question.length, 20
    )


# What a model says to eleven ones, whether it stops, and why it is read or not.
SAYS = [
    (f"I count.\n\n{OPENING} 11", True, "read"),
    (f"{OPENING} 14", True, "read"),
    (f"{OPENING} -19", True, "read"),
    ("I'm sorry, but I can't help with that.", True, "none"),
    (f"{OPENING} 11\n{OPENING} 12", True, "several"),
    (f"{OPENING} 11", False, "cut"),
    ("There are about 11 ones.", True, "form"),
    (f"{OPENING} a dozen", True, "words"),
    ("There are 11 ones.", True, "read"),  # unambiguous, and not as asked
]


def test_answers_side_by_side() -> None:
    """One of each kind, at one length: shares, the mean error of what was read, and every answer as it was said."""
    said = [
        Answer(text, ended, 91 * (not seed), 20 * (not seed))
        for seed, (text, ended, _) in enumerate(SAYS)
    ]
    given = answered(
        COUNT,
        lambda question: said[question.seed],
        lengths=[11],
        seeds=range(len(said)),
    )
    found = score_answers(COUNT, given, FACTS)
    cell = found.isel(mode=0, length=0)
    assert cell["right"].values.tolist() == [True] + [False] * 7 + [True]
    assert cell["reading"].values.tolist() == [why for *_, why in SAYS]
    assert cell["value"].values.tolist() == [
        "11",
        "14",
        "-19",
        "",
        "",
        "",
        "",
        "",
        "11",
    ]
    np.testing.assert_array_equal(cell["error"], [0, 3, 30] + [np.nan] * 5 + [0])
    assert (cell["accuracy"], cell["accuracy_strict"]) == (2 / 9, 1 / 9)
    assert (
        cell["mean_error"] == 33 / 4
    )  # (0 + 3 + 30 + 0) ÷ 4, over what was read alone
    assert (cell["error_q1"], cell["median_error"], cell["error_q3"]) == (0, 1.5, 9.75)
    expected = binomtest(1, 9).proportion_ci(confidence_level=0.95, method="wilson")
    np.testing.assert_allclose(
        [cell["accuracy_strict_low"], cell["accuracy_strict_high"]], expected, atol=1e-7
    )
    assert cell["why"].values.tolist() == list(UNREAD)
    told = ["none", "several", "words", "form", "cut"]
    assert cell["unread"].values.tolist() == [
        1 / 9 if why in told else 0 for why in UNREAD
    ]
    assert cell["unread"].sum() + (cell["reading"] == "read").mean() == pytest.approx(1)
    assert cell["answer"].values.tolist() == [answer.text for answer in given.values()]
    assert cell["prompt"].values.tolist() == [question.prompt for question in given]
    assert cell["ended"].values.tolist() == [answer.ended for answer in given.values()]
    assert cell["prompt_tokens"].values.tolist() == [91] + [0] * 8
    assert cell["answer_tokens"].values.tolist() == [20] + [0] * 8


def test_an_opened_answer_begins_with_its_words() -> None:
    """The prompt has ended with them: what follows is the answer, and a number that may go on is not read."""
    texts = [" 4", "4.", "4\n\nBecause", " 4 ones", " four", ""]
    extent: dict[str, Any] = {"lengths": [4], "seeds": range(len(texts))}
    given = answered(COUNT, lambda q: Answer(texts[q.seed], True), **extent)
    found = score_answers(COUNT, given, FACTS, prefill=True).isel(mode=0, length=0)
    assert found["reading"].values.tolist() == [
        "read",
        "read",
        "read",
        "read",
        "read",
        "none",
    ]
    assert found["as_asked"].values.tolist() == [True, True, True, False, False, False]
    assert found["value"].values.tolist() == ["4", "4", "4", "4", "4", ""]
    assert found["answer"].values.tolist() == texts  # as it was said
    assert (found["accuracy"], found["accuracy_strict"]) == (5 / 6, 0.5)
    alone = sl.tasks.find(
        "taught_count_repeated"
    )  # asked for alone: nothing to open with
    given = answered(alone, lambda q: Answer("4", True), lengths=[4])
    assert score_answers(alone, given, FACTS, prefill=True)["accuracy"].item() == 1


def test_what_is_no_number_has_no_error() -> None:
    copied = sl.tasks.find("taught_copy_odd_last")
    given = answered(
        copied,
        lambda q: Answer(("1 1 1 0", "111", "the same")[q.seed], True),
        lengths=[4],
        seeds=range(3),
    )
    found = score_answers(copied, given, FACTS).isel(mode=0, length=0)
    assert found["right"].values.tolist() == [True, False, False]
    assert found["value"].values.tolist() == ["1110", "111", ""]
    assert np.isnan(found["error"]).all()
    assert np.isnan(found["mean_error"])
    assert found["accuracy"].item() == pytest.approx(1 / 3)
    last = sl.tasks.find("copy_last")
    given = answered(
        last,
        lambda q: Answer("The answer to your question is: one", True),
        lengths=[300],
    )
    assert score_answers(last, given, FACTS)["error"].item() == 1


def numbers() -> xr.Dataset:
    """Answers to sequences of 2, 9 and 10 ones: 2 as 10, 9 as −1, 10 as 9 and 10 as 10, the rest unread."""
    told: dict[tuple[int, int], str] = {
        (2, 0): "10",
        (2, 1): "",
        (9, 0): "-1",
        (9, 1): "",
        (10, 0): "9",
        (10, 1): "10",
    }
    given = answered(
        COUNT,
        lambda q: Answer(f"{OPENING} {told[q.length, q.seed]}", True),
        lengths=[2, 9, 10],
        seeds=range(2),
    )
    return score_answers(COUNT, given, FACTS)


def test_frequencies_of_answers() -> None:
    """Shares of all questions, by size and not by spelling, the right answers beside them."""
    found = sl.results.answer_frequencies(numbers())
    assert found["value"].values.tolist() == ["-1", "2", "9", "10"]
    assert found["said"].dims == ("mode", "value")
    np.testing.assert_allclose(found["said"], [[1 / 6, 0, 1 / 6, 2 / 6]])
    np.testing.assert_allclose(found["truth"], [[0, 1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(found["unread"], [2 / 6])
    np.testing.assert_allclose(found["said"].sum("value") + found["unread"], [1])
    np.testing.assert_allclose(found["truth"].sum("value"), [1])


def test_answers_in_another_order_are_refused() -> None:
    """Else they would be filed under the wrong length, and nothing would show it."""
    given = answered(COUNT, right, lengths=[2, 3], seeds=range(2), mode=["answer_only"])
    with pytest.raises(InputError):
        score_answers(
            COUNT, dict(sorted(given.items(), key=lambda one: one[0].seed)), FACTS
        )


def test_a_character_that_files_cannot_hold_is_shown(tmp_path: Path) -> None:
    found = score_answers(COUNT, {COUNT.ask(2): Answer("2\0 ones", True)}, FACTS)
    assert found["answer"].item() == "2␀ ones"
    assert sl.results.open(sl.results.save(found, tmp_path / "a.nc")).identical(found)
