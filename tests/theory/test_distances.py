"""Distances against numpy, scipy, hand counts and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr

from squashlens.theory.distances import (
    distance,
    divergence,
    identical,
    log_odds,
    relative_median,
    shares,
    total_variation,
    ulp,
    ulps,
)

V, W = torch.tensor([[1.0, -2.0, 4.0]]), torch.tensor([[1.5, 1.0, 0.0]])


@pytest.mark.parametrize(
    ("norm", "expected"), [("linf", 4.0), ("l1", 7.5), ("l2", math.sqrt(0.25 + 9 + 16))]
)
def test_norms_by_hand(norm: str, expected: float) -> None:
    assert distance(V, W, norm).item() == pytest.approx(expected, rel=1e-15)


@settings(deadline=None, max_examples=60)
@given(st.floats(-1e30, 1e30).filter(lambda x: x == 0 or abs(x) > 1e-300))
def test_ulp_is_the_gap_to_the_next_number(x: float) -> None:
    for numpy_type, dtype in ((np.float32, torch.float32), (np.float64, torch.float64)):
        rounded = abs(float(numpy_type(x)))
        expected = float(np.spacing(numpy_type(rounded)))
        assert ulp(torch.tensor(rounded, dtype=torch.float64), dtype).item() == expected


@pytest.mark.parametrize(
    ("x", "expected"),
    [(1.0, 2**-7), (1.99, 2**-7), (2.0, 2**-6), (300.0, 2.0), (0.75, 2**-8)],
)
def test_ulp_of_bfloat16_by_hand(x: float, expected: float) -> None:
    assert ulp(torch.tensor(x), torch.bfloat16).item() == expected


def test_ulps_use_the_unit_of_their_own_coordinate() -> None:
    v = torch.tensor([[1000.0, 1.0, 0.0, 1.0, 1.0]])
    w = torch.tensor([[1000.0, 1.0 + 8 * 2**-7, 0.03, 1.0, 1.0]])
    widest = ulps(v, w, torch.bfloat16)
    # The widest gap is 8 units of 2⁻⁷ at magnitude 1; at 1000, bfloat16's unit is 4 and the gap would vanish.
    assert widest.item() == 8
    assert ulps(v, w, torch.float32).item() == pytest.approx(8 * 2**-7 / 2**-23)


def test_identical_counts_after_rounding() -> None:
    v = torch.tensor([[1.0, 1.0, 2.0, 0.0]])
    w = torch.tensor([[1.0 + 2**-10, 1.5, 2.0, 1e-9]])
    assert identical(v, w, torch.bfloat16).item() == 0.5
    assert identical(v, w, torch.float32).item() == 0.25


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 30))
def test_distributions_against_scipy(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n))
    log_p, log_q = torch.tensor(np.log(p)), torch.tensor(np.log(q))
    assert divergence(log_p, log_q).item() == pytest.approx(
        rel_entr(p, q).sum(), rel=1e-9, abs=1e-13
    )
    tv = total_variation(torch.tensor(p), torch.tensor(q)).item()
    assert tv == pytest.approx(np.abs(p - q).sum(), rel=1e-12)
    assert (
        divergence(log_p, log_q).item() >= tv**2 / 2 - 1e-12
    )  # Pinsker, with δ without its ½


def test_divergence_with_impossible_outcomes() -> None:
    log_p = torch.tensor([[0.0, -torch.inf]])
    log_q = torch.tensor([[math.log(0.5), math.log(0.5)]])
    assert divergence(log_p, log_q).item() == pytest.approx(math.log(2))
    assert divergence(log_q, log_p).item() == math.inf


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from(["linf", "l1", "l2"]))
def test_shares_are_the_derivative_of_the_norm(
    seed: int, n_parts: int, norm: str
) -> None:
    parts = torch.randn(
        n_parts, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    found, size = shares(parts, norm)
    assert found.sum().item() == pytest.approx(1, rel=1e-9)
    assert size.item() == pytest.approx(
        distance(parts.sum(0), torch.zeros(7), norm).item()
    )
    scales = torch.ones(n_parts, dtype=torch.float64, requires_grad=True)
    order = {"linf": float("inf"), "l1": 1.0, "l2": 2.0}[norm]
    torch.linalg.vector_norm((scales[:, None] * parts).sum(0), ord=order).backward()
    torch.testing.assert_close(found, scales.grad / size, rtol=1e-8, atol=1e-10)


def test_log_odds_by_hand_and_as_a_bound_on_total_variation() -> None:
    logits = (
        torch.randn(50, 2, 7, generator=torch.Generator().manual_seed(0)).double() * 2
    )
    p, q = logits.log_softmax(dim=-1).unbind(dim=1)
    found = log_odds(p, q)
    pairs = (p[:, :, None] - p[:, None]) - (q[:, :, None] - q[:, None])
    torch.testing.assert_close(found, pairs.abs().amax(dim=(1, 2)))
    torch.testing.assert_close(
        log_odds(logits[:, 0] + 3, logits[:, 1] - 5), found
    )  # constants do not matter
    assert (
        total_variation(p.exp(), q.exp()) <= 2 * torch.tanh(found / 4) + 1e-12
    ).all()
    low, high = (
        torch.tensor([sign * 0.7, 0.0]).double().log_softmax(dim=-1) for sign in (-1, 1)
    )
    assert total_variation(low.exp(), high.exp()).item() == pytest.approx(
        2 * math.tanh(1.4 / 4)
    )  # attained
    never = torch.tensor([0.0, -torch.inf, 0.0])
    assert log_odds(never, torch.tensor([1.0, -torch.inf, 0.0])).item() == 1


def test_one_large_coordinate_does_not_rule_the_relative_median() -> None:
    v = torch.tensor([[1.0, 2.0, 0.0, -4.0, 1e6]])
    w = torch.tensor([[1.1, 2.0, 0.0, -5.0, 9e6]])
    assert relative_median(v, w).item() == pytest.approx(0.1 / 1.1, rel=1e-6)
    assert relative_median(3 * v, 3 * w).item() == pytest.approx(0.1 / 1.1, rel=1e-6)
    assert relative_median(v, -v).item() == 2
