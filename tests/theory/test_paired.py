"""Exact tests and intervals against enumerations, and against scipy."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from squashlens.theory.statistics.ranks import least_p, median_interval, ratio, share_interval, sign_test

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


def test_of_truth_values_it_is_mcnemars() -> None:
    """15 pairs of which 2 became right and 9 wrong; scipy's binomial test of the discordant pairs."""
    differences = torch.tensor([1.0] * 2 + [-1.0] * 9 + [0.0] * 4)
    assert sign_test(differences).item() == pytest.approx(stats.binomtest(2, 11).pvalue)


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
