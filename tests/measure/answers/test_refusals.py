"""What cannot be asked, scored or probed is refused."""

from collections.abc import Callable
from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.tasks.task import Prompting
from tests.references import raw

PAIR = [
    "How many ones are in the following sequence? 1 =",
    "How many ones are in the following sequence? 11 =",
]


PROMPTS = [f"What is the last digit in this sequence? {n} =" for n in (7, 1, 3, 17)]
RIGHT = ["7", "1", "3", "7"]
LABELLED = {"prompt": "110 =", "answer": "2", "choices": ["2", "3"]}


def answered(
    function: Any = sl.answer_by_layer, **options: Any
) -> Callable[[Any], Any]:
    return lambda model: function(model, PROMPTS, **{"answers": RIGHT} | options)


def evaluated(**options: Any) -> Callable[[Any], Any]:
    task = sl.tasks.find("taught_count_bernoulli")
    return lambda model: sl.evaluate_task(model, task, **{"lengths": [3], **options})


def probed(task: str, **options: Any) -> Callable[[Any], Any]:
    return lambda model: sl.probe(
        model, sl.tasks.find(task), **{"lengths": [3, 4, 5], **options}
    )


def scored(answer: Any) -> Callable[[Any], Any]:
    return lambda model: raw(sl.compare_interventions)(
        model, sl.prompts.repeated(model, "1", 3), {}, answer=answer
    )


REFUSED: list[Callable[[Any], Any]] = [
    evaluated(lengths=[]),
    evaluated(lengths=[0]),
    evaluated(lengths=[5000]),
    evaluated(seeds=0),
    evaluated(temperature=-1.0),
    evaluated(max_new_tokens=0),
    evaluated(max_new_tokens=100_000),
    evaluated(resume="/nowhere/at/all.json"),
    evaluated(template="chat"),
    lambda _: Prompting(mode=["answer_only", "cot"], n_examples=2),
    lambda _: Prompting(n_baseline=-1),
    scored(lambda _: ""),
    scored(lambda _: "zebra"),
    probed("copy_last"),
    probed("taught_copy_repeated"),
    probed("taught_count_alternating", seeds=20, lengths=[10, 12]),
    probed("taught_count_alternating", seeds=20, lengths=[9, 12]),
    probed("taught_count_bernoulli", n_train=1),
    probed("taught_count_bernoulli", n_random_models=-1),
    lambda model: sl.diagnose(model, PAIR, ["1"]),
    lambda model: sl.diagnose(model, PAIR[:1], ["1"]),
    lambda model: sl.diagnose(model, [tuple(PAIR)], ["1"]),
    lambda model: sl.diagnose(model, PAIR, ["1", "1"]),
    lambda model: sl.diagnose(model, PAIR[:1] * 2, ["1", "2"]),
    lambda model: sl.diagnose(model, PAIR, ["1", " "]),
    answered(answers=["7"]),
    answered(choices=["7", "1"]),
    answered(choices=[["7", "1"]] * 2 + [["3", "7", "1"]] * 2),
    answered(choices=["7", "1", "3", "30"]),
    answered(clusters=["a"]),
    answered(sl.sublayer_effects, seed=-1),
    answered(sl.sublayer_effects, answers=["12", "13", "12", "13"]),
    lambda model: sl.answer_by_layer(model, PROMPTS[:1], ["7"]),
    lambda model: sl.answer_by_layer(model, PROMPTS[:1] * 2, ["7"] * 2, group="ab"),
    lambda model: sl.answer_by_layer(model, [{"prompt": "110 ="}]),
    lambda model: sl.answer_by_layer(model, "nowhere.jsonl"),
    lambda model: sl.answer_by_layer(model, [LABELLED], ["2"]),
    lambda model: sl.answer_by_layer(model, [LABELLED, LABELLED | {"group": "a"}]),
    lambda model: sl.sublayer_effects(
        model, ["110 ="], ["2"], choices=["2", "3"], missing="mean"
    ),
]


@pytest.mark.parametrize("call", REFUSED, ids=range(len(REFUSED)))
def test_it_is_refused(call: Callable[[Any], Any], tiny: Any) -> None:
    with pytest.raises(InputError):
        call(tiny)


def test_a_model_without_a_tokenizer_is_not_asked(bridge_of: Any) -> None:
    model = bridge_of("llama")
    sequence = sl.prompts.build(model, [7, 8, 9], prefix=[2, 5])
    with pytest.raises(InputError):
        sl.compare_interventions(model, sequence, {}, answer=lambda _: "1")
