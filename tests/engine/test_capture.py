"""Captures equal the plain model's own tensors, keep what is chosen, and are refused when stale."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import squashlens as sl
from squashlens.engine import memory
from squashlens.engine.capturing.on_disk import description
from squashlens.errors import CapacityError, InputError, StaleCaptureError
from tests.cases import CONFIGS, FAMILIES, few, random_model, save_random
from tests.references import plain_outputs, raw

IDS = torch.tensor([[2, 7, 11, 30, 7, 7, 59, 4, 21]])


@pytest.mark.few(1)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_equals_the_plain_model(family: str, bridge_of: Callable[..., Any]) -> None:
    run = sl.capture(bridge_of(family), IDS, bos="one")
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
    for bad in (7, -1, True, "2"):
        with pytest.raises(InputError, match="not a layer"):
            raw(sl.capture)(tiny, "110 =", layers=[bad])
    with pytest.raises(InputError, match="layers= is empty"):
        sl.capture(tiny, "110 =", layers=[])
    with pytest.raises(InputError, match="keep= is empty"):
        sl.capture(tiny, "110 =", keep=())
    with pytest.raises(InputError, match="keep"):
        raw(sl.capture)(tiny, "110 =", keep=["values"])


def test_a_capture_of_a_sequence_keeps_residual_streams(tiny: Any) -> None:
    ones = sl.prompts.repeated(tiny, "1", 3)
    with pytest.raises(InputError, match="leaves out the residual streams"):
        sl.capture(tiny, ones, keep="patterns")
    shared: dict[str, Any] = {"noise_lengths": 0, "progress": False}
    assert not sl.capture(tiny, ones, keep="residuals", **shared).patterns
    assert sl.capture(tiny, ones, keep=["patterns", "residuals"], **shared).patterns


def test_to_xarray_is_labelled(tiny: Any) -> None:
    ds = sl.capture(tiny, "110 =", layers=[0, 1]).to_xarray()
    assert ds["residual"].dims == ("layer", "prompt", "position", "coordinate")
    assert ds["pattern"].dims == ("block", "prompt", "head", "query", "key")
    assert ds["layer"].values.tolist() == [0, 1]
    assert ds["token"].values.ravel().tolist() == ["<bos>", "1", "1", "0", "="]


def test_stale_captures_are_refused(tmp_path: Path) -> None:
    model = sl.load(save_random(CONFIGS["gemma"], tmp_path), progress=False)
    run = sl.capture(model, IDS)
    fresh = sl.path_bound(model, IDS)
    np.testing.assert_allclose(sl.path_bound(model, run), fresh, rtol=1e-6)
    with sl.applied(model, sl.hooks.freeze_attention()):  # the same activations
        np.testing.assert_array_equal(sl.path_bound(model, run), sl.path_bound(model, run))
    with sl.applied(model, sl.hooks.mask_tokens([1])), pytest.raises(StaleCaptureError, match="hooks"):
        sl.path_bound(model, run)
    model.original_model.get_output_embeddings().weight.data[0, 0] += 1e-3
    with pytest.raises(StaleCaptureError, match="weights"):
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
    [
        {"ids": [[2, 7, 7, 6, 9]]}, {"tensors": {}}, {"digest": None}, {"new": 1}, None,
    ],
)  # fmt: skip
def test_an_index_that_was_changed_is_refused(change: Any, tmp_path: Path, tiny: Any) -> None:
    sl.capture(tiny, "110 =", out=tmp_path, layers=[0])
    file = tmp_path / "capture.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["tensors"]["pattern"]["0"]["shape"] == [1, 4, 5, 5]
    if change is None:
        del content["digest"]
    else:
        content |= change
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match="is damaged: capture.json"):
        sl.Capture.open(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "\udcff"])
def test_what_is_no_index_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "capture.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="is damaged: capture.json"):
        sl.Capture.open(tmp_path)


def test_half_precision_is_told_by_its_bytes() -> None:
    """Every dtype a model runs in has a digest of its own bytes; equal numbers of another dtype have another."""
    ones = [torch.ones(2, 3, dtype=each) for each in (torch.float32, torch.bfloat16, torch.float16, torch.float64)]
    assert len({description(each)["sha256"] for each in ones}) == 4
    assert description(ones[0].t()) == description(ones[0].t().contiguous()) != description(ones[0])


def test_too_large_is_refused_before_the_run(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device: 1000)
    with pytest.raises(CapacityError, match="This capture needs"):
        sl.capture(tiny, "110 =")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak memory as Linux gives it")
def test_peak_memory_when_nothing_is_kept(tmp_path: Path) -> None:
    """Against a plain forward in the same process; what is kept goes to a place of its own, so nearly nothing is."""
    script = textwrap.dedent(
        f"""
        import sys, torch
        sys.path.insert(0, {str(Path.cwd())!r})
        from tests.cases import save_random
        from transformers import LlamaConfig, AutoModelForCausalLM
        import squashlens as sl
        torch.set_num_threads(1)
        config = LlamaConfig(vocab_size=200, hidden_size=256, intermediate_size=512, num_hidden_layers=8,
            num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=2)
        folder = save_random(config, {str(tmp_path)!r})
        ids = torch.full((1, 1500), 7); ids[0, 0] = 2
        def kilobytes(field):
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))
        if sys.argv[1] == "plain":
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
            run = lambda ids: model(ids, use_cache=False)
        else:
            model = sl.load(folder, progress=False)
            run = lambda ids: sl.capture(model, ids, keep="residuals", layers=[8], progress=False)
        with torch.no_grad():
            run(ids[:, :64])
            open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts again from here
            before = kilobytes("VmRSS"); run(ids)
        print(kilobytes("VmHWM") - before)
        """
    )
    peaks = [
        int(
            subprocess.run(
                [sys.executable, "-c", script, which], capture_output=True, text=True, check=True
            ).stdout.splitlines()[-1]
        )
        for which in ("plain", "capture")
    ]
    assert peaks[0] > 8 * 1500**2 * 4 / 1024  # at least one block's patterns: large enough to compare with
    print(f"peak of the capture: {peaks[1] / peaks[0]:.3f} of the plain pass, {peaks[0]} kB")
    assert peaks[1] <= 1.3 * peaks[0]
