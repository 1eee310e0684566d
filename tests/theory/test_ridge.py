"""Ridge regression against scikit-learn's, and by hand."""

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV

from squashlens.theory.statistics import ridge as module
from squashlens.theory.statistics.ridge import PENALTIES, ridge


def problem(
    rows: int, d: int, noise: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows + d)
    features = rng.standard_normal((rows + 9, d)) * np.logspace(0, -3, d)
    targets = (
        features[:, :3] @ rng.standard_normal((3, 2))
        + noise * rng.standard_normal((rows + 9, 2))
        + [5.0, -2.0]
    )
    return features[:rows], targets[:rows], features[rows:]


@pytest.mark.parametrize(("rows", "d"), [(20, 50), (50, 20), (40, 40)])
@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_predictions_are_those_of_scikit_learn(rows: int, d: int, noise: float) -> None:
    """Its efficient leave-one-out choice of each target's penalty, on the same centred and scaled features."""
    seen, targets, unseen = problem(rows, d, noise)
    middle = seen.mean(axis=0)
    size = np.sqrt(((seen - middle) ** 2).mean())
    theirs = RidgeCV(PENALTIES, alpha_per_target=True).fit(
        (seen - middle) / size, targets
    )
    expected = theirs.predict((unseen - middle) / size)
    np.testing.assert_allclose(
        ridge(seen, targets, unseen), expected, rtol=1e-6, atol=1e-6
    )


def test_a_fit_is_ridge_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENALTIES", np.array([3.0]))
    seen, targets, unseen = problem(12, 7, 1.0)
    middle, level = seen.mean(axis=0), targets.mean(axis=0)
    size = np.sqrt(np.mean((seen - middle) ** 2))
    x = (seen - middle) / size
    weights = np.linalg.solve(x.T @ x + 3 * np.eye(7), x.T @ (targets - level))
    np.testing.assert_allclose(
        ridge(seen, targets, unseen),
        level + (unseen - middle) / size @ weights,
        rtol=1e-9,
    )


def test_one_odd_prompt_does_not_run_away() -> None:
    """Prompts that are alike but for rounding, and one that is not."""
    rng = np.random.default_rng(4)
    features = 1e-7 * rng.standard_normal((20, 12))
    target = rng.integers(3, 8, size=(20, 1)).astype(float)
    odd = ridge(features, target, np.ones((1, 12)))
    assert target.min() - np.ptp(target) <= odd.item() <= target.max() + np.ptp(target)


def test_constant_targets_and_constant_features() -> None:
    ones = np.ones((6, 3))
    assert (
        ridge(np.random.default_rng(0).standard_normal((6, 3)), ones[:, :1] * 4, ones)
        == 4
    ).all()
    np.testing.assert_allclose(ridge(ones, np.arange(6.0)[:, None], 2 * ones), 2.5)
