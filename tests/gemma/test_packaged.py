"""The packaged models are those of their files, say so in results, and no other file is taken for one of them."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest

import squashlens as sl
from squashlens.errors import ModelAccessError
from squashlens.model.loading.packaged import PACKAGED
from tests.gemma.dequantized import FORMATS, first_values

NAMES = {"gemma": "gemma-3-270m", "smollm": "smollm2-135m"}
FILES = {"gemma": "dequantized from Q4_K_M", "smollm": "dequantized from Q4_1"}
MARKS = {"gemma": [pytest.mark.gemma, pytest.mark.slow], "smollm": [pytest.mark.smollm]}
BOTH = [pytest.param(name, marks=marks) for name, marks in MARKS.items()]


class Stored(NamedTuple):
    """A tensor of a model's file, its number format, and the module that has its weights."""

    model: str
    kind: str
    tensor: str
    module: str


# One of each number format.
STORED = (
    Stored("gemma", "Q8_0", "token_embd", "model.embed_tokens"),
    Stored("gemma", "Q5_0", "blk.0.attn_k", "model.layers.0.self_attn.k_proj"),
    Stored("gemma", "Q4_K", "blk.0.attn_output", "model.layers.0.self_attn.o_proj"),
    Stored("gemma", "Q6_K", "blk.0.ffn_down", "model.layers.0.mlp.down_proj"),
    Stored("smollm", "Q8_0", "token_embd", "model.embed_tokens"),
    Stored("smollm", "Q4_1", "blk.3.ffn_up", "model.layers.3.mlp.up_proj"),
)
TENSORS = [pytest.param(stored, marks=MARKS[stored.model]) for stored in STORED]


@pytest.fixture(scope="module")
def tensors_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tensors of a model's file by name, from the parts of its package."""

    @cache
    def tensors(model: str) -> dict[str, Any]:
        joined = tmp_path_factory.mktemp(model) / "model.gguf"
        parts = [part.read_bytes() for part in PACKAGED[NAMES[model]].paths()]
        joined.write_bytes(b"".join(parts))
        return {tensor.name: tensor for tensor in gguf.GGUFReader(joined).tensors}

    return tensors


@pytest.mark.parametrize("stored", TENSORS, ids=str)
def test_weights_are_those_of_the_file(
    stored: Stored, tensors_of: Any, request: pytest.FixtureRequest
) -> None:
    """The first 40 blocks of a tensor, by the definition of its number format."""
    bridge = request.getfixturevalue(stored.model)
    tensor = tensors_of(stored.model)[f"{stored.tensor}.weight"]
    assert tensor.tensor_type.name == stored.kind
    size, _ = FORMATS[stored.kind]
    expected = list(first_values(tensor.data.tobytes()[: 40 * size], stored.kind))
    assert len(set(expected)) > 15
    held = bridge.original_model.get_submodule(stored.module).weight.flatten()
    np.testing.assert_allclose(
        held[: len(expected)].detach(), expected, rtol=2e-6, atol=1e-9
    )


@pytest.mark.parametrize("model", BOTH)
def test_results_say_what_the_weights_are(
    model: str, request: pytest.FixtureRequest
) -> None:
    bridge = request.getfixturevalue(model)
    name = NAMES[model]
    result = sl.path_bound(bridge, "The capital of France is")
    facts = sl.results.provenance(result)
    assert facts["model"] == name
    assert facts["proof"] == "verified"
    origin = facts["weights_origin"]
    assert origin["note"] == f"{FILES[model]}; not the published weights"
    assert origin["sha256"] == PACKAGED[name].sha256
    sizes = [p.numel() for p in bridge.original_model.parameters() if p.ndim > 0]
    assert sum(origin["formats"].values()) == sum(sizes)
    subtitle = sl.figures.of(result).layout.title.subtitle.text
    assert f"{name} ({FILES[model]})" in subtitle


@pytest.mark.parametrize("model", BOTH)
def test_another_file_or_none_is_refused(
    model: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request.getfixturevalue(model)
    name = NAMES[model]
    monkeypatch.setenv("SQUASHLENS_CACHE", str(tmp_path))
    changed = replace(PACKAGED[name], sha256="0" * 64)
    missing = replace(PACKAGED[name], parts=(("no-such-package", "x"),))
    for packaged in (changed, missing):
        monkeypatch.setitem(PACKAGED, name, packaged)
        with pytest.raises(ModelAccessError):
            sl.load(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.smollm
def test_its_chat_template_is_kept(smollm: Any) -> None:
    chat = smollm.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert chat == f"{system}<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert sl.prompts.tokenize(smollm, "<|im_start|>user").tolist() == [[1, 4093]], (
        "a token of its own"
    )
