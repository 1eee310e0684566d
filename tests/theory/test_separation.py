"""Separation of runs: against loops over pairs in NumPy, in closed form, and on known noise."""

import itertools

import numpy as np
import pytest
import torch

from squashlens.theory.separation import (
    distance_by_noise,
    distances,
    margin,
    nearer_to_own,
    noise_of_runs,
    recovered,
    steps,
    to_first_run,
)


def drawn(noise: float, prompts: int = 9, d: int = 6, runs: int = 3) -> torch.Tensor:
    """Prompts on a line with steps of 1, each run with its own rounding of about `noise` in each coordinate."""
    generator = torch.Generator().manual_seed(0)
    line = torch.arange(prompts)[:, None] * torch.eye(d)[0]
    return line + noise * torch.randn(runs, prompts, d, generator=generator)


@pytest.mark.parametrize("noise", [0.01, 0.4, 5.0])
def test_everything_equals_loops_over_pairs(noise: float) -> None:
    runs = drawn(noise)
    v = runs.double().numpy()
    n = v.shape[1]
    nu = [
        max(np.sqrt(((v[r, i] - v[0, i]) ** 2).sum()) for r in (1, 2)) for i in range(n)
    ]
    apart = {
        (i, j): np.sqrt(((v[0, i] - v[0, j]) ** 2).sum())
        for i, j in itertools.permutations(range(n), 2)
    }
    nearest = [
        [
            min(range(n), key=lambda j, r=r, i=i: ((v[r, i] - v[0, j]) ** 2).sum())
            for i in range(n)
        ]
        for r in (1, 2)
    ]
    share, place = recovered(to_first_run(runs))
    np.testing.assert_allclose(noise_of_runs(runs), nu)
    np.testing.assert_allclose(
        steps(runs)[:-1], [apart[i, i + 1] / nu[i] for i in range(n - 1)]
    )
    np.testing.assert_allclose(
        margin(runs), min(apart[i, j] / (nu[i] + nu[j]) for i, j in apart)
    )
    np.testing.assert_allclose(
        share,
        np.mean(
            [[found == i for i, found in enumerate(row)] for row in nearest], axis=0
        ),
    )
    assert place.tolist() == nearest[0]


def test_a_margin_above_two_recovers_all_prompts_and_large_noise_does_not() -> None:
    clear, lost = drawn(0.01), drawn(50.0, prompts=200)
    assert margin(clear) > 2
    assert recovered(to_first_run(clear))[0].tolist() == [1.0] * 9
    assert recovered(to_first_run(lost))[0].mean() < 0.1


def test_equal_prompts_have_the_share_of_chance() -> None:
    same = torch.ones(3, 8, 4)
    assert recovered(to_first_run(same))[0].tolist() == [1 / 8] * 8
    assert margin(same) == 0
    assert steps(same).isnan().all()


def test_small_distances_keep_their_digits() -> None:
    far = 1e6 * torch.ones(1, 3, dtype=torch.float64)
    assert distances(far, far + 1e-6).item() == pytest.approx(1e-6 * 3**0.5, rel=1e-3)


@pytest.mark.parametrize("noise", [0.01, 0.4, 5.0])
def test_two_prompts_equal_loops_over_runs(noise: float) -> None:
    """The first two prompts, at "layers" that are further draws of both."""
    first, second = torch.stack(
        [drawn(noise * (1 + layer))[:, :2] for layer in range(4)], dim=1
    ).unbind(dim=2)
    for layer in range(4):
        v, w = (runs[:, layer].double().numpy() for runs in (first, second))
        nu = [max(np.linalg.norm(runs[r] - runs[0]) for r in (1, 2)) for runs in (v, w)]
        nearer = [
            np.linalg.norm(own[r] - own[s]) < np.linalg.norm(own[r] - other[s])
            for own, other in ((v, w), (w, v))
            for r, s in itertools.permutations(range(3), 2)
        ]
        assert distance_by_noise(first, second, torch.float32)[
            layer
        ].item() == pytest.approx(np.linalg.norm(v[0] - w[0]) / sum(nu))
        assert nearer_to_own(first, second)[layer].item() == pytest.approx(
            np.mean(nearer)
        )


def test_equal_prompts_are_at_no_distance() -> None:
    runs = torch.ones(3, 2, 5)
    assert distance_by_noise(runs, runs, torch.float32).tolist() == [0, 0]
    one_step = torch.nextafter(runs, 2 * runs)
    assert (distance_by_noise(runs, one_step, torch.float32) <= 1).all(), "rounding"
    assert nearer_to_own(runs, runs).tolist() == [0, 0]
