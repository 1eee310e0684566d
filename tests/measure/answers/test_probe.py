"""The probe on planted signals, on noise and on random weights, against closed forms, and on the bundled model."""

from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from scipy import stats

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.answers.probe_scores import (
    ProbedAnswers,
    Scores,
    gains,
    interval,
    of_length,
    score_probes,
)

LENGTHS, SEEDS, D, FIT = (10, 20, 30), 200, 12, 64
COUNT = sl.tasks.find("taught_count_bernoulli")


def answers(
    seeds: int = SEEDS, n_train: int = FIT, prompts: int | None = None, splits: int = 20
) -> ProbedAnswers:
    """Counts of ones in different prompts at each length, each drawn as often as any other."""
    rng, many = np.random.default_rng(7), prompts or seeds
    which = np.arange(seeds) % many
    items = tuple((rng.random((many, n)) < 0.7).astype(int)[which] for n in LENGTHS)
    truth = np.stack([part.sum(axis=1) for part in items]).astype(float)
    number = np.arange(len(LENGTHS) * many).reshape(len(LENGTHS), many)
    tokens = np.repeat(np.array(LENGTHS)[:, None], seeds, axis=1)
    return ProbedAnswers(
        LENGTHS,
        tuple(range(seeds)),
        truth,
        number[:, which],
        tokens,
        items,
        n_train,
        splits,
    )


def planted(data: ProbedAnswers, noise: float) -> np.ndarray:
    """Truth along a direction, noise everywhere."""
    rng = np.random.default_rng(3)
    direction = rng.standard_normal(D)
    signal = data.truth[..., None] * direction / np.linalg.norm(direction)
    return (signal + noise * rng.standard_normal(signal.shape)).reshape(-1, D)


def scores(data: ProbedAnswers, features: np.ndarray) -> Scores:
    return score_probes(features[None], data, range(data.splits), "probes")


def r2(data: ProbedAnswers, features: np.ndarray) -> np.ndarray:
    return interval(scores(data, features).r2)[0][0]


@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_a_planted_count_is_found_as_well_as_it_can_be(noise: float) -> None:
    """Of t + noise along one direction no line explains more than var(t) ÷ (var(t) + noise²)."""
    data = answers()
    possible = data.truth.var(axis=1) / (data.truth.var(axis=1) + noise**2)
    np.testing.assert_allclose(r2(data, planted(data, noise)), possible, atol=0.12)


def test_nothing_is_found_in_noise() -> None:
    data = answers()
    for many in (D, 4 * SEEDS):
        features = np.random.default_rng(many).standard_normal((data.truth.size, many))
        assert (r2(data, features) < 0.05).all(), many


def test_representations_that_are_not_finite_are_refused() -> None:
    data = answers()
    features = planted(data, 1.0)
    features[3, 2] = np.nan
    with pytest.raises(InputError):
        scores(data, features)


def test_a_truth_that_is_the_same_in_every_draw_is_not_found(
    recwarn: pytest.WarningsRecorder,
) -> None:
    data = answers()
    data.truth[0] = 5
    found = scores(data, planted(data, 0.1))
    assert data.probed == [1, 2]
    for values in (found.r2, found.right):
        assert np.flatnonzero(np.isnan(interval(values)[0][0])).tolist() == [0]
    assert interval(found.overall)[0] > 0.9
    assert not recwarn.list


def test_no_prediction_knows_its_own_answer() -> None:
    """What is right for one prompt is changed: predictions of that prompt stay, wherever it was drawn; others move."""
    data = answers(seeds=210, prompts=105, splits=4)
    features = planted(data, 1.0)
    before = scores(data, features).prediction
    one = data.prompt == data.prompt[1, 4]
    assert one.sum() == 2
    data.truth[one] += 50
    after = scores(data, features).prediction
    np.testing.assert_array_equal(after[one], before[one])
    assert not np.array_equal(after, before, equal_nan=True)


def test_numbers_are_those_of_scikit_learn() -> None:
    data = answers(prompts=90, splits=1)
    features = planted(data, 1.0)
    found = scores(data, features)
    for at in range(len(LENGTHS)):
        split = data.split(at, 0)
        samples = split.samples[split.test]
        truth = data.truth[at, samples]
        said = found.prediction[at, samples]
        expected = sklearn.metrics.r2_score(truth, said, sample_weight=split.weight)
        assert found.r2[0, 0, at] == pytest.approx(expected, abs=1e-9)
        right = np.average(np.abs(truth - said) < 0.5, weights=split.weight)
        assert found.right[0, 0, at] == pytest.approx(right)


def test_a_control_is_a_sum_over_items_and_tells_a_count_from_a_prompt() -> None:
    """Where only the count stands, no other sum is found; where all digits stand, any is, and nothing is selective."""
    data = answers(seeds=400, n_train=200)
    table = {}
    for which in range(data.truth.shape[1]):
        table[tuple(data.items[0][which])] = data.control(0, 3)[
            data.different[0][1][which]
        ]
    steps = []
    for (
        digits,
        value,
    ) in table.items():  # turning a digit adds the same, whatever stands elsewhere
        other = (1 - digits[0], *digits[1:])
        if other in table:
            steps.append((table[other] - value) * (1 if digits[0] == 0 else -1))
    assert len(steps) > 10
    np.testing.assert_allclose(steps, steps[0], rtol=1e-9)
    only = scores(data, data.truth.reshape(-1, 1).repeat(2, axis=1))
    assert (interval(only.r2)[0] > 0.99).all()
    assert (interval(only.control)[0] < 0.25).all()
    digits = np.concatenate(
        [np.pad(part, ((0, 0), (0, 30 - part.shape[1]))) for part in data.items]
    ).astype(float)
    whole = scores(data, digits)
    assert (interval(whole.r2)[0] > 0.99).all()
    assert (interval(whole.control)[0] > 0.99).all()


def test_what_the_length_gives_away_is_measured() -> None:
    data = answers()
    assert (interval(of_length(data))[0] <= 0).all(), (
        "one number of tokens says nothing"
    )
    data.tokens[:] = 3 * data.truth + 7
    np.testing.assert_allclose(interval(of_length(data))[0], 1, atol=0.02)
    data.tokens[0] = np.random.default_rng(1).integers(5, 8, size=SEEDS)
    assert interval(of_length(data))[0][0] < 0.1


def test_a_gain_allows_for_another_draw_of_random_weights() -> None:
    rng = np.random.default_rng(2)
    many, splits = 4, 40
    own, others = (
        0.9 + 0.01 * rng.standard_normal((splits, 2)),
        np.full((splits, 2), 0.1),
    )
    twins = np.array([0.5, 0.6, 0.4, 0.5])[np.arange(splits) % many][:, None].repeat(
        2, axis=1
    )
    middle, low, high = gains(own, others, twins, many)
    each = np.stack([(own - twins)[t::many].mean(axis=0) for t in range(many)])
    reach = stats.t.ppf(0.975, 3) * each.std(axis=0, ddof=1) * np.sqrt(1 + 1 / 4)
    np.testing.assert_allclose(middle, (own - twins).mean(axis=0))
    np.testing.assert_allclose(low, np.quantile(own - twins - reach, 0.025, axis=0))
    np.testing.assert_allclose(
        high, np.quantile(own - np.maximum(twins - reach, 0.1), 0.975, axis=0)
    )
    for few in (0, 1):
        _, low, high = gains(
            own, others, np.full_like(own, np.nan) if few == 0 else twins, few
        )
        assert np.isnan(low).all(), "nothing is known of another draw"
        np.testing.assert_allclose(high, np.quantile(own - 0.1, 0.975, axis=0))
    assert gains(own, others + 0.8, twins, many)[2].max() < 0.05, (
        "the best baseline counts"
    )


@pytest.mark.slow
def test_random_weights_hold_the_count_as_well(tiny: Any) -> None:
    """The bundled model's probe alone says *there*; a twin says it as loudly, and so the gain is none."""
    ds = sl.probe(tiny, COUNT, lengths=[56], n_random_models=2)
    assert (ds["r2_y"] > 0.7).all()
    assert (ds["r2_random_model_y"] > 0.99).all()
    assert (ds["gain_high_y"] < 0.05).all()
    assert (ds["selectivity_low_y"] > 0.3).all(), (
        "other sums of the digits are not there"
    )
    assert (ds["r2"].sel(layer=0) < 0.05).all(), (
        "the last token by itself knows nothing"
    )
    for name in ("r2", "r2_random_model", "r2_control", "selectivity"):
        assert (ds[f"{name}_low_y"] <= ds[f"{name}_y"]).all()
        assert (ds[f"{name}_y"] <= ds[f"{name}_high_y"]).all()
