"""Freezing: the forward pass stays, one derivative goes; with everything frozen the model is a linear map."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MixtralConfig

import squashlens as sl
from squashlens.errors import UnsoundModelError
from squashlens.hooks.freeze import freezing
from squashlens.model.proof import opened
from squashlens.run.derivatives.spans import open_spans
from squashlens.run.run import Run
from tests.cases import (
    COMMON,
    CONFIGS,
    FAMILIES,
    FREEZABLE,
    MORE,
    few,
    random_model,
    save_random,
    with_freeze_sets,
)
from tests.references import frozen_model, jacobian_by_jacrev

IDS = torch.tensor([[2, 5, 9, 11, 9, 30, 31]])


def without_biases(config: Any, folder: Path) -> Any:
    model = random_model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    model.save_pretrained(folder)
    return sl.load(folder)


def completeness(model: Any, freeze: Any, query: int = -1) -> float:
    """|Σ_i J_i v⁽⁰⁾_i − y_n| relative to |y_n|, from the graph that the Jacobian is taken of."""
    with opened(model):
        run = Run.of(model, IDS, "completeness")
        span = open_spans(run, run.ids, freezing(freeze), [0], 3)[0]
    output, leaf = span.outputs["y"][:, query], span.leaf
    rows = [
        torch.autograd.grad(output[0, k], leaf, retain_graph=True)[0]
        for k in range(output.shape[-1])
    ]
    found = torch.stack([(row * leaf).sum() for row in rows])
    return ((found - output[0]).norm() / output[0].norm()).item()


@pytest.mark.few(1)
@pytest.mark.parametrize("family", few([*FAMILIES, *MORE]))
def test_everything_frozen_is_linear_and_nothing_less(
    family: str, tmp_path: Path
) -> None:
    model = without_biases((CONFIGS | MORE)[family], tmp_path)
    assert completeness(model, FREEZABLE) < 1e-5
    assert completeness(model, FREEZABLE, query=3) < 1e-5
    for left_out in FREEZABLE:
        assert (
            completeness(model, [name for name in FREEZABLE if name != left_out]) > 1e-3
        ), left_out


@pytest.mark.parametrize("family", few(FAMILIES))
def test_forward_passes_stay_as_they_are(family: str, bridge_of: Any) -> None:
    model = bridge_of(family)
    with torch.no_grad():
        logits = model(IDS)
        for hook in (sl.hooks.freeze_attention(), sl.hooks.freeze_gates()):
            with sl.applied(model, hook):
                assert torch.equal(model(IDS), logits), hook
        with sl.applied(model, sl.hooks.freeze_norms()):
            assert (model(IDS) - logits).abs().max() <= 2e-6 * logits.abs().max()


@pytest.mark.parametrize(("family", "freeze"), with_freeze_sets(FAMILIES))
def test_jacobian_of_a_plain_model_with_constants(
    family: str, freeze: tuple[str, ...], bridge_of: Any, plain_of: Any
) -> None:
    """The twin: a plain model whose patterns, norm factors and gates are numbers, differentiated by jacrev."""
    plain = frozen_model(plain_of(family), IDS, freeze)
    expected = np.linalg.svd(
        jacobian_by_jacrev(plain, IDS, 5).detach().numpy(), compute_uv=False
    )[:, 0]
    found = sl.jacobian_norms(bridge_of(family), IDS, freeze=freeze, query=5)
    np.testing.assert_allclose(found.values[:6], expected[:6], rtol=2e-4)
    assert sl.results.provenance(found)["call"]["freeze"] == list(freeze)


def test_mixtures_of_experts_are_refused(tmp_path: Path) -> None:
    model = sl.load(save_random(MixtralConfig(**COMMON, num_local_experts=4), tmp_path))
    with pytest.raises(UnsoundModelError):
        sl.jacobian_norms(model, IDS, freeze="gates")
