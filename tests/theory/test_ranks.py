"""Intervals of means and shares against scipy's."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from squashlens.theory.statistics.ranks import mean_interval, share_interval


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("prompts", [3, 5, 8, 20])
def test_an_interval_covers_the_mean_as_often_as_it_says(prompts: int) -> None:
    """Also of rank correlations, which are skewed; percentiles of a bootstrap cover 70 to 90 % of these."""
    x, noise = draw(prompts, 4000, prompts, 18), draw(prompts + 100, 4000, prompts, 18)
    found = torch.as_tensor(stats.spearmanrho(x.numpy(), (0.9 * x + 0.19**0.5 * noise).numpy(), axis=-1)[0])
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


@given(st.integers(1, 30), st.data())
def test_shares_have_clopper_and_pearsons_interval(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    share, low, high = share_interval(torch.tensor([1.0] * k + [0.0] * (n - k)))
    expected = stats.binomtest(k, n).proportion_ci(0.95, "exact")
    assert share.item() == pytest.approx(k / n)
    assert (low.item(), high.item()) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_what_is_unknown_is_no_part_of_a_share() -> None:
    assert share_interval(torch.tensor([0.0] * 8 + [torch.nan])) == share_interval(torch.tensor([0.0] * 8))
    assert all(end.isnan() for end in share_interval(torch.tensor([torch.nan])))
