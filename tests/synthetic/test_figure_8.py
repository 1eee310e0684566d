"""Why D falls in figure 8 without δ → 0, and where it would not: what docs/synthetic.md says of it."""

from typing import Any

import numpy as np
import pytest
import torch

from squashlens.synthetic import PAPER, Stack, convergence, last_tokens, lengths_up_to
from squashlens.synthetic.convergence import HALVING
from squashlens.synthetic.fits import of_draws, power_law, tail_of
from squashlens.synthetic.stack import draw, sinusoids

QUIET: dict[str, Any] = {"progress": False}


def sines(place: np.ndarray) -> np.ndarray:
    angle = place[:, None] * 10_000.0 ** (-np.arange(0, 64, 2) / 64)
    return np.stack((np.sin(angle), np.cos(angle)), axis=-1).reshape(len(place), 64)


@pytest.mark.slow
def test_few_near_tokens_make_most_of_figure_8s_distance() -> None:
    """The last 32 tokens hold most of Σ w² up to n = 3·10⁴, though little of δ: docs/synthetic.md has their shares."""
    stack, lengths = PAPER["queries_keys"], [1000, 30_000]
    tokens, drawn = (
        last_tokens(stack, lengths, **QUIET),
        draw(stack, 30_000, range(5), torch.float64, torch.device("cpu")),
    )
    near, own, far, squares = (np.empty((5, 2)) for _ in range(4))
    for seed in range(5):
        query, key, _ = (part[seed].numpy() for part in drawn.direct)
        for at, n in enumerate(lengths):
            content = np.array([*range(n), n - 1])
            keys = key[content] + sines(np.arange(n + 1))
            asked = query[n - 1] + sines(np.array([n - 1, n]))
            weights = np.exp(asked @ keys.T / 8)
            weights[0, n] = 0
            gap = np.diff(weights / weights.sum(axis=1, keepdims=True), axis=0)[0]
            w = np.append(gap[: n - 1], gap[n - 1] + gap[n])  # both last tokens have one value
            squares[seed, at] = (w**2).sum()
            near[seed, at], own[seed, at] = (w[-32:] ** 2).sum() / squares[seed, at], w[-1] ** 2 / squares[seed, at]
            far[seed, at] = 1 - np.abs(gap[-33:]).sum() / np.abs(gap).sum()
    assert near.mean(0).tolist() == [pytest.approx(0.92, abs=0.03), pytest.approx(0.75, abs=0.06)]
    assert own.mean(0).tolist() == [pytest.approx(0.81, abs=0.06), pytest.approx(0.65, abs=0.1)]
    assert far.mean(0).tolist() == [pytest.approx(0.74, abs=0.04), pytest.approx(0.97, abs=0.01)]
    gaps = (tokens.v - tokens.star)[:, 0].square().sum(-1).numpy()
    assert (gaps / squares).mean() == pytest.approx(1, abs=0.15)  # a mean of 64 squares each, of 10 rows


def test_figure_8_with_the_rest_of_a_transformer_around_it() -> None:
    """W_O, residual connection, LayerNorm and ReLU as in Vaswani et al. 2017 leave D falling.

    The repeated token is the same in v and v*, so the residual connection drops out of their difference.
    """
    lengths = lengths_up_to(10_000, 30)
    found = last_tokens(PAPER["queries_keys"], lengths, **QUIET)
    generator, layernorm = torch.Generator().manual_seed(0), lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:])
    x, output, up, down = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((len(lengths), 64), (64, 64), (64, 256), (256, 64))
    )
    ends = []
    for attended in (found.v[:, 0], found.star[:, 0]):
        z = layernorm(x + attended @ output / 8)
        ends.append(layernorm(z + (z @ up / 8).relu() @ down / 16))
    n, among = torch.tensor(lengths).double(), tail_of(lengths, 0.5)
    whole, bare = (
        of_draws("slope", power_law(n[among], gap.abs().sum(-1)[:, among])[0], "")
        for gap in (ends[0] - ends[1], (found.v - found.star)[:, 0])
    )
    assert whole["slope_high"][1] < HALVING
    assert whole["slope_mean"][1].item() == pytest.approx(bare["slope_mean"][1].item(), abs=0.1)


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
