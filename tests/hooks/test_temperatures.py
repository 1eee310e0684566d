"""Factors on attention logits against plain Hugging Face models that were changed by hand."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens import hooks as change
from squashlens.hooks.temperatures import ADAPTIVE
from tests.cases import FAMILIES, MORE, few
from tests.hooks.passes import logits
from tests.references import with_attention

IDS = torch.tensor([[2, 5, 9, 11, 9, 30, 31, 9, 17, 4, 8, 8, 8, 8]])
Row = Callable[
    [list[float], int], float
]  # the factor for a row: its visible logits, and the query's position


def adaptive(row: list[float], i: int) -> float:
    """The source's figure 4, without its 1e-9, for one row."""
    top = max(row)
    weights = [math.exp(s - top) for s in row]
    weights = [w / sum(weights) for w in weights]
    entropy = sum(-w * math.log(w) for w in weights if w)
    value = sum(c * entropy**power for power, c in enumerate(reversed(ADAPTIVE)))
    return max(value, 1.0) if entropy > 0.5 else 1.0


def by_hand(plain: Any, factor: Row) -> torch.Tensor:
    """Logits of a plain model whose logits of attention are multiplied row by row, in plain Python."""

    def attention(
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        *,
        scaling: Any = None,
        softcap: Any = None,
        s_aux: Any = None,
        **_: Any,
    ) -> Any:
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1).double() for x in (key, value))
        logits = (
            query.double()
            @ key.mT
            * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        )
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        n = query.shape[2]
        seen = (
            torch.ones(n, n).tril().bool() if mask is None else mask[0, 0, :, :n] == 0
        )
        out = torch.zeros_like(logits)
        for head in range(logits.shape[1]):
            for i in range(n):
                row = logits[0, head, i][seen[i]].tolist() + (
                    [] if s_aux is None else [s_aux[head].item()]
                )
                weights = (torch.tensor(row).double() * factor(row, i)).softmax(-1)
                out[0, head, i][seen[i]] = weights[
                    : int(seen[i].sum())
                ]  # without a learned sink's
        return (out @ value).to(query.dtype).transpose(1, 2).contiguous(), None

    return logits(with_attention(plain, "squashlens_by_hand", attention), ids=IDS)


@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["gpt_oss", *few([*FAMILIES, *MORE])])
def test_every_rule_is_a_plain_model_changed_by_hand(
    family: str, bridge_of: Any, plain_of: Any
) -> None:
    """Windows, soft caps, parallel blocks, learned positions: the factor is that of the row, whatever the family."""
    model, plain = bridge_of(family), plain_of(family)
    untouched = by_hand(plain, lambda row, i: 1.0)
    torch.testing.assert_close(logits(model, ids=IDS), untouched, rtol=1e-4, atol=2e-5)
    hooks: dict[Any, Row] = {
        change.log_scaling(4): lambda row, i: math.log(len(row)) / math.log(4)
    }
    hooks[change.adaptive_temperature()] = adaptive
    for hook, factor in hooks.items():
        expected = by_hand(plain, factor)
        torch.testing.assert_close(
            logits(model, hook, ids=IDS), expected, rtol=1e-3, atol=1e-4
        )
        assert (expected - untouched).abs().max() > 1e-3, hook.name


def test_derivatives_go_through_the_entropy(bridge_of: Any) -> None:
    """Finite differences in float64, also past masked keys, whose logits are −∞."""
    edit: Any = change.adaptive_temperature().edit
    scores = torch.randn(
        1, 1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    scores = (scores / 4).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    lower = torch.ones(5, 5).tril().bool()

    def weights(free: torch.Tensor) -> torch.Tensor:
        return edit(scores.masked_scatter(lower, free)).softmax(-1)

    free = scores[0, 0][lower].clone().requires_grad_()
    assert torch.autograd.gradcheck(weights, free)
    assert any(adaptive(scores[0, 0, i, : i + 1].tolist(), i) > 1 for i in range(5))
    model = bridge_of("gemma2", torch.float64)
    with sl.applied(model, change.adaptive_temperature()):
        truth = sl.jacobian_norms(model, IDS)
        certified = sl.certified_bound(model, IDS)
    assert (truth.values > 0).all()
    assert (certified.values >= truth.values * (1 - 1e-9)).all()
