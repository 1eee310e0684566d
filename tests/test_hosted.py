"""Hosted models: Inspect's scores and ours agree, logs come back as `evaluate_task` returns, and what is not whole is
refused.

Nothing here reaches a network: answers are scripted, or come from the bundled model's folder.
"""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import inspect_ai
import numpy as np
import pytest
import xarray as xr
from inspect_ai.log import EvalLog
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.model._model_output import StopReason

import squashlens as sl
from squashlens import hosted
from squashlens.errors import InputError
from squashlens.measure.answers.frequencies import Ability, Answer, score_answers
from squashlens.records.provenance import without_provenance
from squashlens.tasks import Task, reading

ONES = sl.tasks.find("count_ones")
DRAWN = sl.tasks.find("count_bernoulli")
SAYS = ONES.opening
VOWELS = Task(
    name="vowels of mine",
    template="How many vowels are in '{sequence}'? Answer with a number.",
    draw=lambda n, rng: rng.choices("abcde", k=n),
    answer=lambda items: str(sum(item in "ae" for item in items)),
)
# What is said at each length, why it stopped, and how that is read, with 10 as the first right answer.
SAID: dict[int, tuple[str, StopReason, str]] = {
    10: (f"Ten ones.\n{SAYS} 10.", "stop", "read"),
    11: (f"{SAYS} 12", "stop", "read"),
    12: ("I would rather not count.", "stop", "none"),
    13: (f"{SAYS} 13\nNo! {SAYS} 14", "stop", "several"),
    14: (f"{SAYS} 14", "max_tokens", "cut"),
    15: (f"{SAYS} 15", "model_length", "cut"),
    16: (f"{SAYS} 16", "content_filter", "cut"),
    17: (f"{SAYS} 17\nwhich is", "max_tokens", "read"),
    18: ("There are 18 ones", "stop", "read"),  # unambiguous, and not as asked
    19: ("", "stop", "none"),
    20: (f"{SAYS} two dozen", "stop", "words"),
    2: (f"{SAYS} 11", "stop", "echo"),
    21: (f"{SAYS} 21", "unknown", "read"),
}
USAGE = ModelUsage(
    input_tokens=7,
    input_tokens_cache_read=30,
    input_tokens_cache_write=4,
    output_tokens=5,
)
Says = Callable[[str], ModelOutput]


def output(
    text: str, why: StopReason = "stop", usage: ModelUsage = USAGE
) -> ModelOutput:
    """Usage is given: without it, mockllm counts tokens by a vocabulary that it would have to download."""
    return ModelOutput.from_content("mock-1", text, stop_reason=why).model_copy(
        update={"usage": usage}
    )


def right(prompt: str) -> ModelOutput:
    """Counts the ones that the prompt ends in."""
    return output(
        f"{SAYS} {prompt.partition('sequence:')[2].partition('.')[0].count('1')}"
    )


@pytest.fixture(autouse=True)
def _inspect_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("INSPECT_LOG_DIR", raising=False)


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., EvalLog]:
    """Asks a mock model by Inspect, which logs below `tmp_path`."""

    def asked(task: Any, says: Says = right, **settings: Any) -> EvalLog:
        model = get_model(
            "mockllm/model",
            custom_outputs=lambda said, *_: says(said[-1].text),
            memoize=False,
        )
        chosen = {
            "log_dir": str(tmp_path / "logs"),
            "display": "none",
            "log_realtime": False,
        } | settings
        (log,) = inspect_ai.eval(task, model=model, **chosen)
        return log

    return asked


def same(found: xr.Dataset, expected: xr.Dataset, *, but: Collection[str] = ()) -> None:
    """Equal numbers, texts, labels and units; the provenance is each one's own."""
    assert list(found.data_vars) == list(expected.data_vars)
    for name in set(found.data_vars) - set(but):
        xr.testing.assert_equal(
            without_provenance(found[name]), without_provenance(expected[name])
        )
        assert found[name].dims == expected[name].dims
        own, wanted = (dict(one[name].attrs) for one in (found, expected))
        assert own == wanted


def scripted(prompt: str) -> ModelOutput:
    text, why, _ = SAID[len(prompt.partition("sequence:")[2].partition(".")[0])]
    return output(text, why)


def test_scores_in_inspect_are_those_of_both_readings(
    put: Callable[..., EvalLog],
) -> None:
    log = put(hosted.inspect_task(ONES, list(SAID)), scripted)
    assert log.status == "success", log.error
    found = hosted.from_log(log)
    questions = ONES.asked(list(SAID))
    answers = {
        q: Answer(SAID[q.length][0], SAID[q.length][1] in ("stop", "unknown"), 41, 5)
        for q in questions
    }
    same(found, score_answers(ONES, answers, {"call": {"function": "hosted"}}))
    readings = [SAID[length][2] for length in sorted(SAID)]
    assert found["reading"].values[0, :, 0].tolist() == readings
    right_at = found["length"].values[found["right"].values[0, :, 0]]
    assert right_at.tolist() == [10, 17, 18, 21]
    for sample in log.samples or []:
        score, asked = ((sample.scores or {})[name] for name in ("lenient", "strict"))
        here = found.sel(mode="answer_only", length=sample.metadata["length"], seed=0)
        told = (score.value, score.answer or "", score.explanation)
        assert told == ("C" if here["right"] else "I", here["value"], here["reading"])
        if sample.metadata["length"] == 18:
            assert (asked.value, asked.answer, asked.explanation) == (
                "I",
                None,
                "not in the requested form",
            )
        else:
            assert asked == score


def test_answers_come_back_in_the_order_of_the_questions(
    put: Callable[..., EvalLog],
) -> None:
    task = hosted.inspect_task(
        DRAWN, [12, 5], seeds=[3, 1], mode=["cot", "answer_only"]
    )
    log = put(task, sample_shuffle=7)
    placed = [sample.metadata["place"] for sample in log.samples or []]
    assert placed != sorted(placed)
    found = hosted.from_log(log)
    assert found["accuracy"].values.tolist() == [[1, 1], [1, 1]]
    answers = {
        q: Answer(right(q.prompt).completion, True, 41, 5)
        for q in DRAWN.asked([12, 5], [3, 1], found["mode"].values)
    }
    same(found, score_answers(DRAWN, answers, {"call": {"function": "hosted"}}))
    assert [*found["length"].values, *found["seed"].values] == [5, 12, 3, 1]
    assert found["mode"].values.tolist() == ["cot", "answer_only"]
    assert sl.results.provenance(found)["call"]["lengths"] == [5, 12]


def test_the_provenance_says_who_was_asked_how(put: Callable[..., EvalLog]) -> None:
    task = hosted.inspect_task(ONES, [4, 5], 2)
    log = put(task, temperature=0.7, extra_headers={"key": "secret"})
    facts = sl.results.provenance(hosted.from_log(log))
    assert facts["task"]["name"] == "count_ones"
    assert (facts["model"], facts["answered_by"]) == ("mockllm/model", ["mock-1"])
    assert facts["generate"] == {"temperature": 0.7}
    assert facts["call"]["lengths"] == [4, 5]
    assert "secret" not in json.dumps(facts)


def test_a_task_of_ones_own(put: Callable[..., EvalLog]) -> None:
    log = put(hosted.inspect_task(VOWELS, [3, 6], 2), lambda _: output("2"))
    found = hosted.from_log(log, task=VOWELS)
    xr.testing.assert_identical(hosted.from_log(log.location, task=VOWELS), found)
    assert np.array_equal(found["right"], found["truth"] == "2")
    for given in (None, DRAWN):
        with pytest.raises(InputError):
            hosted.from_log(log, task=given)
    other = Task(
        VOWELS.name,
        "Vowels in '{sequence}'?",
        VOWELS.draw,
        VOWELS.answer,
        read=reading.number,
    )
    with pytest.raises(InputError):
        hosted.from_log(log, task=other)


def test_what_is_not_whole_is_refused(
    put: Callable[..., EvalLog], tmp_path: Path
) -> None:
    def fails(prompt: str) -> ModelOutput:
        raise ValueError("quota is used up")

    drawn, ones = (
        hosted.inspect_task(DRAWN, [4, 9], 2),
        hosted.inspect_task(ONES, [4, 9]),
    )
    several = hosted.inspect_task(ONES, [4], 2)
    (tmp_path / "bad.eval").write_text("no log")
    for log in (
        lambda: put(drawn, epochs=2),
        lambda: put(drawn, limit=3),
        lambda: put(drawn, log_samples=False),
        lambda: tmp_path / "none.eval",
        lambda: tmp_path / "bad.eval",
        lambda: put(ones, fails),
        lambda: put(ones, fails, fail_on_error=False),
        lambda: put(several, temperature=0),  # one answer would be counted as two
    ):
        found = log()
        with pytest.raises(InputError):
            hosted.from_log(found)
    assert hosted.from_log(put(drawn, limit=2)).sizes["length"] == 1  # whole in itself


def test_tasks_go_by_name(put: Callable[..., EvalLog]) -> None:
    log = put(
        "squashlens/ask", task_args={"name": "sum", "lengths": "4,5", "seeds": "3"}
    )
    assert log.eval.task_registry_name == "squashlens/ask"
    assert hosted.from_log(log)["length"].values.tolist() == [4, 5]
    with pytest.raises(InputError):
        hosted.ask("count_twos")


@pytest.mark.slow
def test_a_local_folder_answers_inspect_as_it_answers_behave(
    tiny: Any, tmp_path: Path
) -> None:
    """Word for word: the template here gives the prompt as it is, and the tokenizer puts its one <bos> in front.

    Inspect's provider counts the tokens of a padded batch, and the one that ends an answer, so those are other numbers.
    """
    task = sl.tasks.find("taught_count_bernoulli")
    model = get_model(
        "hf/local",
        model_path=str(sl.example_models.folder("tiny-gemma")),
        device="cpu",
        do_sample=False,
        memoize=False,
        chat_template="{{ messages[0].content }}",
    )
    asked = hosted.inspect_task(task, [3, 8, 400], 2)
    (log,) = inspect_ai.eval(
        asked, model=model, log_dir=str(tmp_path), display="none", max_tokens=16
    )
    assert log.status == "success", log.error
    found = hosted.from_log(log)
    how: dict[str, Any] = {"max_new_tokens": 16, "n_baseline": 0}
    ours = sl.evaluate_task(tiny, task, lengths=[3, 8, 400], seeds=2, **how)
    same(
        found, ours, but={"prompt_tokens", "answer_tokens", *Ability._fields}
    )  # a log's baseline is its own
    assert found["right"].sel(length=8).all()
    assert (found["prompt_tokens"] == ours["prompt_tokens"].max()).all()
    facts = sl.results.provenance(found)
    assert facts["model"] == "hf/local"
    assert facts["stop_reasons"] == {"unknown": 6}
