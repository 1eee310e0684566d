"""Model folders from anywhere: damaged, absurd or hostile ones are refused, each in one line and at once."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.errors import CapacityError, ModelAccessError

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("README*", "*.csv")
    return Path(shutil.copytree(sl.zoo.folder("tiny-gemma"), tmp_path / "model", ignore=ignored))


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def replaced(name: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def linked(name: str, target: str) -> Callable[[Path], None]:
    def link(folder: Path) -> None:
        (folder / name).unlink()
        os.symlink(target, folder / name)

    return link


def pipe(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return make


def configured(**values: Any) -> Callable[[Path], None]:
    return lambda folder: changed(folder / CONFIG, **values)


def half(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"a": torch.ones(3)}, folder / "pytorch_model.bin")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "half of the weights": (half, "damaged or truncated"),
    "a pickle": (pickled, "pickled weights can run code"),
    "a pipe for weights": (pipe(WEIGHTS), "no weights in safetensors"),
    "config.json without end": (linked(CONFIG, "/dev/zero"), "config.json"),
    "config.json no JSON": (replaced(CONFIG, "hello"), "cannot be opened with its config.json"),
    "config.json a list": (replaced(CONFIG, "[1, 2]"), "does not know the architecture"),
    "tokenizer broken": (replaced(TOKENIZER, "{broken"), "its tokenizer cannot be read"),
    "tokenizer a pipe": (pipe(TOKENIZER), "tokenizer.json is not a file"),
    "heads as text": (configured(num_attention_heads="4"), "num_attention_heads"),
    "no width": (configured(hidden_size=0), "do not match GemmaForCausalLM"),
    "10**9 tokens": (configured(vocab_size=10**9), "needs 51. GB"),
    "10**9 blocks": (configured(num_hidden_layers=10**9), "has 1000000000 blocks"),
    "an adapter": (lambda f: (f / "adapter_config.json").write_text('{"peft_type": "LORA"}'), "has an adapter"),
    "an odd rotation": (configured(rope_parameters={"rope_type": "nonsense"}), "cannot be opened with its config.json"),
    "its own Python code": (configured(auto_map={"AutoModelForCausalLM": "evil.Model"}), "its own Python code"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused(damage: str, folder: Path) -> None:
    damages, complaint = DAMAGES[damage]
    damages(folder)
    start = time.monotonic()
    with pytest.raises((ModelAccessError, CapacityError), match=complaint) as refusal:
        sl.load(folder, device="cpu")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 800
    assert time.monotonic() - start < 30


def test_a_hostile_chat_template_is_refused(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny.tokenizer, "chat_template", "{{ messages.__class__.__mro__ }}")
    with pytest.raises(ModelAccessError, match="chat template of this model cannot be used") as refusal:
        sl.prompts.build(tiny, "11", prefix="How many", suffix="?", template="chat")
    assert "\n" not in str(refusal.value)
