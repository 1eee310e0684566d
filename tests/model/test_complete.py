"""A checkpoint that does not hold what its configuration describes is refused, whatever is wrong with it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import squashlens as sl
from squashlens.errors import CapacityError, ModelAccessError
from squashlens.model import verify
from tests.cases import CONFIGS, EXPERTS, random_model, save_random

Weights = dict[str, Tensor]
Change = Callable[[Weights], Any]
IDS = torch.tensor([[2, 5, 6]])
MATRIX = "layers.1.mlp.up_proj.weight"
EXPERT = "experts.2.w1.weight"


def load(folder: Path, **how: Any) -> Any:
    return sl.load(folder, device="cpu", **how)


def with_weights(folder: Path, into: Path, change: Change) -> Path:
    """A copy of a checkpoint whose tensors were changed in place."""
    shutil.copytree(folder, into)
    weights = load_file(into / "model.safetensors")
    change(weights)
    save_file(weights, into / "model.safetensors", {"format": "pt"})
    return into


def with_settings(folder: Path, into: Path, **settings: Any) -> Path:
    """A copy of a checkpoint with other settings in its config.json; None takes one out."""
    shutil.copytree(folder, into)
    config = json.loads((into / "config.json").read_text()) | settings
    kept = {name: value for name, value in config.items() if value is not None}
    (into / "config.json").write_text(json.dumps(kept))
    return into


def key(weights: Weights, end: str) -> str:
    return next(name for name in weights if name.endswith(end))


def put(end: str, change: Callable[[Tensor], Tensor]) -> Change:
    def apply(weights: Weights) -> None:
        name = key(weights, end)
        weights[name] = change(weights[name]).contiguous()

    return apply


def with_row(value: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.index_fill(0, torch.tensor([3]), value)


def another_head(weights: Weights) -> None:
    weights["lm_head.weight"] = weights[key(weights, "embed_tokens.weight")] + 0.1


# What is wrong with the tensors of a family's checkpoint. Gemma 2 has a tied head, and Llama one of its own.
DAMAGES: dict[str, tuple[str, Change]] = {
    "missing": ("gemma2", lambda w: w.pop(key(w, MATRIX))),
    "under another name": ("gemma2", lambda w: w.update({"x": w.pop(key(w, MATRIX))})),
    "transposed": ("gemma2", put(MATRIX, lambda t: t.T)),
    "of one more block": (
        "gemma2",
        lambda w: w.update({"model.layers.7.w": torch.ones(3)}),
    ),
    "no embeddings": ("gemma2", lambda w: w.pop(key(w, "embed_tokens.weight"))),
    "NaN": ("gemma2", put("embed_tokens.weight", with_row(float("nan")))),
    "infinite": ("gemma2", put(MATRIX, with_row(-float("inf")))),
    "none": ("gemma2", lambda w: w.clear()),
    "a tied head with other numbers": ("gemma2", another_head),
    "no head": ("llama", lambda w: w.pop("lm_head.weight")),
    "no expert": ("mixtral", lambda w: w.pop(key(w, EXPERT))),
    "an expert transposed": ("mixtral", put(EXPERT, lambda t: t.T)),
    "NaN in an expert": ("mixtral", put(EXPERT, with_row(float("nan")))),
}
# Settings of Llama's config.json that do not belong to its tensors, or to no class.
SETTINGS: list[dict[str, Any]] = [
    {"architectures": ["FooForCausalLM"]},
    {"model_type": "mistral"},
    {"architectures": None},
    {"auto_map": {"AutoModelForCausalLM": "mine.Llama2"}},
    {"num_hidden_layers": 2},
    {"num_hidden_layers": 4},
    {"tie_word_embeddings": True},
    {"num_attention_heads": "4"},
    {"hidden_size": 0},
    {"vocab_size": 10**9},
    {"rope_parameters": {"rope_type": "nonsense"}},
]
# What is wrong with the files of a folder.
FILES: dict[str, Callable[[Path], Any]] = {
    "config.json no JSON": lambda f: (f / "config.json").write_text("hello"),
    "a broken tokenizer": lambda f: (f / "tokenizer.json").write_text("{broken"),
    "truncated weights": lambda f: (f / "model.safetensors").write_bytes(b"no weights"),
    "a pickle": lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
    "an adapter": lambda f: (f / "adapter_config.json").write_text("{}"),
}


def refused(folder: Path) -> None:
    with pytest.raises((ModelAccessError, CapacityError)) as refusal:
        load(folder)
    assert "\n" not in str(refusal.value)


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(EXPERTS["mixtral"], tmp_path_factory.mktemp("mixtral"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_weights_are_refused(
    damage: str, folder_of: Callable[[str], Path], mixtral: Path, tmp_path: Path
) -> None:
    family, change = DAMAGES[damage]
    folder = mixtral if family == "mixtral" else folder_of(family)
    refused(with_weights(folder, tmp_path / "damaged", change))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings_of_another_checkpoint_are_refused(
    settings: dict[str, Any], folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    refused(with_settings(folder_of("llama"), tmp_path / "edited", **settings))


@pytest.mark.parametrize("damage", FILES)
def test_damaged_folders_are_refused(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sl.example_models.folder("tiny-gemma"), folder)
    FILES[damage](folder)
    refused(folder)


def test_what_changes_no_number_is_loaded(
    folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """A tied head that is stored too, the masks and frequencies of old checkpoints, and a checkpoint in many files."""
    rotary = "model.layers.1.self_attn.rotary_emb.inv_freq"
    buffers = dict(random_model(CONFIGS["llama"]).named_buffers())
    frequencies = buffers["model.rotary_emb.inv_freq"].clone()
    mask = torch.ones(1, 1, 64, 64).tril().byte()
    harmless: dict[str, Change] = {
        "gemma2": lambda w: w.update(
            {"lm_head.weight": w[key(w, "embed_tokens.weight")] + 0}
        ),
        "llama": lambda w: w.update({rotary: frequencies}),
        "gpt2": lambda w: w.update({"transformer.h.1.attn.bias": mask}),
    }
    for family, change in harmless.items():
        loaded = load(with_weights(folder_of(family), tmp_path / family, change))
        assert torch.equal(loaded(IDS), load(folder_of(family))(IDS))
        assert verify.status(loaded) == "verified"
    shards = tmp_path / "shards"
    whole = AutoModelForCausalLM.from_pretrained(folder_of("llama"))
    whole.save_pretrained(shards, max_shard_size="8KB")
    assert torch.equal(load(shards)(IDS), load(folder_of("llama"))(IDS))
    sorted(shards.glob("model-*.safetensors"))[1].unlink()
    refused(shards)


def test_weights_on_disk_are_refused(folder_of: Callable[[str], Path]) -> None:
    places = {"": "cpu", "model.layers.2": "disk"}
    with pytest.raises(ModelAccessError):
        sl.load(folder_of("llama"), device=places)
