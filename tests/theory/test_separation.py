"""Separation of runs: against loops over pairs in NumPy, in closed form, and on known noise."""

import itertools

import numpy as np
import pytest
import torch

from squashlens.theory.separation import distances, margin, noise_of_runs, recovered, steps, to_first_run


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
    nu = [max(np.sqrt(((v[r, i] - v[0, i]) ** 2).sum()) for r in (1, 2)) for i in range(n)]
    apart = {(i, j): np.sqrt(((v[0, i] - v[0, j]) ** 2).sum()) for i, j in itertools.permutations(range(n), 2)}
    nearest = [
        [min(range(n), key=lambda j, r=r, i=i: ((v[r, i] - v[0, j]) ** 2).sum()) for i in range(n)] for r in (1, 2)
    ]
    share, place = recovered(to_first_run(runs))
    np.testing.assert_allclose(noise_of_runs(runs), nu)
    np.testing.assert_allclose(steps(runs)[:-1], [apart[i, i + 1] / nu[i] for i in range(n - 1)])
    np.testing.assert_allclose(margin(runs), min(apart[i, j] / (nu[i] + nu[j]) for i, j in apart))
    np.testing.assert_allclose(share, np.mean([[found == i for i, found in enumerate(row)] for row in nearest], axis=0))
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
