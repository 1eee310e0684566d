"""A TransformerLens user's notebook: an own bridge, `run_with_cache`, own hooks, patching, then every measurement."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import squashlens as sl
from tests import captured
from tests.references import fingerprint

PROMPT, OTHER = (
    "How many ones are in the following sequence? 1101 =",
    "How many ones are in the following sequence? 1001 =",
)
QUIET: dict[str, Any] = {"progress": False}


def halve(z: torch.Tensor, hook: Any) -> torch.Tensor:
    return z / 2


def nudge(z: torch.Tensor) -> torch.Tensor:
    return z * 1.01


def hooks_on(model: Any) -> dict[str, int]:
    """Hooks on every module, whoever hung them."""
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    named = [*model.named_modules(), *model.original_model.named_modules(), *model.hook_dict.items()]
    return {f"{name} {table}": len(getattr(module, table)) for name, module in named for table in tables}


def state(model: Any) -> tuple[Any, ...]:
    return fingerprint(model), hooks_on(model), model.original_model.config._attn_implementation


@pytest.fixture(scope="module")
def own() -> Any:
    """A bridge that squashlens has not loaded, after a user's first lines."""
    model = TransformerBridge.boot_transformers(str(sl.zoo.folder("tiny-gemma")), device="cpu")
    model.eval()
    return model


def ones(model: Any) -> Any:
    return sl.prompts.repeated(model, "1", 6, prefix="How many ones are in the following sequence?", suffix="=")


TASK = "taught_count_bernoulli"
VERBS: dict[str, Callable[[Any], Any]] = {
    "path_bound": lambda m: sl.path_bound(m, PROMPT),
    "certified": lambda m: sl.path_bound(m, "110 =", constants="measured", edges="exact", **QUIET),
    "composition": lambda m: sl.paths.composition(m, PROMPT),
    "jacobian_norms": lambda m: sl.jacobian_norms(m, PROMPT, **QUIET),
    "jacobian": lambda m: sl.jacobian(m, "110 =", positions=[3], **QUIET),
    "sensitivity": lambda m: sl.sensitivity(m, PROMPT, **QUIET),
    "substitution_effect": lambda m: sl.substitution_effect(m, PROMPT, n_replacements=1, **QUIET),
    "profile": lambda m: sl.profile(m, "110 =", queries=[-1], n_random_models=0, **QUIET),
    "hops": lambda m: sl.paths.hops(m, PROMPT),
    "strongest_paths": lambda m: sl.paths.strongest_paths(m, PROMPT, k=3),
    "depth_limit": lambda m: sl.paths.depth_limit(m, PROMPT),
    "top_tokens": lambda m: sl.top_tokens(m, PROMPT),
    "capture": lambda m: sl.capture(m, PROMPT).to_xarray(),
    "audit": lambda m: sl.audit(m, "110 =", estimates=["sketch", "top-logit"], n_probes=2, **QUIET),
    "collapse": lambda m: captured.collapse(m, ones(m), lengths=[3, 6], **QUIET),
    "mechanism": lambda m: captured.mechanism(m, sl.prompts.repeated(m, "1", 6), lengths=[3, 6], **QUIET),
    "separator_ablation": lambda m: sl.separator_ablation(
        m, sl.prompts.repeated(m, "1", 6, separator=",", every=2), from_blocks=[1], lengths=[6], **QUIET
    ),
    "compare": lambda m: sl.compare(m, ones(m), {"own": ("blocks.2.attn.hook_z", halve)}, lengths=[6], **QUIET),
    "precision": lambda m: captured.precision(m, ones(m), lengths=[6], **QUIET),
    "accuracy": lambda m: sl.accuracy(m, [ones(m)], lambda digits: str(digits.count("1")), lengths=[6], **QUIET),
    "evaluate": lambda m: sl.evaluate(m, sl.tasks.find(TASK), lengths=[4], seeds=2, **QUIET),
    "shares_and_counts": lambda m: sl.statements.shares_and_counts(m, "10"),
    "tokenization": lambda m: sl.tokenization(m, 4),
}


def test_a_proof_leaves_nothing_on_a_bridge() -> None:
    """The bridge's first pass, whoever runs it, has the libraries hang hooks of theirs; squashlens adds none."""
    model = TransformerBridge.boot_transformers(str(sl.zoo.folder("tiny-gemma")), device="cpu").eval()
    model(torch.tensor([[2, 5, 6]]))
    before = state(model)
    result = sl.sensitivity(model, PROMPT, **QUIET)
    assert sl.results.provenance(result)["proof"] == "verified as it stands"
    assert state(model) == before


@pytest.mark.slow
def test_the_first_cells(own: Any) -> None:
    """`run_with_cache`, own hooks in every form and patching: squashlens says what TransformerLens computes."""
    ids = sl.prompts.tokenize(own, PROMPT)
    plain, cache = own.run_with_cache(ids)
    before = state(own)
    expected = own.run_with_hooks(ids, fwd_hooks=[("blocks.3.attn.hook_z", halve)])
    likeliest = expected[0, -1].softmax(dim=-1).max().item()
    ways = [
        sl.applied(own, ("blocks.3.attn.hook_z", halve)),
        sl.applied(own, [("blocks.3.attn.hook_z", lambda z: z / 2)]),
        sl.applied(own, (lambda name: name == "blocks.3.attn.hook_z", halve)),
        sl.applied(own, sl.hooks.Hook("halved", "blocks.3.attn.hook_z", halve)),
        own.hooks(fwd_hooks=[("blocks.3.attn.hook_z", halve)]),
    ]
    for way in ways:
        with way:
            found = sl.top_tokens(own, PROMPT, k=1)
            assert torch.equal(own(ids), expected)
        np.testing.assert_allclose(found.item(), likeliest, rtol=1e-5)
        assert len(sl.results.provenance(found)["ambient_hooks"]) == 1
        assert state(own) == before
    _, other = own.run_with_cache(sl.prompts.tokenize(own, OTHER))
    with sl.applied(own, sl.hooks.patch_residual(range(len(ids[0])), other, (5,))):
        patched = own(ids)
    torch.testing.assert_close(patched, own(sl.prompts.tokenize(own, OTHER)), rtol=0, atol=0)
    with sl.applied(own, sl.hooks.patch_heads(range(4), cache), sl.hooks.patch_residual([3], cache)):
        assert torch.equal(own(ids), plain)
    assert state(own) == before


# One for each way through the engine; the others, which are made of these, are slow tests.
WAYS = ("path_bound", "certified", "jacobian_norms", "substitution_effect", "hops", "top_tokens", "capture", "collapse",
        "separator_ablation", "compare", "precision", "accuracy", "evaluate")  # fmt: skip


@pytest.mark.parametrize("verb", [v if v in WAYS else pytest.param(v, marks=pytest.mark.slow) for v in VERBS])
def test_every_measurement_after_run_with_cache(own: Any, verb: str) -> None:
    """The same numbers as before it, and under own hooks too; nothing is left on the bridge."""
    own.run_with_cache(sl.prompts.tokenize(own, PROMPT))
    before = state(own)
    result = VERBS[verb](own)
    assert "nudge" not in str(sl.results.provenance(result))
    assert state(own) == before
    with sl.applied(own, ("blocks.1.attn.hook_z", nudge)):
        hooked = VERBS[verb](own)
    assert "nudge" in str(sl.results.provenance(hooked))
    assert state(own) == before
