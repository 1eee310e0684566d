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
    """At each place with those after the tokens before it, but neither the token itself nor BOS."""
    ids = torch.tensor(IDS)
    places = [1, 2, 3, 4, 5]
    with torch.no_grad():
        logits = plain_outputs(plain_of("gemma"), ids[None]).logits[0, :-1]
    p = logits.double().softmax(dim=-1)
    p[:, 2] = 0
    p[range(5), ids[1:]] = 0
    likely = (p > 0).numpy()
    # Far enough from uniform for the test to tell.
    assert (p.amax(dim=1) > 2 * p[:, 3:5].amin(dim=1)).all()
    run = run_of(bridge_of("gemma"))
    generator = torch.Generator().manual_seed(0)
    counts = np.zeros(p.shape)
    draws = 150
    for _ in range(draws):
        drawn = _draw_expected(run, ids, places, 1, generator)
        counts[range(5), torch.cat([drawn[place] for place in places])] += 1
    assert counts[~likely].sum() == 0
    expected = (p / p.sum(dim=1, keepdim=True)).numpy() * draws
    assert chisquare(counts[likely], expected[likely]).pvalue > 1e-4
    assert chisquare(counts[likely]).pvalue < 1e-6
    four = _draw_expected(run, ids, [1, 3], 4, generator)
    assert all(len({*tokens.tolist()}) == 4 for tokens in four.values())
