"""Sinks, entropies and effective rank against plain loops and closed forms."""

import math

import numpy as np
import pytest
import torch

from squashlens.theory.attention import Attention
from squashlens.theory.path_sums import Uniform
from squashlens.theory.spread import (
    FEWEST,
    are_sinks,
    beyond_uniform,
    entropy,
    heads_of,
    received,
    spectrum,
)


@pytest.mark.parametrize(("window", "sink"), [(None, False), (4, False), (4, True)])
def test_heads_are_those_of_a_loop(
    window: int | None, sink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squashlens.theory.attention.LONGEST", 3)
    monkeypatch.setattr("squashlens.theory.attention.SHORTEST", 3)
    n, generator = 10, torch.Generator().manual_seed(1)
    q, k = (
        torch.randn(1, heads, n, 3, generator=generator, dtype=torch.float64)
        for heads in (4, 2)
    )
    logits = torch.randn(4, generator=generator, dtype=torch.float64) if sink else None
    found = heads_of(Attention(q, k, 1.3, window=window, sinks=logits), sink).numpy()
    patterns = np.zeros((4, n, n + sink))  # with the sink's weight behind the others
    for head in range(4):
        for j in range(n):
            first = 0 if window is None else max(0, j - window + 1)
            scores = (
                1.3 * k[0, head // 2, first : j + 1].numpy() @ q[0, head, j].numpy()
            )
            total = np.exp(scores).sum() + (
                0.0 if logits is None else math.exp(logits[head])
            )
            patterns[head, j, first : j + 1] = np.exp(scores) / total
            patterns[head, j, n:] = 1 - np.exp(scores).sum() / total
        to_first = np.mean([patterns[head, j, 0] for j in range(1, n)])
        spread = np.mean(
            [
                -sum(p * math.log(p) for p in patterns[head, j] if p > 0)
                for j in range(1, n)
            ]
        )
        np.testing.assert_allclose(found[head], [to_first, spread], rtol=1e-10)
    np.testing.assert_allclose(
        heads_of(torch.tensor(patterns)[None, ..., :n], sink), found, rtol=1e-10
    )


def test_entropy_and_rank_in_closed_form() -> None:
    assert entropy(
        torch.full((7,), 1 / 7, dtype=torch.float64)
    ).item() == pytest.approx(math.log(7))
    parallel = torch.outer(torch.arange(1.0, 6.0), torch.tensor([1.0, -2.0, 0.5]))
    assert spectrum(parallel).tolist() == pytest.approx([0, 1], abs=1e-6)
    assert spectrum(torch.zeros(3, 2)).tolist() == [0, 0]
    sizes = np.array([3.0, 1.0, 1.0])
    shares, plain = sizes**2 / (sizes**2).sum(), sizes / sizes.sum()
    expected = (
        -(shares * np.log(shares)).sum(),
        math.exp(-(plain * np.log(plain)).sum()),
    )
    turned = torch.linalg.qr(
        torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    ).Q
    assert spectrum(turned * torch.tensor(sizes)).tolist() == pytest.approx(expected)


def uniform(n: int, window: int | None = None, sink: bool = False) -> torch.Tensor:
    return Uniform(window, sink).pushed(torch.eye(n, dtype=torch.float64))


def to(place: int, n: int) -> torch.Tensor:
    """All attention on one token, and that of earlier queries on themselves."""
    return torch.eye(n, dtype=torch.float64)[torch.arange(n).clamp(max=place)]


@pytest.mark.parametrize(("place", "window"), [(0, None), (4, None), (2, 9)])
@pytest.mark.parametrize("share", [0.0, 0.35, 1.0])
@pytest.mark.parametrize("sink", [False, True])
def test_the_share_of_a_mixture_is_found(
    place: int, window: int | None, share: float, sink: bool
) -> None:
    n, reach = 20, window or 20
    seen = (torch.arange(n) < place + reach)[:, None]
    even = uniform(n, window, sink)
    mixed = torch.where(seen, share * to(place, n) + (1 - share) * even, even)
    found = beyond_uniform(received(mixed), window, sink)
    assert found[place] == pytest.approx(share, abs=1e-12)
    assert found[n - FEWEST - 1 :].isnan().tolist() == [False, *[True] * FEWEST]
    assert are_sinks(found[None]).tolist() == [
        share > 0.3 and i == place for i in range(n)
    ]


@pytest.mark.parametrize("window", [None, 6])
def test_it_is_what_loops_give(window: int | None) -> None:
    n, reach = 12, window or 12
    masked = torch.randn(n, n, generator=torch.Generator().manual_seed(0)).double()
    rows, columns = torch.arange(n)[:, None], torch.arange(n)
    pattern = masked.masked_fill(
        (columns > rows) | (columns <= rows - reach), -torch.inf
    ).softmax(dim=-1)
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
