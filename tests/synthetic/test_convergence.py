"""Figures 8 and 9 : numbers against derivations, closed forms, scipy and hand counts."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from squashlens.synthetic import (
    PAPER,
    Stack,
    convergence,
    last_tokens,
    softmax_total_variation,
)
from squashlens.synthetic.convergence import power_law, rate, tail_of
from squashlens.synthetic.stack import draw

LENGTHS = [10, 30, 100, 200, 400, 800, 1600]


def spaced(low: int, high: int, count: int) -> list[int]:
    return sorted({int(n) for n in np.geomspace(low, high, count).round()})


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(3, 20))
def test_slopes_against_scipy(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    n, values = np.sort(rng.uniform(1, 1e5, count)), rng.lognormal(0, 2, (2, count))
    slope, fit = power_law(torch.tensor(n), torch.tensor(values))
    for row in range(2):
        expected = stats.linregress(np.log(n), np.log(values[row]))
        assert slope[row].item() == pytest.approx(expected.slope, rel=1e-7, abs=1e-9)
        assert fit[row].item() == pytest.approx(expected.rvalue**2, rel=1e-6, abs=1e-9)


def test_zeros_are_in_no_fit() -> None:
    n = torch.tensor([1.0, 10, 100, 1000, 10000]).double()
    slope, fit = power_law(
        n, torch.stack([3 * n**-0.5 * torch.tensor([1, 0, 1, 1, 0]), n * 0, n * 0 + 7])
    )
    assert slope[0].item() == pytest.approx(-0.5)
    assert slope[1].isnan()
    assert slope[2].item() == pytest.approx(0)
    assert fit.isnan().tolist() == [False, True, True]
    assert power_law(n, torch.tensor([1.0, 2, 0, 0, 0]).double())[0].isnan()


def test_the_tail_is_the_upper_part_of_log_n() -> None:
    lengths = spaced(10, 1000, 9)
    assert tail_of(lengths).tolist() == [False] * 4 + [True] * 5


@pytest.mark.few(1)
@pytest.mark.parametrize("norm", ["linf", "l1", "l2"])
def test_convergence_is_what_the_last_tokens_say(norm: Any) -> None:
    stack = Stack(depth=2, heads=2, encoding="rope", residual=True, norm="rms")
    found = convergence(stack, LENGTHS, norm=norm)
    tokens = last_tokens(stack, LENGTHS)
    gap = (tokens.v - tokens.star).numpy()
    expected = np.linalg.norm(
        gap, axis=-1, ord={"linf": np.inf, "l1": 1, "l2": 2}[norm]
    )
    np.testing.assert_allclose(found["distance"], expected, rtol=1e-12)
    np.testing.assert_allclose(
        found["total_variation"], tokens.total_variation.mean(-1)
    )
    np.testing.assert_allclose(found["self_weight"], tokens.self_weight.mean(-1))
    upper = np.array(LENGTHS) >= math.sqrt(10 * 1600)
    for name, of in (
        ("exponent", "distance"),
        ("variation_exponent", "total_variation"),
    ):
        lines = [
            [
                stats.linregress(np.log(LENGTHS)[upper], np.log(row[upper])).slope
                for row in draws
            ]
            for draws in found[of].values
        ]
        np.testing.assert_allclose(found[name], lines, rtol=1e-7)
        np.testing.assert_allclose(
            found[f"{name}_mean"], np.mean(lines, axis=0), rtol=1e-7
        )
    assert found["distance"].dims == ("seed", "layer", "length")
    assert found["layer"].values.tolist() == [1, 2]


def test_theorem_b3s_bound_holds_with_measured_values() -> None:
    """D ≤ δ max_i ‖value_i‖₁ for one head and one layer, whatever the encoding."""
    for name, stack in PAPER.items():
        drawn = draw(stack, 400, [0, 1], torch.float64, torch.device("cpu"))
        if name == "queries_keys":
            sizes = drawn.direct[2].abs().sum(-1).amax(-1)
        else:
            place = torch.arange(401)
            x = drawn.inputs(torch.tensor([*range(400), 399]), place)
            sizes = (
                (x @ drawn.layers[0]["value"] @ drawn.layers[0]["output"])
                .abs()
                .sum(-1)
                .amax(-1)
            )
        found = convergence(stack, [40, 200, 300, 400], seeds=2).isel(layer=0)
        bound = found["total_variation"].isel(length=-1).values * sizes.numpy()
        apart = found["distance"].isel(length=-1).values
        assert (apart <= bound).all()
        assert (apart > 1e-3 * bound).all()


def test_without_positions_the_difference_is_the_new_tokens_share() -> None:
    """D = α*_{n+1,n+1} ‖value_a − z_n‖₁ exactly, and δ = 2 α*_{n+1,n+1}: all other weights shrink alike."""
    stack = Stack(projections="direct")
    found = convergence(stack, LENGTHS).isel(layer=0)
    tokens = last_tokens(stack, LENGTHS)
    values = draw(stack, 1600, range(5), torch.float64, torch.device("cpu")).direct[2][
        :, np.array(LENGTHS) - 1
    ]
    apart = (values - tokens.v[:, 0]).abs().sum(-1) * tokens.self_weight[:, 0, :, 0]
    np.testing.assert_allclose(found["distance"], apart, rtol=1e-9)
    np.testing.assert_allclose(
        found["total_variation"], 2 * found["self_weight"], rtol=1e-9
    )
    assert found["premise"].item()
    assert found["exponent_low"] - 0.05 < -1 < found["exponent_high"] + 0.05


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, -1),
        ({"encoding": "t5"}, -1),
        ({"encoding": "rope"}, None),
        ({"encoding": "rope", "projections": "direct"}, -0.5),
        ({"encoding": "alibi"}, None),
        ({"depth": 2}, None),
        ({"window": 3}, None),
        ({"mlp": 1}, None),
    ],
)
def test_orders_that_can_be_derived(options: Any, expected: float | None) -> None:
    found = rate(Stack(**options))
    assert math.isnan(found) if expected is None else found == expected


def test_a_window_never_forgets_the_last_token() -> None:
    """Scores near 0 make every weight 1/window: δ = 2/window at every length beyond it."""
    found = convergence(Stack(window=8, scale=1e-6), LENGTHS).isel(
        layer=0, length=slice(1, None)
    )
    np.testing.assert_allclose(found["self_weight"], 1 / 8, rtol=1e-6)
    np.testing.assert_allclose(found["total_variation"], 2 / 8, rtol=1e-6)
    assert not found["premise"].item()


def test_figure_9_against_its_sums() -> None:
    """δ = Σ_{i≤k} |e^x/Z − e^x*/Z*| + |1/Z − 1/Z*| Σ_{i>k} e^x, from cumulative sums."""
    lengths, k = [3, 50, 200, 500, 2000, 3000, 10_000], 200
    found = softmax_total_variation(lengths, k=k)
    for seed in range(5):
        x = np.random.default_rng((seed, 0, 0)).uniform(0, 1, 10_000)
        star = x.copy()
        star[:k] += np.random.default_rng((seed, 1, 0)).uniform(0, 0.1, k)
        for n in lengths:
            z, z_star, near = np.exp(x[:n]).sum(), np.exp(star[:n]).sum(), min(n, k)
            delta = np.abs(np.exp(x[:near]) / z - np.exp(star[:near]) / z_star).sum()
            delta += abs(1 / z - 1 / z_star) * np.exp(x[near:n]).sum()
            assert found["total_variation"].sel(
                seed=seed, length=n
            ).item() == pytest.approx(delta, rel=1e-10)


def test_figure_9_falls_as_derived() -> None:
    lengths = spaced(10, 100_000, 25)
    found = softmax_total_variation(lengths, seeds=20)
    assert found["exponent_mean"].item() == pytest.approx(-1, abs=0.03)
    assert found["fit"].min() > 0.999
    last = found.isel(length=-1)
    g = 200 / 100_000 * ((math.exp(0.1) - 1) / 0.1 - 1)
    lost = integrate.quad(
        lambda u: max(0.0, 1 - math.exp(u) / (1 + g)) / 0.1,
        0,
        0.1,
        points=[math.log1p(g)],
    )[0]
    by_hand = 2 * ((1 - 0.002) * g / (1 + g) + 0.002 * lost)
    assert last["expected"].item() == pytest.approx(by_hand, rel=1e-9)
    assert np.isnan(found["expected"].values).tolist() == [n <= 200 for n in lengths]
