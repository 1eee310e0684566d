"""Why D falls in figure 8 without δ → 0, and where it would not: what docs/synthetic.md says of it."""

from typing import Any

import numpy as np
import pytest
import torch

from squashlens.synthetic import PAPER, Stack, convergence, last_tokens
from squashlens.synthetic.stack import draw, sinusoids

QUIET: dict[str, Any] = {"progress": False}


def sines(place: np.ndarray) -> np.ndarray:
    angle = place[:, None] * 10_000.0 ** (-np.arange(0, 64, 2) / 64)
    return np.stack((np.sin(angle), np.cos(angle)), axis=-1).reshape(len(place), 64)


@pytest.mark.few(1)
@pytest.mark.parametrize("part", [{}, {"residual": True, "norm": "layer", "mlp": 4}], ids=["bare", "whole"])
def test_keys_and_values_of_the_same_tokens_do_not_converge(part: Any) -> None:
    """As in a Transformer, both are projected from one token: values depend on scores, and do not average out."""
    lengths = [3000, 5000, 10_000]
    together = convergence(Stack(encoding="sinusoidal_qk", **part), lengths, tail=1.0, **QUIET)["distance"]
    apart = convergence(PAPER["queries_keys"], lengths, tail=1.0, **QUIET)["distance"]
    assert together.min() > 0.5
    assert apart.max() < 0.1


def test_what_keys_and_values_of_the_same_tokens_leave() -> None:
    """v_n → (q + PE_{n−1}) W_Kᵀ W_V W_O/√d: e^{⟨a, x⟩} moves the mean of x ~ N(0, I) to a.

    Of v_n − v*_{n+1} the step from one position to the next is left. The key's own position is a factor of the weight
    that does not depend on x.
    """
    stack, lengths = Stack(encoding="sinusoidal_qk"), [10_000, 30_000]
    found = last_tokens(stack, lengths, seeds=4, **QUIET)
    (weights,) = draw(stack, 1, range(4), torch.float64, torch.device("cpu")).layers
    for at, n in enumerate(lengths):
        here, there = sinusoids(torch.tensor([n - 1, n]), 64, 1e4)
        left = (here - there).expand(4, 1, 64) @ weights.key.mT @ weights.value @ weights.output / 8
        left, gap = left[:, 0], (found.v - found.star)[:, 0, at]
        assert torch.cosine_similarity(gap, left).mean() > 0.9
        assert gap.abs().sum(-1).mean().item() == pytest.approx(left.abs().sum(-1).mean().item(), rel=0.15)
