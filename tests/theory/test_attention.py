"""Attention by blocks of rows against patterns written out, and its derivative against autograd through them."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from squashlens.theory import attention as module
from squashlens.theory.attention import (
    Attention,
    attention_output,
    differentiable_attention,
)
from squashlens.theory.path_sums import by_hops, sweep
from squashlens.theory.spread import received


def written(attention: Attention) -> Tensor:
    """The pattern as n × n numbers, (prompt, head, query, key), by the textbook."""
    heads, groups = attention.queries.shape[1], attention.keys.shape[1]
    keys = attention.keys.repeat_interleave(heads // groups, dim=1)
    logits = attention.queries @ keys.mT * attention.scale
    if attention.cap is not None:
        logits = attention.cap * torch.tanh(logits / attention.cap)
    if attention.mask is None:
        behind = torch.arange(logits.shape[-2])[:, None] - torch.arange(
            logits.shape[-1]
        )
        hidden = (behind < 0) | (behind >= (attention.window or logits.shape[-1]))
        logits = logits.masked_fill(hidden, -torch.inf)
    else:
        logits = logits + attention.mask
    if attention.sinks is None:
        return logits.softmax(dim=-1)
    sinks = attention.sinks[None, :, None, None].expand(*logits.shape[:-1], 1)
    return torch.cat([logits, sinks], dim=-1).softmax(dim=-1)[..., :-1]


def drawn(
    n: int,
    heads: int = 4,
    groups: int = 2,
    *,
    prompts: int = 2,
    seed: int = 0,
    sinks: bool = False,
    value_width: int = 5,
    **options: Any,
) -> tuple[Attention, Tensor]:
    """Random queries, keys and values in float64; values narrower than keys."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(
            *shape, generator=generator, dtype=torch.float64
        ).requires_grad_()

    queries, keys = random(prompts, heads, n, 8), random(prompts, groups, n, 8)
    values = random(prompts, groups, n, value_width)
    sink = random(heads) if sinks else None
    return Attention(queries, keys, 0.7, sinks=sink, **options), values


def held(attention: Attention) -> Attention:
    """The same without a graph."""
    sinks = None if attention.sinks is None else attention.sinks.detach()
    return replace(
        attention,
        queries=attention.queries.detach(),
        keys=attention.keys.detach(),
        sinks=sinks,
    )


@pytest.fixture(params=[3, 16], ids=["ragged blocks", "whole blocks"])
def _small_blocks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a few rows, so that a short prompt has several, the last of them ragged."""
    monkeypatch.setattr(module, "SHORTEST", request.param)
    monkeypatch.setattr(module, "CELLS", {"cpu": 1})


CASES: list[dict[str, Any]] = [
    {"n": 37},
    {"n": 37, "groups": 1, "value_width": 8},
    {"n": 1},
    {"n": 32, "heads": 1, "groups": 1},
    {"n": 37, "groups": 4, "window": 2},
    {"n": 37, "groups": 1, "window": 5, "cap": 1.3},
    {"n": 20, "window": 50, "sinks": True},
    {"n": 20, "cap": 0.5, "sinks": True, "prompts": 1},
]


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_values_and_derivatives_equal_the_written_pattern(
    case: dict[str, Any],
) -> None:
    attention, values = drawn(**case)
    heads, groups = attention.queries.shape[1], attention.keys.shape[1]
    pattern = written(attention)
    truth = pattern @ values.repeat_interleave(heads // groups, dim=1)
    found = differentiable_attention(attention, values, False)
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        attention.averaged(), pattern.mean(dim=1), rtol=1e-12, atol=1e-12
    )
    rows = torch.rand(3, *pattern.shape[:1], pattern.shape[-1], dtype=torch.float64)
    rows[:, :, attention.queries.shape[2] // 2 + 1 :] = (
        0  # a sweep starts with a row that is zero nearly everywhere
    )
    expected = torch.einsum("rpj,pji->rpi", rows, pattern.mean(dim=1))
    torch.testing.assert_close(attention.pushed(rows), expected, rtol=1e-12, atol=1e-12)

    cotangents = torch.randn(3, *truth.shape, dtype=torch.float64)
    cotangents[:, :, :, : attention.queries.shape[2] // 2] = 0
    leaves = (attention.queries, attention.keys, values)

    def pulled(output: Tensor, leaves: Any) -> Any:
        return torch.func.vmap(
            lambda c: torch.autograd.grad(output, leaves, c, retain_graph=True)
        )(cotangents)

    for way in (
        found,
        differentiable_attention(attention, values, False, fused="value_width" in case),
    ):
        torch.testing.assert_close(
            pulled(way, leaves), pulled(truth, leaves), rtol=1e-11, atol=1e-11
        )
    alone = torch.autograd.grad(found, leaves, cotangents[0], retain_graph=True)
    torch.testing.assert_close(
        alone, tuple(part[0] for part in pulled(truth, leaves)), rtol=1e-11, atol=1e-11
    )
    constant = pattern.detach() @ values.repeat_interleave(heads // groups, dim=1)
    torch.testing.assert_close(
        pulled(differentiable_attention(attention, values, True), [values]),
        pulled(constant, [values]),
    )


def test_half_precision_is_computed_in_single() -> None:
    attention, values = drawn(20, cap=2.0)
    half = Attention(
        attention.queries.bfloat16(), attention.keys.bfloat16(), 0.7, cap=2.0
    )
    wide = Attention(half.queries.float(), half.keys.float(), 0.7, cap=2.0)
    torch.testing.assert_close(half.averaged(), wide.averaged())
    assert attention_output(half, values.bfloat16()).dtype == torch.bfloat16


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("cap", [None, 1.5])
def test_a_mask_that_is_given_takes_the_place_of_causality(cap: float | None) -> None:
    attention, values = drawn(11, groups=1, prompts=1)
    hidden = torch.rand(7, 11, generator=torch.Generator().manual_seed(1)) < 0.4
    hidden[:, 0] = False
    mask = torch.zeros(1, 1, 7, 11, dtype=torch.float64).masked_fill(
        hidden, torch.finfo(torch.float64).min
    )
    some = Attention(
        attention.queries[:, :, :7], attention.keys, 0.7, cap=cap, mask=mask
    )
    torch.testing.assert_close(
        attention_output(some, values), written(some) @ values.expand(1, 4, -1, -1)
    )


def some_keys_hidden(n: int) -> Tensor:
    """A mask that hides some keys, of earlier and of later tokens."""
    hidden = torch.rand(1, 1, n, n, generator=torch.Generator().manual_seed(1)) < 0.5
    return torch.zeros(1, 1, n, n, dtype=torch.float64).masked_fill(
        hidden & ~torch.eye(n, dtype=torch.bool), -torch.inf
    )


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("at", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sweep_goes_over_the_rows_that_are_not_zero(
    case: dict[str, Any], at: float, masked: bool
) -> None:
    """Which rows those are follows from the patterns: each block reaches further back, or where its mask lets it."""
    n = case["n"]
    stack = [held(drawn(**case, seed=seed)[0]) for seed in range(3)]
    if masked:
        stack[1] = replace(stack[1], mask=some_keys_hidden(n))
    row = torch.zeros(len(stack[0].queries), n, dtype=torch.float64)
    row[:, int(at * (n - 1))] = 1.0
    whole = [written(attention).mean(dim=1) for attention in stack]
    for found, expected in zip(sweep(row, stack), sweep(row, whole), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(by_hops(row, stack), by_hops(row, whole))


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("reached", [slice(7, 8), slice(0, 8), slice(0, 37)], ids=str)
def test_cotangents_that_stand_at_some_queries(reached: slice, frozen: bool) -> None:
    attention, values = drawn(37, window=5, cap=1.3)
    leaves = [values] if frozen else [attention.queries, attention.keys, values]
    cotangent = torch.zeros(
        *attention.queries.shape[:3], values.shape[-1], dtype=torch.float64
    )
    cotangent[:, :, reached] = torch.randn(
        cotangent[:, :, reached].shape, dtype=torch.float64
    )
    told, looked = (
        torch.autograd.grad(
            differentiable_attention(attention, values, frozen, given),
            leaves,
            cotangent,
        )
        for given in (reached, None)
    )
    torch.testing.assert_close(told, looked, rtol=0, atol=0)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("window", [None, 4])
def test_what_a_token_receives_is_a_sum_over_later_queries(window: int | None) -> None:
    attention, _ = drawn(10, prompts=1, window=window)
    pattern = written(attention)[0].mean(dim=0)
    expected = [pattern[key + 1 :, key].sum() for key in range(10)]
    torch.testing.assert_close(received(held(attention)), torch.stack(expected))


def test_the_largest_product_is_that_of_the_longest_vectors() -> None:
    attention, _ = drawn(6)
    lengths = []
    for vectors in (attention.queries, attention.keys):
        lengths.append(max(math.hypot(*x.tolist()) for x in vectors.flatten(0, 2)))
    expected = 0.7 * lengths[0] * lengths[1]
    assert attention.largest_product() == pytest.approx(expected, rel=1e-12)
