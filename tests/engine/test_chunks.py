"""Blocks run again, one by one or on some of their tokens, against the whole graph, for every freeze set and family."""

from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.engine.differentiating.chunks import Chunk, Derivative, local_block
from squashlens.engine.differentiating.replay import record
from squashlens.engine.differentiating.spans import vjps
from squashlens.engine.hooking.freeze import freezing
from squashlens.engine.hooking.hook import Hook, attached
from squashlens.engine.running.streamed import patterns_written
from squashlens.engine.state import steady
from squashlens.errors import UnsoundModelError
from squashlens.theory import attention
from tests.cases import CONFIGS, FREEZE_SETS, MORE, with_freeze_sets

IDS = torch.tensor([[2, 7, 11, 30, 7, 7, 59, 8, 14, 3, 5]])
BOTH = torch.cat([IDS, torch.tensor([[2, 9, 1, 4, 41, 7, 7, 30, 12, 50, 33]])])
QWEN3_WITH_NORMS = {f"qwen3-{'+'.join(freeze)}" for freeze in FREEZE_SETS if "norms" in freeze}


def by_autograd(output: torch.Tensor, leaf: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """∂output_j/∂leaf_j for some tokens j: (token, out, in)."""
    found = []
    for j in tokens:
        rows = [torch.autograd.grad(output[0, j, c], leaf, retain_graph=True)[0][0, j] for c in range(output.shape[-1])]
        found.append(torch.stack(rows))
    return torch.stack(found)


def by_products(chunk: Chunk) -> tuple[torch.Tensor, torch.Tensor]:
    """∂v'_j/∂v_j of a chunk's tokens from products with one unit vector each, rows and columns."""
    derivative = Derivative(chunk.leaving, chunk.entering)
    d = chunk.leaving.shape[-1]
    every = torch.eye(d, dtype=chunk.leaving.dtype)[:, None, None].expand(d, *chunk.leaving.shape)
    ((rows,),) = vjps(chunk.leaving, [chunk.entering], every, d)
    columns = torch.stack([derivative.pushed(unit) for unit in every])
    return rows[:, 0].movedim(0, 1), columns[:, 0].movedim(0, 2)


# The hooks of Qwen 3's head norms have other shapes where it is streamed.
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "freeze"), [p for p in with_freeze_sets([*CONFIGS, *MORE]) if p.id not in QWEN3_WITH_NORMS]
)
def test_own_derivative_is_the_blocks_diagonal(
    name: str, freeze: Any, bridge_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in chunks that do not divide the prompt, with blocks of rows smaller than a chunk."""
    ids = IDS[:, :7]  # longer than a window
    monkeypatch.setattr(attention, "SHORTEST", 3)
    monkeypatch.setattr(attention, "CELLS", {"cpu": 1})
    model = bridge_of(name, torch.float64)
    with steady(model):  # as in every measurement; otherwise each step would read all weights
        replay = record(model, ids, freezing(freeze), 0, 2)
        for block, to in ((0, 1), (1, "y")):
            local = local_block(replay, block, to)
            truth = by_autograd(*reversed(local.whole()), tokens=list(range(7)))
            for chunk in local.chunks(range(7), 4, own=True):
                rows, columns = by_products(chunk)
                torch.testing.assert_close(rows, truth[chunk.rows], rtol=2e-6, atol=2e-6 * truth.abs().max().item())
                torch.testing.assert_close(columns, rows, rtol=2e-6, atol=2e-6 * truth.abs().max().item())


def test_a_chunk_that_is_not_what_the_block_does_is_refused(bridge_of: Any) -> None:
    """An MLP that mixes tokens gives a chunk of them something else than all of them."""
    model = bridge_of("llama", torch.float64)
    mix = Hook("mix", "blocks.1.hook_mlp_out", lambda t: t + t.mean(dim=1, keepdim=True))
    with attached(model, mix):
        local = local_block(record(model, IDS, [], 0, 2), 1, 2)
        with pytest.raises(UnsoundModelError, match="runs on part of its tokens"):
            local.chunk(slice(2, 5), own=True)


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "freeze"), with_freeze_sets([*CONFIGS, *MORE]))
def test_equals_the_whole_graph(name: str, freeze: Any, bridge_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SHORTEST", 3)
    monkeypatch.setattr(attention, "CELLS", {"cpu": 1})
    model = bridge_of(name, torch.float64)
    for read in ({"query": 8, "norm": "frobenius"}, {"from_layer": 1, "to_layer": 2}):
        options: Any = read | {"freeze": freeze, "vjp_batch_size": 5}
        found = sl.jacobian_norms(model, BOTH, **options)
        with patterns_written("the test"):
            truth = sl.jacobian_norms(model, BOTH, **options)
        np.testing.assert_allclose(found, truth, rtol=2e-6)  # the bridge's softmax is in float32
        assert float(truth.max()) > 0
        by_blocks = sl.results.provenance(found)["attention_implementation"] == "streamed, block by block"
        assert by_blocks == (not (name == "qwen3" and "norms" in freeze))
        assert "the test" in sl.results.provenance(truth)["attention_implementation"]
