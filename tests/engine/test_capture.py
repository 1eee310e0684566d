"""Captures equal the plain model's own tensors, keep what is chosen, and are refused when stale."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

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
        torch.testing.assert_close(run.residuals[layer], truth.hidden_states[layer], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(run.patterns[layer], truth.attentions[layer], rtol=1e-5, atol=1e-6)
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
    refused = {"not a layer": {"layers": [7]}, "layers= is empty": {"layers": []}, "keep= is empty": {"keep": ()}}
    for complaint, options in refused.items():
        with pytest.raises(InputError, match=complaint):
            sl.capture(tiny, "110 =", **options)


def test_stale_captures_are_refused(tmp_path: Path) -> None:
    model = sl.load(save_random(CONFIGS["gemma"], tmp_path))
    run = sl.capture(model, IDS)
    fresh = sl.path_bound(model, IDS)
    np.testing.assert_allclose(sl.path_bound(model, run), fresh, rtol=1e-6)
    with sl.applied(model, sl.hooks.freeze_attention()):  # the same activations
        np.testing.assert_array_equal(sl.path_bound(model, run), sl.path_bound(model, run))
    with sl.applied(model, sl.hooks.mask_tokens([1])), pytest.raises(StaleCaptureError, match="hooks"):
        sl.path_bound(model, run)


def test_on_disk_it_is_the_same_and_stands_for_its_prompt(tmp_path: Path, tiny: Any) -> None:
    held = sl.capture(tiny, "110 =", layers=[0, 3, 6])
    run = sl.capture(tiny, "110 =", layers=[0, 3, 6], out=tmp_path / "run")
    again = sl.Capture.open(tmp_path / "run")
    for capture in (run, again):
        assert capture.to_xarray().identical(held.to_xarray())
        assert capture.ids.tolist() == held.ids.tolist()
    written = sorted(p.name for p in (tmp_path / "run").glob("residual*"))
    assert written == [f"residual_{k:03d}.safetensors" for k in (0, 3, 6)]
    np.testing.assert_array_equal(sl.jacobian_norms(tiny, again), sl.jacobian_norms(tiny, "110 ="))
    with pytest.raises(InputError, match="blocks .1, 2, 4, 5."):
        sl.path_bound(tiny, again)
    expected = sl.path_bound(tiny, "110 =", from_layer=3, to_layer=4)
    np.testing.assert_allclose(sl.path_bound(tiny, again, from_layer=3, to_layer=4), expected, rtol=1e-6)
    with pytest.raises(InputError, match="already"):
        sl.capture(tiny, "110 =", out=tmp_path / "run")
    with pytest.raises(InputError, match="no capture in"):
        sl.Capture.open(tmp_path)
    with pytest.raises(KeyError):
        again.residuals[1]


def rewritten(file: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    save_file({"tensor": change(load_file(file)["tensor"].clone()).contiguous()}, file)


def nudged(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(-1)[7] = torch.nextafter(tensor.view(-1)[7], torch.tensor(torch.inf))
    return tensor


DAMAGES: dict[str, Callable[[Path], object]] = {
    "two heads exchanged": lambda file: rewritten(file, lambda tensor: tensor[:, [1, 0, 2, 3]]),
    "half precision": lambda file: rewritten(file, torch.Tensor.bfloat16),
    "one unit in the last place": lambda file: rewritten(file, nudged),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-8]),
    "removed": lambda file: file.unlink(),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("damage", DAMAGES)
def test_tensors_that_were_changed_are_refused(damage: str, tmp_path: Path, tiny: Any) -> None:
    """Each gave numbers, or an error of another library, when only the file's name was looked at."""
    sl.capture(tiny, "110 =", out=tmp_path)
    DAMAGES[damage](tmp_path / "pattern_001.safetensors")
    run = sl.Capture.open(tmp_path)
    for read in (lambda: run.patterns[1], run.to_xarray, lambda: sl.path_bound(tiny, run)):
        with pytest.raises(InputError, match="is damaged: pattern_001.safetensors .*Capture again"):
            read()
    assert run.patterns[0].shape == (1, 4, 5, 5)
    DAMAGES[damage](tmp_path / "y_000.safetensors")
    with pytest.raises(InputError, match="is damaged: y_000.safetensors"):
        sl.Capture.open(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"ids": [[2, 7, 7, 6, 9]]}, {"tensors": {}}, {"new": 1}, "[]", "[" * 100_000, "\udcff"],
    ids=lambda value: str(value)[:9],
)
def test_an_index_that_was_changed_is_refused(change: Any, tmp_path: Path, tiny: Any) -> None:
    sl.capture(tiny, "110 =", out=tmp_path, layers=[0])
    file = tmp_path / "capture.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["tensors"]["pattern"]["0"]["shape"] == [1, 4, 5, 5]
    text = change if isinstance(change, str) else json.dumps(content | change)
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="is damaged: capture.json"):
        sl.Capture.open(tmp_path)
