"""Models whose blocks torchao stores in few bits, against twins that have the same numbers as ordinary weights."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import squashlens as sl
from squashlens.model.proof import fingerprint_of as fingerprint
from tests.cases import CONFIGS, MORE, foreign, random_model
from tests.references import jacobian_by_jacrev, path_sum, plain_outputs

quantization = pytest.importorskip("torchao.quantization", reason="torchao is missing")

IDS = torch.tensor([[2, 7, 11, 30, 7, 7, 59, 8, 14, 3]])


def quantized(name: str, config: str = "Int8WeightOnlyConfig") -> tuple[Any, Any]:
    """A bridge around a model whose blocks are quantized, and a twin with the same numbers as plain weights."""
    inner: Any = random_model((CONFIGS | MORE)[name]).requires_grad_(False)
    twin = copy.deepcopy(inner)
    quantization.quantize_(inner.model.layers, getattr(quantization, config)())
    for ours, theirs in zip(inner.modules(), twin.modules(), strict=True):
        if isinstance(ours, nn.Linear) and type(ours.weight) is not nn.Parameter:
            theirs.weight.data = ours.weight.dequantize()
    return foreign(inner).eval(), twin


@pytest.mark.parametrize(
    ("config", "name"),
    [("Int8WeightOnlyConfig", "int8"), ("Float8WeightOnlyConfig", "float8")],
)
def test_they_are_proved_and_named(config: str, name: str) -> None:
    facts = sl.results.provenance(sl.path_bound(quantized("llama", config)[0], IDS))
    assert (facts["quantized"], facts["proof"], facts["dtype"]) == (
        name,
        "verified as it stands",
        "float32",
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["gemma2", "llama", "qwen3"])
def test_bound_and_jacobian_are_those_of_the_rounded_model(name: str) -> None:
    model, twin = quantized(name)
    found = sl.jacobian_norms(model, IDS)
    truth = torch.linalg.svdvals(jacobian_by_jacrev(twin, IDS, -1).detach())[
        :, 0
    ].numpy()
    np.testing.assert_allclose(found.values, truth, rtol=1e-3)
    other = torch.linalg.svdvals(
        jacobian_by_jacrev(random_model((CONFIGS | MORE)[name]), IDS, -1).detach()
    )[:, 0].numpy()
    assert np.abs(found.values / other - 1).max() > 2e-3
    patterns = [
        p[0].mean(dim=0).detach().numpy() for p in plain_outputs(twin, IDS).attentions
    ]
    np.testing.assert_allclose(
        sl.path_bound(model, IDS),
        path_sum(patterns, IDS.shape[1] - 1, gain=2.0),
        rtol=1e-5,
    )


def test_the_fingerprint_sees_every_part_of_a_weight() -> None:
    models = [quantized("llama")[0] for _ in range(2)]
    before, same = map(fingerprint, models)
    assert before == same
    weight: Any = models[0].original_model.model.layers[1].mlp.down_proj.weight
    seen = {before}
    for part, change in ((weight.qdata, 1), (weight.scale, 0.5)):
        kept = part[3, 0].clone()
        part[3, 0] += change
        seen.add(fingerprint(models[0]))
        part[3, 0] = kept
    assert len(seen) == 3
    assert fingerprint(models[0]) == before
