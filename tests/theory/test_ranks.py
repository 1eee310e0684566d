"""Agreement of orders against scipy, and what a partial correlation must say in cases where it is known."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from squashlens.theory.statistics.ranks import bootstrap, partial_spearman, spearman


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(3, 30))
def test_spearman_is_scipys(seed: int, n: int) -> None:
    a, b = draw(seed, 2, n).round(decimals=0), draw(seed + 1, n)
    a[:, 0] += 9  # never constant
    expected = [spearmanr(row, b).statistic for row in a]
    np.testing.assert_allclose(spearman(a, b), expected, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(6, 30))
def test_partial_is_the_correlation_of_what_regression_leaves(seed: int, n: int) -> None:
    a, b, held = draw(seed, 3, n)
    x, y, z = (rankdata(v.numpy()) for v in (a, b, held))
    assume(max(abs(np.corrcoef(x, z)[0, 1]), abs(np.corrcoef(y, z)[0, 1])) < 1 - 1e-9)  # else nothing is left

    def rest(of: np.ndarray) -> np.ndarray:
        slope, offset = np.polyfit(z, of, 1)
        return of - slope * z - offset

    expected = np.corrcoef(rest(x), rest(y))[0, 1]
    assert partial_spearman(a, b, held).item() == pytest.approx(expected, abs=1e-9)


def test_what_only_position_orders_agrees_no_more_once_position_is_held() -> None:
    """Two quantities that fall with position and are otherwise unrelated: raw 0.9, partial about nothing."""
    place = torch.arange(400, dtype=torch.float64)
    a, b = (-place + 60 * draw(seed, 400) for seed in (1, 2))
    assert spearman(a, b) > 0.5
    assert abs(partial_spearman(a, b, place).item()) < 0.12
    assert partial_spearman(-place, b, place).isnan()  # the null itself


def test_nothing_from_a_constant_or_from_two() -> None:
    assert spearman(torch.ones(1, 5), torch.arange(5.0)).isnan().all()
    assert spearman(torch.tensor([[1.0, 2.0]]), torch.arange(2.0)).isnan().all()
    assert spearman(torch.ones(4), torch.arange(4.0)).isnan()
    some = torch.tensor([[1.0, 3.0, 2.0, 4.0], [1.0, torch.nan, 2.0, 4.0]])
    assert spearman(some, torch.arange(4.0)).isnan().tolist() == [False, True]
    assert spearman(some.flip(0), some).isnan().tolist() == [True, True]


def test_bootstrap_covers_a_mean_and_says_nothing_of_one_prompt() -> None:
    hits = 0
    for seed in range(200):
        low, high = bootstrap(draw(seed, 1, 30) + 3, seed, draws=400)
        hits += int(low.item() <= 3 <= high.item())
    assert 0.88 <= hits / 200 <= 0.98  # a percentile interval of 30 is a little narrow
    low, high = bootstrap(draw(0, 2, 1), 0)
    assert low.isnan().all()
    assert high.isnan().all()
    again = [bootstrap(draw(0, 2, 9), -5)[0] for _ in range(2)]
    assert torch.equal(*again)


def test_bootstrap_leaves_out_prompts_without_a_value() -> None:
    values = draw(1, 9)
    gaps = torch.cat([values, torch.full((3,), torch.nan)])
    for kept, holed in zip(bootstrap(values, 0), bootstrap(gaps, 0), strict=True):
        assert kept.item() == holed.item()
    low, _ = bootstrap(torch.tensor([1.0, torch.nan, torch.nan]), 0)
    assert low.isnan().all(), "one value has no spread"
