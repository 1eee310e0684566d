"""Many queries at once against the whole matrix product of NumPy, for every kind of pattern."""

import numpy as np
import pytest
import torch

from squashlens.theory.attention import Attention
from squashlens.theory.bounds import compositions as module
from squashlens.theory.bounds.compositions import compositions
from squashlens.theory.bounds.paths import Uniform


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("kind", ["attention", "matrix", "uniform"])
def test_rows_are_those_of_the_product(kind: str, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    n, queries = 11, [0, 3, 4, 10]
    generator = torch.Generator().manual_seed(0)
    for small in ("LONGEST", "SHORTEST"):  # several blocks of rows
        monkeypatch.setattr(f"squashlens.theory.attention.{small}", 3)
    monkeypatch.setattr(module, "ROWS", 3)
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
