"""Patches, mean and zero ablation of heads, and scaled attention, against the plain model edited by PyTorch hooks."""

import copy
import functools
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens import hooks as change
from tests.cases import FAMILIES as ALL_FAMILIES
from tests.cases import few
from tests.hooks.passes import IDS, logits, patterns
from tests.references import layers_of, model_with_streams, passing, raw

FAMILIES = ("gpt2", "gemma2", "llama", "neox", "qwen3")
OTHERS = torch.tensor(
    [[2, 7, 8, 12, 19, 20, 21, 22, 3, 6], [2, 40, 41, 42, 43, 44, 45, 46, 47, 48]]
)
OTHER = OTHERS[:1]
LONGER = torch.tensor([[2, 13, *OTHER[0, 1:].tolist(), 50]])
PLACES, HEADS = (2, 5), (1, 3)


def outputs_of(plain: Any) -> list[Any]:
    """The modules with the output matrix of each block's attention, which the outputs of all heads enter in a row."""
    found = []
    for layer in layers_of(plain):
        attention = next(
            getattr(layer, name)
            for name in ("self_attn", "attention", "attn")
            if hasattr(layer, name)
        )
        names = ("o_proj", "dense", "c_proj")
        found.append(
            next(getattr(attention, name) for name in names if hasattr(attention, name))
        )
    return found


def head_outputs(plain: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    """What enters each output matrix, (prompt, position, head · coordinate)."""
    seen = [
        [entering for entering, _ in passing(plain, row, *outputs_of(plain))]
        for row in ids.tolist()
    ]
    return [torch.stack(rows) for rows in zip(*seen, strict=True)]


def model_with_heads(
    plain: Any, places: list[int], heads: Any, blocks: Any, rows: list[torch.Tensor]
) -> Any:
    """A copy of the plain model in which `rows[b]` stand in the columns of `heads` at `places`: PyTorch hooks alone."""
    changed = copy.deepcopy(plain)

    def put(_module: Any, args: Any, block: int) -> Any:
        whole, width = args[0].clone(), args[0].shape[-1] // 4
        for row, place in enumerate(places):
            for head in heads:
                columns = slice(head * width, (head + 1) * width)
                whole[:, place, columns] = rows[block][row, columns]
        return (whole,)

    for block in blocks:
        outputs_of(changed)[block].register_forward_pre_hook(
            functools.partial(put, block=block)
        )
    return changed


def close(found: torch.Tensor, truth: torch.Tensor, before: torch.Tensor) -> None:
    torch.testing.assert_close(
        found, truth, rtol=1e-4, atol=1e-4 * float(truth.abs().max())
    )
    assert (found - before).abs().max() > 1e-2 * before.abs().max()


@pytest.mark.few(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_are_zeroed_averaged_and_patched(
    family: str, bridge_of: Callable[..., Any], plain_of: Callable[..., Any]
) -> None:
    model, plain, every = bridge_of(family), plain_of(family), list(range(10))
    before = logits(model)
    zeros = [torch.zeros(10, 16)] * 3
    one, many = head_outputs(plain, OTHER), head_outputs(plain, OTHERS)
    longer = head_outputs(plain, LONGER)
    means = [(z[0] + z[1]) / 2 for z in many]
    overall = [z.sum(dim=(0, 1))[None] / 20 for z in many]
    here, there = list(PLACES), [7, 3]
    cases: list[tuple[Any, list[int], Any, list[torch.Tensor]]] = [
        (change.zero_heads(HEADS), every, range(3), zeros),
        (change.zero_heads(HEADS, (1,), positions=PLACES), here, [1], zeros),
        (change.mean_heads(HEADS, OTHERS), every, range(3), means),
        (
            change.mean_heads(HEADS, OTHERS, (0, 2), positions=PLACES),
            here,
            [0, 2],
            [m[here] for m in means],
        ),
        (
            change.mean_heads([0], OTHERS, (1,), over="positions"),
            every,
            [1],
            [o.expand(10, -1) for o in overall],
        ),
        (
            change.mean_heads([0], OTHERS, positions=PLACES, over="positions"),
            here,
            range(3),
            [o.expand(2, -1) for o in overall],
        ),
        (change.patch_heads(HEADS, OTHER), every, range(3), [z[0] for z in one]),
        (
            change.patch_heads(
                HEADS, LONGER, (2,), positions=PLACES, from_positions=there
            ),
            here,
            [2],
            [z[0, there] for z in longer],
        ),
    ]
    for hook, places, blocks, rows in cases:
        heads = [0] if "(0)" in str(hook) else HEADS
        close(
            logits(model, hook),
            logits(model_with_heads(plain, places, heads, blocks, rows)),
            before,
        )
        assert torch.equal(logits(model), before)


def mlps_of(plain: Any) -> list[Any]:
    """The module whose output each block's MLP adds to the stream."""
    return [
        getattr(layer, "post_feedforward_layernorm", layer.mlp)
        for layer in layers_of(plain)
    ]


def model_with_mlps(
    plain: Any, places: Any, blocks: Any, rows: list[torch.Tensor]
) -> Any:
    """A copy of the plain model in which MLPs of `blocks` add `rows[b]` at `places`."""
    changed = copy.deepcopy(plain)

    def put(_module: Any, _args: Any, out: torch.Tensor, block: int) -> Any:
        whole = out.clone()
        whole[:, places] = rows[block]
        return whole

    for block in blocks:
        mlp = mlps_of(changed)[block]
        mlp.register_forward_hook(functools.partial(put, block=block))
    return changed


@pytest.mark.few(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_mlps_are_zeroed_averaged_and_patched(
    family: str, bridge_of: Callable[..., Any], plain_of: Callable[..., Any]
) -> None:
    model, plain = bridge_of(family), plain_of(family)
    before = logits(model)
    one, other, longer = (
        [out for _, out in passing(plain, ids.tolist(), *mlps_of(plain))]
        for ids in (OTHERS[0], OTHERS[1], LONGER[0])
    )
    means = [(a + b) / 2 for a, b in zip(one, other, strict=True)]
    zeros = [0 * mean for mean in means]
    every, here, there = slice(None), list(PLACES), [7, 3]
    overall = [mean.mean(dim=0) for mean in means]
    at = {"positions": PLACES}
    patched = change.patch_mlp(LONGER, (2,), positions=PLACES, from_positions=there)
    cases: list[tuple[Any, Any, Any, list[torch.Tensor]]] = [
        (change.zero_mlp(), every, range(3), zeros),
        (change.zero_mlp((1,), **at), here, [1], [row[here] for row in zeros]),
        (change.mean_mlp(OTHERS), every, range(3), means),
        (change.mean_mlp(OTHERS, (1,), over="positions"), every, [1], overall),
        (patched, here, [2], [row[there] for row in longer]),
    ]
    for hook, places, blocks, rows in cases:
        truth = logits(model_with_mlps(plain, places, blocks, rows))
        close(logits(model, hook), truth, before)


@pytest.mark.parametrize("family", few([*ALL_FAMILIES, "neox", "qwen3"]))
def test_streams_are_patched_averaged_and_drawn(
    family: str, bridge_of: Callable[..., Any], plain_of: Callable[..., Any]
) -> None:
    model, plain = bridge_of(family), plain_of(family)
    before, here = logits(model), list(PLACES)
    with torch.no_grad():
        longer, states = (
            torch.stack(
                plain(ids, use_cache=False, output_hidden_states=True).hidden_states[:3]
            )
            for ids in (LONGER, OTHERS)
        )  # (block, prompt, position, d)
    one, rows = longer[:, 0], states[:, :, here]
    drawn = Random("resample 1").randrange(2)
    elsewhere = change.patch_residual(PLACES, LONGER, (1, 2), from_positions=(7, 3))
    resampled = change.resample_residual(PLACES, OTHERS, (1, 2), seed=1)
    cases: list[tuple[Any, torch.Tensor]] = [
        (change.patch_residual(PLACES, LONGER, (1, 2)), one[:, here]),
        (elsewhere, one[:, [7, 3]]),
        (change.mean_residual(PLACES, OTHERS, (1, 2)), rows.mean(dim=1)),
        (resampled, rows[:, drawn]),
    ]
    for hook, expected in cases:
        truth = logits(model_with_streams(plain, PLACES, 1, list(expected)))
        close(logits(model, hook), truth, before)
        assert torch.equal(logits(model), before)


def test_caches_are_sources(bridge_of: Callable[..., Any]) -> None:
    """TransformerLens's own cache gives what the prompt gives; one under hooks gives its own run."""
    model = bridge_of("llama")
    _, cache = model.run_with_cache(OTHER)
    _, single = model.run_with_cache(OTHER, remove_batch_dim=True)
    for factory, what in ((change.patch_residual, PLACES), (change.patch_heads, HEADS)):
        expected = logits(model, factory(what, OTHER, (1,)))
        for source in (cache, single, dict(cache.items())):
            torch.testing.assert_close(
                logits(model, factory(what, source, (1,))),
                expected,
                rtol=1e-5,
                atol=1e-5,
            )
    with sl.applied(model, change.zero_residual([1], (0,))):
        _, wiped = model.run_with_cache(OTHER)
    with sl.applied(model, change.patch_residual(PLACES, wiped, (1,))):
        named = sl.results.provenance(sl.top_tokens(model, IDS))["ambient_hooks"]
        found = logits(model)
    assert not torch.equal(
        found, logits(model, change.patch_residual(PLACES, OTHER, (1,)))
    )
    assert "of a cache " in named[0]


def test_the_source_is_the_plain_models(bridge_of: Callable[..., Any]) -> None:
    """Hooks that stand have no part in what is put in place."""
    model, wipe = bridge_of("llama"), change.zero_residual((1,), blocks=(0,))
    for hook in (
        change.patch_residual(PLACES, OTHER, (1,)),
        change.patch_heads(HEADS, OTHER, (1,)),
        change.mean_heads(HEADS, OTHERS, (1,)),
        change.mean_residual(PLACES, OTHERS, blocks=(2,)),
    ):
        with sl.applied(model, wipe):
            nested = logits(model, hook)
        assert torch.equal(logits(model, wipe, hook), nested)


@pytest.mark.few(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_its_own_place_changes_nothing(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    """Up to rounding; so does a factor of 1."""
    model = bridge_of(family)
    before, said = logits(model), sl.top_tokens(model, IDS)
    for hook in (
        change.patch_residual(range(10), IDS),
        change.patch_heads(range(4), IDS),
        change.patch_heads([2], IDS, (1,), positions=[3, 4], from_positions=[3, 4]),
        change.mean_heads(range(4), IDS),
        change.mean_heads([1], IDS, positions=[0, 9]),
        change.scale_attention(1.0, [2, 3]),
        change.scale_attention(7.5, [9]),  # no later token
    ):
        with sl.applied(model, hook):
            torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(sl.top_tokens(model, IDS), said, rtol=1e-5)


@pytest.mark.few(7)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("factor", [0.0, 0.25, 3.0])
def test_attention_is_scaled_and_renormalised(
    family: str, factor: float, bridge_of: Callable[..., Any]
) -> None:
    """Block 0, whose input no hook changes: weights times the factor, over their sum; caps and windows as they are."""
    model = bridge_of(family)
    before = patterns(model)[0]
    after = patterns(model, change.scale_attention(factor, PLACES, heads=[1]))[0]
    times = torch.ones(10, 10)
    for place in PLACES:
        times[place + 1 :, place] = factor
    expected = before[:, 1] * times
    torch.testing.assert_close(
        after[:, 1], expected / expected.sum(dim=-1, keepdim=True), rtol=1e-4, atol=1e-6
    )
    assert torch.equal(after[:, [0, 2, 3]], before[:, [0, 2, 3]])
    assert (after[:, 1].sum(dim=-1) - 1).abs().max() < 1e-5


def test_factors_multiply_and_none_is_a_mask(bridge_of: Callable[..., Any]) -> None:
    model = bridge_of("gemma2")
    masked = logits(model, change.scale_attention(0.0, PLACES))
    assert torch.equal(logits(model, change.mask_tokens(PLACES)), masked)
    twice = logits(
        model,
        change.scale_attention(0.5, PLACES),
        raw(change.scale_attention)(np.float32(3), PLACES),
    )
    torch.testing.assert_close(
        logits(model, change.scale_attention(1.5, PLACES)), twice, rtol=1e-4, atol=1e-4
    )


def test_shorter_and_longer_prompts(bridge_of: Callable[..., Any]) -> None:
    """Positions that a prompt does not reach are not there; means at every position want a reference as long."""
    model, short = bridge_of("llama"), IDS[:, :4]
    partly = [
        logits(model, change.patch_residual(places, OTHER), ids=short)
        for places in ([2], [2, 6])
    ]
    before = logits(model, ids=short)
    assert torch.equal(*partly)
    assert not torch.equal(
        logits(model, change.patch_heads([0], OTHER[:, :4]), ids=short), before
    )
    assert (
        logits(model, change.mean_heads([0], OTHER[:, :4], over="positions"))
        .isfinite()
        .all()
    )
