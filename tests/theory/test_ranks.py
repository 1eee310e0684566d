"""Agreement of orders against scipy, and what a partial correlation must say in cases where it is known."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import rankdata, spearmanr

from squashlens.theory.statistics.ranks import (
    least_p,
    mean_interval,
    median_interval,
    partial_spearman,
    ratio,
    share_interval,
    sign_test,
    spearman,
)


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


def test_nothing_from_a_constant_or_from_two() -> None:
    assert spearman(torch.ones(1, 5), torch.arange(5.0)).isnan().all()
    assert spearman(torch.tensor([[1.0, 2.0]]), torch.arange(2.0)).isnan().all()
    assert spearman(torch.ones(4), torch.arange(4.0)).isnan()
    some = torch.tensor([[1.0, 3.0, 2.0, 4.0], [1.0, torch.nan, 2.0, 4.0]])
    assert spearman(some, torch.arange(4.0)).isnan().tolist() == [False, True]
    assert spearman(some.flip(0), some).isnan().tolist() == [True, True]


@pytest.mark.parametrize("prompts", [3, 5, 8, 20])
def test_an_interval_covers_the_mean_as_often_as_it_says(prompts: int) -> None:
    """Also of rank correlations, which are skewed; percentiles of a bootstrap cover 70 to 90 % of these."""
    x, noise = draw(prompts, 4000, prompts, 18), draw(prompts + 100, 4000, prompts, 18)
    found = spearman(x, 0.9 * x + 0.19**0.5 * noise)
    mean, low, high = mean_interval(found)
    covered = ((low <= found.mean()) & (found.mean() <= high)).double().mean()
    assert 0.90 <= float(covered) <= 0.97
    expected = stats.ttest_1samp(found[0].numpy(), 0).confidence_interval(0.95)
    assert (float(low[0]), float(high[0])) == pytest.approx((expected.low, expected.high))
    np.testing.assert_allclose(mean, found.numpy().mean(axis=-1))


def test_an_interval_leaves_out_prompts_without_a_value() -> None:
    values = draw(1, 9)
    gaps = torch.cat([values, torch.full((3,), torch.nan)])
    for kept, holed in zip(mean_interval(values), mean_interval(gaps), strict=True):
        assert kept.item() == pytest.approx(holed.item())
    mean, low, high = mean_interval(torch.tensor([[1.0, torch.nan, torch.nan]]))
    assert mean == 1
    assert low.isnan().all(), "one value has no spread"
    assert high.isnan().all()


values = st.lists(st.integers(-3, 3), min_size=1, max_size=9)


def enumerated(differences: list[int]) -> float:
    """The share of all ways to draw the signs that are at least as far from half above as the signs found."""
    known = [d for d in differences if d]
    found = abs(2 * sum(d > 0 for d in known) - len(known))
    ways = list(itertools.product((0, 1), repeat=len(known)))
    return float(Fraction(sum(abs(2 * sum(way) - len(known)) >= found for way in ways), len(ways)))


@given(values)
def test_the_sign_test_is_an_enumeration_of_signs(differences: list[int]) -> None:
    assert sign_test(torch.tensor(differences).double()).item() == pytest.approx(enumerated(differences), rel=1e-12)
    assert sign_test(-torch.tensor(differences).double()).item() == pytest.approx(enumerated(differences), rel=1e-12)


@pytest.mark.parametrize("n", range(1, 12))
def test_the_smallest_p_is_that_of_equal_signs(n: int) -> None:
    assert sign_test(torch.ones(n)).item() == pytest.approx(least_p(n)) == pytest.approx(enumerated([1] * n))
    assert sign_test(torch.zeros(n)).item() == 1
    assert sign_test(torch.tensor([*[1.0] * n, torch.nan])).isnan()


@pytest.mark.parametrize("n", range(1, 40))
def test_ends_of_the_interval_cover_the_median_as_often_as_they_say(n: int) -> None:
    """P(x₍ᵣ₎ ≤ m ≤ x₍ₙ₊₁₋ᵣ₎) by counting how many of n samples are below m; one rank further in covers too little."""
    _, low, high = median_interval(torch.arange(1.0, n + 1))
    if n < 6:
        assert low.isnan()
        assert high.isnan()
        assert 2 * 0.5**n > 0.05
        return
    rank = int(low)
    assert int(high) == n + 1 - rank

    def covered(r: int) -> float:
        return sum(math.comb(n, below) for below in range(r, n - r + 1)) / 2**n

    assert covered(rank) >= 0.95 > covered(rank + 1)


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=20), st.floats(-5, 5))
def test_the_interval_is_the_inverse_of_the_test(samples: list[float], shift: float) -> None:
    """A shift strictly outside the interval is rejected at 5 %, and one strictly inside is not."""
    given_samples = torch.tensor(samples, dtype=torch.float64)
    middle, low, high = median_interval(given_samples)
    assert middle.item() == pytest.approx(float(np.median(samples)), abs=1e-12)
    p = sign_test(given_samples - shift).item()
    if shift < low or shift > high:
        assert p <= 0.05
    elif shift not in samples:
        assert p > 0.05


@given(st.integers(1, 30), st.data())
def test_shares_have_clopper_and_pearsons_interval(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    share, low, high = share_interval(torch.tensor([1.0] * k + [0.0] * (n - k)))
    expected = stats.binomtest(k, n).proportion_ci(0.95, "exact")
    assert share.item() == pytest.approx(k / n)
    assert (low.item(), high.item()) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_what_is_not_known_and_what_is_infinite() -> None:
    for function in (median_interval, share_interval):
        assert all(end.isnan() for end in function(torch.tensor([0.0] * 8 + [torch.nan])))
    many = torch.full((8,), torch.inf)
    assert [end.item() for end in median_interval(many)] == [math.inf] * 3
    quotient = ratio(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([0.0, 0.0, 2.0]))
    assert quotient.tolist() == [1.0, math.inf, 1.5]
