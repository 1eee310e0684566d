"""Interventions side by side: each column is the plain call inside `applied`, and the model is left as it was."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.answers.growing_answers import AskedSequence, are_answered
from squashlens.records.labels import AS_IT_IS
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence
from tests.measurements import counted, together
from tests.references import distances_equal, raw

COUNT = "How many ones are in the following sequence?"
CONTENT = [7, 8, 7, 7, 9, 9, 8, 7]
LENGTHS = [2, 5, 8]


@pytest.fixture(scope="module")
def digits(tiny: Any) -> Any:
    return sl.prompts.bernoulli(tiny, 12, seed=1, prefix=COUNT, suffix="=")


@pytest.fixture(scope="module")
def several(tiny: Any) -> dict[str, Any]:
    """One hook, several, a recipe, another form of the sequence, and both."""
    form: dict[str, Any] = {"prefix": COUNT, "suffix": "="}
    plain = sl.prompts.bernoulli(tiny, 12, seed=1, **form)
    headless = replace(plain, prefix=plain.prefix[1:])
    commas = sl.prompts.bernoulli(tiny, 12, seed=1, separator=",", **form)
    return {
        "window": sl.hooks.sliding_window(6, sink=1),
        "two": [sl.hooks.mask_tokens([0], (1, 2)), sl.hooks.attention_temperature(0.7)],
        "recipe": [sl.hooks.freeze_norms(), sl.hooks.round_activations("bfloat16")],
        "without BOS": headless,
        "commas, uniform": (commas, sl.hooks.uniform_attention()),
    }


@pytest.fixture(scope="module")
def compared(tiny: Any, digits: Any, several: Any) -> Any:
    how: Any = {
        "answer": counted,
        "n_samples": 2,
        "lengths": [4, 12],
        "norm": "l2",
        "seed": 5,
        "noise_lengths": 2,
    }
    return together(
        "interventions side by side",
        lambda: sl.compare_interventions(tiny, digits, several, **how),
    )


def is_answered(model: Any, called: Any, sequence: GrowingSequence, n: int) -> bool:
    """Whether the text up to <eos>, of whole passes one token at a time, is the number of ones."""
    ids = list(sequence.pair(n).v)
    while (
        ids[-1] != model.tokenizer.eos_token_id
        and len(ids) < len(sequence.pair(n).v) + 6
    ):
        logits = called(torch.tensor([ids]))
        ids.append(int(getattr(logits, "logits", logits)[0, -1].argmax()))
    said = model.tokenizer.decode(
        ids[len(sequence.pair(n).v) :], skip_special_tokens=True
    )
    assert model.tokenizer.decode([4]) == "1"
    return said.replace(" ", "") == str(sequence.content[:n].count(4))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "change", ["as it is", "window", "two", "recipe", "without BOS", "commas, uniform"]
)
def test_every_column_is_the_plain_call(
    change: str, tiny: Any, digits: Any, several: Any, compared: Any
) -> None:
    given = several.get(change, ())
    parts = list(given) if isinstance(given, list | tuple) else [given]
    hooks = [part for part in parts if not isinstance(part, sl.prompts.GrowingSequence)]
    form = next(
        (part for part in parts if isinstance(part, sl.prompts.GrowingSequence)), digits
    )
    drawn = [form.unrelated(Random(f"asked 5 {number}")) for number in range(2)]
    ids = torch.tensor(form.pair(12).v)
    with sl.applied(tiny, *hooks):
        collapse = sl.collapse(
            tiny,
            form,
            lengths=[4, 12],
            norm="l2",
            scale="relative",
            noise_lengths=2,
            passes="auto",
        )
        bound = sl.path_bound(tiny, ids)
        right = [
            np.mean([is_answered(tiny, tiny, one, n) for one in drawn]) for n in (4, 12)
        ]
    here = compared.sel(change=change)
    names = (
        "distance",
        "distance_y",
        "same_argmax",
        "probability_l1",
        "noise_floor",
        "noise_floor_y",
    )
    for name in names:
        np.testing.assert_array_equal(here[name], collapse[name])
    places = [
        place
        for place, token in enumerate(ids.tolist())
        if place >= len(form.prefix) and token in (3, 4)
    ]
    assert len(places) == 12
    np.testing.assert_array_equal(here["bound"], bound[places])
    np.testing.assert_array_equal(here["accuracy"], right)
    assert here["tokens"].values.tolist() == [len(form.pair(n).v) for n in (4, 12)]
    assert np.isnan(compared["native_window"]).all()  # the bundled model has none
    assert set(compared.data_vars) == {*names, "bound", "accuracy", "native_window"}


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gemma", "llama", "qwen3", "gpt2"])
def test_a_first_token_that_nobody_sees(
    family: str, bridge_of: Any, plain_of: Any
) -> None:
    """Masked in all blocks it is as if it were not there, where positions are relative; GPT-2 has counted it."""
    model, plain = bridge_of(family), plain_of(family)
    sequence, without = (
        sl.prompts.build(
            model, CONTENT, prefix=[*start, 5, 11], alphabet=[7, 8, 9], suffix=[20]
        )
        for start in ([2], [])
    )
    ds = sl.compare_interventions(
        model,
        sequence,
        {"masked": sl.hooks.mask_tokens([0]), "dropped": without},
        lengths=LENGTHS,
        scale="absolute",
    )
    dropped = ds.sel(change="dropped")
    for length in LENGTHS:
        pair = without.pair(length)
        assert pair.v[0] == 5
        distances_equal(dropped.sel(length=length), plain, pair)
    masked, plainly = (ds.sel(change=name) for name in ("masked", AS_IT_IS))
    far = 1e-3
    for name in ("distance_y", "probability_l1", "bound"):
        apart = np.abs(masked[name] - dropped[name]).max()
        assert (
            (apart > far)
            if family == "gpt2"
            else (apart <= 2e-5 * np.abs(dropped[name]).max())
        ), name
        assert np.abs(plainly[name] - dropped[name]).max() > far, name


def test_the_answers_are_those_of_the_sequence(tiny: Any) -> None:
    """Not of other digits, unless they are asked for."""
    ones, count = (
        sl.prompts.repeated(tiny, "1", 52, prefix=COUNT, suffix="="),
        lambda items: str(len(items)),
    )
    changes = {"window": sl.hooks.sliding_window(4)}
    for n, asked, right in (
        (0, "the sequence itself", [1, 1, 0]),
        (3, "3 sequences drawn", [0, 0, 0]),
    ):
        found = sl.compare_interventions(
            tiny, ones, changes, answer=count, lengths=[6, 48, 52], n_samples=n
        )
        assert found["accuracy"].values.tolist() == [right, [0, 0, 0]]
        assert asked in found["accuracy"].attrs["long_name"]


@pytest.mark.slow
@pytest.mark.parametrize("commas", [{}, {"separator": ","}], ids=["bare", "commas"])
def test_right_answers_are_those_of_the_plain_model(
    commas: dict[str, Any], tiny: Any, plain_tiny: Any
) -> None:
    """From always right to half of the time."""
    form = sl.prompts.bernoulli(tiny, 64, seed=0, prefix=COUNT, suffix="=", **commas)
    form = replace(form, alphabet=tuple(sorted(set(form.content))))
    drawn = [form.unrelated(Random(f"asked 0 {number}")) for number in range(4)]
    lengths = [3, 20, 44, 54, 64]
    found = sl.compare_interventions(
        tiny, form, {}, answer=counted, n_samples=4, lengths=lengths
    )["accuracy"].sel(change=AS_IT_IS)
    right = [[is_answered(tiny, plain_tiny, one, n) for one in drawn] for n in lengths]
    np.testing.assert_array_equal(found, np.mean(right, axis=1))
    assert found[0] == 1
    assert found[-1] < 1


def test_the_start_of_an_answer_is_no_answer(tiny: Any) -> None:
    """Of twelve ones the model says 12: 1 is wrong, and so are 2, 21 and 122."""
    twelve = sl.prompts.repeated(tiny, "1", 12, prefix=COUNT, suffix="=")
    asked = [AskedSequence(twelve, 12)] * 5
    right = are_answered(Run.open(tiny, "test"), asked, ["12", "1", "2", "21", "122"])
    assert right.tolist() == [True, False, False, False, False]


def test_answers_see_the_content_at_their_length(tiny: Any) -> None:
    """Content tokens alone, without separators, prompt or suffix, and the last as the ending has it."""
    sequence = sl.prompts.build(
        tiny, "10230", separator=",", every=2, ending="9", prefix=COUNT, suffix="="
    )
    run = Run.open(tiny, "test")
    seen = [AskedSequence(sequence, n).right_answer(run, "".join) for n in (1, 3, 5)]
    assert seen == ["9", "109", "10239"]


def test_without_an_answer_nothing_is_asked(bridge_of: Any) -> None:
    """Models without a tokenizer can be compared; and the longest prompt asked for is the one the bound is of."""
    model = bridge_of("mistral")
    sequence = sl.prompts.build(model, CONTENT, prefix=[2, 5])
    ds = sl.compare_interventions(
        model, sequence, {"cold": sl.hooks.attention_temperature(0.5)}, lengths=[3, 6]
    )
    assert "accuracy" not in ds
    assert ds["native_window"].values.tolist() == [5, 5, 5]
    assert ds["content"].values.tolist() == [1, 2, 3, 4, 5, 6]
    bound = sl.path_bound(model, torch.tensor([2, 5, *CONTENT[:6]]))
    np.testing.assert_array_equal(ds["bound"].sel(change=AS_IT_IS), bound[2:])
    with pytest.raises(InputError):
        sl.compare_interventions(model, sequence, {}, answer=counted)
    assert sl.compare_interventions(model, sequence, {})[
        "length"
    ].values.tolist() == list(range(1, 9))


REFUSED: list[dict[str, Any]] = [
    {"as it is": sl.hooks.uniform_attention()},  # the name of the unchanged model
    {"far": sl.hooks.mask_tokens([0], (6,))},
    {"own": lambda one: one.content},
    {"short": GrowingSequence("short", (3,), (3,))},
    {"two": [lambda one: one, lambda one: one]},
]


@pytest.mark.parametrize("changes", REFUSED, ids=range(len(REFUSED)))
def test_refused_changes(changes: Any, tiny: Any, digits: Any) -> None:
    with pytest.raises(InputError):
        raw(sl.compare_interventions)(tiny, digits, changes, lengths=[3])
