"""GGUF files: the loaded model computes what llama.cpp computes, and what would be lost raises an error."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import squashlens as sl
from squashlens.errors import ModelAccessError
from squashlens.model.loading import sources
from tests.model.record_llama_cpp import EVERY, HERE
from tests.model.tiny_ggufs import (
    FILES,
    TEXTS,
    Tiny,
    ids_of,
    kept_positions,
    weights,
    words_of,
    write_gguf,
)

LOGITS = np.load(HERE / "llama_cpp.npz")
TOKENS = json.loads((HERE / "llama_cpp_tokens.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUASHLENS_CACHE", str(tmp_path / "cache"))


@pytest.mark.few(8)
@pytest.mark.parametrize("name", FILES)
def test_logits_and_tokens_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    tiny = FILES[name]
    model = sl.load(write_gguf(tiny, tmp_path / "model.gguf"), device="cpu")
    ids = torch.tensor([ids_of(tiny, model.cfg.d_vocab)])
    found = model(ids)[0, kept_positions(tiny), ::EVERY]
    # llama.cpp looks up GELU, which Gemma has, in a table of half precision. Logits go up to 30.
    close = 1e-2 if tiny.architecture.startswith("gemma") else 3e-4
    np.testing.assert_allclose(found.numpy(), LOGITS[name], rtol=0, atol=close)
    for text, tokens in zip(TEXTS, TOKENS[name], strict=True):
        assert sl.prompts.tokenize(model, text).tolist() == [tokens]


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
    tiny = replace(FILES["llama"], kind=kind)
    model = sl.load(write_gguf(tiny, tmp_path / "model.gguf"), device="cpu")
    held = {
        name.replace("._original_component", ""): p
        for name, p in model.original_model.named_parameters()
    }
    written = weights(tiny, len(words_of(tiny)))["blk.1.ffn_down.weight"]
    np.testing.assert_allclose(
        held["model.layers.1.mlp.down_proj.weight"].numpy(),
        rounded(written, kind),
        rtol=1e-6,
        atol=0,
    )
    facts = sl.results.provenance(sl.path_bound(model, "110"))
    assert facts["model"] == facts["weights_origin"]["file"] == "model.gguf"
    assert facts["proof"] == "verified"
    assert facts["weights_origin"]["note"] == (
        "read from F16 in a GGUF file"
        if kind == "F16"
        else f"dequantized from {kind}; not the published weights"
    )


def _renamed(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """An edit of a file's bytes that keeps their number."""
    assert len(old) == len(new)
    return lambda whole: whole.replace(old, new)


def case(
    tiny: Tiny,
    edit: Callable[[bytes], bytes] = bytes,
    also: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
) -> tuple[Tiny, dict[str, Any], Callable[[bytes], bytes]]:
    """A file that is refused: what is written besides, and how its bytes are edited then."""
    return tiny, {"also": also or {}, "tensors": tensors or {}}, edit


LLAMA, QWEN, PHI, GEMMA = (FILES[name] for name in ("llama", "qwen2", "phi3", "gemma2"))
NARROW = {"attention.key_length": 128, "attention.value_length": 128}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
WHITE_SPACE = {"remove_extra_whitespaces": True}
REFUSED = {
    "cut": case(LLAMA, lambda whole: whole[: len(whole) * 9 // 10]),
    "text": case(LLAMA, lambda _: b"hello" * 9),
    "starcoder2": case(replace(QWEN, architecture="starcoder2")),
    "a model named mistral": case(replace(LLAMA, name="mistral")),
    "no context": case(LLAMA, _renamed(b"context_length", b"context_lenght")),
    "no window": case(replace(PHI, entries={})),
    "other windows": case(
        FILES["gemma3"], also={"attention.sliding_window_pattern": 4}
    ),
    "a window in Qwen": case(QWEN, also={"attention.sliding_window": 8}),
    "a scale of logits that is not said": case(
        replace(GEMMA, of_head=128, entries={**GEMMA.entries, **NARROW})
    ),
    "two-way attention": case(QWEN, also={"attention.causal": False}),
    "YaRN in Gemma": case(GEMMA, also=YARN),
    "a factor without its type": case(QWEN, also={"rope.scaling.factor": 4.0}),
    "other rotary frequencies": case(
        LLAMA, tensors={"rope_freqs.weight": np.array([1, 1, 3, 8], np.float32)}
    ),
    "two scales": case(FILES["llama with Llama 3's frequencies"], also=LINEAR),
    "biases": case(LLAMA, tensors={"blk.1.attn_q.bias": np.ones(32, np.float32)}),
    "no keys": case(LLAMA, tensors={"blk.1.attn_k.weight": None}),
    "NaN": case(LLAMA, tensors={"output_norm.weight": np.full(32, np.nan, np.float32)}),
    "tokens without embeddings": case(LLAMA, also={"vocab_size": 64}),
    "another way to cut text": case(replace(LLAMA, tokenizer="gpt-4o")),
    "white space that is left out": case(replace(PHI, tokens=WHITE_SPACE)),
    "a special token left out": case(LLAMA, _renamed(b"<|other|>", "<｜o｜>".encode())),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_lost_is_refused(case: str, tmp_path: Path) -> None:
    tiny, how, edit = REFUSED[case]
    file = write_gguf(tiny, tmp_path / "model.gguf", **how)
    file.write_bytes(edit(file.read_bytes()))
    with pytest.raises(ModelAccessError) as refusal:
        sl.load(file, device="cpu")
    assert "\n" not in str(refusal.value)
    assert not list((tmp_path / "cache").glob("*")), "nothing is left in the cache"


def test_parts_of_split_files_and_folders_are_refused(tmp_path: Path) -> None:
    write_gguf(LLAMA, tmp_path / "model.gguf", split=12)
    for path in (*tmp_path.glob("*.gguf"), tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelAccessError):
            sl.load(path, device="cpu")


def test_a_file_is_converted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(LLAMA, tmp_path / "model.gguf")
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
