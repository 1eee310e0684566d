"""Verdicts by hand, and that more draws decide more and never otherwise."""

from typing import Any

import numpy as np
import pytest

from squashlens.measure.answers._scores import (
    Answers,
    gains,
    interval,
    of_length,
    score_probes,
)
from squashlens.measure.answers.collapse_vs_readout import (
    BASELINE,
    COLLAPSED,
    LENGTH,
    PARTLY,
    READ,
    REPRESENTED,
    UNDECIDED,
    Evidence,
    judge,
    verdicts,
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


def evidence(probe: dict[str, float] | None = None, **others: Any) -> Evidence:
    found = PROBE | (probe or {})
    known: dict[str, Any] = {
        "right": 0,
        "samples": 128,
        "same_bits": 0,
        "pairs": 90,
        "random": True,
        "constant": False,
        "prompts": 128,
        "needed": 80,
        "n_train": 64,
        "n_random_models": 4,
    }
    return Evidence(**known | others, probe=lambda name: found[name])


@pytest.mark.parametrize(
    ("known", "verdict", "reason"),
    [
        (
            evidence(),
            REPRESENTED,
            "R² is 0.92 to 0.97; its gain over the best baseline is 0.30 to 0.60, above 0.05.",
        ),
        (evidence(right=128), READ, "128 of 128 answers are right."),
        (
            evidence(right=60),
            UNDECIDED,
            "60 of 128 answers are right; the interval 0.38 to 0.55 includes 1/2. More",
        ),
        (evidence(right=78), READ, "78 of 128"),
        (evidence(right=1, samples=1, random=False), READ, "1 of 1"),
        (
            evidence(samples=1, pairs=1, same_bits=1, random=False, constant=True),
            COLLAPSED,
            "1 of 1 pairs with different",
        ),
        (evidence(same_bits=90), COLLAPSED, "90 of 90 pairs"),
        (evidence(same_bits=45), UNDECIDED, "45 of 90 pairs"),
        (evidence(pairs=0), REPRESENTED, "R² is"),
        (evidence(constant=True), LENGTH, "the same right answer"),
        (
            evidence(constant=True, samples=40),
            UNDECIDED,
            "40 samples with one right answer; 64 would show",
        ),
        (
            evidence(constant=True, samples=1, pairs=0, random=False),
            LENGTH,
            "the same right answer",
        ),
        (
            evidence({"r2_length_low": 0.91, "r2_length_high": 1.0}),
            LENGTH,
            "The number of tokens alone",
        ),
        (
            evidence({"r2_length_low": 0.8, "r2_length_high": 0.95}),
            UNDECIDED,
            "R² from the number of tokens alone",
        ),
        (evidence({"r2_length_low": 0.5, "r2_length_high": 0.8}), REPRESENTED, "R² is"),
        (
            evidence(NONE, prompts=15),
            UNDECIDED,
            "15 distinct prompts in 128 samples: a probe needs 80.",
        ),
        (evidence(NONE), UNDECIDED, "Nearly all prompts have the same right answer"),
        (
            evidence({"gain_low": -0.3, "gain_high": 0.04}),
            BASELINE,
            "R² is 0.92 to 0.97; its gain over the best baseline is",
        ),
        (
            evidence({"gain_low": -0.3, "gain_high": -0.001}),
            BASELINE,
            "−0.30 to 0.00, below 0.05",
        ),
        (
            evidence({"gain_low": NAN, "gain_high": 0.04}, n_random_models=0),
            BASELINE,
            "is below 0.05",
        ),
        (
            evidence({"gain_low": NAN}, n_random_models=1),
            UNDECIDED,
            "needs two such models, not 1",
        ),
        (
            evidence({"gain_low": 0.04}),
            UNDECIDED,
            "includes 0.05. More samples or more random models would decide",
        ),
        (evidence({"r2_low": 0.5, "r2_high": 0.89}), PARTLY, "R² is 0.50 to 0.89"),
        (
            evidence({"r2_low": 0.5, "r2_high": 0.95}),
            UNDECIDED,
            "More samples would decide whether R² reaches 0.9",
        ),
    ],
)
def test_the_first_step_that_decides(
    known: Evidence, verdict: str, reason: str
) -> None:
    found, why = judge(known)
    assert found == verdict
    assert reason in why


def judged_at(n: int, own: float, other: float, seed: int, splits: int = 60) -> str:
    """The verdict on n draws where the answer explains shares `own` and `other` of one coordinate's variance, in the
    model and in its twins, eleven more being noise. The first draws are the same for every n."""
    rng = np.random.default_rng(seed)
    places, d = 24, 12
    items = (rng.random((4096, places)) < 0.7).astype(int)[:n]
    truth = items.sum(axis=1).astype(float)
    data = Answers(
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
        return score_probes(shown(share, number), data, "own", numbers, "")

    model, twin = r2(own, 0, range(splits)), np.full((splits, 1, 1), np.nan)
    for t in range(4):
        twin[t::4] = r2(other, 1 + t, range(t, splits, 4)).r2
    length = of_length(data)[:, None]
    ends = {
        "r2": interval(model.r2),
        "gain": gains(model.r2, np.fmax(0, np.fmax(length, model.control)), twin, 4),
    }
    probe = {
        f"{name}{end}": of[k][0]
        for name, of in ends.items()
        for k, end in enumerate(("", "_low", "_high"))
    }
    probe |= {
        f"r2_length{end}": value
        for end, value in zip(
            ("", "_low", "_high"), interval(length[:, 0]), strict=True
        )
    }
    none = np.zeros((1, n), dtype=bool)
    return verdicts(data, none, none, none, True, 4, probe)[0][0]


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
    data = Answers(
        (4,),
        tuple(range(n)),
        np.zeros((1, n)),
        np.arange(n)[None],
        np.full((1, n), 9),
        (np.ones((n, 4)),),
    )
    differ = (np.arange(n) % 10 == 0)[None]
    wrong = np.zeros((1, n), dtype=bool)
    assert verdicts(data, wrong, ~differ, differ, True, 4, {})[0][0] != COLLAPSED
    every = np.ones((1, n), dtype=bool)
    for same_bits in (differ, every):
        found, reason = verdicts(data, wrong, same_bits, differ, False, 4, {})[0]
        assert found == COLLAPSED
        assert reason.startswith("4 of 4 pairs with different right answers")
