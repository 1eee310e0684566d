"""captum's gradients of every coordinate of y give the Frobenius norm of each block of the Jacobian."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from tests.cases import CONFIGS, MORE, random_model
from tests.references import first_residual, plain_outputs

IDS = torch.tensor([2, 7, 11, 30, 7, 7, 59])


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gemma2", "gpt2", "qwen2", "neox"])
def test_squared_gradients_of_all_coordinates_sum_to_the_frobenius_norm(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    """Σ_k ‖∇y_{n,k}‖² = ‖J_i‖_F², with one call of `captum.attr.Saliency` for each coordinate k of the plain model."""
    captum = pytest.importorskip("captum.attr", reason="captum is not installed")
    plain, query = random_model((CONFIGS | MORE)[family]).double(), 5

    def y(embeddings: torch.Tensor) -> torch.Tensor:
        return plain_outputs(plain, IDS[None], embeddings).hidden_states[-1][:, query]

    method, start = captum.Saliency(y), first_residual(plain, IDS[None])
    width = start.shape[-1]
    gradients = torch.stack(
        [
            method.attribute(start.clone().requires_grad_(), target=k, abs=False)[0]
            for k in range(width)
        ]
    )
    expected = gradients.detach().square().sum(dim=(0, 2)).sqrt()
    assert expected[: query + 1].min() > 1e-3 * expected.max()
    norms = sl.jacobian_norms(
        bridge_of(family, torch.float64), IDS, norm="frobenius", query=query
    )
    np.testing.assert_allclose(norms.values, expected.numpy(), rtol=1e-6, atol=0)
