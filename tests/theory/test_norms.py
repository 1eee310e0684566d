"""Matrix norms against numpy's SVD and closed forms."""

import os

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from squashlens.theory.norms import (
    direction_factor,
    mean_interval,
    sketch_factors,
    spectral_norms,
    squared_frobenius,
)


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(1, 9), columns=st.integers(1, 9), seed=st.integers(0, 10**6), scale=st.floats(1e-6, 1e6))
def test_spectral_equals_svd(rows: int, columns: int, seed: int, scale: float) -> None:
    blocks = scale * np.random.default_rng(seed).standard_normal((3, rows, columns))
    expected = np.linalg.svd(blocks, compute_uv=False)[:, 0]
    np.testing.assert_allclose(spectral_norms(torch.tensor(blocks)).numpy(), expected, rtol=1e-12)


def test_spectral_of_zero_and_rank_one() -> None:
    assert spectral_norms(torch.zeros(3, 3)).item() == 0
    u, v = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0, 2.0])
    assert spectral_norms(torch.outer(u, v)).item() == pytest.approx(15, rel=1e-14)


def test_frobenius_adds_over_batches_of_rows() -> None:
    block = torch.randn(7, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = squared_frobenius(block[:3]) + squared_frobenius(block[3:])
    expected = torch.linalg.matrix_norm(block.transpose(0, 1), ord="fro") ** 2
    torch.testing.assert_close(parts, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rank", [1, 3, 40])
@pytest.mark.parametrize("probes", [4, 16])
def test_sketch_factors_hold_for_every_rank_at_their_chance(rank: int, probes: int) -> None:
    """20 000 sketches of a matrix of Frobenius norm 1: the share outside the factors is at most the chance."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(rank, generator=generator, dtype=torch.float64)
    weights /= weights.sum()
    drawn = torch.randn(20_000, probes, rank, generator=generator, dtype=torch.float64)
    sketched = (drawn.square() @ weights).mean(dim=1).sqrt()
    for chance in (0.02, 0.2):
        low, high = sketch_factors(probes, chance)
        assert (sketched * high < 1).double().mean() <= chance
        assert (sketched * low > 1).double().mean() <= chance
        if rank == 1:  # and not idly: Chernoff's bound loses no more than this here
            assert (sketched * high < 1).double().mean() >= chance / 12


@pytest.mark.parametrize("draws", [2, 5, 40])
def test_interval_of_a_mean_is_students(draws: int) -> None:
    samples = torch.tensor(np.random.default_rng(draws).standard_normal((draws, 3)))
    mean, half = mean_interval(samples)
    _, high = stats.t.interval(0.95, draws - 1, loc=0, scale=stats.sem(samples.numpy()))
    np.testing.assert_allclose(mean, samples.numpy().mean(axis=0))
    np.testing.assert_allclose(half, high, rtol=1e-12)
    assert mean_interval(samples[:1])[1].isnan().all(), "one draw has no spread"


def test_a_direction_is_shorter_as_often_as_it_may_be() -> None:
    """‖Gu‖ · factor is below 1 with the chance that was given: 10 %, over 20,000 draws."""
    drawn = torch.randn(20_000, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    short = (drawn.norm(dim=1) * direction_factor(8, 0.1) < 1).double().mean().item()
    assert abs(short - 0.1) < 4 * (0.1 * 0.9 / 20_000) ** 0.5


@pytest.mark.skipif(not os.environ.get("SQUASHLENS_TYPED"), reason="runs in `make typed`, where types are checked")
def test_axes_are_checked_in_tests() -> None:
    """The names of axes in signatures are compared with what is passed: without that they are comments."""
    with pytest.raises(jaxtyping.TypeCheckError):
        spectral_norms(torch.zeros(3))
