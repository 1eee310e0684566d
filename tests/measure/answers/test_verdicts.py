"""Verdicts by hand, and that more draws decide more and never otherwise."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from squashlens.measure.answers.collapse_vs_readout import (
    BASELINE,
    COLLAPSED,
    LENGTH,
    PARTLY,
    READ,
    REPRESENTED,
    UNDECIDED,
    Evidence,
    evidence_at,
    judge,
)
from squashlens.measure.answers.probe_scores import (
    ProbedAnswers,
    gains,
    interval,
    of_length,
    score_probes,
)

PROBE = {
    "r2": 0.95,
    "r2_low": 0.92,
    "r2_high": 0.97,
    "gain_low": 0.3,
    "gain_high": 0.6,
    "r2_length_low": -0.1,
    "r2_length_high": 0.05,
}
NAN = float("nan")
NONE = dict.fromkeys(PROBE, NAN)


FIXED = {"random": False, "samples": 1}  # a task that asks the same every time


def evidence(probe: dict[str, float], **others: Any) -> Evidence:
    known: dict[str, Any] = {
        "right": 0,
        "samples": 128,
        "same_bits": 0,
        "pairs": 90,
        "constant": False,
        "prompts": 128,
        "needed": 80,
        "n_train": 64,
    }
    return Evidence(**known | others, probe=PROBE | probe)


@pytest.mark.parametrize(
    ("probe", "others", "verdict"),
    [
        ({}, {}, REPRESENTED),
        ({}, {"right": 128}, READ),
        ({}, {"right": 60}, UNDECIDED),
        ({}, {"right": 78}, READ),
        ({}, {"right": 1, **FIXED}, READ),
        ({}, {"pairs": 1, "same_bits": 1, **FIXED}, COLLAPSED),
        ({}, {"same_bits": 90}, COLLAPSED),
        ({}, {"same_bits": 45}, UNDECIDED),
        ({}, {"pairs": 0}, REPRESENTED),
        ({}, {"constant": True}, LENGTH),
        ({}, {"constant": True, "samples": 40}, UNDECIDED),
        ({}, {"constant": True, "pairs": 0, **FIXED}, LENGTH),
        ({"r2_length_low": 0.91, "r2_length_high": 1.0}, {}, LENGTH),
        ({"r2_length_low": 0.8, "r2_length_high": 0.95}, {}, UNDECIDED),
        ({"r2_length_low": 0.5, "r2_length_high": 0.8}, {}, REPRESENTED),
        (NONE, {"prompts": 15}, UNDECIDED),
        (NONE, {}, UNDECIDED),
        ({"gain_low": -0.3, "gain_high": 0.04}, {}, BASELINE),
        ({"gain_low": -0.3, "gain_high": -0.001}, {}, BASELINE),
        ({"gain_low": NAN, "gain_high": 0.04}, {"n_random_models": 0}, BASELINE),
        ({"gain_low": NAN}, {"n_random_models": 1}, UNDECIDED),
        ({"gain_low": 0.04}, {}, UNDECIDED),
        ({"r2_low": 0.5, "r2_high": 0.89}, {}, PARTLY),
        ({"r2_low": 0.5, "r2_high": 0.95}, {}, UNDECIDED),
    ],
)
def test_the_first_step_that_decides(
    probe: dict[str, float], others: dict[str, Any], verdict: str
) -> None:
    assert judge(evidence(probe, **others))[0] == verdict


def judged_at(n: int, own: float, other: float, seed: int, splits: int = 60) -> str:
    """The verdict on n draws where the answer explains shares `own` and `other` of one coordinate's variance, in the
    model and in its twins, eleven more being noise. The first draws are the same for every n."""
    rng = np.random.default_rng(seed)
    places, d = 24, 12
    items = (rng.random((4096, places)) < 0.7).astype(int)[:n]
    truth = items.sum(axis=1).astype(float)
    data = ProbedAnswers(
        (places,),
        tuple(range(n)),
        truth[None],
        np.unique(items, axis=0, return_inverse=True)[1][None],
        np.full((1, n), 40),
        (items,),
        64,
        splits,
    )

    def shown(share: float, number: int) -> np.ndarray:
        noise = np.random.default_rng([seed, number]).standard_normal((4096, d))[:n]
        noise[:, 0] *= np.sqrt(1 - share)
        noise[:, 0] += np.sqrt(share) * (truth - places * 0.7) / np.sqrt(places * 0.21)
        return noise[None]

    def r2(share: float, number: int, numbers: range) -> Any:
        return score_probes(shown(share, number), data, numbers, "")

    model = r2(own, 0, range(splits))
    random_models = np.full((splits, 1, 1), np.nan)
    for t in range(4):
        random_models[t::4] = r2(other, 1 + t, range(t, splits, 4)).r2
    length = of_length(data)[:, None]
    baseline = np.fmax(0, np.fmax(length, model.control))
    intervals = {
        "r2": interval(model.r2),
        "gain": gains(model.r2, baseline, random_models, 4),
        "r2_length": interval(length),
    }
    probe = {}
    for name, (mean, low, high) in intervals.items():
        probe |= {name: mean.item(), f"{name}_low": low.item()}
        probe[f"{name}_high"] = high.item()
    none = np.zeros((1, n), dtype=bool)
    by_seed = {"right": none, "bit_identical": none, "same_truth": ~none}
    return judge(evidence_at(data, 0, by_seed, probe))[0]


@pytest.mark.parametrize(
    ("own", "other", "right"),
    [
        (0.99, 0.1, REPRESENTED),
        (0.6, 0.1, PARTLY),
        (0.99, 0.99, BASELINE),
        (0.9, 1.0, BASELINE),
        (0.05, 0.0, BASELINE),
        (0.92, 0.5, None),
        (0.95, 0.85, None),
    ],
)
@pytest.mark.parametrize(
    "seed",
    [
        0,
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.slow),
    ],
)
def test_more_draws_decide_more_and_never_otherwise(
    own: float, other: float, right: str | None, seed: int
) -> None:
    """Signals of known R²: what is decided at one number of draws is decided so at every larger one, or undecided."""
    found = [judged_at(n, own, other, seed) for n in (48, 96, 128, 256, 512)]
    decided = set(found) - {UNDECIDED}
    assert found[0] == UNDECIDED, "48 prompts are too few for a probe"
    assert len(decided) <= 1, found
    if right is not None and own in (0.99, 0.9):
        assert found[-1] == right, found
    assert decided <= {right} or right is None


def test_the_same_bits_of_equal_answers_are_no_collapse() -> None:
    """Nine pairs in ten have one right answer and the same bits; those that differ in the answer differ in bits too."""
    n = 40
    data = ProbedAnswers(
        (4,),
        tuple(range(n)),
        np.zeros((1, n)),
        np.arange(n)[None],
        np.full((1, n), 9),
        (np.ones((n, 4)),),
    )
    differ = (np.arange(n) % 10 == 0)[None]
    wrong = np.zeros((1, n), dtype=bool)
    by_seed = {"right": wrong, "bit_identical": ~differ, "same_truth": ~differ}
    assert judge(evidence_at(data, 0, by_seed, {}))[0] != COLLAPSED
    for same_bits in (differ, ~wrong):
        found = evidence_at(data, 0, by_seed | {"bit_identical": same_bits}, {})
        assert (found.same_bits, found.pairs) == (4, 4)
        assert judge(replace(found, random=False))[0] == COLLAPSED
