"""Sinks, entropies and effective rank against plain loops and closed forms."""

import math

import numpy as np
import pytest
import torch

from squashlens.theory.attention import Attention
from squashlens.theory.spread import entropy, heads_of, heads_of_attention, spectrum


@pytest.mark.parametrize("window", [None, 4])
def test_heads_are_those_of_a_loop(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squashlens.theory.attention.LONGEST", 3)
    monkeypatch.setattr("squashlens.theory.attention.SHORTEST", 3)
    n, generator = 10, torch.Generator().manual_seed(1)
    q, k = (torch.randn(1, heads, n, 3, generator=generator, dtype=torch.float64) for heads in (4, 2))
    attention = Attention(q, k, 1.3, window=window)
    found = heads_of_attention(attention).numpy()
    patterns = np.zeros((4, n, n))
    for head in range(4):
        for j in range(n):
            first = 0 if window is None else max(0, j - window + 1)
            scores = 1.3 * k[0, head // 2, first : j + 1].numpy() @ q[0, head, j].numpy()
            patterns[head, j, first : j + 1] = np.exp(scores) / np.exp(scores).sum()
        sink = np.mean([patterns[head, j, 0] for j in range(1, n)])
        spread = np.mean([-sum(p * math.log(p) for p in patterns[head, j] if p > 0) for j in range(1, n)])
        np.testing.assert_allclose(found[head], [sink, spread], rtol=1e-10)
    np.testing.assert_allclose(heads_of(torch.tensor(patterns)[None]), found, rtol=1e-10)


def test_entropy_and_rank_in_closed_form() -> None:
    assert entropy(torch.full((7,), 1 / 7, dtype=torch.float64)).item() == pytest.approx(math.log(7))
    parallel = torch.outer(torch.arange(1.0, 6.0), torch.tensor([1.0, -2.0, 0.5]))
    assert spectrum(parallel).tolist() == pytest.approx([0, 1], abs=1e-6)
    assert spectrum(torch.zeros(3, 2)).tolist() == [0, 0]
    sizes = np.array([3.0, 1.0, 1.0])
    shares, plain = sizes**2 / (sizes**2).sum(), sizes / sizes.sum()
    expected = (-(shares * np.log(shares)).sum(), math.exp(-(plain * np.log(plain)).sum()))
    turned = torch.linalg.qr(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()).Q
    assert spectrum(turned * torch.tensor(sizes)).tolist() == pytest.approx(expected)
