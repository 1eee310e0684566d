"""Local edges against what they are made of, written out; that they hold is in test_certified."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.engine.differentiating.chunks import local_block
from squashlens.engine.differentiating.dissection import open_blocks
from squashlens.engine.differentiating.exact import in_float64
from squashlens.engine.differentiating.replay import record
from squashlens.engine.hooking.freeze import freezing
from squashlens.engine.hooking.hook import Hook, attached
from squashlens.errors import UnsoundModelError
from squashlens.measure.squashing.certificates import certified
from squashlens.measure.squashing.certificates import local as _local
from squashlens.measure.squashing.certificates.edges import maps_of
from squashlens.measure.squashing.certificates.local import local_edges, require_local_form
from squashlens.theory.bounds.edge_bounds import deviations
from squashlens.theory.bounds.local_edges import LocalEdges
from squashlens.theory.norms import spectral_norms
from tests.cases import few

IDS = torch.tensor([2, 7, 11, 30, 7, 7, 59, 8, 14])
N = len(IDS)


def made(model: Any, freeze: Any = (), size: int = 4) -> LocalEdges:
    replay = record(model, IDS[None], freezing(freeze), 0, 2)
    return local_edges(local_block(replay, 1, 2), range(N), size, certified.Norms(100, 3, 0).of)


@pytest.mark.few(1)
@pytest.mark.parametrize("freeze", [(), ("attention",), ("norms", "gates")], ids="+".join)
@pytest.mark.parametrize("family", few(["gemma", "gemma2", "gemma3", "gpt2", "llama"]))
def test_edges_are_the_formula(family: str, freeze: Any, bridge_of: Callable[..., Any]) -> None:
    """‖∂F S^{-½}‖ Σ_h α (‖S_hh^{½} ∂w‖ + ‖S_hh^{½}(w − z)‖ ‖∂s/∂v‖) from the maps of the bridge's own pass."""
    model = bridge_of(family, torch.float64)
    edges = made(model, freeze)
    block = open_blocks(model, IDS[None], freezing(freeze), range(1, 2), 16)[1]
    maps = maps_of(block, 2, freeze)
    heads = len(maps.pattern)
    floored = maps.metric + 1e-8 * maps.metric.diagonal().max() * torch.eye(len(maps.metric))
    root = torch.linalg.cholesky(floored)
    closing = maps.closing.flatten(2)
    excess = spectral_norms(torch.linalg.solve_triangular(root, closing.mT, upper=False))
    width = len(root) // heads
    wanted = torch.zeros(N, N, dtype=torch.float64)
    for h in range(heads):
        own = torch.linalg.cholesky(floored.unflatten(0, (heads, width)).unflatten(2, (heads, width))[h, :, h])
        felt = spectral_norms(own.mT @ maps.value_map[:, h]).expand(N, N).clone()
        if maps.key_rows is not None:
            away = (deviations(maps.pattern, maps.values)[h] @ own).norm(dim=-1)
            for j in range(N):
                felt[j] += away[j] * maps.key_rows(j)[h].double().norm(dim=-1)
        wanted += maps.pattern[h] * felt
    wanted = (excess[:, None] * wanted).tril(-1)
    wanted += torch.diag(torch.stack([spectral_norms(maps.blocks(j, slice(j, j + 1)))[0] for j in range(N)]))
    found = edges.pushed(torch.eye(N, dtype=torch.float64))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-7 * wanted.max().item())
    assert (found.tril(-1) > 0).sum() > N


@pytest.mark.slow
def test_rows_go_through_attention_as_through_a_matrix(bridge_of: Callable[..., Any], monkeypatch: Any) -> None:
    """Several rows at once, blocks of rows that do not divide the prompt, chunks of any size: the same numbers."""
    model = bridge_of("gemma2")
    whole = made(model).pushed(torch.eye(N, dtype=torch.float64))
    rows = torch.rand(3, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(made(model).pushed(rows), rows @ whole)
    monkeypatch.setattr("squashlens.theory.attention.SHORTEST", 2)
    monkeypatch.setattr("squashlens.theory.attention.CELLS", {"cpu": 1})
    monkeypatch.setattr(_local, "VJP_BATCH", 3)
    for size in (1, 5, 100):
        torch.testing.assert_close(made(model, size=size).pushed(rows), rows @ whole, rtol=1e-4, atol=1e-7)


def test_edges_too_small_are_refused(bridge_of: Callable[..., Any]) -> None:
    """The check on every block: autograd's row is longer than an edge that was halved, or than none."""
    model = bridge_of("llama")
    with in_float64(model):
        block = local_block(record(model, IDS[None], [], 0, 2), 1, 2)
        edges = local_edges(block, range(N), 4, certified.Norms(100, 3, 0).of, 1e-12)
        require_local_form(block, edges, {N - 1, N // 2}, 0)
        for wrong in (
            replace(edges, closing_factor=edges.closing_factor * 0.01),
            replace(edges, diagonal=edges.diagonal * 0.1),
        ):
            with pytest.raises(UnsoundModelError, match="exceeds them"):
                require_local_form(block, wrong, {N - 1}, 0)


def test_models_that_cannot_be_replayed_are_refused(bridge_of: Callable[..., Any]) -> None:
    shared: Any = {"edges": "local"}
    model = bridge_of("llama")
    mine = Hook("mine", "blocks.0.hook_mlp_out", lambda t: t * 2)
    with attached(model, mine), pytest.raises(UnsoundModelError, match="there are hooks on the model"):
        sl.certified_bound(model, IDS, **shared)
    with pytest.raises(UnsoundModelError, match="a hook is at"):
        sl.certified_bound(bridge_of("qwen3"), IDS, freeze="norms", **shared)
