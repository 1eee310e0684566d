"""Intervals of means and shares against scipy's, also over clusters."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from squashlens.theory.statistics.ranks import (
    mean_interval,
    paired_change,
    share_interval,
    wilson,
)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.parametrize("prompts", [3, 5, 8, 20])
def test_an_interval_covers_the_mean_as_often_as_it_says(prompts: int) -> None:
    """Also of rank correlations, which are skewed; percentiles of a bootstrap cover 70 to 90 % of these."""
    x, noise = draw(prompts, 4000, prompts, 18), draw(prompts + 100, 4000, prompts, 18)
    found = torch.as_tensor(
        stats.spearmanrho(x.numpy(), (0.9 * x + 0.19**0.5 * noise).numpy(), axis=-1)[0]
    )
    mean, low, high = mean_interval(found)
    covered = ((low <= found.mean()) & (found.mean() <= high)).double().mean()
    assert 0.90 <= float(covered) <= 0.97
    expected = stats.ttest_1samp(found[0].numpy(), 0).confidence_interval(0.95)
    assert (float(low[0]), float(high[0])) == pytest.approx(
        (expected.low, expected.high)
    )
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
    assert (low.item(), high.item()) == pytest.approx(
        (expected.low, expected.high), abs=1e-12
    )


def test_what_is_unknown_is_no_part_of_a_share() -> None:
    assert share_interval(torch.tensor([0.0] * 8 + [torch.nan])) == share_interval(
        torch.tensor([0.0] * 8)
    )
    assert all(end.isnan() for end in share_interval(torch.tensor([torch.nan])))


def grouped(values: list[float], clusters: list[int]) -> tuple[float, int, float]:
    """The mean, the number of clusters and the variance of the mean, cluster by cluster; NaN left out."""
    kept = [
        (value, cluster)
        for value, cluster in zip(values, clusters, strict=True)
        if not math.isnan(value)
    ]
    mean = sum(value for value, _ in kept) / len(kept)
    names = sorted({cluster for _, cluster in kept})
    squares = 0.0
    for name in names:
        total = sum(value for value, cluster in kept if cluster == name)
        squares += (total - mean * sum(cluster == name for _, cluster in kept)) ** 2
    return mean, len(names), squares / len(kept) ** 2 * len(names) / (len(names) - 1)


CLUSTERS = [0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 4]


@given(st.lists(st.sampled_from([0.0, 1.0, math.nan]), min_size=12, max_size=12))
def test_shares_of_clusters_have_korn_and_graubards_interval(
    values: list[float],
) -> None:
    known = [value for value in values if not math.isnan(value)]
    seen = {
        cluster
        for value, cluster in zip(values, CLUSTERS, strict=True)
        if not math.isnan(value)
    }
    if len(seen) < 2:
        return
    share, many, variance = grouped(values, CLUSTERS)
    n = len(known)
    size = float(many)
    if 0 < share < 1:
        size = share * (1 - share) / variance * n / (n - 1) if variance else math.inf
        size = min(
            n,
            size * float(stats.t.ppf(0.975, n - 1) / stats.t.ppf(0.975, many - 1)) ** 2,
        )
    ones = share * size
    expected = [share, 0 if ones == 0 else stats.beta.ppf(0.025, ones, size - ones + 1)]
    expected.append(1 if share == 1 else stats.beta.ppf(0.975, ones + 1, size - ones))
    found = [
        end.item()
        for end in share_interval(torch.tensor(values), torch.tensor(CLUSTERS))
    ]
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_mean_over_clusters_has_students_interval() -> None:
    """For clusters of equal size that of their means; by default, and with a cluster for each value, that of values."""
    values = draw(3, 8, 3)
    found = mean_interval(values.flatten(), torch.arange(8).repeat_interleave(3))
    expected = stats.ttest_1samp(values.mean(dim=1).numpy(), 0).confidence_interval(
        0.95
    )
    assert [float(end) for end in found[1:]] == pytest.approx(
        [expected.low, expected.high]
    )
    each = torch.arange(24)
    for interval, given_values in (
        (mean_interval, values.flatten()),
        (share_interval, (values.flatten() > 0).double()),
    ):
        for own, plain in zip(
            interval(given_values, each), interval(given_values), strict=True
        ):
            assert own.item() == pytest.approx(plain.item(), abs=1e-12)
    ragged = draw(4, 12).tolist()
    mean, many, variance = grouped(ragged, CLUSTERS)
    reach = stats.t.ppf(0.975, many - 1) * math.sqrt(variance)
    found = mean_interval(
        torch.tensor(ragged, dtype=torch.float64), torch.tensor(CLUSTERS)
    )
    assert [float(end) for end in found] == pytest.approx(
        [mean, mean - reach, mean + reach]
    )


@pytest.mark.parametrize("share", [0.5, 0.85])
def test_intervals_over_clusters_cover_where_those_over_values_do_not(
    share: float,
) -> None:
    """24 clusters of four values, of which each repeats its cluster's with probability 0.8."""
    rng = np.random.default_rng(7)
    common, own = (rng.random((2000, 24, size)) < share for size in (1, 4))
    values = torch.from_numpy(
        np.where(rng.random((2000, 24, 4)) < 0.8, common, own).reshape(2000, -1)
    ).double()
    clusters = torch.arange(24).repeat_interleave(4)
    for interval in (mean_interval, share_interval):
        covered = []
        for members in (clusters, None):
            _, low, high = interval(values, members)
            covered.append(float(((low <= share) & (share <= high)).double().mean()))
        assert 0.92 <= covered[0] <= 0.985, (interval, covered)
        assert covered[1] < 0.85, "values of a cluster are not independent"


@pytest.mark.parametrize("n", [12, 40])
@pytest.mark.parametrize(
    ("kept", "lost", "gained"),
    [(0.9, 0.1, 0.0), (0.4, 0.4, 0.05), (0.98, 0.01, 0.01), (0.3, 0.1, 0.1)],
)
def test_an_interval_of_a_change_covers_it(
    n: int, kept: float, lost: float, gained: float
) -> None:
    """Of pairs of answers with known shares, in 4,000 draws; clusters of two equal pairs count as one."""
    generator = torch.Generator().manual_seed(n)
    wrong_in_both = max(0.0, 1 - kept - lost - gained)
    weights = torch.tensor([kept, lost, gained, wrong_in_both])
    outcomes = torch.multinomial(weights, 4000 * n, True, generator=generator)
    outcomes = outcomes.view(4000, n)
    before = (outcomes <= 1).double()
    after = ((outcomes == 0) | (outcomes == 2)).double()
    change, low, high = paired_change(before, after)
    truth = gained - lost
    covered = (low <= truth + 1e-9) & (truth - 1e-9 <= high)
    assert float(covered.double().mean()) >= 0.94
    np.testing.assert_allclose(change, (after - before).mean(dim=-1))
    assert (high > low).all()
    twice = torch.arange(n).repeat_interleave(2)
    doubled = paired_change(
        before.repeat_interleave(2, dim=-1), after.repeat_interleave(2, dim=-1), twice
    )
    # The correction of the correlation is for the number of values.
    assert float((doubled[1] - low).abs().max()) < 0.12


@pytest.mark.parametrize("trials", [1, 2, 5, 16, 100])
def test_intervals_are_wilsons(trials: int) -> None:
    """As SciPy has them, for none, some and all."""
    for hits in {0, 1, trials // 3, trials // 2, trials - 1, trials}:
        low, high = wilson(np.array([hits / trials]), trials)
        expected = stats.binomtest(hits, trials).proportion_ci(
            confidence_level=0.95, method="wilson"
        )
        np.testing.assert_allclose(
            [low[0], high[0]], [expected.low, expected.high], atol=1e-7
        )
        assert 0 <= low[0] <= hits / trials <= high[0] <= 1 or hits in (0, trials)
