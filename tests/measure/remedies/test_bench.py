"""Families of prompts under interventions: numbers of plain calls, and no difference where nothing is changed."""

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import rel_entr

import squashlens as sl
from squashlens.errors import InputError
from tests.odd import together
from tests.references import fingerprint, raw

N, LENGTHS, SAMPLES = 8, [3, 8], 6
TEXTS = [[2, 9, 9, 4, 30, 31], [2, 5, 40]]
COUNT, LAST = "How many ones are in the following sequence?", "What is the last digit in this sequence?"
RIGHT: dict[str, Any] = {"counting": lambda content: str(content.count("1")), "last": lambda content: content[-1]}


@pytest.fixture(scope="module")
def model(bridge_of: Any) -> Any:
    """Windows and a soft cap, without a tokenizer."""
    return bridge_of("gemma2")


@pytest.fixture(scope="module")
def families(model: Any) -> Any:
    build = sl.prompts.build
    return {
        "two symbols": build(model, [7, 8, 7, 7, 8, 7, 8, 8], prefix=[2, 5], suffix=[20]),
        "many": build(model, [7, 8, 9, 10, 11, 12, 13, 14], prefix=[2, 21, 22]),
    }


@pytest.fixture(scope="module")
def digits(tiny: Any) -> Any:
    return {
        "counting": sl.prompts.bernoulli(tiny, N, seed=0, prefix=COUNT, suffix="="),
        "last": sl.prompts.digits(tiny, N, seed=0, prefix=LAST, suffix="="),
    }


CHANGES: dict[str, Any] = {
    "nothing": [sl.hooks.sliding_window(1000), sl.hooks.log_scaling("qwen", 1000)],
    "flat": [sl.hooks.attention_temperature(1.5), sl.hooks.mask_tokens([0])],
    "separators": lambda sequence: sequence.every(3, 50),
}


@pytest.fixture(scope="module")
def found(model: Any, families: Any) -> Any:
    how: Any = {"prompt": TEXTS, "lengths": LENGTHS, "n_samples": SAMPLES, "seed": 3, "norm": "l2", "noise_lengths": 1}
    return together("bench of random weights", lambda: sl.compare(model, families, CHANGES, **how))


@pytest.fixture(scope="module")
def asked(tiny: Any, digits: Any) -> Any:
    changes: Any = {"nothing": sl.hooks.sliding_window(1000), "blind": sl.hooks.sliding_window(2)}
    how: Any = {"answer": RIGHT, "n_samples": SAMPLES, "seed": 3, "method": "none"}
    return together("bench of answers", lambda: sl.compare(tiny, digits, changes, **how))


def test_what_does_nothing_differs_by_nothing(found: Any, asked: Any) -> None:
    """Exactly: no difference, divergence 0, p of 1, also after correction."""
    for result in (found, asked):
        here, plain = result.sel(change="nothing"), result.isel(change=0)
        for name in ("distance", "jacobian_norm", "right", "kl"):
            if name in result:
                np.testing.assert_array_equal(here[name], plain[name])
        for name in ("distance_p", "jacobian_norm_p", "accuracy_p"):
            if name in result:
                assert (here[name] == 1).all()
                assert (here[f"{name}_holm"] == 1).all()
                assert plain[name].isnull().all()  # the model is not tested against itself
        for name in ("distance_ratio", "jacobian_norm_ratio"):
            for end in ("", "_low", "_high"):
                assert name not in result or (here[f"{name}{end}"] == 1).all()
        assert (here["kl"] == 0).all()
        assert here["kl_median"] == 0
    assert (asked["accuracy_difference"].sel(change="nothing") == 0).all()
    assert found["kl"].isel(change=0).max() == 0
    assert found["kl"].sel(change="separators").isnull().all()  # text has no form that could be changed
    assert asked.sizes["text"] == 16  # those of the bundled model


@pytest.mark.few(1)
@pytest.mark.parametrize("change", ["as it is", "flat", "separators"])
def test_every_number_is_that_of_the_plain_call(change: str, model: Any, families: Any, found: Any) -> None:
    """Run one by one and, without a hook, with attention that writes no pattern: equal up to rounding."""
    hooks = CHANGES[change] if change == "flat" else []
    for family, sequence in families.items():
        for sample in (0, SAMPLES - 1):
            drawn = sequence.unrelated(Random(f"asked 3 {sample}"))
            drawn = drawn.every(3, 50) if change == "separators" else drawn
            here = found.sel(change=change, family=family).isel(sample=sample)
            with sl.applied(model, *hooks):
                pairs = sl.capture(model, drawn, lengths=LENGTHS, noise_lengths=1)
                collapse = sl.collapse(model, pairs, norm="l2", scale="relative")
                norms = sl.jacobian_norms(model, torch.tensor([drawn.pair(N).v]))
            np.testing.assert_allclose(here["distance"], collapse["distance"].isel(layer=-1), rtol=1e-3, atol=1e-5)
            places = [drawn.position(number) for number in (1, 4, 8)]
            np.testing.assert_allclose(here["jacobian_norm"].sel(length=N), norms[places], rtol=1e-3, atol=1e-6)
            assert 0 < here["noise_floor"] < 1e-3


@pytest.mark.parametrize("change", ["as it is", "blind"])
def test_answers_are_those_of_accuracy(change: str, tiny: Any, digits: Any, asked: Any) -> None:
    with sl.applied(tiny, *([sl.hooks.sliding_window(2)] if change == "blind" else [])):
        for family, sequence in digits.items():
            drawn = [sequence.unrelated(Random(f"asked 3 {sample}")) for sample in range(SAMPLES)]
            right = sl.accuracy(tiny, drawn, RIGHT[family], lengths=[N])
            np.testing.assert_array_equal(asked["accuracy"].sel(change=change, family=family), right)
    assert asked["accuracy"].sel(change="as it is").min() > 0.5
    assert asked["accuracy"].sel(change="blind", family="counting") < 0.5


def test_the_cost_is_a_divergence_of_full_distributions(model: Any, plain_of: Any, found: Any) -> None:
    """From all logits, with scipy in float64; the first distribution is that of the unchanged model, run plainly."""
    plain_model = plain_of("gemma2")
    for number, text in enumerate(TEXTS):
        ids = torch.tensor([text])
        with torch.no_grad():
            plain = plain_model(ids, use_cache=False).logits[0].double().softmax(-1).numpy()
            with sl.applied(model, *CHANGES["flat"]):
                flat = model(ids, use_cache=False)[0].double().softmax(-1).numpy()
        expected = rel_entr(plain, flat).sum(axis=-1).mean()
        assert found["kl"].sel(change="flat").values[number] == pytest.approx(expected, rel=1e-3)
        assert abs(expected - rel_entr(flat, plain).sum(axis=-1).mean()) > 5e-3 * expected > 0


def test_summaries_are_those_of_the_samples(found: Any, asked: Any) -> None:
    """Medians and quotients with NumPy, signs counted by scipy, and Holm's steps written out."""
    own = found["distance"].isel(change=0)
    quotient = found["distance"] / own
    np.testing.assert_allclose(found["distance_ratio"], quotient.median("sample"), rtol=1e-12)
    np.testing.assert_allclose(found["distance_ratio_low"], quotient.min("sample"), rtol=1e-12)  # of 6 samples
    np.testing.assert_allclose(found["distance_ratio_high"], quotient.max("sample"), rtol=1e-12)
    np.testing.assert_allclose(found["jacobian_norm_median"], found["jacobian_norm"].median("sample"), rtol=1e-12)
    assert found["kl_low"].isnull().all()  # two texts
    np.testing.assert_allclose(asked["accuracy"], asked["right"].mean("sample"), rtol=1e-12)
    difference = asked["accuracy"] - asked["accuracy"].isel(change=0)
    np.testing.assert_allclose(asked["accuracy_difference"], difference, atol=1e-12)
    for result, pairs in (
        (found, {"distance": "distance", "jacobian_norm": "jacobian_norm"}),
        (asked, {"distance": "distance", "accuracy": "right"}),
    ):
        every, corrected = [], []
        for name, of in pairs.items():
            signs = (result[of] - result[of].isel(change=0)).isel(change=slice(1, None))
            above, below = (side.sum("sample").values.ravel() for side in (signs > 0, signs < 0))
            every += [stats.binomtest(int(k), int(k + j)).pvalue if k + j else 1.0
                      for k, j in zip(above, below, strict=True)]  # fmt: skip
            p = result[f"{name}_p"].isel(change=slice(1, None)).values.ravel()
            np.testing.assert_allclose(p, every[-len(p) :], rtol=1e-12)
            corrected += result[f"{name}_p_holm"].isel(change=slice(1, None)).values.ravel().tolist()
        running = 0.0
        for rank, place in enumerate(np.argsort(every, kind="stable")):
            running = max(running, min(1.0, (len(every) - rank) * every[place]))
            assert corrected[place] == pytest.approx(running)
        assert float(result["least_p"]) == 2.0 ** (1 - SAMPLES) <= min(every) + 1e-12
        assert float(result["least_p_holm"]) == min(1.0, len(every) * 2.0 ** (1 - SAMPLES))
    assert len(every) == 2 * 2 * 2


def test_a_family_without_answers_and_texts_of_nobody(tiny: Any, digits: Any, model: Any, families: Any) -> None:
    before = fingerprint(tiny)
    part = sl.compare(
        tiny, digits, {"flat": sl.hooks.uniform_attention()}, answer={"last": RIGHT["last"]},
        prompt="What is the last digit in this sequence? 4071 = 1", n_samples=2, method="none",
    )  # fmt: skip
    assert fingerprint(tiny) == before
    assert part["accuracy"].sel(family="counting").isnull().all()
    assert part["accuracy_p"].sel(family="counting").isnull().all()
    assert float(part["least_p_holm"]) == 1.0
    assert "jacobian_norm" not in part
    assert "noise_floor" not in part
    plain = sl.compare(model, {"many": families["many"]}, {"sharp": sl.hooks.adaptive_temperature()}, n_samples=2)
    assert "kl" not in plain  # there is no text unless it is given
    assert plain["distance"].shape == (2, 1, 1, 2)
    assert plain["distance_ratio_low"].isnull().all()


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({}, {}, "has no families"),
        (None, {"prompt": ["1 ="]}, "are for families of sequences, and one sequence is given"),
        ("constant", {}, "'ones' has one token, so that all its samples are equal"),
        ("families", {"lengths": [4, 11]}, "Lengths run from 1 to 8"),
        ("families", {"answer": {"sum": RIGHT["last"]}}, "has no family 'sum'"),
    ],
)
def test_refusals(given: Any, options: Any, message: str, model: Any, families: Any) -> None:
    constant = {"ones": sl.prompts.build(model, [7, 7, 7], prefix=[2], alphabet=[7])}
    named = {"families": families, "constant": constant, None: families["many"]}
    sequence = named[given] if isinstance(given, str | None) else given
    with pytest.raises(InputError, match=message):
        raw(sl.compare)(model, sequence, {}, **options)
