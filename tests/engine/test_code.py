"""The code that a forward pass runs: replaced functions of libraries are named, and no capture outlives them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers.activations
from transformers.models.gemma3 import modeling_gemma3

import squashlens as sl
from squashlens.engine.proving.fingerprint import Walk, code_of
from squashlens.engine.proving.registry import code_in
from squashlens.errors import StaleCaptureError
from tests.cases import CONFIGS, MORE, few

IDS = torch.tensor([[3, 5, 7, 5, 9]])
REPLACED: dict[str, tuple[str, Any, str]] = {
    "activation": ("gemma3", transformers.activations.GELUTanh, "forward"),
    "norm": ("gemma3", modeling_gemma3.Gemma3RMSNorm, "forward"),
    "softmax": ("llama", F, "softmax"),
    "silu": ("llama", F, "silu"),
    "a module of PyTorch": ("llama", torch.nn.Linear, "forward"),
    "a method of tensors": ("llama", torch.Tensor, "pow"),
}


def slightly(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with other numbers."""

    def replaced(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return tuple(one * 1.01 for one in found) if isinstance(found, tuple) else found * 1.01

    return replaced


DAILY = ("norm", "softmax", "a module of PyTorch")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in DAILY else pytest.mark.slow) for n in REPLACED])
def test_a_capture_does_not_outlive_a_replaced_function(
    name: str, bridge_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both directions, and a function that is put back makes it valid again."""
    family, where, attribute = REPLACED[name]
    model = bridge_of(family)
    before, digest = sl.capture(model, IDS), code_in(model).digest
    plain = sl.path_bound(model, before)
    with monkeypatch.context() as patch:
        patch.setattr(where, attribute, slightly(getattr(where, attribute)))
        changed = code_of(Walk.over(model))
        assert changed.digest != digest
        assert any(attribute in one and "slightly" in one for one in changed.replaced)
        if sl.capture(model, IDS).digest == before.digest:
            pytest.skip("this family does not call it")
        with pytest.raises(StaleCaptureError, match="other activations"):
            sl.path_bound(model, before)
        under = sl.capture(model, IDS)
        assert sl.results.provenance(sl.path_bound(model, under))["replaced_functions"]
    if not isinstance(where, type(torch)) or attribute in vars(where):
        with pytest.raises(StaleCaptureError, match="other activations"):
            sl.path_bound(model, under)
        assert sl.path_bound(model, before).identical(plain)


def test_a_function_with_the_same_results_leaves_a_capture_valid(
    bridge_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that counts calls: one pass shows that the numbers are the same."""
    model, calls = bridge_of("llama"), []
    held, silu = sl.capture(model, IDS), F.silu
    plain = sl.path_bound(model, held)
    monkeypatch.setattr(F, "silu", lambda *args, **kwargs: (calls.append(1), silu(*args, **kwargs))[1])
    assert sl.path_bound(model, held).equals(plain)
    assert calls


@pytest.mark.parametrize("family", few([*CONFIGS, *MORE]))
def test_libraries_as_they_are_have_nothing_replaced(family: str, bridge_of: Any) -> None:
    assert code_of(Walk.over(bridge_of(family))).replaced == ()
