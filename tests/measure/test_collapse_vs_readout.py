"""The joined view: each part against the function it comes from, pairs against token-space pairs, verdicts by hand."""

from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure import collapse_vs_readout as module
from squashlens.measure.collapse_vs_readout import VERDICTS, _verdicts, more
from squashlens.tasks import Task
from tests.references import raw

BERNOULLI, REPEATED = (sl.tasks.find(f"taught_count_{pattern}") for pattern in ("bernoulli", "repeated"))
LENGTHS = [8, 24, 60]


@pytest.fixture(scope="module")
def joined(tiny: Any) -> Any:
    return sl.collapse_vs_readout(tiny, BERNOULLI, lengths=LENGTHS, seeds=40, progress=False)


@pytest.mark.parametrize("scale", ["absolute", "relative"])
def test_distances_are_those_of_collapse_on_suffix_pairs(tiny: Any, scale: Any) -> None:
    """The prompt in words gives the same v and v* as the sequence in token space."""
    ds = sl.collapse_vs_readout(tiny, REPEATED, lengths=LENGTHS, scale=scale, folds=3, progress=False)
    form = {"prompt": "How many ones are in the following sequences?", "suffix": "="}
    pairs = sl.collapse(
        tiny, sl.prompts.repeated(tiny, "1", 60, **form), lengths=LENGTHS, scale=scale, passes="separate",
        progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(ds["distance"].isel(seed=0), pairs["distance"].isel(layer=-1), rtol=1e-4)
    np.testing.assert_allclose(ds["distance_y"].isel(seed=0), pairs["distance_y"], rtol=1e-4)
    np.testing.assert_array_equal(ds["same_argmax"].astype(bool), pairs["same_argmax"])
    assert (ds["inserted"] == 1).all()
    assert float(ds["distance"].min()) > 0


def test_accuracy_and_probe_are_those_of_the_same_prompts(tiny: Any, joined: Any) -> None:
    said = sl.behave(tiny, BERNOULLI, lengths=LENGTHS, seeds=40, opened=True, progress=False)
    for name in ("accuracy", "accuracy_low", "accuracy_high", "right"):
        np.testing.assert_array_equal(joined[name], said[name].isel(mode=0))
    probe = sl.probe(tiny, BERNOULLI, lengths=LENGTHS, seeds=40, progress=False)
    for name in ("r2", "r2_y", "probe_right_y"):
        np.testing.assert_allclose(joined[name], probe[name], atol=1e-6)


def test_agreement_is_counted_on_pairs(tiny: Any, joined: Any) -> None:
    model_says = sl.behave(tiny, BERNOULLI, lengths=[8], seeds=40, progress=False)["answer"].values[0, 0]
    alike, same = [], []
    for seed in range(40):
        question = BERNOULLI.ask(8, seed=seed)
        twin = BERNOULLI.doubled(question)
        ids = sl.tokens(tiny, twin.prompt)
        out = tiny.original_model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=4)
        text = tiny.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        alike.append(text == model_says[seed])
        same.append(twin.truth == question.truth)
    assert joined["same_answer"].values[0] == pytest.approx(np.mean(alike))
    assert joined["same_truth"].values[0] == pytest.approx(np.mean(same))
    assert 0 < np.mean(same) < 1


def test_bits_are_compared_in_the_dtype_asked_for(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The representations of a pair are made to differ by 1 in 1000: below bfloat16, above float16."""
    how: dict[str, Any] = {"lengths": [47, 48], "folds": 2, "progress": False}
    task, real = sl.tasks.find("taught_last_odd_last"), module.streams

    def near(model: Any, shown: Any) -> torch.Tensor:
        own = real(model, shown)[:, :2].bfloat16().float()
        return torch.cat([own, own * 1.001], dim=1)

    fine = sl.collapse_vs_readout(tiny, task, **how)
    assert (fine["bit_identical"] == 0).all()
    assert "r2" not in fine, "nothing to probe for where the answer is 0 every time"
    assert sl.provenance(fine)["call"]["round_to"] is None
    monkeypatch.setattr(module, "streams", near)
    for dtype, share in ((torch.bfloat16, 1), (torch.float16, 0), (None, 0)):
        assert (sl.collapse_vs_readout(tiny, task, round_to=dtype, **how)["bit_identical"] == share).all(), dtype


def test_a_count_that_does_not_vary_is_not_called_represented(tiny: Any) -> None:
    """Alternating digits of an even length have one count, whichever comes first."""
    task = sl.tasks.find("taught_count_alternating")
    ds = sl.collapse_vs_readout(tiny, task, lengths=[64, 80], seeds=10, folds=2, progress=False)
    assert (ds["accuracy"] < 0.5).all()
    assert np.isnan(ds["r2_y"]).all()
    assert np.isnan(ds["probe_right_y"]).all()
    assert set(ds["verdict"].values) <= {"collapsed", "not decodable"}


def by_length(**values: list[float]) -> dict[str, Any]:
    return {name: (("length",), np.array(given), "", "1") for name, given in values.items()}


def test_verdicts_by_hand() -> None:
    nan = float("nan")
    found = by_length(
        accuracy=[1.0, 0.5, 0.4, 0.4, 0.4, 0.0, 0.0, 0.0, 0.0],
        bit_identical=[1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.5, 0.0, 0.0],
        r2_y=[0.0, 0.0, 0.9, 0.89, 0.89, nan, nan, nan, nan],
        probe_right_y=[0.0, 0.0, 0.0, 1.0, 1.0, 0.5, 0.4, 0.4, nan],
    )
    read, unread, collapsed, lost = VERDICTS
    assert _verdicts(found, 0.9).tolist() == [read, read, unread, collapsed, lost, unread, collapsed, lost, lost]
    del found["r2_y"], found["probe_right_y"]
    assert _verdicts(found, 0.9).tolist() == [read, read, collapsed, collapsed, lost, lost, collapsed, lost, lost]


def test_a_models_own_verdicts(joined: Any) -> None:
    assert joined["verdict"].values.tolist()[:2] == ["read out", "read out"]
    assert joined["verdict"].values[2] in VERDICTS[1:]


@pytest.mark.parametrize(
    ("v", "star", "extra"),
    [
        ((2, 5, 5, 9), (2, 5, 5, 5, 9), 1),
        ((2, 5, 7), (2, 5, 7, 7), 1),
        ((2, 5, 8, 5, 9), (2, 5, 8, 5, 8, 5, 9), 2),  # with something between items
        ((2, 5, 9), (2, 5, 8, 5, 9), 2),
    ],
)
def test_pairs_are_known_by_their_tokens(v: tuple[int, ...], star: tuple[int, ...], extra: int) -> None:
    assert more(v, star) == extra


@pytest.mark.parametrize(
    ("v", "star"),
    [
        ((2, 11, 9), (2, 111, 9)),  # merged into another token
        ((2, 11, 11, 9), (2, 11, 11, 1, 9)),  # what comes in is another token
        ((2, 5, 9), (2, 5, 9)),
        ((2, 5, 5, 9), (2, 5, 9)),
        ((2, 5, 9), (2, 6, 6, 9)),
    ],
)
def test_merged_items_are_no_pair(v: tuple[int, ...], star: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="merges items"):
        more(v, star)


def test_other_answers_can_be_words(tiny: Any) -> None:
    """No probe of words, and no view without one: the refusal says which."""
    task = Task("words", "{sequence} =", lambda n, rng: rng.choices("01", k=n), lambda items: f"item {items[0]}")
    with pytest.raises(InputError, match="not numbers"):
        sl.collapse_vs_readout(tiny, task, lengths=[3], seeds=10, progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "l9"}, "norm"),
        ({"scale": "log"}, "scale"),
        ({"decodable": 0.0}, "decodable"),
        ({"folds": 50}, "folds"),
    ],
)
def test_bad_input_is_refused(tiny: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        raw(sl.collapse_vs_readout)(tiny, BERNOULLI, **{"lengths": [4], "seeds": 10, "progress": False} | options)
