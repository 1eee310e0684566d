"""Numbers that inseq 0.7.1 gave for the bundled model, in environments of its own (`record_inseq.py`)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.measure.squashing.jacobians.products import Products, Pullback
from squashlens.model.anatomy import n_blocks, residual_site
from squashlens.model.proof import opened
from squashlens.run.run import Run

RECORDED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("inseq.json").read_text(encoding="utf-8")
)
LEAST = 1e-5  # smaller changes are 0 for inseq


def tokens(method: str) -> torch.Tensor:
    """The prompt without the token that was generated."""
    return torch.tensor(RECORDED[method]["ids"][:-1])


def test_saliency_is_the_gradient_of_the_largest_logit(tiny: Any) -> None:
    """The graph that Jacobian norms are taken through: pulled back, the logit's gradient at y is inseq's."""
    ids = tokens("saliency")
    run = Run.of(tiny, ids, "test")
    with torch.no_grad():
        best = tiny(ids[None])[0, -1].argmax().item()
    assert (
        best == RECORDED["saliency"]["ids"][-1]
    )  # the logit that inseq was asked for is the largest
    row = tiny.original_model.get_output_embeddings().weight[best].detach()[None]
    with opened(tiny):
        found = Products(Pullback(run, [0]), len(ids) - 1).frobenius(row)[0]
    recorded = np.array(RECORDED["saliency"]["scores"])[: len(ids)]
    assert recorded.min() > 1e-3 * recorded.max()
    np.testing.assert_allclose(found, recorded, rtol=1e-3)


@pytest.mark.slow
def test_value_zeroing_is_zero_values_in_one_block_at_a_time(tiny: Any) -> None:
    """Per block: 1 − cos of the query's stream after it, or of y after the last; 0 below 10⁻⁵; as shares of the sum."""
    ids, top = tokens("value_zeroing"), n_blocks(tiny)
    found = np.zeros((len(ids), top))
    for block in range(top):
        site = residual_site("y" if block == top - 1 else block + 1, tiny)
        usual = read(tiny, ids, site)
        for place in range(len(ids)):
            with sl.applied(tiny, sl.hooks.zero_values([place], blocks=[block])):
                changed = read(tiny, ids, site)
            found[place, block] = (
                1 - torch.cosine_similarity(usual, changed, dim=0).item()
            )
    found[found < LEAST] = 0
    recorded = np.array(RECORDED["value_zeroing"]["scores"])[: len(ids)]
    assert (recorded > 0.01).mean() > 0.3
    np.testing.assert_allclose(
        found / found.sum(axis=0), recorded, rtol=1e-2, atol=1e-3
    )


def read(model: Any, ids: torch.Tensor, site: str) -> torch.Tensor:
    """The last token's vector at a hook point, in float64."""
    with torch.no_grad():
        _, cache = model.run_with_cache(ids[None], names_filter=site)
    return next(iter(cache.values()))[0, -1].double()


@pytest.mark.parametrize("method", RECORDED)
def test_the_recorded_prompt_is_what_the_bundled_tokenizer_gives(
    method: str, tiny: Any
) -> None:
    assert (
        sl.prompts.tokenize(tiny, RECORDED[method]["prompt"])[0].tolist()
        == tokens(method).tolist()
    )
