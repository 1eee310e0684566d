"""Which tokens reach which, and how long queries and keys are: two ways to find out, and by hand."""

import math
from typing import Any

import pytest
import torch

from squashlens.run.derivatives.exact import in_float64
from squashlens.run.derivatives.visibility import (
    Visibility,
    _from,
    _written,
    tokens_reaching,
    visibilities,
)
from tests.references import run_of

IDS = torch.tensor([[2, 7, 11, 30, 7, 7, 59, 8]])


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2"])
def test_written_logits_say_what_queries_and_keys_say(
    family: str, bridge_of: Any
) -> None:
    model = bridge_of(family)
    with in_float64(run_of(model)):
        streamed, written = (
            visibilities(run_of(model), IDS, [], range(3)),
            _written(run_of(model), IDS, [], range(3)),
        )
    every = torch.eye(8, dtype=torch.bool)
    for block in range(3):
        # The longest query times the longest key is at least any pair's; a pair's is found but for a root of two.
        ratio = written[block].product / streamed[block].product
        assert 0.3 < ratio < 2**0.5 + 1e-9, ratio
        assert torch.equal(written[block].back(every), streamed[block].back(every))
        assert written[block].width == streamed[block].width == 4
    row = every[5:6]
    assert torch.equal(
        tokens_reaching(written, range(3), row),
        tokens_reaching(streamed, range(3), row),
    )


def test_a_window_leads_back_by_its_size() -> None:
    rows = torch.eye(8, dtype=torch.bool)[[6, 0]]
    seen = {0: Visibility(1.0, 4, window=3), 1: Visibility(1.0, 4, window=2)}
    assert seen[1].back(rows).nonzero().tolist() == [[0, 5], [0, 6], [1, 0]]
    assert tokens_reaching(seen, range(2), rows).nonzero().tolist() == [
        [0, 3],
        [0, 4],
        [0, 5],
        [0, 6],
        [1, 0],
    ]
    assert Visibility(1.0, 4).back(rows).sum(dim=1).tolist() == [7, 1]
    keys = torch.zeros(8, 8, dtype=torch.bool)
    keys[6, 2] = True
    assert Visibility(1.0, 4, keys=keys).back(rows).nonzero().tolist() == [
        [0, 2],
        [0, 6],
        [1, 0],
    ]


@pytest.mark.parametrize("angle", [0.0, 0.4, torch.pi / 2])
def test_a_product_is_found_from_a_logit_of_any_size(angle: float, tiny: Any) -> None:
    """Without a norm, (½ q · k)² + (½ ‖k‖ ‖q‖)²: a query of length 3, a key of length 5, and a scale of ½."""
    queries = torch.tensor([[[[3.0, 0.0]]]], dtype=torch.float64, requires_grad=True)
    key = 5 * torch.tensor([angle, torch.pi / 2 - angle], dtype=torch.float64).cos()
    scores = 0.5 * (queries[0, 0, 0] @ key).reshape(1, 1, 1, 1)
    expected = 7.5 * (1 + math.cos(angle) ** 2) ** 0.5
    assert _from(tiny, queries, scores, 1).product == pytest.approx(expected)
