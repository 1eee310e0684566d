"""Certified norms against numpy's SVD, the sum of squares against determinants, the chance against its share."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squashlens.theory.lanczos import CHECK_EVERY, Certified, certified_spectral_norms, lanczos_steps


def certified(blocks: torch.Tensor, seed: int = 0, **options: Any) -> Certified:
    """Norms of stacked blocks that the function sees only through JᵀJ."""
    operators, _, d = blocks.shape
    return certified_spectral_norms(
        lambda x: (blocks.mT @ (blocks @ x[..., None]))[..., 0], operators, d, seed=seed, **options
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
    if found.steps == d:
        assert found.failure_probability == 0
        assert torch.equal(found.lower, found.upper)
    else:  # it was found out before
        assert found.steps % CHECK_EVERY == 0
        assert found.failure_probability == 1e-9
        assert (found.upper <= 1.05 * found.lower).all()
    np.testing.assert_array_less(expected, found.upper * (1 + 1e-7))
    np.testing.assert_array_less(found.lower, expected * (1 + 1e-7))


@pytest.mark.few(1)
@pytest.mark.parametrize(("decay", "most"), [(0.0, 4), (0.02, 24), (0.5, 12)])
def test_large_operators_are_caught_between(decay: float, most: int) -> None:
    """Flat, slowly falling and steep spectra, 60 operators: none escapes, no interval is wider than it says, and an
    isolated top is found out sooner than the theorem knows in advance."""
    rng = np.random.default_rng(3)
    d, singular = 300, np.exp(-decay * np.arange(300))
    blocks = np.stack([np.linalg.qr(rng.standard_normal((d, d)))[0] * singular for _ in range(60)])
    found = certified(torch.tensor(blocks @ np.linalg.qr(rng.standard_normal((d, d)))[0]), failure=1e-4)
    assert found.steps <= most < lanczos_steps(d, 60, 0.05, 1e-4)
    assert found.failure_probability == 1e-4
    assert (found.lower <= 1 + 1e-9).all()
    assert (found.upper >= 1 - 1e-9).all()
    assert (found.upper <= 1.05 * found.lower).all()


def test_upper_is_where_the_sum_of_squares_reaches_the_chance() -> None:
    """p_m by determinants, on the tridiagonal matrix that numpy's own Householder reduction of the matrix makes."""
    d, failure, norms = 40, 1e-3, 7
    rng = np.random.default_rng(5)
    block = rng.standard_normal((d, d))
    found = certified(torch.tensor(block)[None], failure=failure, norms=norms, inflation=0.5)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1, d, dtype=torch.float64, generator=generator)[0].numpy()
    krylov = [start]
    for _ in range(found.steps):
        krylov.append(block.T @ (block @ krylov[-1]) / np.linalg.norm(krylov[-1]))
    basis, _ = np.linalg.qr(np.stack(krylov, axis=1))
    tridiagonal = basis.T @ block.T @ block @ basis
    links = np.abs(np.diagonal(tridiagonal, 1))
    assert CHECK_EVERY <= found.steps < d
    at = float(found.upper[0]) ** 2
    shifted = at * np.eye(found.steps + 1) - tridiagonal
    p = [np.linalg.det(shifted[:m, :m]) / np.prod(links[:m]) for m in range(found.steps + 1)]
    t = math.pi * (failure / 2 / norms) ** 2 / (2 * d)  # half of `failure` is the other bound's
    assert np.sum(np.square(p)) == pytest.approx(1 / t, rel=1e-6)


@pytest.mark.parametrize("failure", [0.3, 0.05])
def test_as_few_escape_as_is_said(failure: float) -> None:
    """4 000 random starts on one spectrum whose top is isolated; each its own certificate, stopped early."""
    singular = torch.cat([torch.tensor([1.3]), torch.linspace(0.2, 1, 29)]).double()
    blocks = torch.diag_embed(singular).expand(4000, 30, 30)
    found = certified(blocks, failure=failure, norms=1, inflation=1.5)
    assert found.steps <= CHECK_EVERY
    escaped = (found.upper < 1.3).double().mean().item()
    assert failure / 20 < escaped <= failure


def test_steps_follow_the_theorem() -> None:
    """1.648 √d exp(−√ε (2k − 1)) · norms ≤ failure at k, and not at k − 1."""
    for d, norms, inflation, failure in ((2048, 1, 0.05, 1e-6), (2048, 10**5, 0.05, 1e-6), (4096, 7, 0.01, 1e-9)):
        k = lanczos_steps(d, norms, inflation, failure)
        root = np.sqrt(1 - (1 + inflation) ** -2)
        chance = [1.648 * np.sqrt(d) * np.exp(-root * (2 * steps - 1)) * norms for steps in (k, k - 1)]
        assert chance[0] <= failure < chance[1]
    assert lanczos_steps(5, 1, 0.05, 1e-6) == 5
