"""Patches, mean and zero ablation of heads, and scaled attention, against the plain model edited by PyTorch hooks."""

import copy
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens import hooks as change
from tests.hooks.passes import IDS, logits, patterns
from tests.references import layers_of, passing

FAMILIES = ("gpt2", "gemma2", "llama", "neox", "qwen3")
OTHERS = torch.tensor(
    [[2, 7, 8, 12, 19, 20, 21, 22, 3, 6], [2, 40, 41, 42, 43, 44, 45, 46, 47, 48]]
)
OTHER = OTHERS[:1]
LONGER = torch.tensor([[2, 13, *OTHER[0, 1:].tolist(), 50]])
PLACES, HEADS = (2, 5), (1, 3)


def heads_of(plain: Any) -> list[Any]:
    """The modules with the output matrix of each block's attention, which the outputs of all heads enter in a row."""
    modules: list[Any] = []
    for layer in layers_of(plain):
        attention = first_of(layer, "self_attn", "attention", "attn")
        modules.append(first_of(attention, "o_proj", "dense", "c_proj"))
    return modules


def mlps_of(plain: Any) -> list[Any]:
    """The module whose output each block's MLP adds to the stream."""
    names = ("post_feedforward_layernorm", "mlp")
    return [first_of(layer, *names) for layer in layers_of(plain)]


def first_of(module: Any, *names: str) -> Any:
    return next(getattr(module, name) for name in names if hasattr(module, name))


# Modules of a plain model, and whether what enters them is edited, or what leaves them.
EDITED: dict[str, tuple[Callable[[Any], list[Any]], bool]] = {
    "heads": (heads_of, True),
    "mlp": (mlps_of, False),
    "residual": (layers_of, True),
}


def values_of(plain: Any, kind: str, ids: torch.Tensor) -> list[torch.Tensor]:
    """What is edited in each block, (prompt, position, coordinate)."""
    modules, before = EDITED[kind]
    rows: list[Any] = []
    for prompt in ids.tolist():
        passed = passing(plain, prompt, *modules(plain))
        rows.append([pair[0] if before else pair[1] for pair in passed])
    return [torch.stack(block) for block in zip(*rows, strict=True)]


def edited(
    plain: Any, kind: str, hook: Any, places: Any, blocks: Any, rows: Any
) -> Any:
    """A copy of the plain model with `rows[b]` at `places` of its own activations: PyTorch hooks alone."""
    changed = copy.deepcopy(plain)
    modules, before = EDITED[kind]
    heads = [0] if "(0)" in str(hook) else HEADS

    def put(whole: torch.Tensor, block: int) -> torch.Tensor:
        width = whole.shape[-1] // 4
        column = torch.arange(whole.shape[-1]) // width
        chosen = torch.isin(column, torch.tensor(heads)) | (kind != "heads")
        inserted = whole.clone()
        inserted[:, places] = torch.where(chosen, rows[block], whole[:, places])
        return inserted

    for block in blocks:
        module = modules(changed)[block]
        if before:
            module.register_forward_pre_hook(
                lambda _, args, block=block: (put(args[0], block), *args[1:])
            )
        else:
            module.register_forward_hook(
                lambda _, args, out, block=block: put(out, block)
            )
    return changed


def cases(kind: str, one: Any, many: Any, longer: Any) -> list[Any]:
    """Hooks, and the positions, blocks and rows that they replace; from one prompt, two prompts and a longer one."""
    means = [values.mean(dim=0) for values in many]
    overall = [mean.mean(dim=0) for mean in means]
    zeros = [torch.zeros_like(mean) for mean in means]
    every, here, there = slice(None), list(PLACES), [7, 3]
    means_here = [mean[here] for mean in means]
    moved = [values[0, there] for values in longer]
    at: Any = {"positions": PLACES}
    from_there: Any = {"from_positions": there}
    if kind == "residual":
        drawn = Random("resample 1").randrange(2)
        resampled = change.resample_residual(PLACES, OTHERS, (1,), seed=1)
        patched = change.patch_residual(PLACES, LONGER, (1,))
        shifted = change.patch_residual(PLACES, LONGER, (1,), **from_there)
        return [
            (patched, here, [1], [values[0, here] for values in longer]),
            (shifted, here, [1], moved),
            (change.mean_residual(PLACES, OTHERS, (1,)), here, [1], means_here),
            (resampled, here, [1], [values[drawn, here] for values in many]),
        ]
    if kind == "mlp":
        shifted = change.patch_mlp(LONGER, (2,), **at, **from_there)
        return [
            (change.zero_mlp(), every, range(3), zeros),
            (change.mean_mlp(OTHERS), every, range(3), means),
            (change.mean_mlp(OTHERS, (1,), over="positions"), every, [1], overall),
            (shifted, here, [2], moved),
        ]
    averaged = change.mean_heads([0], OTHERS, over="positions", **at)
    shifted = change.patch_heads(HEADS, LONGER, (2,), **at, **from_there)
    return [
        (change.zero_heads(HEADS), every, range(3), zeros),
        (change.mean_heads(HEADS, OTHERS), every, range(3), means),
        (change.mean_heads(HEADS, OTHERS, (2,), **at), here, [2], means_here),
        (averaged, here, range(3), overall),
        (change.patch_heads(HEADS, OTHER), every, range(3), [v[0] for v in one]),
        (shifted, here, [2], moved),
    ]


@pytest.mark.few(6)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", EDITED)
def test_activations_are_replaced_as_in_the_plain_model(
    kind: str, family: str, bridge_of: Callable[..., Any], plain_of: Callable[..., Any]
) -> None:
    model, plain = bridge_of(family), plain_of(family)
    before = logits(model)
    given = [values_of(plain, kind, ids) for ids in (OTHER, OTHERS, LONGER)]
    for hook, *where in cases(kind, *given):
        found = logits(model, hook)
        truth = logits(edited(plain, kind, hook, *where))
        size = float(truth.abs().max())
        torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-4 * size)
        assert (found - before).abs().max() > 1e-2 * before.abs().max()
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


@pytest.mark.few(3)
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
    half, three = (change.scale_attention(factor, PLACES) for factor in (0.5, 3.0))
    both = logits(model, change.scale_attention(1.5, PLACES))
    torch.testing.assert_close(logits(model, half, three), both, rtol=1e-4, atol=1e-4)


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
