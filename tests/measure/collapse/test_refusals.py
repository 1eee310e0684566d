"""What cannot be measured is refused, before any work."""

from collections.abc import Callable
from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure.collapse.tokenization import repeat_tokenization
from tests.cases import OTHERS, save_random
from tests.references import raw
from tests.tokenizer_kinds import splitter


def ones(model: Any, n: int = 9, **form: Any) -> sl.prompts.GrowingSequence:
    return sl.prompts.repeated(model, "1", n, **form)


def ablated(model: Any, **options: Any) -> Any:
    return sl.separator_ablation(model, ones(model, 6, separator=","), **options)


def under(hook: tuple[str, Any], model: Any) -> Any:
    with sl.applied(model, sl.hooks.Hook("changed", *hook)):
        return sl.collapse_mechanism(model, ones(model, 3))


counts = raw(sl.theorems.shares_and_counts)
single = splitter("single")
# Of a model and of its tokenizer alone.
OF_TEXTS: list[dict[str, Any]] = [
    {"n": 0},
    {"repeat": " "},
    {"separator": {"it": " 1 "}},  # writes a third 1
    {"repeat": "car"},  # joined, it is no word
    {"prefix": "zebra "},
]
# Without bytes to fall back on, BPE leaves out what it has not seen: a repeat of nothing, a form without marks.
DROPPED: list[dict[str, Any]] = [
    {"repeat": "é", "separator": {"joined": ""}},
    {"repeat": "é", "prefix": "count", "separator": {"joined": ""}},
    {"separator": {"dots": "…"}},
]
REFUSED: list[Callable[[Any], Any]] = [
    lambda m: sl.collapse(m, ones(m), n_samples=0),
    lambda m: sl.collapse(m, ones(m), lengths=[3, 3]),
    lambda m: sl.collapse(m, ones(m), lengths=[99]),
    lambda m: sl.collapse_mechanism(m, ones(m, suffix="=")),
    lambda m: ablated(m, from_blocks=[6]),
    lambda m: ablated(m, from_blocks=[1, 1]),
    lambda m: ablated(m, substitute="zebra"),
    lambda m: ablated(m, lengths=[1, 2, 3]),
    lambda m: counts(m, ["1"], times=1),
    lambda m: counts(m, ["1"], times=0),
    lambda m: counts(m, [], times=2),
    lambda _: repeat_tokenization(single.backend_tokenizer),
    lambda _: repeat_tokenization("tiny-gemma"),
    *(lambda m, given=given: repeat_tokenization(m, **given) for given in OF_TEXTS),
    *(
        lambda m, given=given: repeat_tokenization(m.tokenizer, **given)
        for given in OF_TEXTS
    ),
    *(lambda _, given=given: repeat_tokenization(single, **given) for given in DROPPED),
]
LOUDER = ("blocks.0.attn.hook_out", lambda t: 2 * t)
SCALED = ("blocks.2.hook_resid_post", lambda t: 1.5 * t)
# Position ids and masks that these models do not use, or edits that end the mechanism.
UNSOUND: list[tuple[str, Callable[[Any], Any]]] = [
    *((name, lambda m: ablated_ids(m)) for name in ("bloom", "falcon_alibi", "mpt")),
    ("bloom", lambda m: sl.theorems.shares_and_counts(m, [7, 9])),
]


def ablated_ids(model: Any, **options: Any) -> Any:
    sequence = sl.prompts.repeated(model, 5, 8, separator=7)
    return sl.separator_ablation(model, sequence, lengths=[8], **options)


@pytest.mark.parametrize("call", REFUSED, ids=range(len(REFUSED)))
def test_it_is_refused(call: Callable[[Any], Any], tiny: Any) -> None:
    with pytest.raises(InputError):
        call(tiny)


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "call"), UNSOUND, ids=range(len(UNSOUND)))
def test_a_model_that_uses_no_position_ids_or_mask(
    name: str, call: Callable[[Any], Any], tmp_path: Any
) -> None:
    model = sl.load(save_random(OTHERS[name], tmp_path / name), device="cpu")
    with pytest.raises(UnsoundModelError):
        call(model)
    found = ablated_ids(model, kinds=["delete", "mask"])
    assert found["distance_from"].notnull().all()


@pytest.mark.slow
@pytest.mark.parametrize("hook", [LOUDER, SCALED], ids=["attention", "stream"])
def test_hooks_that_end_the_mechanism(hook: tuple[str, Any], tiny: Any) -> None:
    with pytest.raises(UnsoundModelError):
        under(hook, tiny)


def test_families_without_a_tokenizer_or_with_a_short_window(bridge_of: Any) -> None:
    with pytest.raises(InputError):
        repeat_tokenization(bridge_of("llama"))
    with pytest.raises(InputError):
        sl.theorems.shares_and_counts(bridge_of("mistral"), [7, 9], times=3)
