"""The certified bound is one: its edges are norms of the plain model's blocks, and their product is no smaller."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GemmaConfig

import squashlens as sl
from tests.cases import (
    COMMON,
    CONFIGS,
    FAMILIES,
    FREEZABLE,
    MORE,
    few,
    loaded,
    random_model,
    with_freeze_sets,
)
from tests.references import block_jacobian, frozen_model

IDS = torch.tensor([2, 7, 11, 30, 7, 7, 59])


def equal_to_the_norm(model: Any, ids: torch.Tensor, **shared: Any) -> np.ndarray:
    """The bound without the allowance for rounding that is in it, where that is the norm of the Jacobian itself."""
    bound = sl.certified_bound(model, ids, **shared)
    bare = bound.values / (1 + bound.attrs["rounding"])
    np.testing.assert_allclose(
        bare, sl.jacobian_norms(model, ids, **shared).values, rtol=1e-6
    )
    return bare


@pytest.mark.few(2)
@pytest.mark.parametrize(("family", "freeze"), with_freeze_sets([*FAMILIES, *MORE]))
def test_edges_are_norms_of_the_plain_models_blocks(
    family: str, freeze: Any, bridge_of: Callable[..., Any]
) -> None:
    model = bridge_of(family, torch.float64)
    plain = frozen_model(
        random_model((CONFIGS | MORE)[family]).double(), IDS[None], freeze
    )
    queries = [
        0,
        4,
        6,
    ]  # the first token, one that a window of five shows all tokens, and one that it does not
    for block, to in ((1, 2), (2, 3), (2, "y")):  # block 0 is built like block 2
        jacobian = block_jacobian(plain, IDS[None], block, to, queries).permute(
            0, 2, 1, 3
        )
        truth = torch.linalg.svdvals(jacobian)[..., 0].numpy()
        assert truth[-1].min() > 1e-6 or family in (
            "gemma2",
            "gemma3",
            "mistral",
        )  # windows cut the rest
        for query, row in zip(queries, truth, strict=True):
            found = sl.certified_bound(
                model, IDS, from_layer=block, to_layer=to, query=query, freeze=freeze
            )
            # The softmax and most norms of the plain model run in float32 even here.
            np.testing.assert_allclose(found, row, rtol=1e-4, atol=1e-6 * truth.max())


def tiny_config(**changes: Any) -> Any:
    return GemmaConfig(**COMMON | {"num_key_value_heads": 1} | changes)


def test_one_head_frozen_without_mlp_is_equality(tmp_path: Path) -> None:
    """One block, one head, attention and norms frozen: the edge is α ‖W_O W_V G‖ / ρ, which is the Jacobian."""

    def no_mlp(plain: Any) -> None:
        plain.model.layers[0].mlp.down_proj.weight.zero_()

    one_head = tiny_config(num_hidden_layers=1, num_attention_heads=1)
    _, model = loaded(one_head, tmp_path, no_mlp, torch.float64)
    bound = equal_to_the_norm(model, IDS, freeze=("attention", "norms"), to_layer=1)
    layer, v = model.blocks[0], sl.capture(model, IDS).residuals[0][0]
    gain = 1 + layer.ln1.weight.detach()
    through = layer.attn.W_O[0].detach().T @ layer.attn.W_V[0].detach().T * gain
    alpha = sl.capture(model, IDS).patterns[0][0, 0, -1]
    rho = (v.square().mean(-1) + model.original_model.config.rms_norm_eps).sqrt()
    closed = alpha * torch.linalg.matrix_norm(through, ord=2) / rho
    np.testing.assert_allclose(bound[:-1], closed[:-1].numpy(), rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("freeze", [(), FREEZABLE], ids="+".join)
def test_one_token_and_one_block_are_equality(freeze: Any, tmp_path: Path) -> None:
    _, model = loaded(tiny_config(num_hidden_layers=1), tmp_path, dtype=torch.float64)
    equal_to_the_norm(model, IDS[:1], freeze=freeze)
    equal_to_the_norm(model, IDS, freeze=freeze)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("family", few(FAMILIES))
def test_cuda_equals_cpu(
    family: str, bridge_of: Callable[..., Any], folder_of: Any
) -> None:
    expected = sl.certified_bound(bridge_of(family), IDS)
    model = sl.load(folder_of(family), device="cuda")
    np.testing.assert_allclose(
        sl.certified_bound(model, IDS).values, expected.values, rtol=1e-3
    )
