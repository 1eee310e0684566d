"""Shares beyond uniform attention: a closed form, a slow twin, and what makes no sink."""

import pytest
import torch

from squashlens.theory.bounds.path_sums import Uniform
from squashlens.theory.sinks import FEWEST, are_sinks, beyond_uniform, received


def uniform(n: int, window: int | None = None) -> torch.Tensor:
    return Uniform(window).pushed(torch.eye(n, dtype=torch.float64))


def to(place: int, n: int) -> torch.Tensor:
    """All attention on one token, and that of earlier queries on themselves."""
    return torch.eye(n, dtype=torch.float64)[torch.arange(n).clamp(max=place)]


@pytest.mark.parametrize(("place", "window"), [(0, None), (4, None), (2, 9)])
@pytest.mark.parametrize("share", [0.0, 0.35, 1.0])
def test_the_share_of_a_mixture_is_found(place: int, window: int | None, share: float) -> None:
    n, reach = 20, window or 20
    seen = (torch.arange(n) < place + reach)[:, None]
    mixed = torch.where(seen, share * to(place, n) + (1 - share) * uniform(n, window), uniform(n, window))
    found = beyond_uniform(received(mixed), window)
    assert found[place] == pytest.approx(share, abs=1e-12)
    assert found[n - FEWEST - 1 :].isnan().tolist() == [False, *[True] * FEWEST]
    assert are_sinks(found[None]).tolist() == [share > 0.3 and i == place for i in range(n)]


@pytest.mark.parametrize("window", [None, 6])
def test_it_is_what_loops_give(window: int | None) -> None:
    n, reach = 12, window or 12
    masked = torch.randn(n, n, generator=torch.Generator().manual_seed(0)).double()
    rows, columns = torch.arange(n)[:, None], torch.arange(n)
    pattern = masked.masked_fill((columns > rows) | (columns <= rows - reach), -torch.inf).softmax(dim=-1)
    found = beyond_uniform(received(pattern), window)
    for i in range(n):
        queries = [j for j in range(i + 1, n) if j - i < reach]
        if len(queries) < FEWEST:
            assert found[i].isnan()
            continue
        mean = sum(float(pattern[j, i]) for j in queries) / len(queries)
        even = sum(1 / min(j + 1, reach) for j in queries) / len(queries)
        assert found[i] == pytest.approx((mean - even) / (1 - even), abs=1e-12)


def test_no_sink_without_most_blocks_and_no_sink_by_one_query() -> None:
    n = 16
    half = torch.stack([beyond_uniform(received(p)) for p in (to(0, n), uniform(n))])
    assert not are_sinks(half).any()  # in half of the blocks, and not in more
    assert are_sinks(torch.cat([half, half[:1]])).tolist() == [True, *[False] * (n - 1)]
    previous = torch.eye(n, dtype=torch.float64)[(torch.arange(n) - 1).clamp(min=0)]
    assert not are_sinks(beyond_uniform(received(previous))[None]).any()
