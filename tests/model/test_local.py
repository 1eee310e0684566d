"""A block's tokens on their own against autograd through the whole of it, for every freeze set and family."""

import itertools
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.errors import UnsoundModelError
from squashlens.model import attention
from squashlens.model.freeze import freezing
from squashlens.model.hooks import Hook, hung
from squashlens.model.local import Chunk, Derivative, opened
from squashlens.model.replay import record
from tests.cases import CONFIGS, MORE, save_random

IDS = torch.tensor([[2, 7, 11, 30, 7, 7, 59, 8, 14, 3, 5]])
FREEZE: list[Any] = [s for k in range(4) for s in itertools.combinations(("attention", "norms", "gates"), k)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    held: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in held:
            folder = save_random((CONFIGS | MORE)[name], tmp_path_factory.mktemp(name))
            held[name] = sl.load(folder, device="cpu", dtype=torch.float64, progress=False)
        return held[name]

    return get


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
    rows = derivative.pulled(every)
    columns = torch.stack([derivative.pushed(unit) for unit in every])
    return rows[:, 0].movedim(0, 1), columns[:, 0].movedim(0, 2)


@pytest.mark.parametrize("freeze", FREEZE, ids="+".join)
@pytest.mark.parametrize("name", [*CONFIGS, *MORE])
def test_own_derivative_is_the_blocks_diagonal(
    name: str, freeze: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in chunks that do not divide the prompt, with blocks of rows smaller than a chunk."""
    if name == "qwen3" and "norms" in freeze:
        pytest.skip("its head norms' hooks have other shapes where it is streamed")
    monkeypatch.setattr(attention, "SHORTEST", 3)
    monkeypatch.setattr(attention, "CELLS", {"cpu": 1})
    replay = record(models(name), IDS, freezing(freeze), 0, 2)
    for block, to in ((0, 1), (1, "y")):
        local = opened(replay, block, to)
        truth = by_autograd(*reversed(local.whole()), tokens=list(range(11)))
        for chunk in local.chunks(range(11), 4, own=True):
            rows, columns = by_products(chunk)
            torch.testing.assert_close(rows, truth[chunk.rows], rtol=2e-6, atol=2e-6 * truth.abs().max().item())
            torch.testing.assert_close(columns, rows, rtol=2e-6, atol=2e-6 * truth.abs().max().item())
