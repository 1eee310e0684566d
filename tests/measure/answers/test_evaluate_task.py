"""Answers on the bundled model against its card, against itself interrupted, and as a chat; and what a file is of."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.answers import evaluate_task as module
from squashlens.measure.answers.evaluate_task import prepare_questions
from squashlens.measure.answers.frequencies import Answer, score_answers
from squashlens.run import generate as generating
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


@pytest.mark.few(3)
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


def stop_after(batches: int, asked: list[int]) -> Any:
    """The real generation, broken off; `asked` collects the number of prompts of each batch."""

    def generate(*args: Any, **options: Any) -> Iterator[Any]:
        for number, batch in enumerate(real(*args, **options)):
            if number == batches:
                raise InterruptedError
            asked.append(len(batch))
            yield batch

    real = module.generate
    return generate


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_interrupted_and_resumed_is_one_run(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    how: dict[str, Any] = {"seeds": 4, "temperature": temperature, "n_baseline": 0}
    monkeypatch.setattr(generating, "_batch_size", lambda model, n: 3)
    whole = sl.evaluate_task(tiny, COUNT, lengths=[6, 20, 24], **how)
    kept, asked = tmp_path / "answers.json", []
    with monkeypatch.context() as patch:
        patch.setattr(module, "generate", stop_after(3, asked))
        with pytest.raises(InterruptedError):
            sl.evaluate_task(tiny, COUNT, lengths=[6, 20, 24], resume=kept, **how)
    assert asked == [3, 1, 3], "what was said before the interruption"
    with monkeypatch.context() as patch:
        patch.setattr(module, "generate", stop_after(99, asked))
        resumed = sl.evaluate_task(tiny, COUNT, lengths=[6, 20, 24], resume=kept, **how)
        assert sum(asked) == 12, "nothing lost, nothing done twice"
        more = sl.evaluate_task(
            tiny, COUNT, lengths=[6, 9, 20, 24], resume=kept, **how | {"seeds": 5}
        )
        assert sum(asked) == 20, "only what is new"
    assert resumed.identical(whole)
    for name in ("answer", "right", "ended"):
        np.testing.assert_array_equal(
            more[name].sel(length=[6, 20, 24], seed=range(4)), whole[name]
        )


def test_a_file_of_another_run_is_refused(tiny: Any, tmp_path: Path) -> None:
    kept = tmp_path / "answers.json"
    how: dict[str, Any] = {"lengths": [4], "seeds": 2, "resume": kept}
    sl.evaluate_task(tiny, COUNT, **how)
    before = kept.read_bytes()
    for other, named in (
        (lambda: sl.evaluate_task(tiny, COUNT, temperature=0.5, **how), "temperature"),
        (
            lambda: sl.evaluate_task(
                tiny, sl.tasks.find("taught_sum_bernoulli"), **how
            ),
            "task",
        ),
    ):
        with pytest.raises(InputError, match=named):
            other()
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


def test_what_does_not_change_answers_does_not_end_a_file(
    tiny: Any, how: dict[str, Any], monkeypatch: Any
) -> None:
    """Another reader, a view of the same prompts with other thresholds, another room: no answer is lost or taken."""
    asked: list[int] = []
    monkeypatch.setattr(module, "generate", stop_after(99, asked))
    sl.evaluate_task(tiny, COUNT, **how)
    other = sl.evaluate_task(tiny, replace(COUNT, read=as_before), **how)
    assert sum(asked) == 4
    assert sl.results.provenance(other)["task"]["read_as"] == "as_before"
    sl.evaluate_task(tiny, COUNT, max_new_tokens=3, **how)
    sl.evaluate_task(tiny, COUNT, max_new_tokens=3, **how)
    assert sum(asked) == 8, "answers with less room are others, and both are kept"
    joined: dict[str, Any] = how | {
        "seeds": 12,
        "resume": how["resume"].with_name("joined.json"),
    }
    for options in ({}, {"n_train": 3}, {"round_to": "bf16"}):
        sl.collapse_vs_readout(tiny, COUNT, **joined, **options)
        assert sum(asked) == 8 + 24


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
    with pytest.warns(
        UserWarning,
        match="No answer to the task 'sum' could be read. After .* the model said",
    ):
        ds = sl.evaluate_task(tiny, task, mode=["answer_only", "cot_few_shot"], **how)
    with pytest.warns(
        UserWarning,
        match="said '1', which is read as: cut off. Use a larger max_new_tokens=",
    ):
        sl.evaluate_task(tiny, COUNT, lengths=[30], seeds=1, max_new_tokens=1)
    for mode in ("answer_only", "cot_few_shot"):
        assert ds["prompt"].sel(mode=mode).item() == task.ask(3, mode=mode).prompt
    opened = sl.evaluate_task(tiny, task, prefill=True, **how)
    words = sl.prompts.tokenize(tiny, f"{task.ask(3).prompt} {task.opening}").shape[1]
    assert opened["prompt_tokens"].item() == words > ds["prompt_tokens"].values[0, 0, 0]


def test_generation_stops_at_a_new_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model says is written by hand. It had room for 264 tokens."""
    model, task = sl.load("tiny-prose"), sl.tasks.find("count_ones")
    text = f" {task.opening} 4\n\n{task.ask(2).prompt} {task.opening} 2\n\n"
    logits = iter(
        torch.eye(model.cfg.d_vocab)[
            model.tokenizer(text, add_special_tokens=False)["input_ids"]
        ]
    )
    monkeypatch.setattr(
        generating, "empty_cache", lambda _: None
    )  # which would ask the model
    monkeypatch.setattr(generating, "whole_pass", lambda *_: next(logits)[None])
    found = sl.evaluate_task(model, task, lengths=[4], n_examples=1, n_baseline=0)
    assert (found["ended"].item(), found["right"].item(), found["able"].item()) == (
        True,
        True,
        "undecided",
    )
    assert found["answer"].item() == f" {task.opening} 4\n\nPlease count the number of"
    assert found["prompt"].item() == task.after_examples(task.ask(4), 1).prompt
    assert score_answers(
        task,
        {task.ask(4): Answer(text, False)},
        {"call": {"function": "evaluate_task"}},
    )["ended"].item()


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
