"""Blocks run again, one by one, against the whole graph, for every freeze set and family."""

from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.run.streamed import patterns_written
from squashlens.theory import attention
from tests.cases import CONFIGS, MORE, with_freeze_sets

IDS = torch.tensor([[2, 7, 11, 30, 7, 7, 59, 8, 14, 3, 5]])
BOTH = torch.cat([IDS, torch.tensor([[2, 9, 1, 4, 41, 7, 7, 30, 12, 50, 33]])])


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "freeze"), with_freeze_sets([*CONFIGS, *MORE]))
def test_equals_the_whole_graph(
    name: str, freeze: Any, bridge_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SHORTEST", 3)
    monkeypatch.setattr(attention, "CELLS", {"cpu": 1})
    model = bridge_of(name, torch.float64)
    for read in ({"query": 8, "norm": "frobenius"}, {"from_layer": 1, "to_layer": 2}):
        options: Any = read | {"freeze": freeze, "vjp_batch_size": 5}
        found = sl.jacobian_norms(model, BOTH, **options)
        with patterns_written("the test"):
            truth = sl.jacobian_norms(model, BOTH, **options)
        np.testing.assert_allclose(
            found, truth, rtol=2e-6
        )  # the bridge's softmax is in float32
        assert float(truth.max()) > 0
        by_blocks = (
            sl.results.provenance(found)["attention_implementation"]
            == "streamed, block by block"
        )
        assert by_blocks == (not (name == "qwen3" and "norms" in freeze))
        assert "the test" in sl.results.provenance(truth)["attention_implementation"]
