"""What cannot be asked, scored or probed is refused, by the name of the argument, and leaves the model as it was."""

from collections.abc import Callable
from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.tasks.task import Prompting
from tests.measurements import counted
from tests.references import fingerprint, raw

PAIR = [
    "How many ones are in the following sequence? 1 =",
    "How many ones are in the following sequence? 11 =",
]


def evaluated(**options: Any) -> Callable[[Any], Any]:
    task = sl.tasks.find("taught_count_bernoulli")
    return lambda model: sl.evaluate(model, task, **{"lengths": [3], **options})


def probed(task: str, **options: Any) -> Callable[[Any], Any]:
    return lambda model: sl.probe(
        model, sl.tasks.find(task), **{"lengths": [3, 4, 5], **options}
    )


def scored(
    *lengths: int, answer: Callable[[Any], Any] = counted
) -> Callable[[Any], Any]:
    return lambda model: raw(sl.accuracy)(
        model, [sl.prompts.repeated(model, "1", n) for n in lengths], answer
    )


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (evaluated(lengths=[]), "lengths"),
    (evaluated(lengths=[0]), "number of items"),
    (evaluated(lengths=[5000]), "context"),
    (evaluated(seeds=0), "seeds=0 is not a number of samples. Give a positive"),
    (evaluated(temperature=-1.0), "temperature"),
    (evaluated(max_new_tokens=0), "max_new_tokens=0"),
    (evaluated(max_new_tokens=100_000), "exceed context 2048"),
    (evaluated(resume="/nowhere/at/all.json"), "no folder"),
    (evaluated(template="chat"), "no chat template"),
    (lambda _: Prompting(mode=["answer_only", "cot"], n_examples=2), "cot_few_shot"),
    (lambda _: Prompting(n_baseline=-1), "n_baseline=-1"),
    (scored(), "do not have equal numbers of content tokens"),
    (scored(3, 4), "do not have equal numbers of content tokens"),
    (scored(3, answer=lambda _: ""), r"answer= gave .* content token"),
    (scored(3, answer=lambda _: "zebra"), "'zebra' is not in this model's vocabulary"),
    (probed("copy_last"), "the same right answer, so that only the length"),
    (probed("taught_copy_repeated"), "not numbers"),
    (
        probed("taught_count_alternating", seeds=20, lengths=[10, 12]),
        "only the length can be learned",
    ),
    (
        probed("taught_count_alternating", seeds=20, lengths=[9, 12]),
        "distinct prompts at length 9 is 2, .* n_train=64",
    ),
    (probed("taught_count_bernoulli", n_train=1), "n_train=1"),
    (probed("taught_count_bernoulli", n_random_models=-1), "n_random_models=-1"),
    (lambda m: sl.verdict(m, PAIR, ["1"]), "prompts and right answers are 2 and 1"),
    (lambda m: sl.verdict(m, PAIR[:1], ["1"]), "no pair to compare"),
    (lambda m: sl.verdict(m, [tuple(PAIR)], ["1"]), "both pairs of texts"),
    (lambda m: sl.verdict(m, PAIR, ["1", "1"]), "same right answer"),
    (lambda m: sl.verdict(m, PAIR[:1] * 2, ["1", "2"]), "same token ids"),
    (lambda m: sl.verdict(m, PAIR, ["1", " "]), "texts of the answers"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=range(len(REFUSED)))
def test_it_is_refused(call: Callable[[Any], Any], words: str, tiny: Any) -> None:
    before = fingerprint(tiny)
    with pytest.raises(InputError, match=words):
        call(tiny)
    assert fingerprint(tiny) == before


def test_a_model_without_a_tokenizer_is_refused(bridge_of: Any) -> None:
    model = bridge_of("llama")
    with pytest.raises(InputError, match="has no tokenizer"):
        sl.accuracy(model, [sl.prompts.build(model, [7, 8, 9], prefix=[2, 5])], counted)
