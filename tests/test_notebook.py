"""A TransformerLens user's notebook: no public call alters the bridge, its hooks, or the process."""

from typing import Any

import pytest
import torch
import xarray as xr
from transformer_lens.model_bridge import TransformerBridge

import squashlens as sl
from squashlens.errors import InputError
from tests import measurements
from tests.references import fingerprint, process_state

PROMPT = "How many ones are in the following sequence? 1101 ="


def nudge(z: torch.Tensor) -> torch.Tensor:
    return z * 1.01


@pytest.fixture(scope="module")
def own() -> Any:
    """A bridge that squashlens has not loaded, after a user's first lines."""
    model = TransformerBridge.boot_transformers(
        str(sl.example_models.folder("tiny-gemma")), device="cpu"
    )
    model.eval()
    return model


def test_a_proof_leaves_nothing_on_a_bridge() -> None:
    """The bridge's first pass, whoever runs it, has the libraries hang hooks of theirs; squashlens adds none."""
    model = TransformerBridge.boot_transformers(
        str(sl.example_models.folder("tiny-gemma")), device="cpu"
    ).eval()
    model(torch.tensor([[2, 5, 6]]))
    before = fingerprint(model)
    result = sl.bound_vs_jacobian(model, PROMPT)
    assert sl.results.provenance(result)["proof"] == "verified as it stands"
    assert fingerprint(model) == before


# One for each way through the engine; the others, which are made of these, are slow tests.
DEFAULT = ("capture", "path_bound", "bound_vs_jacobian", "substitution_effect")


@pytest.mark.parametrize(
    "measurement",
    [
        m if m in DEFAULT else pytest.param(m, marks=pytest.mark.slow)
        for m in measurements.MEASUREMENTS
    ],
)
def test_model_and_process_are_as_before(own: Any, measurement: str) -> None:
    """After `run_with_cache` and under an own hook, which the provenance names."""
    ids = sl.prompts.tokenize(own, PROMPT)
    own.run_with_cache(ids)
    subject = measurements.bundled(own)
    with sl.applied(own, ("blocks.1.attn.hook_z", nudge)):
        before, process, logits = fingerprint(own), process_state(), own(ids)
        for call, result in measurements.calls(subject, measurement):
            assert fingerprint(own) == before, call
            assert process_state() == process, call
            of_a_model = isinstance(
                result, xr.Dataset | xr.DataArray
            ) and measurement not in ("runs", "synthetic")
            assert (
                not of_a_model
                or call == "splits"
                or "nudge" in str(sl.results.provenance(result))
            ), call
        assert torch.equal(own(ids), logits)


def test_hooks_come_off_after_an_exception(own: Any) -> None:
    ids = sl.prompts.tokenize(own, PROMPT)
    logits = own(ids)  # at whose first pass the libraries hang hooks of theirs
    before = fingerprint(own)
    zero = sl.hooks.Hook("zero", "blocks.{block}.attn.hook_pattern", lambda p: p * 0)

    def interrupted() -> None:
        with sl.applied(own, zero, sl.hooks.freeze_attention()):
            assert not torch.equal(own(ids), logits)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        interrupted()
    lost = sl.hooks.Hook("lost", "blocks.0.nowhere", lambda t: t)
    with pytest.raises(InputError), sl.applied(own, sl.hooks.freeze_attention(), lost):
        pass
    with pytest.raises(InputError):
        sl.path_bound(own, PROMPT, query=99)
    assert fingerprint(own) == before
    assert torch.equal(own(ids), logits)
