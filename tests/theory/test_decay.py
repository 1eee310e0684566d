"""Influence by distance against plain loops, and the fitted law against curves that are known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from squashlens.theory.statistics.laws import ByDistance, fit


@settings(deadline=None, max_examples=30)
@given(
    floor=st.floats(-2, 2),
    amplitude=st.floats(0.1, 5),
    exponent=st.floats(0.2, 5),
    n=st.integers(8, 60),
)
def test_a_power_law_is_found_again(
    floor: float, amplitude: float, exponent: float, n: int
) -> None:
    r = torch.arange(n, dtype=torch.float64)
    pairs = torch.arange(n, 0, -1)
    law = fit(floor + amplitude * (r + 1) ** -exponent, pairs)
    for found, truth in zip(law, (floor, amplitude, exponent), strict=True):
        assert found.item() == pytest.approx(truth, rel=1e-4, abs=1e-4)


def test_the_fit_is_scipys_with_the_weights_of_pairs() -> None:
    rng = np.random.default_rng(0)
    r, pairs = np.arange(30), np.arange(30, 0, -1)
    values = 0.3 + 2 * (r + 1.0) ** -1.2 + 0.05 * rng.standard_normal(30)
    truth, _ = optimize.curve_fit(
        lambda r, g, b, p: g + b * (r + 1.0) ** -p,
        r,
        values,
        p0=(0, 1, 1),
        sigma=pairs**-0.5,
    )
    found = [part.item() for part in fit(torch.tensor(values), torch.tensor(pairs))]
    np.testing.assert_allclose(found, truth, rtol=1e-4)


def test_no_law_for_few_distances_or_equal_values() -> None:
    assert all(
        part.isnan() for part in fit(torch.tensor([3.0, 2.0, 1.0]), torch.ones(3))
    )
    assert all(
        part.isnan()
        for part in fit(torch.tensor([9.0, 0.0, 0.0, 0.0, 0.0]), torch.ones(5))
    )


def test_sums_by_distance_are_those_of_two_loops() -> None:
    n, first, queries = 9, 1, [2, 3, 5, 8]
    values = np.tril(np.random.default_rng(0).random((n, n)))
    found = ByDistance(n, 2, torch.tensor(queries), first)
    found.add(1, torch.tensor(queries[:2]), torch.tensor(values[queries[:2]]))
    found.add(1, torch.tensor(queries[2:]), torch.tensor(values[queries[2:]]))
    sums, pairs = np.zeros(n), np.zeros(n)
    for query in queries:
        for position in range(first, query + 1):
            sums[query - position] += values[query, position]
            pairs[query - position] += 1
    np.testing.assert_allclose(found.sums.sum(dim=0)[1], sums)
    np.testing.assert_array_equal(found.pairs.sum(dim=0)[1], pairs)
    np.testing.assert_allclose(found.means()[1][:8], sums[:8] / pairs[:8])
    assert (
        found.sums[:, 1, 0] - torch.tensor(values[queries, queries])
    ).abs().max() == 0, "one group for each query"


def test_an_interval_holds_the_law_that_noise_hides() -> None:
    n, inside = 48, []
    r = np.arange(n)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        gather = ByDistance(n, 1, torch.arange(n), 0)
        law = 1 + 3 * (r + 1.0) ** -1.0
        rows = np.array([np.pad(law[: q + 1][::-1], (0, n - q - 1)) for q in range(n)])
        noisy = rows * (
            1 + 0.1 * rng.standard_normal((n, 1))
        )  # each query has a size of its own
        gather.add(0, torch.arange(n), torch.tensor(noisy))
        found, low, high = gather.laws(torch.Generator().manual_seed(seed))
        assert low.exponent < found.exponent < high.exponent
        inside.append(bool(low.exponent <= 1 <= high.exponent))
    assert np.mean(inside) >= 0.7
    few = ByDistance(n, 1, torch.arange(3), 0)
    few.add(0, torch.arange(3), torch.tensor(noisy[:3]))
    assert few.laws(torch.Generator())[1].exponent.isnan(), (
        "three queries have no interval"
    )
