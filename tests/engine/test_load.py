"""What `load` refuses, and with which words."""

import json
import shutil
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertLMHeadModel, T5Config, T5ForConditionalGeneration

import squashlens as sl
from squashlens.engine import memory
from squashlens.engine.loading import hub, sources
from squashlens.engine.loading import load as load_module
from squashlens.engine.proving.proof import status
from squashlens.errors import CapacityError, InputError, ModelAccessError, UnsoundModelError
from tests.cases import CONFIGS, EXPERTS, random_model, save_random
from tests.references import raw


def test_bundled_model_is_gemma_and_ready(tiny: Any) -> None:
    assert type(tiny.original_model).__name__ == "GemmaForCausalLM"
    assert not tiny.training
    assert not any(p.requires_grad for p in tiny.parameters())
    assert tiny.original_model.config._attn_implementation == "eager"
    assert {p.dtype for p in tiny.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", ["tiny-gema", "tinygemma", "Tiny-Gemma"])
def test_a_slip_in_a_bundled_name(name: str) -> None:
    with pytest.raises(ModelAccessError, match="'tiny-gemma'"):
        sl.load(name)


def test_hub_names_get_near_ones_or_steps() -> None:
    said = OSError("x is not a valid model identifier listed on …")
    not_found = hub.access_error("google/gema-2b", said, sources.nearest("google/gema-2b"))
    assert "google/gemma-2b" in str(not_found)
    gated = str(hub.access_error("google/gemma-2b", OSError("You are trying to access a gated repo."), ""))
    assert all(step in gated for step in ("1.", "2.", "3.", "hf auth login", "https://huggingface.co/google/gemma-2b"))


def test_offline_hub_name_says_so() -> None:
    with pytest.raises(ModelAccessError, match="cannot be reached") as refusal:
        sl.load("google/gemma-2b")
    assert str(refusal.value).count("google/gemma-2b") == 1, "the name that was typed is no suggestion"
    with pytest.raises(ModelAccessError, match=r"cannot be reached.*Did you mean 'google/gemma-2b'"):
        sl.load("google/gema-2b")


def test_a_hub_that_does_not_answer_is_told_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a name that is not resolved nor a connection that is not made is waited for."""
    from huggingface_hub import constants

    def slow(*_: object, **__: object) -> None:
        time.sleep(10)
        raise OSError("late")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.urllib.request, "getproxies", dict)
    monkeypatch.setattr(hub, "TIMEOUT", 0.2)
    monkeypatch.setattr(hub.socket, "create_connection", slow)
    start = time.perf_counter()
    with pytest.raises(ModelAccessError, match="cannot be reached"):
        sl.load("someone/something")
    assert time.perf_counter() - start < 5
    monkeypatch.setattr(hub.urllib.request, "getproxies", lambda: {"https": "a proxy"})
    monkeypatch.setattr(
        load_module, "_open_config", lambda *_: (_ for _ in ()).throw(InputError("Left to the library.", ""))
    )
    with pytest.raises(InputError, match="Left to the library"):
        sl.load("someone/something")


def test_local_folder_problems(tmp_path: Path) -> None:
    with pytest.raises(ModelAccessError, match="no folder"):
        sl.load(tmp_path / "missing")
    with pytest.raises(ModelAccessError, match=r"config\.json"):
        sl.load(tmp_path)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", denied)  # an administrator may read every folder
    with pytest.raises(ModelAccessError, match=r"cannot be opened as a folder \(Permission denied\)"):
        sl.load(tmp_path)


def test_encoders_are_refused(tmp_path: Path) -> None:
    small: Any = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertLMHeadModel(BertConfig(**small, intermediate_size=8)).save_pretrained(tmp_path / "bert")
    t5 = T5Config(vocab_size=20, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(t5).save_pretrained(tmp_path / "t5")
    for name, error in (("bert", UnsoundModelError), ("t5", ModelAccessError)):
        with pytest.raises(error, match="does not reproduce|not a decoder-only"):
            sl.load(tmp_path / name, progress=False)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    model = random_model(CONFIGS["llama"])
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelAccessError, match="safetensors"):
        sl.load(tmp_path, progress=False)


def test_remote_code_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "strange", "auto_map": {"AutoConfig": "strange.Config"}, "architectures": ["S"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "strange.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelAccessError, match="its own Python code|does not know the architecture"):
        sl.load(tmp_path)


def test_what_does_not_fit_is_refused_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_random(CONFIGS["gemma"], tmp_path)
    monkeypatch.setattr(memory, "available", lambda device: 10_000)
    with pytest.raises(CapacityError, match=r"needs 25\.8 kB and cpu has 10 kB free"):
        sl.load(folder, device="cpu", progress=False)


def test_size_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sl.load(save_random(CONFIGS["gemma"], tmp_path / "small"), device="cpu")
    assert "small: 0.0 M parameters, 25.8 kB in float32" in capsys.readouterr().out


@pytest.mark.slow
def test_a_device_for_each_module_places_the_model(tiny: Any) -> None:
    placed = sl.load("tiny-gemma", device={"": "cpu"}, progress=False)
    assert sl.path_bound(placed, "110 =").equals(sl.path_bound(tiny, "110 ="))
    assert sl.jacobian_norms(placed, "110 =").equals(sl.jacobian_norms(tiny, "110 ="))


def test_a_dict_without_devices_is_refused() -> None:
    with pytest.raises(InputError, match="device={} names no device"):
        sl.load("tiny-gemma", device={}, progress=False)


def test_a_revision_is_of_a_model_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="revision='main' is given, and the bundled model 'tiny-gemma' has no"):
        sl.load("tiny-gemma", revision="main", progress=False)
    folder = shutil.copytree(sl.zoo.folder("tiny-gemma"), tmp_path / "tiny-gemma")
    with pytest.raises(InputError, match="revision='main' is given, and the local model '.*' has no revisions"):
        sl.load(folder, revision="main", progress=False)
    grid = {"measurement": "path_bound", "arguments": {"model": "tiny-gemma", "prompt": "1", "revision": "main"}}
    with pytest.raises(InputError, match="has no revisions"):
        sl.Study(grid, store=tmp_path / "store")


@pytest.mark.few(1)
@pytest.mark.parametrize("spread", ["auto", "balanced", "balanced_low_0", "sequential"])
def test_a_way_to_spread_a_model_goes_to_transformers(spread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    given = []
    original = transformers.AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained",
        lambda *args, **kwargs: (given.append(kwargs["device_map"]), original(*args, **kwargs))[1],
    )  # fmt: skip
    sl.load("tiny-gemma", device=spread, progress=False)
    sl.load("tiny-gemma", device="cpu", progress=False)
    assert given == [spread, None]


def test_dtype_must_be_one() -> None:
    with pytest.raises(InputError, match="dtype"):
        raw(sl.load)("tiny-gemma", dtype="int4")
    with pytest.raises(InputError, match="Use one of float64, float32"):
        raw(sl.load)("tiny-gemma", dtype=torch.int8)


def test_a_dtype_goes_by_its_name_too() -> None:
    for name, dtype in (("bfloat16", torch.bfloat16), ("bf16", torch.bfloat16), ("fp64", torch.float64)):
        model = sl.load("tiny-gemma", dtype=name, verify=False, progress=False)
        assert {p.dtype for p in model.parameters()} == {dtype}
    for short, full in (("fp16", "float16"), ("fp32", "float32")):
        assert load_module._dtype_to_run_in(short) == getattr(torch, full)
    assert repr(sl.hooks.rounding("bf16")) == repr(sl.hooks.rounding("bfloat16"))


@pytest.mark.slow
def test_runs_go_by_short_names_once(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, loads = import_module("squashlens.measure.collapse.precision"), []
    monkeypatch.setattr(module, "load", lambda *args, **kwargs: loads.append(args) or sl.load(*args, **kwargs))
    ones = sl.prompts.repeated(tiny, "1", 4)
    found = sl.precision("tiny-gemma", ones, runs=["bf16", "bfloat16"], noise_lengths=0, progress=False)
    assert found["run"].values.tolist() == ["bfloat16"]
    assert len(loads) == 1


def test_model_states_that_are_refused(tmp_path: Path) -> None:
    folder = save_random(CONFIGS["llama"], tmp_path)
    ids = torch.tensor([2, 5, 6])
    trained = sl.load(folder, progress=False).train()
    with pytest.raises(InputError, match="train mode"):
        sl.path_bound(trained, ids)
    processed = sl.load(folder, progress=False)
    processed.enable_compatibility_mode()
    with pytest.raises(InputError, match="compatibility mode"):
        sl.path_bound(processed, ids)
    with pytest.raises(InputError, match="model must be a TransformerBridge, not str"):
        sl.path_bound("tiny-gemma", ids)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPERTS)
def test_mixtures_of_experts_in_float64(family: str, tmp_path: Path) -> None:
    """Their grouped products have no float64, so experts are run one by one; the Jacobian is the plain model's."""
    folder = save_random(EXPERTS[family], tmp_path)
    model = sl.load(folder, device="cpu", dtype="float64", progress=False)
    assert status(model) == "verified"
    ids = torch.tensor([2, 5, 6, 9, 9])
    plain = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    embeddings = plain.get_input_embeddings()(ids[None]).detach().requires_grad_()
    y = plain.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state[0, -1]
    rows = [torch.autograd.grad(entry, embeddings, retain_graph=True)[0][0] for entry in y]
    truth = torch.linalg.matrix_norm(torch.stack(rows, dim=1), ord=2)
    found = torch.from_numpy(sl.jacobian_norms(model, ids, progress=False).values)
    assert torch.allclose(found, truth, rtol=1e-5)  # both run routers and norms in float32
    bound = torch.from_numpy(sl.path_bound(model, ids, constants="measured", progress=False).values)
    assert (bound >= truth).all()


def test_names_that_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("", " "):
        with pytest.raises(ModelAccessError, match="is empty"):
            sl.load(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelAccessError, match="has no config.json"):
        sl.load("~")
    with pytest.raises(ModelAccessError) as caught:
        sl.load("somebody/something", progress=False)
    assert str(caught.value).count("local folder") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_device_that_is_not_here_is_not_advised() -> None:
    with pytest.raises(InputError, match="Use 'cpu'.$"):
        sl.load("tiny-gemma", device="cuda")
