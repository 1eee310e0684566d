"""Spearman's ρ over values that depend on their neighbours: scipy's ρ, a bootstrap by draws, errors on simulations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, signal, stats

from squashlens.theory.statistics import trends
from squashlens.theory.statistics.laws import log_slope
from squashlens.theory.statistics.trends import association, holm


def series(seed: int, lag_one: float, *shape: int) -> torch.Tensor:
    """Gaussian autoregressions along the last axis, in their stationary state."""
    noise = np.random.default_rng(seed).standard_normal((*shape[:-1], shape[-1] + 200))
    return torch.tensor(
        signal.lfilter([1], [1, -lag_one], noise, axis=-1)[..., 200:].copy()
    )


slow = pytest.mark.slow


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(0, 6), min_size=4, max_size=20).filter(
        lambda v: len(set(v)) > 1
    )
)
def test_rho_is_scipys_and_lies_in_its_interval(values: list[int]) -> None:
    found = association(
        torch.tensor(values).double(), torch.arange(len(values)).double()
    )
    assert found.rho.item() == pytest.approx(
        stats.spearmanr(values, range(len(values))).statistic, abs=1e-12
    )
    assert -1 <= found.low <= found.rho <= found.high <= 1
    assert 0 <= found.p <= 1


def test_independent_values_have_fishers_interval_at_least() -> None:
    found = association(series(0, 0.0, 300, 30), series(1, 0.0, 300, 30))
    half = (found.high.atanh() - found.low.atanh()) / 2
    assert (half >= 1.96 / math.sqrt(27)).all()
    assert half.median() < 1.4 * 1.96 / math.sqrt(27)


def test_a_slope_has_the_interval_of_least_squares_with_dependent_residuals() -> None:
    """With whole matrices."""
    x = np.arange(3.0, 33)
    design = np.stack([np.ones(30), np.log(x)], axis=1)
    for row in series(4, 0.5, 9, 30).numpy():
        fit = np.linalg.lstsq(design, row)[0]
        left = row - design @ np.linalg.pinv(design) @ row
        r = max(left[1:] @ left[:-1] / (left @ left) + 1 / math.sqrt(30), 0)
        alike = linalg.toeplitz(r ** np.arange(30))
        spread = np.linalg.pinv(design) @ alike @ np.linalg.pinv(design).T
        half = stats.t.ppf(0.975, 27) * math.sqrt(
            left @ np.linalg.solve(alike, left) / 27 * spread[1, 1]
        )
        found = log_slope(x.tolist(), np.exp(row).tolist())
        np.testing.assert_allclose(
            found, [fit[1], fit[1] - half, fit[1] + half], rtol=1e-9
        )


@pytest.mark.parametrize(
    ("n", "lag_one"),
    [
        pytest.param(n, lag_one, marks=() if (n, lag_one) == (20, 0.8) else slow)
        for n in (20, 100)
        for lag_one in (0.0, 0.5, 0.8, 0.95)
    ],
)
def test_false_positives_and_cover_are_near_nominal(n: int, lag_one: float) -> None:
    """At most 5 % and 95 %, give or take what 400 rows allow (standard error 1.1 %) and what the docstring admits."""
    a, b, c = (series(seed, lag_one, 400, n) for seed in (1, 2, 3))
    place = torch.arange(n, dtype=torch.float64)
    unrelated, still = (
        (association(a, other).p < 0.05).double().mean().item() for other in (b, place)
    )
    assert unrelated < 0.07
    assert still < (0.13 if lag_one > 0.9 and n <= 20 else 0.07)
    planted = (
        6 / math.pi * math.asin(0.6 / 2)
    )  # Spearman's ρ of a normal pair with correlation 0.6
    found = association(a, 0.6 * a + 0.8 * c)
    assert ((found.low <= planted) & (planted <= found.high)).double().mean() > 0.92


def test_a_steep_fall_is_decided() -> None:
    """What the sequence does is no dependence of its neighbours. Lengths 1 to 32, and noise of a hundredth."""
    place = torch.arange(32, dtype=torch.float64)
    falls = torch.exp(-5 * place / 32) + 0.01 * series(4, 0.5, 60, 32)
    found = association(falls, place)
    assert ((found.p < 0.05) & (found.high < 0)).double().mean() > 0.85
    loose = falls + 0.3 * series(5, 0.9, 60, 32)
    assert (
        association(loose, place).p < 0.05
    ).double().mean() < 0.6  # here the noise goes on longer than the fall


def test_what_has_no_interval() -> None:
    n = torch.arange(3.0)
    rho, low, high, p = association(n.flip(0), n)
    assert rho == pytest.approx(-1)
    assert all(value.isnan() for value in (low, high, p))
    assert association(torch.arange(2.0), torch.arange(2.0)).rho.isnan()
    for row in (torch.ones(9), torch.tensor([1.0, torch.nan, 2, 3, 4, 5, 6, 7, 8])):
        assert all(value.isnan() for value in association(row, torch.arange(9.0)))
    assert association(torch.zeros(2, 0), torch.zeros(0)).rho.shape == (2,)


def test_holm() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    assert np.isnan(holm([math.nan])).all()
    found = association(series(0, 0.0, 4, 30), torch.arange(30.0).double())
    np.testing.assert_allclose(found.corrected().p, holm(found.p.tolist()))


def test_dependence_is_that_of_one_series_and_of_what_the_other_leaves() -> None:
    """By scipy's regressions. Lag-one correlations are estimated too low by (1 + 3r)/n, of residuals by (2 + 4r)/n."""

    def neighbours(row: np.ndarray) -> float:
        return float(np.sum(row[1:] * row[:-1]) / np.sum(row**2))

    for seed in range(6):
        x, y = (
            stats.rankdata(series(2 * seed + k, 0.6, 60).numpy()) - 30.5 for k in (0, 1)
        )
        both = []
        for one, other in ((x, y), (y, x)):
            left = neighbours(one - stats.linregress(other, one).slope * other)
            itself = neighbours(other)
            both.append((left + (2 + 4 * left) / 60) * (itself + (1 + 3 * itself) / 60))
        r = max(both)
        assert trends._dependence(x, y) == pytest.approx(r)
        raw = 2 * np.ceil((6**0.5 * r / (1 - r**2)) ** (2 / 3) * 60 ** (1 / 3))
        assert trends._block(r, 60) == max(1, min(int(raw), 60 // trends.BLOCKS))
    assert (
        trends._dependence(np.arange(9.0), np.arange(9.0)) < 0.3
    )  # a perfect trend leaves nothing
