"""What cannot be measured is refused, by the name of the argument and before any work."""

from collections.abc import Callable
from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.collapse.tokenization import repeat_tokenization
from tests.references import raw
from tests.splitters import splitter


def ones(model: Any, n: int = 9, **form: Any) -> sl.prompts.GrowingSequence:
    return sl.prompts.repeated(model, "1", n, **form)


def ablated(model: Any, **options: Any) -> Any:
    return sl.separator_ablation(model, ones(model, 6, separator=","), **options)


def split(**options: Any) -> Callable[[Any], Any]:
    return lambda _: repeat_tokenization(splitter("single"), **options)


counts = raw(sl.statements.shares_and_counts)
# Of a model and of its tokenizer alone.
OF_TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n=0"),
    ({"repeat": " "}, "not non-empty text"),
    ({"separator": {}}, "has no forms"),
    (
        {"separator": {"it": " 1 "}},
        "'it' of separator= writes two repeats as '1 1 1', which has more than two '1'",
    ),
    (
        {"repeat": "car"},
        "'joined' of separator= cannot be tokenized: The word 'carcar'.*leave the form out",
    ),
    ({"prefix": "zebra "}, "'zebra' is not in this model's vocabulary"),
]
REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda m: sl.collapse(m, ones(m), n_samples=0), "n_samples=0"),
    (
        lambda m: sl.collapse(m, ones(m), lengths=[3, 3]),
        "lengths=.* has no value or one twice",
    ),
    (lambda m: sl.collapse(m, ones(m), lengths=[99]), "Lengths run from 1 to 9"),
    (lambda m: sl.collapse_mechanism(m, ones(m, suffix="=")), "has a suffix"),
    (lambda m: sl.separation(m, ones(m), lengths=(3,)), "nothing to tell it from"),
    (lambda m: ablated(m, from_blocks=[6]), "Use blocks 0 to 5"),
    (lambda m: ablated(m, from_blocks=[1, 1]), "not different blocks of this model"),
    (lambda m: ablated(m, substitute="zebra"), "not in this model's vocabulary"),
    (lambda m: ablated(m, lengths=[1, 2, 3]), "no separators to ablate"),
    (
        lambda m: ablated(m, kinds=["mean_residual"], source=[]),
        "Stack at least one sequence",
    ),
    (lambda m: counts(m, ["1"], times=1), "times=1 of content=\\[.1.\\] makes no"),
    (lambda m: counts(m, ["1"], times=0), "times=0 of content="),
    (lambda m: counts(m, [], times=2), "times=2 of content="),
    *(
        (lambda m, given=given: repeat_tokenization(m, **given), words)
        for given, words in OF_TEXTS
    ),
    *(
        (lambda m, given=given: repeat_tokenization(m.tokenizer, **given), words)
        for given, words in OF_TEXTS
    ),
    (
        lambda _: repeat_tokenization(splitter("single").backend_tokenizer),
        "neither a model.*PreTrainedTokenizerFast",
    ),
    (lambda _: repeat_tokenization("tiny-gemma"), "neither a model with a tokenizer"),
    # Without bytes to fall back on, BPE leaves out what it has not seen: a repeat of nothing, a form without marks.
    (
        split(repeat="é", separator={"joined": ""}),
        "'joined' of separator= cannot be tokenized: 'é' has no tokens",
    ),
    (
        split(repeat="é", prefix="count", separator={"joined": ""}),
        "'éé?' adds no token to the prefix",
    ),
    (
        split(separator={"dots": "…"}),
        "'dots' of separator= cannot be tokenized: '…'.*leave the form out",
    ),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=range(len(REFUSED)))
def test_it_is_refused(call: Callable[[Any], Any], words: str, tiny: Any) -> None:
    with pytest.raises(InputError, match=words):
        call(tiny)


def test_another_family_is_refused(bridge_of: Any) -> None:
    with pytest.raises(InputError, match="has no tokenizer"):
        repeat_tokenization(bridge_of("llama"))
    with pytest.raises(
        InputError, match="6 tokens do not fit into this model's sliding window of 5"
    ):
        sl.statements.shares_and_counts(bridge_of("mistral"), [7, 9], times=3)
