"""No public call alters the model: weights, dtypes, modes, gradients, hooks, device; nor the process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from tests import captured
from tests.references import fingerprint, process_state

PROMPT = "How many ones are in the following sequence? 1101 ="
ONES = sl.tasks.find("taught_count_bernoulli")
CALLS: dict[str, Callable[[Any], Any]] = {
    "tokens": lambda m: sl.prompts.tokenize(m, PROMPT),
    "capture": lambda m: sl.capture(m, PROMPT),
    "path_bound": lambda m: sl.path_bound(m, PROMPT),
    "path_bound_measured": lambda m: sl.path_bound(m, "0 =", constants="measured", freeze="norms", progress=False),
    "path_bound_exact": lambda m: sl.path_bound(
        m, "0 =", constants="measured", edges="exact", n_composed=3, progress=False
    ),
    "substitution": lambda m: sl.substitution_effect(m, PROMPT, n_replacements=1, progress=False),
    "audit": lambda m: sl.audit(
        m, "0 =", estimates=["sketch", "top-logit"], n_probes=2, n_replacements=2, progress=False
    ),
    "null": lambda m: sl.path_bound(m, PROMPT, attention="uniform"),
    "composition": lambda m: sl.paths.composition(m, PROMPT),
    "jacobian": lambda m: sl.jacobian_norms(m, PROMPT, progress=False),
    "blocks": lambda m: sl.jacobian(m, "110 =", positions=[3], progress=False),
    "jacobian_frozen": lambda m: sl.jacobian_norms(m, PROMPT, freeze="attention", progress=False),
    "sensitivity": lambda m: sl.sensitivity(m, "110 =", progress=False),
    "top_tokens": lambda m: sl.top_tokens(m, PROMPT),
    "collapse": lambda m: captured.collapse(
        m, commas(m), by_head="value", baselines=["unrelated"], noise_lengths=1, progress=False
    ),
    "mechanism": lambda m: captured.mechanism(m, commas(m), progress=False),
    "separator_ablation": lambda m: sl.separator_ablation(
        m, commas(m), from_blocks=[1], lengths=[5], noise_lengths=1, progress=False
    ),
    "evaluate": lambda m: sl.evaluate(m, ONES, lengths=[3, 5], seeds=2, temperature=1.0, progress=False),
    "collapse_vs_readout": lambda m: sl.collapse_vs_readout(m, ONES, lengths=[8], seeds=8, progress=False),
    "shares_and_counts": lambda m: sl.statements.shares_and_counts(m),
    "refused": lambda m: refused(m),
}


def commas(model: Any) -> sl.prompts.GrowingSequence:
    return sl.prompts.repeated(model, "1", 5, separator=",", every=2)


def refused(model: Any) -> None:
    with pytest.raises(InputError):
        sl.path_bound(model, PROMPT, query=99)


def look(tensor: torch.Tensor, hook: Any) -> None:
    """A user's hook that only looks."""


# Beside a hook of the user's, which most measurements treat alike.
AMBIENT = ("path_bound", "path_bound_measured", "jacobian", "collapse", "separator_ablation", "evaluate", "refused")


@pytest.mark.parametrize(
    ("name", "ambient"),
    [
        pytest.param(name, ambient, marks=pytest.mark.slow if ambient and name not in AMBIENT else ())
        for name in CALLS
        for ambient in (False, True)
    ],
)
def test_model_and_process_are_as_before(tiny: Any, name: str, ambient: bool) -> None:
    if ambient:
        tiny.add_hook("blocks.0.hook_resid_pre", look)
    try:
        before, logits = fingerprint(tiny), tiny(sl.prompts.tokenize(tiny, PROMPT))
        process = process_state()
        CALLS[name](tiny)
        assert process_state() == process
        assert fingerprint(tiny) == before
        torch.testing.assert_close(tiny(sl.prompts.tokenize(tiny, PROMPT)), logits, rtol=0, atol=0)
    finally:
        tiny.reset_hooks()


def test_applied_restores_after_an_exception(tiny: Any) -> None:
    before, logits = fingerprint(tiny), tiny(sl.prompts.tokenize(tiny, PROMPT))
    shout = sl.hooks.Hook("zero", "blocks.{block}.attn.hook_pattern", lambda p: p * 0)

    def interrupted() -> None:
        with sl.applied(tiny, shout, sl.hooks.freeze_attention()):
            assert not torch.equal(tiny(sl.prompts.tokenize(tiny, PROMPT)), logits)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        interrupted()
    assert fingerprint(tiny) == before
    assert torch.equal(tiny(sl.prompts.tokenize(tiny, PROMPT)), logits)


def test_hooks_are_refused_where_they_cannot_go(tiny: Any) -> None:
    before = fingerprint(tiny)
    hooks = (sl.hooks.freeze_attention(), sl.hooks.Hook("lost", "blocks.0.nowhere", lambda t: t))
    with pytest.raises(InputError, match="no hook point"), sl.applied(tiny, *hooks):
        pass
    with pytest.raises(InputError, match="block 6"), sl.applied(tiny, sl.hooks.freeze_attention(blocks=(6,))):
        pass
    assert fingerprint(tiny) == before
