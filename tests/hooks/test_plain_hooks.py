"""Hooks as TransformerLens users write them: both signatures, pairs, lists, filters; what functions may return."""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens import hook_points

import squashlens as sl
from squashlens.errors import (
    BusyModelError,
    InputError,
    SquashlensError,
    StaleCaptureError,
    UnsoundModelError,
)
from squashlens.model.proof import opened
from tests.hooks.passes import IDS, logits
from tests.references import raw

SITE = "blocks.1.attn.hook_z"


def alone(z: torch.Tensor) -> torch.Tensor:
    return z * 0.5


def as_in_transformer_lens(z: torch.Tensor, hook: Any) -> torch.Tensor:
    assert isinstance(hook, hook_points.HookPoint)
    assert hook.layer() == 1
    return z * 0.5


def scaled(z: torch.Tensor, hook: Any, factor: float) -> torch.Tensor:
    return z * factor


class Halves:
    def __call__(self, z: torch.Tensor, hook: Any) -> torch.Tensor:
        return z * 0.5

    def half(self, z: torch.Tensor) -> torch.Tensor:
        return z * 0.5


class Half(torch.nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z * 0.5


WAYS: dict[str, Callable[..., Any]] = {
    "alone": alone,
    "as_in_transformer_lens": as_in_transformer_lens,
    "scaled": functools.partial(scaled, factor=0.5),
    "test_both_signatures_do_what_transformer_lens_does.<locals>.<lambda>": lambda z, **_: (
        z * 0.5
    ),
    "Halves": Halves(),
    "Halves.half": Halves().half,
    "Half": Half(),
}


def count(model: Any) -> list[int]:
    """Hooks on every module, on PyTorch's level and on TransformerLens's."""
    places = [p for m in (model, model.original_model) for p in m.modules()] + list(
        model.hook_dict.values()
    )
    kinds = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
    )
    return [
        len(getattr(place, kind, ()))
        for place in places
        for kind in (*kinds, "fwd_hooks", "bwd_hooks")
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("way", list(WAYS))
def test_both_signatures_do_what_transformer_lens_does(
    way: str, bridge_of: Callable[..., Any]
) -> None:
    model, function = bridge_of("llama"), WAYS[way]
    plain, before = logits(model), count(model)
    expected = model.run_with_hooks(
        IDS, fwd_hooks=[(SITE, lambda z, hook: z * 0.5)], use_cache=False
    )
    before = count(model)
    for given in (
        (SITE, function),
        sl.hooks.Hook("mine", SITE, function),
        [(SITE, function)],
    ):
        with sl.applied(model, given):
            assert torch.equal(logits(model), expected)
            found = sl.path_bound(model, IDS)
        named = sl.results.provenance(found)["ambient_hooks"]
        name = "<lambda>" if "lambda" in way else way
        assert named == [
            f"{SITE}: {'mine' if isinstance(given, sl.hooks.Hook) else name}"
        ]
        assert count(model) == before
    assert not torch.equal(expected, plain)
    assert torch.equal(logits(model), plain)


def test_lists_and_filters(bridge_of: Callable[..., Any]) -> None:
    """A filter is asked about every name; each point is taken once, however many of its names it is true of."""
    model, seen = bridge_of("gpt2"), []

    def look(tensor: torch.Tensor, hook: Any) -> None:
        seen.append(hook.name)

    both = logits(model, [(SITE, alone), ("blocks.{block}.hook_resid_pre", look)])
    assert seen == [f"blocks.{b}.hook_in" for b in range(3)]
    assert torch.equal(logits(model, (SITE, alone)), both)
    seen.clear()
    with sl.applied(
        model,
        (
            lambda name: (
                name.endswith(("hook_resid_pre", "hook_in")) and name.count(".") == 2
            ),
            look,
        ),
    ):
        logits(model)
        named = sl.results.provenance(sl.top_tokens(model, IDS))["ambient_hooks"]
    assert set(seen) == {f"blocks.{b}.hook_in" for b in range(3)}
    assert len(named) == 3
    with pytest.raises(InputError, match="accepts no hook point"):
        logits(model, (lambda name: False, look))
    near = r"no hook point 'blocks.1.attn.hook_zz'. Did you mean 'blocks.1.attn.hook_z'"
    with pytest.raises(InputError, match=near):
        logits(model, ("blocks.1.attn.hook_zz", look))


@pytest.mark.parametrize(
    "function",
    [lambda: 0, lambda a, b: a, lambda a, b, c: a, lambda *, tensor, hook: tensor],
    ids=["nothing", "another name", "three", "by name only"],
)
def test_other_signatures_are_refused(
    function: Any, bridge_of: Callable[..., Any]
) -> None:
    with pytest.raises(
        InputError,
        match=r"mine: a hook is called as fn\(tensor\) or fn\(tensor, hook=…\)",
    ):
        sl.hooks.Hook("mine", SITE, function)
    with (
        pytest.raises(InputError, match="but this function takes"),
        sl.applied(bridge_of("llama"), (SITE, function)),
    ):
        pass


@pytest.mark.parametrize(
    "given",
    [
        3,
        None,
        "freeze_attention",
        (SITE, 3),
        (SITE,),
        {SITE: alone},
        (SITE, alone, "fwd"),
        alone,
        [[SITE, alone]],
    ],
)
def test_what_is_no_hook_is_refused(given: Any, bridge_of: Callable[..., Any]) -> None:
    model = bridge_of("llama")
    before = count(model)
    unchecked = contextlib.contextmanager(raw(sl.applied))
    with (
        pytest.raises(InputError, match="is not a hook|Give a function"),
        unchecked(model, given),
    ):
        pass
    assert count(model) == before


RETURNS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "writes nan": (
        lambda t: t.index_fill_(1, torch.tensor([0]), torch.nan),
        "left NaN in the tensor that it wrote to",
    ),
    "text": (lambda t: "x", "returned a str, not a tensor"),
    "array": (lambda t: t.detach().numpy(), "returned a ndarray, not a tensor"),
    "shape": (
        lambda t: t[:, :-1],
        r"returned a tensor of shape .*, but got one of shape \(1, ",
    ),
    "dtype": (
        lambda t: t.double(),
        "returned a tensor of dtype float64, but got one of dtype float32",
    ),
    "nan": (lambda t: t * float("nan"), "returned NaN, but got numbers"),
    "one nan": (
        lambda t: torch.where(t == t.max(), torch.nan, t),
        "returned NaN, but got numbers",
    ),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("what", list(RETURNS))
@pytest.mark.parametrize("site", [SITE, "blocks.1.attn.hook_attn_scores"])
def test_what_a_function_returns_is_checked(
    what: str, site: str, bridge_of: Callable[..., Any]
) -> None:
    """Also of one that a user hung with `model.hooks`, in every kind of pass."""
    model, (function, complaint) = bridge_of("llama"), RETURNS[what]

    def spoiled(tensor: torch.Tensor, hook: Any) -> Any:
        return function(tensor)

    before = count(model)
    for given in (sl.hooks.Hook("mine", site, spoiled), (site, spoiled)):
        name = "mine" if isinstance(given, sl.hooks.Hook) else "spoiled"
        for call in (logits, lambda model: sl.path_bound(model, IDS)):
            with (
                pytest.raises(
                    InputError, match=f"The hook .*{name} at {site} {complaint}"
                ),
                sl.applied(model, given),
            ):
                call(model)
    for measure in (sl.jacobian_norms, sl.capture):
        refused = pytest.raises(
            InputError,
            match=f"spoiled at .* {complaint}|failed with its hooks .*spoiled",
        )
        with refused, model.hooks(fwd_hooks=[(site, spoiled)]):
            measure(model, IDS)
    assert count(model) == before


def test_an_answer_of_nan_is_refused(tiny: Any) -> None:
    blind = ("blocks.1.attn.hook_attn_scores", lambda s, hook: s.fill_(-torch.inf))
    with (
        pytest.raises(SquashlensError, match="computes NaN .*<lambda>"),
        tiny.hooks(fwd_hooks=[blind]),
    ):
        sl.evaluate(tiny, sl.tasks.find("taught_count_bernoulli"), lengths=[4], seeds=1)


@pytest.mark.parametrize("measure", [sl.path_bound, sl.jacobian_norms])
def test_nan_is_not_blamed_on_the_hooks_that_measure(
    measure: Any, bridge_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may leave the range of float16, whose user has hung no hook."""
    model = bridge_of("llama")
    measure(model, IDS)  # what is proved at first use
    monkeypatch.setattr("squashlens.run.forward.has_nan", lambda _: torch.tensor(True))
    with pytest.raises(
        UnsoundModelError, match=r"computes NaN on this prompt\. Load the model again"
    ):
        measure(model, IDS)
    blamed = pytest.raises(
        UnsoundModelError, match="with the hooks [^;]*alone. Correct the hooks"
    )
    with blamed, sl.applied(model, (SITE, alone)):
        measure(model, IDS)


def test_a_function_may_write_to_the_pattern_that_it_gets(
    bridge_of: Callable[..., Any],
) -> None:
    """Where derivatives are taken too, though the softmax's needs the pattern as it was."""
    model, site, heads = (
        bridge_of("llama"),
        "blocks.1.attn.hook_pattern",
        torch.tensor([1.0, 0, 1, 1])[:, None, None],
    )
    with sl.applied(model, (site, lambda pattern: pattern * heads)):
        expected = sl.jacobian_norms(model, IDS)
    with model.hooks(fwd_hooks=[(site, lambda pattern, hook: pattern.mul_(heads))]):
        np.testing.assert_allclose(sl.jacobian_norms(model, IDS), expected, rtol=1e-6)


def test_what_a_function_writes_to_the_denominator_of_a_norm_takes_effect(
    bridge_of: Callable[..., Any],
) -> None:
    """The bridge compares which tensor comes back, and would go on without the edit."""
    model, site = bridge_of("llama"), "blocks.1.ln1.hook_scale"
    with sl.applied(model, (site, lambda scale: scale * 2)):
        expected, bound = logits(model), sl.path_bound(model, IDS)
    torch.testing.assert_close(
        logits(model, (site, lambda scale: scale.mul_(2))), expected
    )
    assert not torch.allclose(logits(model), expected)
    with model.hooks(fwd_hooks=[(site, lambda scale, hook: scale.mul_(2))]):
        np.testing.assert_allclose(sl.path_bound(model, IDS), bound, rtol=1e-5)
    assert abs(sl.path_bound(model, IDS) / bound - 1).max() > 1e-3


def test_a_function_that_fails_is_named(bridge_of: Callable[..., Any]) -> None:
    """Hung by TransformerLens, a function of the tensor alone cannot be called; the error says which it is."""
    model = bridge_of("llama")
    refused = pytest.raises(
        InputError, match=r"failed with its hooks \(.*: alone\): TypeError"
    )
    with refused, model.hooks(fwd_hooks=[(SITE, alone)]):
        sl.jacobian_norms(model, IDS)
    refused = pytest.raises(
        InputError, match="failed with its hooks .*<lambda>.*: IndexError"
    )
    with (
        refused as caught,
        sl.applied(model, ("blocks.1.hook_resid_pre", lambda t: t[[][0]])),
    ):
        sl.path_bound(model, IDS)
    assert isinstance(caught.value.__cause__, IndexError)
    with sl.applied(model, ("blocks.2.hook_resid_pre", lambda t: t.detach())):
        with pytest.raises(
            InputError,
            match="failed with its hooks .*<lambda>.*: RuntimeError: .*not require grad",
        ):
            sl.jacobian_norms(model, IDS)
        with (
            pytest.raises(RuntimeError, match="^My table does not require grad"),
            opened(model),
        ):
            raise RuntimeError(
                "My table does not require grad."
            )  # in a function that is no hook


def test_captures_and_resumed_files_are_for_the_function(
    tiny: Any, tmp_path: Path
) -> None:
    def hook(z: torch.Tensor) -> torch.Tensor:
        return z * 0.5

    def another(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
        def hook(z: torch.Tensor) -> torch.Tensor:
            return z * factor

        hook.__qualname__ = (
            "test_captures_and_resumed_files_are_for_the_function.<locals>.hook"
        )
        return hook

    prompt = "How many ones are in the following sequence? 110 ="
    with sl.applied(tiny, (SITE, hook)):
        held = sl.capture(tiny, prompt)
        first = sl.path_bound(tiny, held)
    with sl.applied(tiny, (SITE, hook)):
        np.testing.assert_array_equal(sl.path_bound(tiny, held), first)
    with sl.applied(tiny, (SITE, another(0.25))):
        assert sl.results.provenance(sl.path_bound(tiny, prompt))[
            "ambient_hooks"
        ] == list(held.ambient_hooks)
        with pytest.raises(StaleCaptureError, match="other hooks"):
            sl.path_bound(tiny, held)

    def evaluate(hook: Callable[..., Any]) -> Any:
        task, where = sl.tasks.find("taught_count_bernoulli"), tmp_path / "a.sqlite"
        with sl.applied(tiny, (SITE, hook)):
            return sl.evaluate(tiny, task, lengths=[4], seeds=1, resume=where)

    first = evaluate(another(0.5))
    assert evaluate(another(0.5)).identical(
        first
    )  # another function with the same code, and the same factor
    with pytest.raises(InputError, match="was saved for a different .*hook_functions"):
        evaluate(another(0.25))
    with pytest.raises(InputError, match="was saved for a different .*hook_functions"):
        evaluate(functools.partial(scaled, factor=0.5))


def test_hooks_that_are_taken_off_in_mid_pass_are_refused(
    bridge_of: Callable[..., Any],
) -> None:
    """By the hook function itself, and in the body; TransformerLens's own contexts take off their own hooks alone."""
    model = bridge_of("llama")
    before = count(model)

    def reset(tensor: torch.Tensor) -> torch.Tensor:
        model.reset_hooks()
        return tensor

    taken = pytest.raises(
        InputError, match="was removed from the model while it was in use.*reset_hooks"
    )
    with (
        pytest.raises(
            BusyModelError, match="Hooks were added to the model, or removed"
        ),
        sl.applied(model, ("blocks.1.hook_resid_pre", reset)),
    ):
        sl.top_tokens(model, IDS)
    with taken, sl.applied(model, sl.hooks.zero_residual([1])):
        model.reset_hooks()
    assert count(model) == before
    with sl.applied(model, sl.hooks.zero_residual([1])):
        model.run_with_hooks(IDS, fwd_hooks=[(SITE, lambda tensor, hook: tensor)])
        with model.hooks(fwd_hooks=[(SITE, lambda tensor, hook: tensor)]):
            model.run_with_cache(IDS)
        model.generate(IDS, max_new_tokens=1, use_past_kv_cache=False, verbose=False)


def test_token_ids_are_no_activations(bridge_of: Callable[..., Any]) -> None:
    model = bridge_of("gpt2")
    for where in ("embed.hook_in", lambda name: name.startswith("embed.")):
        refused = pytest.raises(
            InputError,
            match="'embed.hook_in' is not an activation but token ids.*leave it out",
        )
        with refused, sl.applied(model, (where, lambda tensor, hook: None)):
            pass


def test_a_function_sees_the_token_ids_of_its_pass(tiny: Any) -> None:
    """Positions of a token, such as a separator, need no guess: the hook of squashlens is told where they are."""
    sequence = sl.prompts.repeated(tiny, "1", 12)
    one = sequence.content[0]
    site = "blocks.2.attn.hook_z"

    def zero_at_ones(z: torch.Tensor, hook: Any) -> torch.Tensor:
        here = (hook.ctx["token_ids"] == one).to(z.device)
        assert here.shape == z.shape[:2]
        return z.masked_fill(here[..., None, None], 0.0)

    def zero_at(places: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
        def zero(z: torch.Tensor) -> torch.Tensor:
            z = z.clone()
            z[:, places] = 0
            return z

        return zero

    ids = sequence.plain(5).ids(sequence.trunk)
    places = [place for place, token in enumerate(ids) if token == one]
    with sl.applied(tiny, (site, zero_at(places))):
        expected = sl.path_bound(tiny, torch.tensor(ids))
    plain = sl.path_bound(tiny, torch.tensor(ids))
    with sl.applied(tiny, (site, zero_at_ones)):
        found = sl.path_bound(tiny, torch.tensor(ids))
        far = sl.collapse(tiny, sequence)["distance"]
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, plain)
    assert far.notnull().all()
    assert "token_ids" not in tiny.hook_dict[site].ctx
