"""TransformerLens's `JacobianLens`, fitted on one prompt, is the sum of our blocks over queries, averaged over keys."""

from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.tools.analysis import JacobianLens

import squashlens as sl
from squashlens.model.anatomy import n_blocks
from squashlens.model.proof import opened
from squashlens.run.derivatives.spans import open_spans, vjps
from tests.references import run_of

PROMPT = "How many ones? 11 ="


@pytest.mark.few(1)
@pytest.mark.parametrize("skip", [0, 2])
def test_the_lens_of_one_prompt_is_the_sum_of_blocks(skip: int, tiny: Any) -> None:
    """J_ℓ = mean over t in V of Σ_{t′ in V} ∂v⁽ᴸ⁾_t′/∂v⁽ˡ⁺¹⁾_t, V all positions but the first `skip` and the last."""
    layers = [1, n_blocks(tiny) - 2]
    lens = JacobianLens.fit(
        tiny,
        [PROMPT],
        corpus="one prompt",
        source_layers=layers,
        skip_first_positions=skip,
        dim_batch=64,
        show_progress=False,
    )
    ids = sl.prompts.tokenize(tiny, PROMPT)
    positions, top = list(range(skip, ids.shape[1] - 1)), n_blocks(tiny)
    for layer in layers:
        with opened(tiny):
            span = open_spans(run_of(tiny), ids, [], [layer + 1], top)[layer + 1]
        eye = torch.eye(span.leaf.shape[-1])
        total = torch.zeros_like(eye)
        for query in positions:
            rows = torch.cat(
                [
                    row
                    for (row,) in vjps(
                        run_of(tiny), span.outputs[top][0, query], [span.leaf], eye, 64
                    )
                ]
            )
            blocks = rows[:, 0].transpose(0, 1)  # position, out, in
            if query == positions[-1]:  # the blocks are those whose norms are public
                norms = sl.jacobian_norms(
                    tiny,
                    ids,
                    norm="frobenius",
                    query=query,
                    from_layer=layer + 1,
                    to_layer=top,
                )
                found = blocks.double().flatten(1).norm(dim=1).numpy()
                np.testing.assert_allclose(
                    found, norms.values, rtol=1e-4, atol=1e-6 * norms.values.max()
                )
            total += blocks[positions].sum(dim=0)
        expected = (total / len(positions)).numpy()
        lensed = lens.jacobians[layer].numpy()
        assert (
            np.abs(expected - np.eye(len(expected))).max() > 0.1
        )  # not the identity of the residual stream alone
        np.testing.assert_allclose(lensed, expected, atol=1e-4 * np.abs(expected).max())
