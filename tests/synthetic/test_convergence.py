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
from squashlens.synthetic.convergence import HALVING, of_draws, power_law, rate, tail_of
from squashlens.synthetic.stack import draw, sinusoids

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


def test_means_and_intervals_against_scipy() -> None:
    slopes = torch.randn(
        6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    mean, low, high = (value for _, value, *_ in of_draws("slope", slopes, "").values())
    expected = stats.t.interval(
        0.95, 5, loc=slopes.numpy().mean(0), scale=stats.sem(slopes.numpy())
    )
    np.testing.assert_allclose(mean, slopes.numpy().mean(0))
    np.testing.assert_allclose(high - low, expected[1] - expected[0], rtol=1e-9)
    np.testing.assert_allclose((low + high) / 2, mean, rtol=1e-9)
    assert all(
        value.isnan().all() == (name != "slope_mean")
        for name, (_, value, *_) in of_draws("slope", slopes[:4], "").items()
    )
    slopes[0, 1] = torch.nan  # a draw without a slope is not left out in silence
    for _, value, *_ in of_draws("slope", slopes, "").values():
        assert value.isnan().tolist() == [False, True, False]


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


@pytest.mark.slow
def test_figure_8s_convergence_is_that_of_averages() -> None:
    """With q, k, v drawn themselves, E ‖D‖₂² = Σ w², since values have variance 1/d: it falls without δ → 0."""
    stack, n = PAPER["queries_keys"], 300
    found = convergence(stack, [100, 200, 250, n], seeds=200, norm="l2").isel(layer=0)
    drawn = draw(stack, n, range(200), torch.float64, torch.device("cpu"))
    from tests.synthetic import twin

    expected = []
    for seed in range(20):
        rows = [
            twin.run(stack, drawn, seed, c)[1][0][0, -1]
            for c in ([*range(n)], [*range(n), n - 1])
        ]
        w = rows[0] - rows[1][:n]
        w[-1] -= rows[1][n]
        expected.append((w**2).sum())
    observed = found["distance"].sel(length=n).values ** 2
    assert observed.mean() == pytest.approx(np.mean(expected), rel=0.06)
    assert found["rate"] == -0.5
    assert found["total_variation"].sel(length=n).mean() > 0.1


def test_figure_8_in_both_readings() -> None:
    lengths = spaced(10, 3000, 20)
    found = {
        name: convergence(stack, lengths).isel(layer=0) for name, stack in PAPER.items()
    }
    averaged, kept = found["queries_keys"], found["inputs"]
    assert -0.7 < averaged["exponent_mean"] < -0.4  # D falls, as in the figure
    assert (
        averaged["variation_exponent_high"] < 0
    )  # δ creeps down to a level, which is no decay
    assert averaged["variation_exponent_mean"] > -0.15
    assert not averaged["premise"].item()
    assert abs(kept["exponent_mean"]) < 0.1  # D stays
    assert kept["distance"].isel(length=-1).min() > 1
    assert not kept["premise"].item()


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


@pytest.mark.parametrize(
    ("stack", "lengths"),
    [
        (Stack(encoding="alibi", projections="direct"), [10, 30, 100, 300, 1000]),
        (Stack(encoding="alibi", depth=2, scale=0.3), spaced(10, 400, 20)),
        (Stack(window=500, projections="direct"), [10, 30, 60, 125, 250]),
        (Stack(window=500, encoding="t5", scale=0.3), [10, 30, 60, 125, 250]),
    ],
)
def test_a_floor_that_short_lengths_do_not_show(
    stack: Stack, lengths: list[int]
) -> None:
    found = convergence(stack, lengths)
    assert (found["variation_exponent_high"] < HALVING).all()  # by sight it decays
    assert not found["premise"].any()


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


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("k", "noise"), [(200, 0.1), (200, 1.0), (200, 3.0), (50, 0.1)]
)
def test_figure_9s_mean_from_just_beyond_k_on(k: int, noise: float) -> None:
    """Over many draws, within standard errors; the limit 2k ((e^a − 1)/a − 1)/n, without its factors, is far off."""
    lengths = [int(many * k) for many in (1.02, 1.1, 1.5, 2, 5, 10, 60, 80, 100)]
    found = softmax_total_variation(lengths, k=k, noise=noise, seeds=300)
    observed = found["total_variation"]
    error = observed.std("seed", ddof=1) / math.sqrt(300)
    assert (abs(observed.mean("seed") - found["expected"]) < 3 * error).all()
    limit = 2 * k * ((math.exp(noise) - 1) / noise - 1) / found["length"]
    assert (abs(observed.mean("seed") - limit) > 10 * error).values[:6].all()
    beyond = (
        2 * (1 - k / found["length"]) / (1 + 1 / (limit / 2))
    )  # as if none of the first k lost
    assert (abs(observed.mean("seed") - beyond) > 10 * error).values[:4].all()


def test_figure_9s_leading_exponent_is_minus_one() -> None:
    """The factor 1 − k/n taken off, −1 is within the interval; with it, the slope is less steep at any finite n."""
    lengths = np.unique(np.geomspace(10, 100_000, 40).astype(int)).tolist()
    found = softmax_total_variation(lengths)
    assert found["leading_low"] <= -1 <= found["leading_high"]
    assert found["leading_high"] - found["leading_low"] < 0.01
    assert found["exponent_low"] > -1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "part", [{}, {"residual": True, "norm": "layer", "mlp": 4}], ids=["bare", "whole"]
)
def test_keys_and_values_of_the_same_tokens_do_not_converge(part: Any) -> None:
    """As in a Transformer, both are projected from one token: values depend on scores, and do not average out."""
    lengths = [3000, 6000, 8000, 10_000]
    together = convergence(Stack(encoding="sinusoidal_qk", **part), lengths)["distance"]
    apart = convergence(PAPER["queries_keys"], lengths)["distance"]
    assert together.min() > 0.5
    assert apart.max() < 0.1


def test_what_keys_and_values_of_the_same_tokens_leave() -> None:
    """v_n → (q + PE_{n−1}) W_Kᵀ W_V W_O/√d: e^{⟨a, x⟩} moves the mean of x ~ N(0, I) to a.

    Of v_n − v*_{n+1} the step from one position to the next is left. The key's own position is a factor of the weight
    that does not depend on x.
    """
    stack, lengths = Stack(encoding="sinusoidal_qk"), [10_000, 30_000]
    found = last_tokens(stack, lengths, seeds=4)
    (weights,) = draw(stack, 1, range(4), torch.float64, torch.device("cpu")).layers
    for at, n in enumerate(lengths):
        here, there = sinusoids(torch.tensor([n - 1, n]), 64, 1e4)
        left = (
            (here - there).expand(4, 1, 64)
            @ weights["key"].mT
            @ weights["value"]
            @ weights["output"]
            / 8
        )
        left, gap = left[:, 0], (found.v - found.star)[:, 0, at]
        assert torch.cosine_similarity(gap, left).mean() > 0.9
        assert gap.abs().sum(-1).mean().item() == pytest.approx(
            left.abs().sum(-1).mean().item(), rel=0.15
        )
