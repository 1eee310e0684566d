"""Matrix norms against numpy's SVD and closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squashlens.theory.norms import (
    FOLDS,
    crossed,
    direction_factor,
    gram_of,
    largest,
    length_factor,
    missing_sizes,
    moment_sizes,
    normals,
    sketch_factors,
    spectral_norms,
    spike_sizes,
    squared_frobenius,
    unmixing,
)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    scale=st.floats(1e-6, 1e6),
)
def test_spectral_equals_svd(rows: int, columns: int, seed: int, scale: float) -> None:
    blocks = scale * np.random.default_rng(seed).standard_normal((3, rows, columns))
    expected = np.linalg.svd(blocks, compute_uv=False)[:, 0]
    np.testing.assert_allclose(
        spectral_norms(torch.tensor(blocks)).numpy(), expected, rtol=1e-12
    )


def test_frobenius_adds_over_batches_of_rows() -> None:
    block = torch.randn(
        7, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    parts = squared_frobenius(block[:3]) + squared_frobenius(block[3:])
    expected = torch.linalg.matrix_norm(block.transpose(0, 1), ord="fro") ** 2
    torch.testing.assert_close(parts, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rank", [1, 3, 40])
@pytest.mark.parametrize("probes", [4, 16])
def test_sketch_factors_hold_for_every_rank_at_their_chance(
    rank: int, probes: int
) -> None:
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


def test_a_direction_is_shorter_as_often_as_it_may_be() -> None:
    """‖Gu‖ · factor is below 1 with the chance that was given: 10 %, over 20,000 draws."""
    drawn = torch.randn(
        20_000, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    short = (drawn.norm(dim=1) * direction_factor(8, 0.1) < 1).double().mean().item()
    assert abs(short - 0.1) < 4 * (0.1 * 0.9 / 20_000) ** 0.5


@pytest.mark.parametrize("cotangents", [3, 9, 14])
def test_what_a_sketch_surely_says_is_the_norm_of_the_part_in_its_row_space(
    cotangents: int,
) -> None:
    rng = np.random.default_rng(cotangents)
    directions = rng.standard_normal((cotangents, 9))
    blocks = rng.standard_normal((4, 9, 6))
    within = np.linalg.pinv(directions) @ directions  # the projector onto the row space
    expected = np.linalg.norm(within @ blocks, ord=2, axis=(1, 2))
    unmixed = unmixing(torch.tensor(directions))
    found = largest(unmixed @ gram_of(torch.tensor(directions @ blocks)) @ unmixed.mT)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    if cotangents >= 9:
        np.testing.assert_allclose(
            found, np.linalg.norm(blocks, ord=2, axis=(1, 2)), rtol=1e-10
        )


def test_a_quarter_sees_the_direction_that_the_others_find() -> None:
    rows = np.random.default_rng(0).standard_normal((5, 8, 6))
    found = crossed(gram_of(torch.tensor(rows))).numpy()
    for block, lengths in zip(rows, found, strict=True):
        for fold, length in enumerate(lengths):
            own = slice(2 * fold, 2 * fold + 2)
            top = np.linalg.svd(np.delete(block, own, axis=0))[2][0]
            assert length == pytest.approx(np.linalg.norm(block[own] @ top), rel=1e-10)
    assert crossed(torch.zeros(2, 4, 4)).eq(0).all(), (
        "a block of zeros has a length of zero"
    )


@settings(deadline=None, max_examples=30)
@given(
    k=st.integers(2, 7),
    rank=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    scale=st.floats(1e-6, 1e6),
)
def test_the_size_of_a_sketch_by_the_characteristic_polynomial(
    k: int, rank: int, seed: int, scale: float
) -> None:
    """Π (λ₁ − λ_i) over i > 1 is p′(λ₁), where p is the characteristic polynomial."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((k, rank)) @ rng.standard_normal((rank, 9))
    gram = rows @ rows.T
    largest = np.linalg.norm(rows, ord=2) ** 2
    product = largest * np.polyval(np.polyder(np.poly(gram)), largest)
    found = spike_sizes(gram_of(torch.tensor(scale * rows))).item()
    assert found == pytest.approx(
        scale * product ** (1 / (2 * k)), rel=1e-3
    )  # gaps are raised a little
    assert found <= scale * np.linalg.norm(rows, ord=2) * (1 + 1e-6)
    if rank == 1:
        assert found == pytest.approx(scale * np.linalg.norm(rows), rel=1e-6)


def test_the_size_of_a_sketch_of_nothing_is_zero() -> None:
    assert spike_sizes(torch.zeros(2, 4, 4)).eq(0).all()
    assert spike_sizes(torch.full((1, 1), 3.0)).item() == pytest.approx(
        3**0.5, rel=1e-6
    )


def test_moments_of_a_sketch_are_means_over_different_rows() -> None:
    rows = np.random.default_rng(1).standard_normal((6, 4))
    gram = rows @ rows.T
    pairs = [gram[i, j] * gram[j, i] for i, j in itertools.combinations(range(6), 2)]
    triples = [
        gram[i, j] * gram[j, m] * gram[m, i]
        for i, j, m in itertools.combinations(range(6), 3)
    ]
    assert moment_sizes(torch.tensor(gram)).item() == pytest.approx(
        (np.mean(triples) / np.mean(pairs)) ** 0.5
    )
    drawn = torch.randn(
        100, 300, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    spectrum = 1 / torch.arange(1.0, 13.0, dtype=torch.float64)
    truth = (spectrum.pow(6).sum() / spectrum.pow(4).sum()).sqrt().item()
    assert moment_sizes(gram_of(drawn * spectrum)).mean().item() == pytest.approx(
        truth, rel=0.02
    )
    assert moment_sizes(torch.full((2, 2), 3.0)).item() == 0
    assert moment_sizes(torch.zeros(4, 4)).isnan().all()


SPECTRA = {
    "one": [1.0],
    "flat": [1.0] * 12,
    "falling": [1 / (i + 1) for i in range(12)],
    "two close": [1.0, 0.99, *[0.2] * 10],
    "one above many": [1.0, *[0.5] * 60],
}


@pytest.mark.few(1)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_a_sketch_fails_no_more_often_than_said(spectrum: str) -> None:
    """The ends of the interval, in 10,000 sketches of matrices with ‖J‖₂ = 1: by rotation, of all with these values."""
    values = torch.tensor(SPECTRA[spectrum], dtype=torch.float64)
    drawn = torch.randn(
        10_000,
        12,
        len(values),
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    gram = gram_of(drawn * values)
    high = spike_sizes(gram) * direction_factor(12, 0.03)
    low = crossed(gram).amax(dim=1) * length_factor(12 // FOLDS, 0.03 / FOLDS)
    above, below = (high < 1).double().mean().item(), (low > 1).double().mean().item()
    assert (
        above <= 0.035
    )  # three standard deviations of 10,000 trials above what is said
    assert below <= 0.035
    if spectrum == "one":  # and not idly
        assert above > 0.01
        assert below > 0.01


def test_missing_parts_are_covered_as_often_as_stated() -> None:
    """Differences of rank one, whose norm is missed most often: five at once, 600 draws, failure probability 0.2."""
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(5, 12, generator=generator, dtype=torch.float64)
    found = [
        missing_sizes((normals(seed, 4, 12) @ vectors.T)[..., None], 0.2)
        for seed in range(600)
    ]
    failed = (
        (torch.stack(found) < vectors.norm(dim=-1)).any(dim=-1).double().mean().item()
    )
    assert 0 < failed <= 0.2 + 3 * math.sqrt(0.16 / 600)
    alone = missing_sizes(torch.ones(4, 1, 1), 0.2 / 5)
    five = missing_sizes(torch.ones(4, 5, 1), 0.2)
    assert torch.equal(alone.expand(5), five)
