"""Captures equal the plain model's own tensors, keep what is chosen, and are refused when stale."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError, StaleCaptureError
from tests.cases import CONFIGS, FAMILIES, few, random_model, save_random
from tests.references import plain_outputs

IDS = torch.tensor([[2, 7, 11, 30, 7, 7, 59, 4, 21]])


@pytest.mark.few(1)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_equals_the_plain_model(family: str, bridge_of: Callable[..., Any]) -> None:
    run = sl.capture(bridge_of(family), IDS)
    plain = random_model(CONFIGS[family])
    with torch.no_grad():
        truth = plain_outputs(plain, IDS)
    for layer in range(3):
        torch.testing.assert_close(
            run.residuals[layer], truth.hidden_states[layer], rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(
            run.patterns[layer], truth.attentions[layer], rtol=1e-5, atol=1e-6
        )
    assert run.y is not None
    torch.testing.assert_close(run.y, truth.hidden_states[-1], rtol=1e-5, atol=1e-5)
    # v⁽ᴸ⁾ is not among the plain model's hidden states: the final norm of it is y.
    norm = plain.transformer.ln_f if family == "gpt2" else plain.model.norm
    with torch.no_grad():
        torch.testing.assert_close(norm(run.residuals[3]), run.y, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(run.residuals[3], run.residuals[2], atol=1e-2)


def test_choice_of_layers(tiny: Any) -> None:
    run = sl.capture(tiny, "110 =", layers=[2, 6], keep=("residuals", "patterns"))
    assert sorted(run.residuals) == [2, 6]
    assert sorted(run.patterns) == [2]
    only = sl.capture(tiny, "110 =", keep="patterns", layers=[1])
    assert only.residuals == {}
    assert only.y is None
    assert sorted(only.patterns) == [1]
    refused: list[dict[str, Any]] = [{"layers": [7]}, {"layers": []}, {"keep": ()}]
    for options in refused:
        with pytest.raises(InputError):
            sl.capture(tiny, "110 =", **options)


def test_stale_captures_are_refused(tmp_path: Path) -> None:
    model = sl.load(save_random(CONFIGS["gemma"], tmp_path))
    run = sl.capture(model, IDS)
    fresh = sl.path_bound(model, IDS)
    np.testing.assert_allclose(sl.path_bound(model, run), fresh, rtol=1e-6)
    for hook in (sl.hooks.freeze_attention(), sl.hooks.mask_tokens([1])):
        with sl.applied(model, hook), pytest.raises(StaleCaptureError):
            sl.path_bound(model, run)
        with sl.applied(model, hook):
            under_it = sl.capture(model, IDS)
            np.testing.assert_allclose(
                sl.path_bound(model, under_it), sl.path_bound(model, IDS), rtol=1e-6
            )
    np.testing.assert_allclose(sl.path_bound(model, run), fresh, rtol=1e-6)


def test_a_capture_of_some_layers_stands_for_its_prompt(tiny: Any) -> None:
    run = pickle.loads(pickle.dumps(sl.capture(tiny, "110 =", layers=[0, 3, 6])))  # noqa: S301
    kept = run.to_xarray()
    assert kept["layer"].values.tolist() == [0, 3, 6]
    np.testing.assert_array_equal(kept["residual"].sel(layer=3), run.residuals[3])
    np.testing.assert_array_equal(kept["pattern"].sel(block=3), run.patterns[3])
    np.testing.assert_array_equal(
        sl.jacobian_norms(tiny, run), sl.jacobian_norms(tiny, "110 =")
    )
    with pytest.raises(InputError):
        sl.path_bound(tiny, run)
    expected = sl.path_bound(tiny, "110 =", from_layer=3, to_layer=4)
    np.testing.assert_allclose(
        sl.path_bound(tiny, run, from_layer=3, to_layer=4), expected, rtol=1e-6
    )


def test_it_answers_as_a_cache_of_transformer_lens_does(tiny: Any) -> None:
    held = sl.capture(tiny, "110 =")
    _, cache = tiny.run_with_cache(held.ids)
    for name in (
        "blocks.0.hook_resid_pre",
        "blocks.5.hook_resid_post",
        "blocks.3.attn.hook_pattern",
        "ln_final.hook_out",
    ):
        torch.testing.assert_close(held[name], cache[name], rtol=1e-5, atol=1e-5)
    assert repr(held) == (
        "<Capture of 1 prompt of 5 tokens: residual streams of 7 layers and y; patterns of 6 blocks>"
    )
    with pytest.raises(InputError):
        held["blocks.0.attn.hook_z"]
    with pytest.raises(InputError):
        sl.capture(tiny, "110 =", layers=[2])["blocks.0.hook_resid_pre"]
