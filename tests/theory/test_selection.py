"""What a selected share must exceed: known answers and rates on made-up logits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from squashlens.theory.statistics.selection import (
    Selection,
    halves,
    held_out,
    leads,
    one_more,
    select,
    shuffled,
    turned,
)

PARTS, CHOICES, DRAWS = 12, 6, 4
Made = tuple[np.ndarray, list[np.ndarray], np.ndarray]


def made(
    seed: int,
    n: int = 48,
    spoils: float = 0.0,
    favours: float = 0.0,
    alike: float = 0.8,
    knows: float = 1.0,
) -> Made:
    """Logits as they are and without each part, with random changes of the same sizes, and the right answers.

    The model knows something of the right answer, and has favourites of its own. A change is the same for all prompts
    with the weight `alike`. Part 3 spoils the right answer, or hides that it is often the first choice.
    """
    rng = np.random.default_rng(seed)
    right = rng.choice(CHOICES, size=n, p=[0.5, *[0.5 / (CHOICES - 1)] * (CHOICES - 1)])
    base = rng.standard_normal((n, 1, CHOICES)) + 2 * rng.standard_normal(CHOICES)
    base[np.arange(n), 0, right] += knows
    sizes = np.exp(rng.normal(-0.5, 0.7, size=(PARTS, 1)))

    def changes() -> np.ndarray:
        shared = rng.standard_normal((1, PARTS, CHOICES))
        own = rng.standard_normal((n, PARTS, CHOICES))
        return sizes * (alike * shared + np.sqrt(1 - alike**2) * own)

    without = changes()
    without[np.arange(n), 3, right] += spoils
    without[:, 3, 0] += favours
    return (
        np.concatenate([base, base + without], axis=1),
        [base + changes() for _ in range(DRAWS)],
        right,
    )


def verdicts(
    many: int,
    change: Callable[[int, np.ndarray], np.ndarray] = lambda _, right: right,
    **options: Any,
) -> list:
    found = []
    for seed in range(many):
        logits, random, right = made(seed, **options)
        clusters = np.arange(len(right))
        found.append(
            select(
                logits,
                random,
                change(seed, right),
                clusters,
                halves(clusters, seed),
                seed,
            )
        )
    return found


def rate(found: list[Selection]) -> float:
    return float(np.mean([one.above_null == "yes" for one in found]))


def test_a_part_that_spoils_the_answer_is_above_its_nulls() -> None:
    found = verdicts(20, spoils=4.0)
    assert rate(found) >= 0.7
    assert sum(one.part == 3 for one in found) >= 18


@pytest.mark.parametrize("alike", [0.0, 1.0])
def test_random_changes_are_not_above_their_null(alike: float) -> None:
    """A direction that all prompts share is often confirmed on the other half, as are the best of random ones."""
    found = verdicts(100, alike=alike, n=96)
    assert rate(found) <= 0.1
    confirmed = np.mean([one.low > 0 for one in found])
    assert confirmed > 0.25 if alike else confirmed < 0.1


def test_shuffled_answers_are_not_above_their_null() -> None:
    def exchanged(seed: int, right: np.ndarray) -> np.ndarray:
        return np.random.default_rng(seed).permutation(right)

    assert rate(verdicts(100, exchanged, spoils=3.0)) <= 0.06


def test_what_favours_the_commonest_answer_is_not_above_shuffled_answers() -> None:
    """It repairs answers on the other half, and more than random vectors do, and knows nothing of the prompts."""
    found = verdicts(40, favours=30.0, knows=0.2)
    beyond = [one.low > 0 and one.net > one.random_limit for one in found]
    assert np.mean(beyond) > 0.25
    assert rate(found) < np.mean(beyond) / 5


def test_each_limit_alone_can_say_no() -> None:
    nulls = {"random": np.zeros(4), "shuffled": np.zeros(200)}
    assert Selection(0, 0.3, 0.1, 0.5, **nulls).above_null == "yes"
    assert Selection(0, 0.3, -0.1, 0.5, **nulls).above_null == "no"
    assert Selection(0, 0.3, np.nan, np.nan, **nulls).above_null == "no"
    for name, draws in nulls.items():
        assert (
            Selection(0, 0.3, 0.1, 0.5, **nulls | {name: draws + 0.3}).above_null
            == "no"
        )
    assert (
        Selection(0, 0.3, 0.1, 0.5, **nulls | {"random": np.zeros(1)}).above_null
        == "not measured"
    )
    assert (
        Selection(
            0, 0.3, 0.1, 0.5, **nulls | {"shuffled": np.full(200, np.nan)}
        ).above_null
        == "not measured"
    )


def test_one_right_answer_for_all_has_no_shuffles() -> None:
    logits, random, right = made(0)
    clusters = np.arange(len(right))
    assert np.isnan(
        select(
            logits, random, right * 0, clusters, halves(clusters, 0), 0
        ).shuffled_limit
    )


def test_a_selection_is_that_of_plain_loops() -> None:
    logits, random, right = made(5, n=20)
    clusters = np.repeat(np.arange(10), 2)
    selecting = halves(clusters, 4)
    assert selecting.sum() == 10
    assert all(len(set(selecting[clusters == one])) == 1 for one in range(10)), (
        "clusters stay together"
    )

    def is_right(row: np.ndarray, place: int) -> bool:
        return bool(
            row[place] > max(value for k, value in enumerate(row) if k != place)
        )

    def net(part: int, runs: np.ndarray, half: np.ndarray) -> float:
        flips = [
            is_right(runs[k, part], right[k]) - is_right(logits[k, 0], right[k])
            for k in np.flatnonzero(half)
        ]
        return sum(flips) / len(flips)

    each = [net(part, logits[:, 1:], selecting) for part in range(PARTS)]
    found = select(logits, random, right, clusters, selecting, 0)
    assert each[found.part] == max(each)
    assert found.net == pytest.approx(net(found.part, logits[:, 1:], ~selecting))
    for draw, runs in enumerate(random):
        shares = [net(part, runs, selecting) for part in range(PARTS)]
        tied = [
            net(part, runs, ~selecting)
            for part in range(PARTS)
            if shares[part] == max(shares)
        ]
        assert min(abs(found.random[draw] - share) for share in tied) < 1e-12
    assert held_out(leads(logits, right), selecting) == pytest.approx(found.net)


def test_shuffles_keep_answers_of_a_cluster_together() -> None:
    clusters, values = np.repeat(np.arange(5), 3), np.repeat(np.arange(5), 3)
    rng = np.random.default_rng(0)
    drawn = np.stack([shuffled(values, clusters, rng) for _ in range(500)])
    assert (drawn.reshape(500, 5, 3) == drawn[:, ::3, None]).all()
    assert (np.sort(drawn, axis=1) == values).all()
    own = np.stack([shuffled(np.arange(4), np.arange(4), rng) for _ in range(2400)])
    _, counts = np.unique(own, axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 0.001


def test_one_more_draw_is_below_its_limit() -> None:
    draws = np.random.default_rng(0).standard_normal((4000, 5))
    below = [row[4] <= one_more(row[:4]) for row in draws]
    assert 0.94 <= np.mean(below) <= 0.96
    assert np.isnan(one_more(draws[0, :1]))


def test_turned_changes_keep_lengths_angles_and_coordinates() -> None:
    """All signs that do not lead towards the changes are drawn, whatever the size of one coordinate."""
    changes = torch.randn(
        3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.double
    )
    drawn = torch.stack([turned(changes, seed) for seed in range(2000)])
    torch.testing.assert_close(
        drawn @ drawn.mT, (changes @ changes.T).expand(2000, 3, 3)
    )
    assert (drawn.abs() == changes.abs()).all()
    assert ((drawn * changes).sum(dim=(1, 2)) <= 1e-12).all()
    signs = (drawn / changes)[:, 0]
    assert len(signs.unique(dim=0)) == 32, (
        "all signs that do not lead towards the changes"
    )
    changes[:, 2] *= 1000
    assert all(
        (turned(changes, seed)[:, 2] == -changes[:, 2]).all() for seed in range(20)
    )
    assert not turned(torch.zeros(2, 6), 0).any()
