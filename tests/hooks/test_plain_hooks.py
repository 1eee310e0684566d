"""Hooks as TransformerLens users write them: both signatures, pairs, lists, filters; what functions may return."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError, SquashlensError, StaleCaptureError
from tests.hooks.passes import IDS, logits

SITE = "blocks.1.attn.hook_z"


def alone(z: torch.Tensor) -> torch.Tensor:
    return z * 0.5


def with_point(z: torch.Tensor, hook: Any) -> torch.Tensor:
    assert hook.layer() == 1
    return z * 0.5


def scaled(z: torch.Tensor, hook: Any, factor: float) -> torch.Tensor:
    return z * factor


class Half(torch.nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z * 0.5


WAYS: dict[str, Callable[..., Any]] = {
    "alone": alone,
    "with_point": with_point,
    "scaled": functools.partial(scaled, factor=0.5),
    "Half": Half(),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("way", list(WAYS))
def test_both_signatures_do_what_transformer_lens_does(
    way: str, bridge_of: Callable[..., Any]
) -> None:
    model, function = bridge_of("llama"), WAYS[way]
    plain = logits(model)
    half = (SITE, lambda z, hook: z * 0.5)
    expected = model.run_with_hooks(IDS, fwd_hooks=[half], use_cache=False)
    for name, given in {
        way: (SITE, function),
        "mine": sl.hooks.Hook("mine", SITE, function),
    }.items():
        with sl.applied(model, given):
            assert torch.equal(logits(model), expected)
            found = sl.path_bound(model, IDS)
        facts = sl.results.provenance(found)
        assert facts["ambient_hooks"] == [f"{SITE}: {name}"]
    assert torch.equal(logits(model), plain)
    assert not torch.equal(expected, plain)


def test_a_filter_takes_each_point_once(bridge_of: Callable[..., Any]) -> None:
    model, seen = bridge_of("gpt2"), []

    def look(tensor: torch.Tensor, hook: Any) -> None:
        seen.append(hook.name)

    def enters_a_block(name: str) -> bool:
        return name.endswith(("hook_resid_pre", "hook_in")) and name.count(".") == 2

    both = logits(model, [(SITE, alone), ("blocks.{block}.hook_resid_pre", look)])
    assert seen == [f"blocks.{b}.hook_in" for b in range(3)]
    assert torch.equal(logits(model, (SITE, alone)), both)
    seen.clear()
    logits(model, (enters_a_block, look))
    assert set(seen) == {f"blocks.{b}.hook_in" for b in range(3)}
    assert len(seen) % 3 == 0


RETURNS: dict[str, Callable[[torch.Tensor], Any]] = {
    "text": lambda t: "x",
    "array": lambda t: t.detach().numpy(),
    "shape": lambda t: t[:, :-1],
    "dtype": lambda t: t.double(),
}


@pytest.mark.parametrize("what", list(RETURNS))
def test_what_a_function_returns_is_checked(
    what: str, bridge_of: Callable[..., Any]
) -> None:
    with (
        pytest.raises(InputError),
        sl.applied(bridge_of("llama"), (SITE, RETURNS[what])) as model,
    ):
        sl.path_bound(model, IDS)


def test_nan_is_refused(tiny: Any, bridge_of: Callable[..., Any]) -> None:
    spoil = ("blocks.1.attn.hook_z", lambda z, hook: z * float("nan"))
    model = bridge_of("llama")
    for under in (sl.applied(model, spoil), model.hooks(fwd_hooks=[spoil])):
        with pytest.raises(SquashlensError), under:
            sl.jacobian_norms(model, IDS)
    blind = ("blocks.1.attn.hook_attn_scores", lambda s, hook: s.fill_(-torch.inf))
    task = sl.tasks.find("taught_count_bernoulli")
    with pytest.raises(SquashlensError), tiny.hooks(fwd_hooks=[blind]):
        sl.evaluate_task(tiny, task, lengths=[4], seeds=1)


def test_a_function_may_write_to_what_it_gets(bridge_of: Callable[..., Any]) -> None:
    """To the pattern, though the softmax's derivative needs it as it was; to a denominator, whose norm is cached."""
    model, heads = bridge_of("llama"), torch.tensor([1.0, 0, 1, 1])[:, None, None]
    site = "blocks.1.attn.hook_pattern"
    with sl.applied(model, (site, lambda pattern: pattern * heads)):
        expected = sl.jacobian_norms(model, IDS)
    with sl.applied(model, (site, lambda pattern: pattern.mul_(heads))):
        np.testing.assert_allclose(sl.jacobian_norms(model, IDS), expected, rtol=1e-6)
    site = "blocks.1.ln1.hook_scale"
    with sl.applied(model, (site, lambda scale: scale * 2)):
        expected = logits(model)
    written = logits(model, (site, lambda scale: scale.mul_(2)))
    torch.testing.assert_close(written, expected)
    assert not torch.allclose(logits(model), expected)


def halving(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def hook(z: torch.Tensor) -> torch.Tensor:
        return z * factor

    return hook


def test_captures_and_resumed_files_are_for_the_function(
    tiny: Any, tmp_path: Path
) -> None:
    """Of its code and what it closes over; its name is the same."""
    prompt = "How many ones are in the following sequence? 110 ="
    task, where = sl.tasks.find("taught_count_bernoulli"), tmp_path / "a.sqlite"

    def evaluate(hook: Callable[..., Any]) -> Any:
        with sl.applied(tiny, (SITE, hook)):
            return sl.evaluate_task(tiny, task, lengths=[4], seeds=1, resume=where)

    hook = halving(0.5)
    with sl.applied(tiny, (SITE, hook)):
        captured = sl.capture(tiny, prompt)
        first = sl.path_bound(tiny, captured)
    with sl.applied(tiny, (SITE, hook)):
        np.testing.assert_array_equal(sl.path_bound(tiny, captured), first)
    stale = pytest.raises(StaleCaptureError)
    with sl.applied(tiny, (SITE, halving(0.25))), stale:
        sl.path_bound(tiny, captured)
    assert evaluate(halving(0.5)).identical(evaluate(halving(0.5)))
    for other in (halving(0.25), functools.partial(scaled, factor=0.5)):
        with pytest.raises(InputError):
            evaluate(other)


def test_a_function_sees_the_token_ids_of_its_pass(tiny: Any) -> None:
    """An edit at all tokens of one id, found in the pass, is the edit at their positions."""
    sequence = sl.prompts.repeated(tiny, "1", 12)
    one = sequence.content[0]
    ids = torch.tensor(sequence.pair(5).v)
    site = "blocks.2.attn.hook_z"

    def zero_at_ones(z: torch.Tensor, hook: Any) -> torch.Tensor:
        here = (hook.ctx["token_ids"] == one).to(z.device)
        return z.masked_fill(here[..., None, None], 0.0)

    def zero_at_their_places(z: torch.Tensor) -> torch.Tensor:
        return z.masked_fill((ids == one)[None, :, None, None], 0.0)

    with sl.applied(tiny, (site, zero_at_their_places)):
        expected = sl.path_bound(tiny, ids)
    with sl.applied(tiny, (site, zero_at_ones)):
        found = sl.path_bound(tiny, ids)
        assert sl.collapse(tiny, sequence)["distance"].notnull().all()
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, sl.path_bound(tiny, ids))
    assert "token_ids" not in tiny.hook_dict[site].ctx
