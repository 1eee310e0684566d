"""Answers on the bundled model against its card, against itself interrupted, and as a chat; and what a file is of."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.answers import evaluate_task as module
from squashlens.measure.answers.evaluate_task import prepare_questions
from squashlens.measure.answers.frequencies import score_answers
from squashlens.saving.journal import Journal
from squashlens.tasks import Question, Task, reading
from squashlens.tasks.task import Prompting
from tests.references import run_of
from training.gemma import curriculum

COUNT = sl.tasks.find("taught_count_bernoulli")
CARD = pd.read_csv(sl.example_models.folder("tiny-gemma") / "accuracy.csv")
# A length it can do, one it half can, one it cannot.
ROWS = [
    ("count", 28),
    ("count", 52),
    ("sum", 52),
    ("first", 80),
    ("last", 80),
    ("copy", 8),
]
ROWS += [pytest.param("copy", 30, marks=pytest.mark.slow)]
ASKED = (
    "alternating",
    "bernoulli",
    "random",
    "odd_last",
)  # patterns in which each task is sometimes wrong


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "length"), ROWS)
def test_the_bundled_models_answers_are_right_as_often_as_its_card_says(
    tiny: Any, name: str, length: int
) -> None:
    """The card's very prompts, answered by decoding: the card was made from one pass over the right answers."""
    patterns, samples, rng = (
        curriculum.TASKS[name].patterns,
        30,
        Random(f"evaluate:1:{name}:{length}"),
    )
    read = {"copy": reading.digits, "count": reading.number, "sum": reading.number}.get(
        name, reading.digit
    )
    task = Task(
        "card",
        "{sequence}",
        lambda n, _: ["1"] * n,
        lambda items: "",
        read=read,
        numeric=name != "copy",
    )
    questions = []
    for row, pattern in enumerate(patterns):
        drawn = [
            curriculum.draw(curriculum.TASKS[name], length, i % 2 == 1, rng, pattern)
            for i in range(samples)
        ]
        for seed, one in enumerate(drawn):
            items = tuple(map(str, one.digits))
            answer = one.answer(length)
            if (
                pattern in ASKED
            ):  # the others are drawn too, since all come from one generator
                questions.append(
                    Question(
                        "card",
                        "answer_only",
                        row,
                        seed,
                        items,
                        one.prompt(length),
                        answer,
                    )
                )
    run, started = prepare_questions(run_of(tiny), COUNT, [length], 1, Prompting())
    put = replace(started, task=task, each=tuple(questions))
    ids = {question: put.ids(run, question) for question in questions}
    room = 2 * length if name == "copy" else 6  # tokens; a longer answer is wrong
    found = score_answers(
        task,
        module.answer_questions(run, put, ids, Journal(None, {}), max_new_tokens=room),
        {"call": {"function": "evaluate_task"}},
    )
    rows = CARD.query("task == @name and length == @length").set_index("pattern")[
        "accuracy"
    ]
    asked = [pattern for pattern in patterns if pattern in ASKED]
    np.testing.assert_allclose(found["accuracy"].values[0], rows.loc[asked], atol=1e-4)
    assert rows.mean() > 0, "something is right"


def test_a_run_is_what_it_says_it_is(tiny: Any) -> None:
    ds = sl.evaluate_task(tiny, COUNT, lengths=[5, 60], seeds=[3, 8])
    question = COUNT.ask(60, seed=8)
    one = ds.sel(length=60, seed=8, mode="answer_only")
    assert (one["prompt"].item(), one["truth"].item()) == (
        question.prompt,
        question.truth,
    )
    assert one["prompt_tokens"] == sl.prompts.tokenize(tiny, question.prompt).shape[1]
    assert one["answer_tokens"] == len(one["answer"].item()), "a digit is a token here"
    assert one["error"] == abs(int(one["answer"].item()) - int(question.truth)) > 0
    facts = sl.results.provenance(ds)
    assert facts["task"]["template"] == COUNT.template
    assert facts["call"]["seeds"] == [3, 8]
    assert facts["call"]["mode"] == ["answer_only"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_goes_on_where_it_was(
    tiny: Any, how: dict[str, Any], temperature: float
) -> None:
    how |= {"temperature": temperature}
    sl.evaluate_task(tiny, COUNT, **how)
    more = how | {"lengths": [6, 20], "seeds": 5}
    resumed = sl.evaluate_task(tiny, COUNT, **more)
    kept = how["resume"].read_bytes()
    whole = sl.evaluate_task(tiny, COUNT, **more | {"resume": None})
    xr.testing.assert_equal(resumed, whole)
    other = replace(COUNT, read=as_before)
    read = sl.evaluate_task(tiny, other, **more)
    assert sl.results.provenance(read)["task"]["read_as"] == "as_before"
    assert how["resume"].read_bytes() == kept, "another reader asks nothing anew"


def test_a_file_of_another_run_is_refused(tiny: Any, tmp_path: Path) -> None:
    kept = tmp_path / "answers.json"
    how: dict[str, Any] = {"lengths": [4], "seeds": 2, "resume": kept}
    sl.evaluate_task(tiny, COUNT, **how)
    before = kept.read_bytes()
    summed = sl.tasks.find("taught_sum_bernoulli")
    for task, temperature in ((COUNT, 0.5), (summed, 0.0)):
        with pytest.raises(InputError):
            sl.evaluate_task(tiny, task, temperature=temperature, **how)
    with (
        sl.applied(tiny, sl.hooks.sliding_window(4)),
        pytest.raises(InputError),
    ):
        sl.evaluate_task(tiny, COUNT, **how)
    assert kept.read_bytes() == before


def as_before(text: str, opening: str, ended: bool) -> reading.Reading:
    return reading.number(text, opening, ended)


@pytest.fixture
def how(tmp_path: Path) -> dict[str, Any]:
    return {
        "lengths": [20],
        "seeds": 4,
        "resume": tmp_path / "answers.json",
        "n_baseline": 0,
    }


def test_a_task_in_other_words_finds_no_old_answer(
    tiny: Any, how: dict[str, Any]
) -> None:
    edited = replace(COUNT, template=sl.tasks.find("taught_last_bernoulli").template)
    before = sl.evaluate_task(tiny, COUNT, **how)
    after = sl.evaluate_task(tiny, edited, **how)
    assert after.drop_attrs().identical(
        sl.evaluate_task(tiny, edited, **how | {"resume": None}).drop_attrs()
    )
    assert (before["answer"] != after["answer"]).any()


def test_hooks_are_honoured_and_named(tiny: Any) -> None:
    free = sl.evaluate_task(tiny, COUNT, lengths=[20], seeds=6)
    with sl.applied(tiny, sl.hooks.sliding_window(4)):
        windowed = sl.evaluate_task(tiny, COUNT, lengths=[20], seeds=6)
    assert free["accuracy"] == 1 > windowed["accuracy"]
    assert "window" in str(sl.results.provenance(windowed)["ambient_hooks"])


def test_one_answer_is_never_counted_as_many(tiny: Any) -> None:
    same = sl.tasks.find("taught_count_repeated")
    assert sl.evaluate_task(tiny, same, lengths=[4]).sizes["seed"] == 1
    for task in (
        same,
        replace(COUNT, draw=same.draw),
    ):  # the second says that it is random
        with pytest.raises(InputError):
            sl.evaluate_task(tiny, task, lengths=[4, 9], seeds=5)
    assert sl.evaluate_task(tiny, COUNT, lengths=[2], seeds=2)["prompts"] == 1, (
        "drawn twice by chance"
    )
    mixed = replace(
        COUNT, draw=lambda n, rng: COUNT.draw(n, rng) if n < 5 else same.draw(n, rng)
    )
    assert sl.evaluate_task(tiny, mixed, lengths=[4, 9], seeds=5).sizes["seed"] == 5
    drawn = sl.evaluate_task(tiny, same, lengths=[60], seeds=12, temperature=3.0)
    assert len(set(drawn["answer"].values.flat)) > 2
    assert sl.evaluate_task(tiny, COUNT, lengths=[4]).sizes["seed"] == 16


def test_modes_and_the_opening_words_reach_the_model(tiny: Any) -> None:
    task = sl.tasks.find("sum")
    how: dict[str, Any] = {"lengths": [3], "max_new_tokens": 5}
    with pytest.warns(UserWarning, match="said"):
        ds = sl.evaluate_task(tiny, task, mode=["answer_only", "cot_few_shot"], **how)
    with pytest.warns(UserWarning, match="cut off"):
        sl.evaluate_task(tiny, COUNT, lengths=[30], seeds=1, max_new_tokens=1)
    for mode in ("answer_only", "cot_few_shot"):
        assert ds["prompt"].sel(mode=mode).item() == task.ask(3, mode=mode).prompt
    opened = sl.evaluate_task(tiny, task, prefill=True, **how)
    words = sl.prompts.tokenize(tiny, f"{task.ask(3).prompt} {task.opening}").shape[1]
    assert opened["prompt_tokens"].item() == words > ds["prompt_tokens"].values[0, 0, 0]


@pytest.mark.slow
def test_a_chat_template_goes_around_the_question_and_before_the_opening(
    chatty: Any,
) -> None:
    task = sl.tasks.find("sum")
    _, put = prepare_questions(
        run_of(chatty), task, [3], 1, Prompting(template="chat", prefill=True)
    )
    (question,) = put.each
    by_hand = chatty.tokenizer(f"question: {question.prompt} answer : {task.opening}")[
        "input_ids"
    ]
    assert list(put.ids(run_of(chatty), question)) == by_hand
    assert by_hand.count(chatty.tokenizer.bos_token_id) == 1
