"""The probe on planted signals and on noise, against closed forms, and on the bundled model."""

from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure import probe as module
from squashlens.measure.probe import Answers, held_out, probed
from squashlens.tasks import Task
from tests.references import raw

LENGTHS, SEEDS, D = (10, 20, 30), 200, 12
COUNT = sl.tasks.find("taught_count_bernoulli")


def answers(seeds: int = SEEDS, folds: int = 5, prompts: int | None = None) -> Answers:
    """Counts of `prompts` different prompts at each length, each as often as any other, or of as many as seeds."""
    rng, many = np.random.default_rng(7), prompts or seeds
    truth = np.stack([rng.binomial(n, 0.7, size=many) for n in LENGTHS]).astype(float)
    number = np.arange(len(LENGTHS) * many).reshape(len(LENGTHS), many)
    which = np.arange(seeds) % many
    return Answers(LENGTHS, tuple(range(seeds)), truth[:, which], number[:, which], folds)


def planted(data: Answers, noise: float, turning: bool = False) -> np.ndarray:
    """Truth along a direction (the opposite at every second length if `turning`), noise everywhere."""
    rng = np.random.default_rng(3)
    directions = np.repeat(rng.standard_normal((1, D)), len(data.lengths), axis=0)
    if turning:
        directions[1::2] *= -1
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    signal = data.truth[..., None] * directions[:, None]
    return (signal + noise * rng.standard_normal(signal.shape)).reshape(-1, D)


def r2(data: Answers, features: np.ndarray, direction: str) -> np.ndarray:
    found = probed(data, torch.tensor(features, dtype=torch.float32)[None].repeat(2, 1, 1), direction, False)  # type: ignore
    return np.asarray(found["r2_y"][1])


@pytest.mark.parametrize("direction", ["own", "shared"])
@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_a_planted_count_is_found_as_well_as_it_can_be(direction: str, noise: float) -> None:
    """Of t + noise along one direction no line explains more than var(t) ÷ (var(t) + noise²)."""
    data = answers()
    possible = data.truth.var(axis=1) / (data.truth.var(axis=1) + noise**2)
    np.testing.assert_allclose(r2(data, planted(data, noise), direction), possible, atol=0.06)


@pytest.mark.parametrize("direction", ["own", "shared"])
def test_nothing_is_found_in_noise(direction: str) -> None:
    data = answers()
    features = np.random.default_rng(5).standard_normal((data.truth.size, D))
    assert (r2(data, features, direction) < 0.05).all()
    many = np.random.default_rng(6).standard_normal((data.truth.size, 4 * SEEDS))
    assert (r2(data, many, direction) < 0.05).all(), "nor with more coordinates than prompts"


@pytest.mark.parametrize("direction", ["own", "shared"])
def test_a_prompt_that_comes_again_does_not_give_itself_away(direction: str) -> None:
    """Noise that is the same whenever its prompt is: known by heart, and worth nothing."""
    data = answers(prompts=20)
    features = np.random.default_rng(8).standard_normal((len(LENGTHS) * 20, 40))[data.prompt.ravel()]
    assert (r2(data, features, direction) < 0.2).all()
    assert data.prompts == [20, 20, 20]


def test_a_truth_that_is_the_same_in_every_draw_is_not_found(recwarn: pytest.WarningsRecorder) -> None:
    data = answers()
    constant = Answers(LENGTHS, data.seeds, np.repeat([[5.0], [6.0], [7.0]], SEEDS, axis=1), data.prompt, 5)
    mixed = Answers(LENGTHS, data.seeds, np.concatenate([constant.truth[:1], data.truth[1:]]), data.prompt, 5)
    for given, which in ((constant, [0, 1, 2]), (mixed, [0])):
        found = probed(given, torch.tensor(planted(data, 0.1))[None].repeat(2, 1, 1).float(), "own", False)
        for name in ("r2", "probe_right"):
            assert np.flatnonzero(np.isnan(np.asarray(found[name][1])[0])).tolist() == which, name
    assert np.asarray(found["r2_overall"][1])[0] > 0.9
    assert not recwarn.list


def test_a_direction_that_turns_with_the_length_is_found_by_fits_of_their_own() -> None:
    data = answers()
    features = planted(data, 0.3, turning=True)
    assert (r2(data, features, "own") > 0.9).all()
    assert (r2(data, features, "shared") < 0.6).any()


@pytest.mark.parametrize("direction", ["own", "shared"])
def test_no_prediction_knows_its_own_answer(direction: Any) -> None:
    """What is right for one prompt is changed: predictions of that prompt stay, wherever it was drawn; others move."""
    data = answers(seeds=42, prompts=21)
    features = planted(data, 1.0)
    before = held_out(features, data, direction)
    changed, one = data.truth.copy(), data.prompt == data.prompt[1, 4]
    assert one.sum() == 2
    changed[one] += 50
    after = held_out(features, Answers(data.lengths, data.seeds, changed, data.prompt, data.folds), direction)
    np.testing.assert_array_equal(after[one], before[one])
    assert (after != before).any()


def test_a_fit_is_ridge_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENALTIES", np.array([3.0]))
    data = answers(seeds=15)
    features, target = 40 * planted(data, 1.0)[:15], data.truth[0]
    train, test = slice(0, 12), slice(12, 15)
    middle = features[train].mean(axis=0)
    size = np.sqrt(np.mean((features[train] - middle) ** 2))
    x, unseen = (features[train] - middle) / size, (features[test] - middle) / size
    weights = np.linalg.solve(x.T @ x + 3 * np.eye(D), x.T @ (target[train] - target[train].mean()))
    by_hand = target[train].mean() + unseen @ weights
    np.testing.assert_allclose(module._fitted(features[train], target[train], features[test]), by_hand, rtol=1e-9)


def test_one_odd_prompt_does_not_run_away() -> None:
    """Prompts that are alike but for rounding, and one that is not."""
    rng = np.random.default_rng(4)
    features, target = 1e-7 * rng.standard_normal((20, D)), rng.integers(3, 8, size=20).astype(float)
    odd = module._fitted(features, target, np.ones((1, D)))
    assert target.min() - np.ptp(target) <= odd[0] <= target.max() + np.ptp(target)


def test_numbers_are_those_of_scikit_learn() -> None:
    data = answers(seeds=30)
    features = planted(data, 1.0)
    found = probed(data, torch.tensor(features)[None].repeat(2, 1, 1).float(), "own", False)
    predicted = np.asarray(found["prediction"][1])
    for row in range(len(LENGTHS)):
        assert np.asarray(found["r2"][1])[0, row] == pytest.approx(
            sklearn.metrics.r2_score(data.truth[row], predicted[row]), abs=1e-9
        )
        right = np.mean(np.abs(predicted[row] - data.truth[row]) < 0.5)
        assert np.asarray(found["probe_right_y"][1])[row] == pytest.approx(right)


def test_the_bundled_model_holds_counts_it_no_longer_says(tiny: Any) -> None:
    """Beyond its training it answers next to nothing rightly, and a line still finds most of the count."""
    ds = sl.probe(tiny, COUNT, lengths=[24, 56], seeds=80, progress=False)
    said = sl.behave(tiny, COUNT, lengths=[24, 56], seeds=80, progress=False)
    assert said["accuracy"].values[0, 0] > 0.95
    assert said["accuracy"].values[0, 1] < 0.3
    assert (ds["r2_y"] > 0.8).all()
    assert (ds["r2"].sel(layer=0) < 0.05).all(), "the last token by itself knows nothing"
    np.testing.assert_array_equal(ds["truth"], said["truth"].isel(mode=0).astype(float))


def test_a_copied_digit_is_probed_too(tiny: Any) -> None:
    ds = sl.probe(tiny, sl.tasks.find("taught_last_bernoulli"), lengths=[12], seeds=30, progress=False)
    assert ds["r2_y"].item() > 0.99
    assert ds["probe_right_y"].item() == 1


def test_where_answers_follow_from_lengths_it_learns_from_other_lengths(tiny: Any) -> None:
    ds = sl.probe(tiny, sl.tasks.find("taught_count_repeated"), lengths=range(2, 49), progress=False)
    assert ds.sizes["seed"] == 1
    assert np.isnan(ds["r2_y"]).all(), "a truth that does not vary has no R²"
    assert ds["r2_overall"].max() > 0.9


def test_what_short_prompts_repeat_is_counted_and_not_learned_by_heart(tiny: Any, monkeypatch: Any) -> None:
    """Of 128 draws of four digits there are 15 at most. With features that only name the prompt nothing is found."""
    ds = sl.probe(tiny, COUNT, lengths=[4, 24], seeds=128, progress=False)
    drawn = [{COUNT.ask(n, seed=seed).prompt for seed in range(128)} for n in (4, 24)]
    assert ds["prompts"].values.tolist() == [len(each) for each in drawn]
    assert len(drawn[0]) <= 16
    named = {prompt: torch.randn(64, generator=torch.Generator().manual_seed(k)) for k, prompt in enumerate(drawn[0])}
    of_seeds = [named[COUNT.ask(4, seed=seed).prompt] for seed in range(128)]
    monkeypatch.setattr(module, "streams", lambda model, shown: torch.stack(of_seeds)[None].repeat(8, 1, 1))
    assert (sl.probe(tiny, COUNT, lengths=[4], seeds=128, progress=False)["r2"] < 0.3).all()


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("copy_last", {}, "is 0 every time"),
        ("taught_copy_repeated", {}, "not numbers|every time"),
        ("taught_count_bernoulli", {"seeds": 3}, r"2 different prompts at length \d cannot be divided into 5 folds"),
        ("taught_count_alternating", {"seeds": 20, "lengths": [9, 12]}, "2 different prompts at length 9"),
        ("taught_count_repeated", {"lengths": [4, 5]}, "2 lengths cannot be divided"),
        ("taught_count_bernoulli", {"direction": "up"}, "direction='up'"),
        ("taught_count_bernoulli", {"folds": 0}, "folds=0"),
        ("taught_count_bernoulli", {"folds": 1, "seeds": 4}, "folds"),
    ],
)
def test_what_cannot_be_probed_is_refused(tiny: Any, task: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        raw(sl.probe)(tiny, sl.tasks.find(task), **{"lengths": [3, 4, 5], "progress": False} | options)


def test_words_are_no_numbers(tiny: Any) -> None:
    task = Task("words", "{sequence} =", lambda n, rng: rng.choices("01", k=n), lambda items: f"item {items[0]}")
    with pytest.raises(InputError, match="not numbers"):
        sl.probe(tiny, task, lengths=[3], seeds=10, progress=False)
