"""Model folders from anywhere: damaged, absurd or hostile ones are refused, each in one line and at once."""

import json
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.engine.text import templates
from squashlens.errors import CapacityError, InputError, ModelAccessError

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000


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


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "half of the weights": (half, "damaged or truncated"),
    "no bytes": (replaced(WEIGHTS, b""), "damaged or truncated"),
    "a header of 2**60 bytes": (replaced(WEIGHTS, struct.pack("<Q", 2**60) + b"{}"), "damaged or truncated"),
    "a header that is no JSON": (replaced(WEIGHTS, struct.pack("<Q", 8) + b"notjson!"), "damaged or truncated"),
    "a pickle": (pickled, "pickled weights can run code"),
    "a pickle by the other name": (lambda f: torch.save({"a": torch.ones(3)}, f / WEIGHTS), "damaged or truncated"),
    "weights in a circle": (linked(WEIGHTS, WEIGHTS), "no weights in safetensors"),
    "a pipe for weights": (pipe(WEIGHTS), "no weights in safetensors"),
    "a pipe for config.json": (pipe(CONFIG), "config.json"),
    "config.json in a circle": (linked(CONFIG, CONFIG), "config.json"),
    "config.json without end": (linked(CONFIG, "/dev/zero"), "config.json"),
    "config.json no JSON": (replaced(CONFIG, "hello"), "config.json is not a JSON file"),
    "config.json no text": (replaced(CONFIG, bytes(range(256))), "config.json is not a JSON file"),
    "config.json a list": (replaced(CONFIG, "[1, 2]"), "config.json holds a list instead of a JSON object"),
    "config.json null": (replaced(CONFIG, "null"), "config.json holds a NoneType instead of a JSON object"),
    "config.json deep": (replaced(CONFIG, DEEP), "config.json is nested too deeply"),
    "config.json empty": (replaced(CONFIG, "{}"), "does not know the architecture"),
    "tokenizer broken": (replaced(TOKENIZER, "{broken"), "its tokenizer cannot be read"),
    "tokenizer empty": (replaced(TOKENIZER, "{}"), "its tokenizer cannot be read"),
    "tokenizer a list": (replaced(TOKENIZER, "[]"), "its tokenizer cannot be read"),
    "tokenizer deep": (replaced(TOKENIZER, DEEP), "its tokenizer cannot be read"),
    "tokenizer a pipe": (pipe(TOKENIZER), "tokenizer.json is not a file"),
    "tokenizer without end": (linked(TOKENIZER, "/dev/zero"), "tokenizer.json is not a file"),
    "settings a list": (
        replaced("tokenizer_config.json", "[]"),
        "tokenizer_config.json holds a list instead of a JSON",
    ),
    "generation broken": (replaced("generation_config.json", "{"), "generation_config.json is not a JSON file"),
    "no heads": (configured(num_attention_heads=0), "num_attention_heads=0, not a positive whole number"),
    "no key/value heads": (configured(num_key_value_heads=0), "num_key_value_heads=0, not a positive whole number"),
    "negative heads": (configured(num_attention_heads=-4), "num_attention_heads=-4, not a positive whole number"),
    "heads as text": (configured(num_attention_heads="4"), "num_attention_heads"),
    "no context": (configured(max_position_embeddings=0), "max_position_embeddings=0, not a positive whole number"),
    "no width": (configured(hidden_size=0), "hidden_size=0, not a positive whole number"),
    "no vocabulary": (configured(vocab_size=0), "vocab_size=0, not a positive whole number"),
    "10**30 tokens": (configured(vocab_size=10**30), "vocab_size=10{30}, not a positive whole number"),
    "10**9 tokens": (configured(vocab_size=10**9), "One weight matrix .* needs 512 GB"),
    "10**18 tokens": (configured(vocab_size=10**18), "One weight matrix .* needs"),
    "a wide MLP": (configured(intermediate_size=10**12), "One weight matrix .* needs"),
    "10**9 blocks": (configured(num_hidden_layers=10**9), "has 1000000000 blocks"),
    "no blocks": (configured(num_hidden_layers=0), "num_hidden_layers=0, not a positive whole number"),
    "an odd activation": (configured(hidden_act="nonsense"), "cannot be opened with its config.json"),
    "an odd rotation": (configured(rope_parameters={"rope_type": "nonsense"}), "cannot be opened with its config.json"),
    "a type that is a list": (configured(model_type=["gemma"]), "cannot be opened with its config.json"),
    "its own Python code": (configured(auto_map={"AutoModelForCausalLM": "evil.Model"}), "its own Python code"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused(damage: str, folder: Path) -> None:
    damages, complaint = DAMAGES[damage]
    damages(folder)
    start = time.monotonic()
    with pytest.raises((ModelAccessError, CapacityError), match=complaint) as refusal:
        sl.load(folder, device="cpu", progress=False)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 800
    assert time.monotonic() - start < 30


HOSTILE = {
    "raises": "{{ raise_exception('no') }}",
    "no template": "{% for",
    "unknown names": "{{ a.b.c }}",
    "Python's objects": "{{ messages.__class__.__mro__ }}",
    "itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a wide range": "{% for i in range(10**9) %}{% endfor %}",
    "no end": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "much text": "{{ 'a' * 10**11 }}",
}


def test_a_hostile_chat_template_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 3.0)
    model = sl.load(folder, device="cpu", progress=False)
    form: dict[str, Any] = {"prefix": "How many", "suffix": "?", "template": "chat"}
    for name, template in HOSTILE.items():
        model.tokenizer.chat_template = template
        with pytest.raises(ModelAccessError, match="chat template of this model cannot be used") as refusal:
            sl.prompts.build(model, "11", **form)
        assert "\n" not in str(refusal.value), name
    for template, complaint in ((7, "is not text"), ("{{ 1 }}", "contains the message 0 times")):
        model.tokenizer.chat_template = template
        with pytest.raises(InputError, match=complaint):
            sl.prompts.build(model, "11", **form)
    # The process that tries templates is there again for one that is right.
    model.tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    sequence = sl.prompts.build(model, "11", **form)
    assert sequence.prefix == tuple(sl.prompts.tokenize(model, "How many")[0].tolist())
