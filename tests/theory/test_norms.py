"""Matrix norms against numpy's SVD and closed forms."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squashlens.theory.norms import (
    Certified,
    certified_spectral_norms,
    lanczos_steps,
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


def certified(blocks: torch.Tensor, seed: int = 0, **options: Any) -> Certified:
    """Norms of stacked blocks that the function sees only through JᵀJ."""
    operators, _, d = blocks.shape
    generator = torch.Generator().manual_seed(seed)
    return certified_spectral_norms(
        lambda x: (blocks.mT @ (blocks @ x[..., None]))[..., 0], operators, d, generator=generator, **options
    )


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 9), d=st.integers(1, 9), rank=st.integers(1, 9), seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-12, 1e-3, 1.0, 1e9]),
)  # fmt: skip
def test_small_operators_are_exact(rows: int, d: int, rank: int, seed: int, scale: float) -> None:
    """As many steps as coordinates: exact, also for low ranks, repeated singular values and extreme scales."""
    rng = np.random.default_rng(seed)
    blocks = scale * rng.standard_normal((4, rows, rank)) @ rng.standard_normal((4, rank, d))
    blocks[3] = scale * np.eye(rows, d)
    expected = np.linalg.svd(blocks, compute_uv=False)[:, 0]
    found = certified(torch.tensor(blocks), seed, failure=1e-9)
    assert (found.steps, found.failure_probability) == (d, 0.0)
    np.testing.assert_allclose(found.lower, expected, rtol=1e-7)
    assert torch.equal(found.lower, found.upper)


@pytest.mark.parametrize("decay", [0.0, 0.02, 0.5])
def test_large_operators_are_caught_between(decay: float) -> None:
    """Flat, slowly falling and steep spectra, 60 operators: none escapes, and no interval is wider than it says."""
    rng = np.random.default_rng(3)
    d, singular = 300, np.exp(-decay * np.arange(300))
    blocks = np.stack([np.linalg.qr(rng.standard_normal((d, d)))[0] * singular for _ in range(60)])
    found = certified(torch.tensor(blocks @ np.linalg.qr(rng.standard_normal((d, d)))[0]), failure=1e-4)
    assert found.steps < 40
    assert found.failure_probability == 1e-4
    assert (found.lower <= 1 + 1e-9).all()
    assert (found.upper >= 1 - 1e-9).all()
    np.testing.assert_allclose(found.upper, 1.05 * found.lower, rtol=1e-12)


def test_steps_follow_the_theorem() -> None:
    """1.648 √d exp(−√ε (2k − 1)) · norms ≤ failure at k, and not at k − 1."""
    for d, norms, inflation, failure in ((2048, 1, 0.05, 1e-6), (2048, 10**5, 0.05, 1e-6), (4096, 7, 0.01, 1e-9)):
        k = lanczos_steps(d, norms, inflation, failure)
        root = np.sqrt(1 - (1 + inflation) ** -2)
        chance = [1.648 * np.sqrt(d) * np.exp(-root * (2 * steps - 1)) * norms for steps in (k, k - 1)]
        assert chance[0] <= failure < chance[1]
    assert lanczos_steps(5, 1, 0.05, 1e-6) == 5


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
