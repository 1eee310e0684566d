"""The stand-in for attention against autograd through attention as a textbook has it, token by token."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from squashlens.theory import attention as blocks
from squashlens.theory import linearised
from squashlens.theory.linearised import linearised_attention, statistics
from tests.theory.test_attention import drawn, held, written


def own_derivatives(output: Tensor, leaves: tuple[Tensor, ...], token: int) -> list[Tensor]:
    """∂z_j/∂(q_j, k_j, w_j) of one token: (head, value, head or group, coordinate) for each leaf."""
    rows = [
        torch.autograd.grad(z, leaves, retain_graph=True, materialize_grads=True)
        for z in output[0, :, token].flatten()
    ]  # fmt: skip
    return [torch.stack([row[part][0, :, token] for row in rows]) for part in range(len(leaves))]


@pytest.mark.few(6)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("case", [{}, {"window": 4}, {"cap": 0.8, "groups": 1}, {"sinks": True, "groups": 4}], ids=str)
def test_a_token_moves_its_own_output_as_in_attention(
    case: dict[str, Any], frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "SHORTEST", 2)
    monkeypatch.setattr(blocks, "CELLS", {"cpu": 1})
    monkeypatch.setattr(linearised, "TILE", 3)
    attention, values = drawn(9, prompts=1, **case)
    pattern = written(attention)
    spread = values.repeat_interleave(pattern.shape[1] // values.shape[1], dim=1)
    truth = (pattern.detach() if frozen else pattern) @ spread
    leaves = attention.queries, attention.keys, values
    rows = slice(3, 9)
    constant = held(attention)
    around = statistics(constant, values.detach(), rows, frozen)
    mine = tuple(leaf[:, :, rows].detach().requires_grad_() for leaf in leaves)
    found = linearised_attention(around, replace(attention, queries=mine[0], keys=mine[1]), mine[2])
    torch.testing.assert_close(found, truth[:, :, rows])
    for place, j in enumerate(range(rows.start, rows.stop)):
        ours, theirs = own_derivatives(found, mine, place), own_derivatives(truth, leaves, j)
        torch.testing.assert_close(ours, theirs)


def test_tokens_do_not_meet() -> None:
    attention, values = drawn(6, prompts=1)
    constant = held(attention)
    around = statistics(constant, values.detach(), slice(0, 6), frozen=False)
    found = linearised_attention(around, attention, values)
    leaves = attention.queries, attention.keys, values
    for row in torch.autograd.grad(found[:, :, 4].sum(), leaves):
        assert row[:, :, [0, 1, 2, 3, 5]].count_nonzero() == 0
        assert row[:, :, 4].count_nonzero() > 0
