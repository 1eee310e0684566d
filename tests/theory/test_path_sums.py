"""The path product against enumeration, closed forms and properties."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squashlens.theory.attention import Attention
from squashlens.theory.bounds.path_sums import Uniform, Visible, compositions, sweep
from tests.references import path_sum


def stochastic(n: int, seed: int) -> np.ndarray:
    """A random causal row-stochastic matrix."""
    weights = np.tril(np.random.default_rng(seed).random((n, n)) + 0.05)
    return weights / weights.sum(axis=1, keepdims=True)


def last_row(patterns: list[np.ndarray], query: int, **constants: float) -> np.ndarray:
    row = torch.zeros(patterns[0].shape[0], dtype=torch.float64)
    row[query] = 1
    stack = [torch.tensor(p) for p in reversed(patterns)]
    return [row, *sweep(row, stack, **constants)][-1].numpy()


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
    patterns = [stochastic(n, seed + b) for b in range(blocks)]
    query = data.draw(st.integers(0, n - 1))
    found = last_row(patterns, query, attention_scale=1 / beta1, gain=gain)
    np.testing.assert_allclose(found, path_sum(patterns, query, beta1=beta1, gain=gain), rtol=1e-12)


@given(n=st.integers(1, 15), window=st.none() | st.integers(1, 20), seed=st.integers(0, 10**6))
def test_products_without_a_matrix(n: int, window: int | None, seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((2, n))
    visible = np.array([[0 <= j - i < (window or n) for i in range(n)] for j in range(n)], dtype=float)
    for pattern, matrix in ((Visible(window), visible), (Uniform(window), visible / visible.sum(1, keepdims=True))):
        pushed = pattern.pushed(torch.tensor(rows)).numpy()
        np.testing.assert_allclose(pushed, rows @ matrix, rtol=0, atol=1e-13 * n)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("kind", ["attention", "matrix", "uniform"])
def test_many_queries_have_rows_of_the_product(kind: str, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    n, queries = 11, [0, 3, 4, 10]
    generator = torch.Generator().manual_seed(0)
    for small in ("LONGEST", "SHORTEST"):  # several blocks of rows
        monkeypatch.setattr(f"squashlens.theory.attention.{small}", 3)
    monkeypatch.setattr("squashlens.theory.bounds.path_sums.ROWS", 3)
    places = np.arange(n)
    seen = (places[None] <= places[:, None]) & (places[:, None] - places[None] < (window or n))
    patterns, matrices = [], []
    for _ in range(3):
        q, k = (torch.randn(1, heads, n, 3, generator=generator, dtype=torch.float64) for heads in (4, 2))
        scores = np.einsum("hqd,hkd->hqk", q[0].numpy(), np.repeat(k[0].numpy(), 2, axis=0)) * 0.7
        weights = np.where(seen, np.exp(scores), 0)
        weights /= weights.sum(axis=-1, keepdims=True)
        matrix = weights.mean(axis=0) if kind != "uniform" else seen / seen.sum(axis=1, keepdims=True)
        matrices.append(matrix)
        given = {"attention": Attention(q, k, 0.7, window=window), "matrix": torch.tensor(matrix)[None]}
        patterns.append(given.get(kind, Uniform(window)))
    found = list(compositions(torch.tensor(queries), n, patterns, 1.5))
    product = np.eye(n)
    for rows, matrix in zip(found, [None, *matrices], strict=True):
        product = product if matrix is None else product @ (1.5 * (matrix + np.eye(n)))
        np.testing.assert_allclose(rows, product[queries], rtol=1e-12, atol=1e-15)
