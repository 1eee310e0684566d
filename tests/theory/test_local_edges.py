"""Edges as factors of queries and keys against their formula, written out for every pair of tokens."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from squashlens.theory import attention as blocks
from squashlens.theory.bounds.edge_bounds import with_rounding
from squashlens.theory.bounds.local_edges import LocalEdges
from tests.theory.test_attention import drawn, held, written

N, HEADS = 11, 4


def made(frozen: bool, **case: Any) -> tuple[LocalEdges, Tensor]:
    """Random factors, and the derivatives ∂k_i of keys that those by key are products of: (group, key, dot, in)."""
    attention, _ = drawn(N, HEADS, prompts=1, **case)
    attention = held(attention)
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    maps = random(attention.keys.shape[1], N, attention.keys.shape[-1], 8) - 0.5
    left, right = torch.triu_indices(attention.keys.shape[-1], attention.keys.shape[-1])
    by_key = None if frozen else (maps @ maps.mT)[:, :, left, right]
    factors = LocalEdges(attention, random(HEADS, N, 5) - 0.5, random(N), random(N), random(HEADS, N), by_key)
    return factors, maps


def one_by_one(edges: LocalEdges, maps: Tensor) -> Tensor:
    """``e_ji = ‖∂F_j S^{-½}‖ Σ_h α_ji (‖S^{½} ∂w_i‖ + ‖S^{½}(w_i − z_j)‖ ‖∂s_ji/∂v_i‖)``, the diagonal apart."""
    attention, pattern = edges.attention, written(edges.attention)[0]
    each = HEADS // attention.keys.shape[1]
    found = torch.diag(edges.diagonal)
    for j in range(N):
        for i in range(j):
            for h in range(HEADS):
                felt = edges.by_value[h, i]
                if edges.by_key is not None:
                    query, key = attention.queries[0, h, j], attention.keys[0, h // each, i]
                    logit = attention.scale * query @ key
                    bend = 1.0 if attention.cap is None else 1 - torch.tanh(logit / attention.cap) ** 2
                    slope = (query @ maps[h // each, i]).norm() * attention.scale * bend
                    felt = felt + (edges.values[h, i] - pattern[h, j] @ edges.values[h]).norm() * slope
                found[j, i] += edges.closing_factor[j] * pattern[h, j, i] * felt
    return found


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("case", [{}, {"window": 3}, {"cap": 0.8, "groups": 1}, {"sinks": True, "groups": 4}], ids=str)
def test_factors_give_the_edges_of_every_pair(
    case: dict[str, Any], frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "SHORTEST", 2)
    monkeypatch.setattr(blocks, "CELLS", {"cpu": 1})
    edges, maps = made(frozen, **case)
    truth = one_by_one(edges, maps)
    torch.testing.assert_close(edges.pushed(torch.eye(N, dtype=torch.float64)), truth, rtol=1e-6, atol=1e-9)
    row = torch.linspace(0, 1, N, dtype=torch.float64)[None]
    torch.testing.assert_close(edges.pushed(row), row @ truth, rtol=1e-6, atol=1e-9)


def test_rounding_is_added_where_attention_sees() -> None:
    """Each row by its largest edge, as `with_rounding` has it; a key behind the window stays 0."""
    edges, _ = made(False, window=3)
    plain = edges.pushed(torch.eye(N, dtype=torch.float64))
    found = replace(edges, rounding=0.25).pushed(torch.eye(N, dtype=torch.float64))
    seen = written(edges.attention)[0, 0] > 0
    torch.testing.assert_close(found, with_rounding(plain, seen, 0.25))
    assert found[9, 2] == 0
