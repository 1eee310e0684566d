"""Replacements that the model expects, and how far means over a few replacements can be trusted."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.stats import chisquare

from squashlens.measure.squashing.substitution import _draw_expected
from tests.references import plain_outputs, run_of

IDS = [2, 7, 11, 30, 7, 9]


def test_tokens_are_drawn_with_the_probabilities_of_the_model(
    bridge_of: Callable[..., Any], plain_of: Callable[[str], Any]
) -> None:
    model, place, draws = bridge_of("gemma"), 3, 2000
    ids = torch.tensor(IDS)
    with torch.no_grad():
        p = (
            plain_outputs(plain_of("gemma"), ids[None])
            .logits[0, place - 1]
            .double()
            .softmax(-1)
        )
    p[[IDS[place], 2]] = 0  # neither the token itself nor BOS
    generator = torch.Generator().manual_seed(0)
    counts = np.zeros(len(p))
    for _ in range(draws):
        (token,) = _draw_expected(run_of(model), ids, [place], 1, generator)[
            place
        ].tolist()
        counts[token] += 1
    assert counts[[IDS[place], 2]].sum() == 0
    likely = (p > 0).numpy()
    assert (
        p[likely].max() > 2 * p[likely].min()
    )  # far enough from uniform for the test to tell
    expected = (p / p.sum()).numpy()[likely] * draws
    assert chisquare(counts[likely], expected).pvalue > 1e-4
    assert chisquare(counts[likely]).pvalue < 1e-6
    four = _draw_expected(run_of(model), ids, [1, place], 4, generator)
    assert all(len({*drawn.tolist()}) == 4 for drawn in four.values())
