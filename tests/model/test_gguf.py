"""GGUF files: the loaded model is the one that a file was written from, and what would be lost raises an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
)

import squashlens as sl
from squashlens.errors import ModelAccessError
from squashlens.model.loading import sources
from tests.cases import COMMON, random_model
from tests.model.ggufs import WORDS, write_gguf

GEMMA: dict[str, Any] = COMMON | {
    "head_dim": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "sliding_window": 5,
}
WINDOWS = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
}
SCALED = WINDOWS | {
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}
}
# The architecture that a file names, the configuration, and other entries.
FAMILIES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "gemma2": ("gemma2", Gemma2Config(**GEMMA), {}),
    "llama": (
        "llama",
        LlamaConfig(**COMMON, tie_word_embeddings=True, rms_norm_eps=1e-3),
        {},
    ),
    "gemma3": ("gemma3", Gemma3TextConfig(**GEMMA | {"num_hidden_layers": 7}), {}),
    "gemma3 windows": (
        "gemma3",
        Gemma3TextConfig(**GEMMA | {"num_hidden_layers": 7}, rope_parameters=WINDOWS),
        {"rope.freq_base_swa": 2e4, "attention.sliding_window_pattern": 6},
    ),
    "gemma3 scaled": (
        "gemma3",
        Gemma3TextConfig(**GEMMA | {"num_hidden_layers": 7}, rope_parameters=SCALED),
        {
            "rope.freq_base_swa": 2e4,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 2.0,
        },
    ),
    "llama wide": (
        "llama",
        LlamaConfig(
            **COMMON | {"head_dim": 8},
            rope_parameters={"rope_type": "default", "rope_theta": 5e5},
        ),
        {"attention.key_length": 8, "attention.value_length": 8},
    ),
    "llama scaled": (
        "llama",
        LlamaConfig(
            **COMMON,
            rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        ),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUASHLENS_CACHE", str(tmp_path / "cache"))


@pytest.mark.few(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_gives_the_model_that_it_was_written_from(
    family: str, tmp_path: Path
) -> None:
    architecture, config, also = FAMILIES[family]
    plain = random_model(config)
    file = write_gguf(plain, tmp_path / "model.gguf", architecture, also=also)
    model = sl.load(file, device="cpu")
    ids = torch.tensor([[2, *range(5, 45)]])
    torch.testing.assert_close(model(ids), plain(ids).logits, rtol=1e-5, atol=1e-5)
    assert sl.prompts.tokenize(model, "11ab").tolist() == [
        [2, WORDS.index("1"), WORDS.index("1"), WORDS.index("ab")]
    ]
    facts = sl.results.provenance(sl.path_bound(model, "110"))
    assert facts["model"] == facts["weights_origin"]["file"] == "model.gguf"
    assert facts["weights_origin"]["note"] == "read from F32 in a GGUF file"
    assert facts["proof"] == "verified"


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """What a number format keeps of rows of 32 numbers, by its definition."""
    blocks = values.reshape(-1, 32)
    if kind == "F16":
        return values.astype(np.float16).astype(np.float32)
    if kind == "Q8_0":
        step = np.abs(blocks).max(1, keepdims=True) / 127
        whole = np.trunc(
            blocks / step + np.copysign(0.5, blocks)
        )  # halves go away from 0
        return (step.astype(np.float16).astype(np.float32) * whole).reshape(
            values.shape
        )
    peak = np.take_along_axis(
        blocks, np.abs(blocks).argmax(1)[:, None], 1
    )  # Q4_0: the largest becomes -8
    step = peak / -8
    whole = np.clip(np.trunc(blocks / step + 8.5), 0, 15) - 8
    return (step.astype(np.float16).astype(np.float32) * whole).reshape(values.shape)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_quantized_weights_are_those_of_the_format(kind: str, tmp_path: Path) -> None:
    plain = random_model(
        Gemma2Config(**GEMMA | {"hidden_size": 32, "intermediate_size": 64})
    )
    file = write_gguf(plain, tmp_path / "model.gguf", "gemma2", kind=kind)
    model = sl.load(file, device="cpu")
    held = {
        name.replace("._original_component", ""): p
        for name, p in model.original_model.named_parameters()
    }
    name = "model.layers.1.mlp.down_proj.weight"
    expected = rounded(plain.state_dict()[name].numpy(), kind)
    np.testing.assert_allclose(held[name].numpy(), expected, rtol=1e-6, atol=0)
    note = sl.results.provenance(sl.path_bound(model, "110"))["weights_origin"]["note"]
    assert note == (
        "read from F16 in a GGUF file"
        if kind == "F16"
        else f"dequantized from {kind}; not the published weights"
    )


def _gemma(path: Path, edit: Callable[[bytes], bytes] = bytes, **how: Any) -> Path:
    """The file of a tiny Gemma 2, with an edit of its bytes."""
    file = write_gguf(
        random_model(Gemma2Config(**GEMMA)), path / "model.gguf", "gemma2", **how
    )
    file.write_bytes(edit(file.read_bytes()))
    return file


def _llama(path: Path, edit: Callable[[bytes], bytes] = bytes, **how: Any) -> Path:
    """The file of a tiny Llama, with an edit of its bytes."""
    file = _other(path, LlamaConfig(**COMMON), "llama", **how)
    file.write_bytes(edit(file.read_bytes()))
    return file


def _other(path: Path, config: Any, architecture: str, **how: Any) -> Path:
    return write_gguf(random_model(config), path / "model.gguf", architecture, **how)


REFUSED: dict[str, Callable[[Path], Path]] = {
    "cut in the data": lambda p: _gemma(p, lambda whole: whole[: len(whole) * 9 // 10]),
    "mamba": lambda p: _gemma(p, lambda whole: whole.replace(b"gemma2", b"mamba3")),
    "an entry that is not said": lambda p: _gemma(
        p,
        lambda whole: whole.replace(b"gemma2.context_length", b"gemma2.context_lenght"),
    ),
    "text": lambda p: _gemma(p, lambda _: b"hello" * 9),
    "windows in other blocks": lambda p: _other(
        p,
        Gemma3TextConfig(**GEMMA),
        "gemma3",
        also={"attention.sliding_window_pattern": 4},
    ),
    "YaRN": lambda p: _gemma(
        p, also={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    ),
    "NaN": lambda p: _gemma(
        p, tensors={"output_norm.weight": np.full(16, np.nan, np.float32)}
    ),
    "a scale that is not said": lambda p: _other(
        p,
        Gemma2Config(**GEMMA | {"head_dim": 128}, query_pre_attn_scalar=144),
        "gemma2",
    ),
    "experts": lambda p: _llama(p, also={"expert_count": 4}),
    "latent attention": lambda p: _llama(p, also={"attention.key_length_mla": 4}),
    "a window": lambda p: _llama(p, also={"attention.sliding_window": 8}),
    "a part of each head": lambda p: _llama(p, also={"rope.dimension_count": 2}),
    "tokens without embeddings": lambda p: _llama(p, also={"vocab_size": 64}),
    "Llama 3's frequencies": lambda p: _llama(
        p, tensors={"rope_freqs.weight": np.ones(2, np.float32)}
    ),
    "biases": lambda p: _llama(
        p, tensors={"blk.1.attn_q.bias": np.ones(16, np.float32)}
    ),
    "no keys": lambda p: _llama(
        p,
        lambda whole: whole.replace(b"blk.1.attn_k.weight", b"blk.1.attn_y.weight"),
    ),
    "SentencePiece in a Llama": lambda p: _llama(
        p, lambda whole: whole.replace(b"gpt2", b"t5  ")
    ),
    "other pieces of text": lambda p: _llama(
        p, lambda whole: whole.replace(b"smollm", b"llama3")
    ),
    "a model named mistral": lambda p: _llama(p, general="mistral"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_lost_is_refused(case: str, tmp_path: Path) -> None:
    file = REFUSED[case](tmp_path)
    with pytest.raises(ModelAccessError) as refusal:
        sl.load(file, device="cpu")
    assert "\n" not in str(refusal.value)
    assert not list((tmp_path / "cache").glob("*")), "nothing is left in the cache"


def test_a_part_of_a_split_file_says_how_the_parts_are_merged(tmp_path: Path) -> None:
    write_gguf(
        random_model(Gemma2Config(**GEMMA)), tmp_path / "model.gguf", "gemma2", split=20
    )
    for part in sorted(tmp_path.glob("*.gguf")):
        with pytest.raises(
            ModelAccessError,
        ):
            sl.load(part, device="cpu")


def test_other_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelAccessError):
        sl.load(tmp_path / "none.gguf")
    with pytest.raises(ModelAccessError):
        sl.load(_gemma(tmp_path).parent)


def test_a_file_is_converted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _gemma(tmp_path)
    monkeypatch.setenv("SQUASHLENS_PROGRESS", "1")
    sl.load(file, device="cpu")
    assert "converting it once" in capsys.readouterr().out
    (folder,) = (tmp_path / "cache").glob("model-*")

    def never(*_: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(sources, "convert", never)
    moved = file.rename(tmp_path / "renamed.gguf")
    model = sl.load(moved, device="cpu")
    assert sl.results.provenance(sl.path_bound(model, "110"))["model"] == "renamed.gguf"
    assert (
        AutoModelForCausalLM.from_pretrained(folder).config.squashlens_origin[
            "quantization"
        ]
        == "F32"
    )
