"""Norms at a few positions by Lanczos iteration, against jacrev on the plain model."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import UnsoundModelError
from squashlens.measure.squashing.jacobians import krylov
from tests.cases import CONFIGS, random_model
from tests.grouped import flat
from tests.references import frozen_attention_model, jacobian_by_jacrev

IDS = torch.tensor([2, 7, 11, 30, 7, 7, 59])
PLACES = [1, 4, 6]
SHARED: dict[str, Any] = {"method": "lanczos", "positions": PLACES, "seed": 0}


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "freeze"), [("gemma2", ()), ("gpt2", "attention"), ("llama", ()), ("qwen2", ())])
def test_the_iteration_ends_at_the_norm_of_the_plain_model(
    family: str, freeze: Any, bridge_of: Callable[..., Any]
) -> None:
    plain = random_model(CONFIGS[family]).double()
    plain = frozen_attention_model(plain, IDS[None]) if freeze else plain
    blocks = jacobian_by_jacrev(plain, IDS[None], 6).detach().double().numpy()
    truth = np.linalg.norm(blocks, ord=2, axis=(1, 2))[PLACES]
    found = flat.jacobian_norms(bridge_of(family, torch.float64), IDS, rtol=1e-5, freeze=freeze, **SHARED)
    said = sl.results.provenance(found)["lanczos"]
    assert said["rounding"] < 1e-3  # norms and softmax in float32, except in GPT-2
    np.testing.assert_allclose(found.values[PLACES], truth, rtol=2e-5 + 2 * said["rounding"])
    assert (found["low"].values[PLACES] <= truth).all()
    assert (truth <= found.values[PLACES]).all()
    assert np.isnan(found.values[[0, 2, 3, 5]]).all()
    assert said["products"] == 2 * 3 * said["steps"] <= 2 * 3 * 16


@pytest.mark.slow
def test_few_products_bound_the_norm_on_both_sides(tiny: Any) -> None:
    prompt, shared = "How many ones are in 1101 =", {"query": 9, "to_layer": [3, "y"], "from_layer": 1}
    exact = flat.jacobian_norms(tiny, prompt, **shared)
    found = flat.jacobian_norms(tiny, prompt, method="lanczos", positions=[9, 2], rtol=0.03, **shared)
    ratio = (found / exact).values[:, [2, 9]]
    assert ((ratio >= 1 - 1e-4) & (ratio <= 1.031)).all()
    below = (found["low"] / exact).values[:, [2, 9]]
    assert ((below <= 1 + 1e-4) & (below >= 0.965)).all()
    assert (found.values[:, 10:] == 0).all()
    assert sl.results.provenance(found)["lanczos"]["products"] < 128, "fewer than d"


def test_derivatives_of_both_modes_must_agree(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = krylov.Forward.__call__
    monkeypatch.setattr(krylov.Forward, "__call__", lambda self, vectors: 1.1 * pushed(self, vectors))
    with pytest.raises(UnsoundModelError, match="differ"):
        sl.jacobian_norms(tiny, "110 =", method="lanczos")
