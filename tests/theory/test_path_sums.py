"""The path product, hops, single paths and path counts against enumeration of every walk, and closed forms."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squashlens.theory.attention import Attention
from squashlens.theory.path_sums import (
    Uniform,
    Visible,
    by_hops,
    compositions,
    heaviest_paths,
    sweep,
)
from tests.references import path_sum


def causal(n: int, blocks: int, seed: int) -> list[torch.Tensor]:
    """Row-stochastic causal patterns, bottom block first; some weights are zero."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.rand(blocks, n, n, generator=generator, dtype=torch.float64).tril()
    raw = (
        raw * (torch.rand(blocks, n, n, generator=generator) > 0.2)
        + torch.eye(n, dtype=torch.float64) * 0.1
    )
    return list(raw / raw.sum(dim=-1, keepdim=True))


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(1, 5),
    blocks=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    beta1=st.floats(0.3, 3),
    gain=st.floats(0.3, 3),
    data=st.data(),
)
def test_equals_enumeration_of_all_paths(
    n: int, blocks: int, seed: int, beta1: float, gain: float, data: st.DataObject
) -> None:
    patterns, query = causal(n, blocks, seed), data.draw(st.integers(0, n - 1))
    row = torch.eye(n, dtype=torch.float64)[query]
    *_, found = sweep(row, patterns[::-1], attention_scale=1 / beta1, gain=gain)
    expected = path_sum(
        [pattern.numpy() for pattern in patterns], query, beta1=beta1, gain=gain
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(
    n=st.integers(1, 15),
    window=st.none() | st.integers(1, 20),
    seed=st.integers(0, 10**6),
)
def test_products_without_a_matrix(n: int, window: int | None, seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((2, n))
    visible = np.array(
        [[0 <= j - i < (window or n) for i in range(n)] for j in range(n)], dtype=float
    )
    for pattern, matrix in (
        (Visible(window), visible),
        (Uniform(window), visible / visible.sum(1, keepdims=True)),
    ):
        pushed = pattern.pushed(torch.tensor(rows)).numpy()
        np.testing.assert_allclose(pushed, rows @ matrix, rtol=0, atol=1e-13 * n)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("kind", ["attention", "matrix", "uniform"])
def test_many_queries_have_rows_of_the_product(
    kind: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, queries = 11, [0, 3, 4, 10]
    generator = torch.Generator().manual_seed(0)
    for small in ("LONGEST", "SHORTEST"):  # several blocks of rows
        monkeypatch.setattr(f"squashlens.theory.attention.{small}", 3)
    places = np.arange(n)
    seen = (places[None] <= places[:, None]) & (
        places[:, None] - places[None] < (window or n)
    )
    patterns, matrices = [], []
    for _ in range(3):
        q, k = (
            torch.randn(1, heads, n, 3, generator=generator, dtype=torch.float64)
            for heads in (4, 2)
        )
        scores = (
            np.einsum("hqd,hkd->hqk", q[0].numpy(), np.repeat(k[0].numpy(), 2, axis=0))
            * 0.7
        )
        weights = np.where(seen, np.exp(scores), 0)
        weights /= weights.sum(axis=-1, keepdims=True)
        matrix = (
            weights.mean(axis=0)
            if kind != "uniform"
            else seen / seen.sum(axis=1, keepdims=True)
        )
        matrices.append(matrix)
        given = {
            "attention": Attention(q, k, 0.7, window=window),
            "matrix": torch.tensor(matrix)[None],
        }
        patterns.append(given.get(kind, Uniform(window)))
    found = list(compositions(torch.tensor(queries), n, patterns, 1.5))
    product = np.eye(n)
    for rows, matrix in zip(found, [None, *matrices], strict=True):
        product = product if matrix is None else product @ (1.5 * (matrix + np.eye(n)))
        np.testing.assert_allclose(rows, product[queries], rtol=1e-12, atol=1e-15)


def walks(
    patterns: list[torch.Tensor], query: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Every walk into the query with its weight, by writing all of them out."""
    n, found = len(patterns[0]), []
    for positions in itertools.product(range(n), repeat=len(patterns)):
        walk = (*positions, query)
        weight = 1.0
        for block, (key, here) in enumerate(itertools.pairwise(walk)):
            weight *= patterns[block][here, key].item() + (here == key)
        if weight > 0:
            found.append((weight, walk))
    return sorted(found, reverse=True)


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 4),
    blocks=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    k=st.integers(1, 9),
    data=st.data(),
)
def test_the_heaviest_paths_are_the_heaviest_of_all(
    n: int, blocks: int, seed: int, k: int, data: st.DataObject
) -> None:
    query = data.draw(st.integers(0, n - 1))
    patterns = causal(n, blocks, seed)
    weights, found = heaviest_paths(patterns[::-1], query, k)
    expected = walks(patterns, query)
    assert len(weights) == min(k, len(expected))
    np.testing.assert_allclose(weights, [w for w, _ in expected[:k]], rtol=1e-12)
    by_walk = {walk: weight for weight, walk in expected}
    for weight, walk in zip(weights, found, strict=True):
        assert by_walk[tuple(walk.tolist())] == pytest.approx(weight.item(), rel=1e-12)
    assert len({tuple(w.tolist()) for w in found}) == len(found)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 5), blocks=st.integers(0, 4), seed=st.integers(0, 10**6))
def test_hops_are_the_coefficients_of_a_polynomial(
    n: int, blocks: int, seed: int
) -> None:
    patterns = causal(n, blocks, seed) if blocks else []
    row = torch.eye(n, dtype=torch.float64)[-1]
    coefficients = by_hops(row, patterns[::-1])
    assert coefficients.shape == (blocks + 1, n)
    for t in (0.0, 0.5, 1.0, 2.0):
        *_, expected = sweep(row, patterns[::-1], attention_scale=t)
        powers = torch.tensor([t**k for k in range(blocks + 1)], dtype=torch.float64)
        torch.testing.assert_close(
            (powers[:, None] * coefficients).sum(dim=0),
            expected,
            rtol=1e-11,
            atol=1e-13,
        )
