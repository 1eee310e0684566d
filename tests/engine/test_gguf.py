"""GGUF files: the loaded model is the one that a file was written from, and what would be lost raises an error."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen2Config
from transformers import Qwen3Config as Qwen3

import squashlens as sl
from squashlens.engine.loading import sources
from squashlens.engine.loading.converting import cache
from squashlens.engine.loading.converting.header import read_header
from squashlens.errors import InputError, ModelAccessError, OutputError
from tests.cases import COMMON, NO_HEAD_DIM, random_model
from tests.engine.ggufs import WORDS, write_gguf

WIDE: dict[str, Any] = COMMON | {"hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
GEMMA: dict[str, Any] = COMMON | {
    "head_dim": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "sliding_window": 5,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
WINDOWS = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
}
# The architecture that a file names, the configuration, and the entries that say how rotary frequencies are scaled.
FAMILIES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "llama": ("llama", LlamaConfig(**COMMON), {}),
    "llama tied": ("llama", LlamaConfig(**COMMON, tie_word_embeddings=True), {}),
    "llama scaled": (
        "llama", LlamaConfig(**COMMON, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
    ),
    "llama 3.1": ("llama", LlamaConfig(**COMMON | {"head_dim": 16}, rope_parameters=LLAMA3), {}),
    "mistral": ("llama", MistralConfig(**COMMON, sliding_window=None), {}),
    "qwen2": ("qwen2", Qwen2Config(**NO_HEAD_DIM), {}),
    "qwen3": ("qwen3", Qwen3(**COMMON), {}),
    "gemma2": ("gemma2", Gemma2Config(**GEMMA), {}),
    "gemma3": ("gemma3", Gemma3TextConfig(**GEMMA | {"num_hidden_layers": 7}), {}),
    "gemma3 windows": (
        "gemma3", Gemma3TextConfig(**GEMMA | {"num_hidden_layers": 7}, rope_parameters=WINDOWS),
        {"rope.freq_base_swa": 2e4, "attention.sliding_window_pattern": 6},
    ),
    "gemma3 scaled": (
        "gemma3", Gemma3TextConfig(**GEMMA | {"num_hidden_layers": 7}, rope_parameters=LINEAR),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUASHLENS_CACHE", str(tmp_path / "cache"))


def factors_of(model: Any) -> np.ndarray:
    """Plain frequencies over the model's own."""
    own = model.model.rotary_emb.inv_freq
    plain = model.config.rope_parameters["rope_theta"] ** (-torch.arange(len(own)) / len(own))
    return (plain / own).numpy()


@pytest.mark.few(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_gives_the_model_that_it_was_written_from(family: str, tmp_path: Path) -> None:
    architecture, config, also = FAMILIES[family]
    plain = random_model(config)
    tensors = {"rope_freqs.weight": factors_of(plain)} if family == "llama 3.1" else {}
    file = write_gguf(plain, tmp_path / "model.gguf", architecture, also=also, tensors=tensors)
    model = sl.load(file, device="cpu", progress=False)
    ids = torch.tensor([[2, *range(5, 45)]])
    torch.testing.assert_close(model(ids), plain(ids).logits, rtol=1e-5, atol=1e-5)
    space = [WORDS.index("▁")] if architecture == "llama" else []
    start = [] if "qwen" in family else [2]
    assert sl.prompts.tokenize(model, "1ab").tolist() == [[*start, *space, WORDS.index("1"), WORDS.index("ab")]]
    assert sl.prompts.repeated(model, "1", 3).trunk == (*start, *[WORDS.index("1")] * 3)
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
        whole = np.trunc(blocks / step + np.copysign(0.5, blocks))  # halves go away from 0
        return (step.astype(np.float16).astype(np.float32) * whole).reshape(values.shape)
    peak = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)  # Q4_0: the largest becomes -8
    step = peak / -8
    whole = np.clip(np.trunc(blocks / step + 8.5), 0, 15) - 8
    return (step.astype(np.float16).astype(np.float32) * whole).reshape(values.shape)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_quantized_weights_are_those_of_the_format(kind: str, tmp_path: Path) -> None:
    plain = random_model(LlamaConfig(**WIDE))
    file = write_gguf(plain, tmp_path / "model.gguf", "llama", kind=kind)
    model = sl.load(file, device="cpu", progress=False)
    held = {name.replace("._original_component", ""): p for name, p in model.original_model.named_parameters()}
    name = "model.layers.1.mlp.down_proj.weight"
    expected = rounded(plain.state_dict()[name].numpy(), kind)
    np.testing.assert_allclose(held[name].numpy(), expected, rtol=1e-6, atol=0)
    note = sl.results.provenance(sl.path_bound(model, "110"))["weights_origin"]["note"]
    assert note == (
        "read from F16 in a GGUF file" if kind == "F16" else f"dequantized from {kind}; not the published weights"
    )


Refused = tuple[Callable[[Path], Path], str]


def _llama(path: Path, **how: Any) -> Path:
    return write_gguf(random_model(LlamaConfig(**COMMON)), path / "model.gguf", how.pop("architecture", "llama"), **how)


def _cut(path: Path, keep: float) -> Path:
    file = _llama(path)
    file.write_bytes(file.read_bytes()[: int(keep * file.stat().st_size)])
    return file


def _patched(path: Path, at: int, content: bytes) -> Path:
    file = _llama(path)
    whole = bytearray(file.read_bytes())
    whole[at : at + len(content)] = content
    file.write_bytes(whole)
    return file


def _written(path: Path, content: bytes, name: str = "model.gguf") -> Path:
    (path / name).write_bytes(content)
    return path / name


def _deep(path: Path) -> Path:
    gemma = Gemma2Config(**GEMMA | {"head_dim": 128}, query_pre_attn_scalar=144)
    return write_gguf(random_model(gemma), path / "model.gguf", "gemma2")


def _gemma3(path: Path, **how: Any) -> Path:
    return write_gguf(random_model(Gemma3TextConfig(**GEMMA)), path / "model.gguf", "gemma3", **how)


def _patched_eos(path: Path) -> Path:
    """The entry that says that BOS is put before a text, as that of EOS behind one."""
    whole = _llama(path).read_bytes()
    assert whole.count(b"add_bos_token") == 1
    return _written(path, whole.replace(b"add_bos_token", b"add_eos_token"))


def _biased(path: Path) -> Path:
    biased = LlamaConfig(**COMMON, attention_bias=True)
    return write_gguf(random_model(biased), path / "model.gguf", "llama")


REFUSED: dict[str, Refused] = {
    "cut in the data": (lambda p: _cut(p, 0.9), "is truncated: it has .* bytes"),
    "text": (lambda p: _written(p, b"hello" * 9), "is not a GGUF file"),
    "big-endian": (lambda p: _patched(p, 4, struct.pack(">I", 3)), "big-endian"),
    "an unknown entry": (lambda p: _llama(p, also={"attention.scale": 0.5}), r"says llama.attention.scale = 0.5"),
    "a window": (lambda p: _llama(p, also={"attention.sliding_window": 5}), "llama.attention.sliding_window = 5"),
    "windows in other blocks": (
        lambda p: _gemma3(p, also={"attention.sliding_window_pattern": 4}),
        "gemma3.attention.sliding_window_pattern = 4",
    ),
    "two widths": (lambda p: _llama(p, also={"attention.value_length": 2}), "attention.value_length = 2"),
    "a partial rotation": (lambda p: _llama(p, also={"rope.dimension_count": 2}), "rope.dimension_count = 2"),
    "YaRN": (
        lambda p: _llama(p, also={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}),
        r"scales rotary frequencies in a way that is not supported \(yarn",
    ),
    "odd factors": (
        lambda p: _llama(p, tensors={"rope_freqs.weight": np.ones(2, np.float32) * 3}), "are not Llama 3.1's",
    ),
    "no groups of heads": (
        lambda p: _llama(p, also={"attention.head_count_kv": None}), "attention.head_count_kv = None, not a positive",
    ),
    "no epsilon": (
        lambda p: _llama(p, also={"attention.layer_norm_rms_epsilon": None}), "rms_epsilon = None, not a number",
    ),
    "no window": (lambda p: _gemma3(p, also={"attention.sliding_window": None}), "sliding_window = None, not a"),
    "EOS behind a text": (lambda p: _patched_eos(p), "puts EOS behind a text"),
    "2,000,000,000 blocks": (lambda p: _llama(p, also={"block_count": 2 * 10**9}), "not 3, of which it has tensors"),
    "a wide stream": (lambda p: _llama(p, also={"embedding_length": 2**20}), "not the width of its tensors"),
    "another rule": (
        lambda p: write_gguf(random_model(Qwen3(**COMMON)), p / "model.gguf", "qwen3", rule="gpt-2"),
        "splits text by the rule 'gpt-2' instead of 'qwen2'",
    ),
    "no word on BOS": (lambda p: _llama(p, rule="llama-bpe", says_bos=False), "does not say whether a text begins"),
    "NaN": (
        lambda p: _llama(p, tensors={"output_norm.weight": np.full(16, np.nan, np.float32)}),
        r"model.norm.weight of .*model.gguf has 16 NaN",
    ),
    "a tensor less": (lambda p: _llama(p, without="blk.1.ffn_up"), r"lacks model.layers.1.mlp.up_proj"),
    "biases": (_biased, "does not match LlamaForCausalLM"),
    "a scale that is not said": (_deep, "has heads of 128 instead of 256"),
    "no space": (lambda p: _llama(p, space=False), "puts no space before a text"),
}  # fmt: skip


@pytest.mark.few(14)
@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_lost_is_refused(case: str, tmp_path: Path) -> None:
    make, complaint = REFUSED[case]
    file = make(tmp_path)
    with pytest.raises(ModelAccessError, match=complaint) as refusal:
        sl.load(file, device="cpu", progress=False)
    assert "\n" not in str(refusal.value)
    assert not list((tmp_path / "cache").glob("*")), "nothing is left in the cache"


def test_other_architectures_and_parts_are_refused(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    for name, entries, complaint in (
        ("mamba", {}, "architecture 'mamba', whose GGUF files are not supported. Supported are gemma2"),
        ("llama", {"split.count": 3}, "one of 3 parts"),
    ):
        writer = GGUFWriter(tmp_path / f"{name}.gguf", name)
        for key, value in entries.items():
            writer.add_uint16(key, value)
        writer.add_tensor("a.weight", np.ones((2, 2), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(ModelAccessError, match=complaint):
            sl.load(tmp_path / f"{name}.gguf", progress=False)
    with pytest.raises(ModelAccessError, match="There is no file"):
        sl.load(tmp_path / "none.gguf", progress=False)
    with pytest.raises(ModelAccessError, match=r"has no config.json. Give the GGUF file: .*llama.gguf"):
        sl.load(tmp_path, progress=False)


def test_every_byte_of_the_header_matters_or_does_no_harm(tmp_path: Path) -> None:
    """A flipped byte gives an error of ours, or a header; never another exception, and never a long wait."""
    file = _llama(tmp_path)
    whole = file.read_bytes()
    end = read_header(file).data
    rng = np.random.default_rng(0)
    for at in rng.choice(end, 300, replace=False):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        try:
            read_header(file)
        except ModelAccessError:
            continue


def test_a_file_is_converted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _llama(tmp_path)
    sl.load(file, device="cpu")
    assert "converting it once" in capsys.readouterr().out
    (entry,) = cache.entries()
    assert entry.name.startswith("model-")
    assert entry.n_bytes == sum(f.stat().st_size for f in entry.path.iterdir())

    def never(*_: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(sources, "convert", never)
    moved = file.rename(tmp_path / "renamed.gguf")
    model = sl.load(moved, device="cpu", progress=False)
    assert sl.results.provenance(sl.path_bound(model, "110"))["model"] == "renamed.gguf"
    assert AutoModelForCausalLM.from_pretrained(entry.path).config.squashlens_origin["quantization"] == "F32"
    assert cache.delete("model").name == entry.name
    assert cache.entries() == []
    with pytest.raises(InputError, match="names 0 folders"):
        cache.delete("model")


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _llama(tmp_path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sources, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sl.load(file, progress=False)
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setenv("SQUASHLENS_CACHE", "/proc/none")
    with pytest.raises(OutputError, match="The cache /proc/none cannot be written"):
        sl.load(file, progress=False)


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    """Two tensors at one place, which would give wrong weights."""
    file = _llama(tmp_path)
    whole = file.read_bytes()
    first, second = b"blk.0.ffn_up.weight", b"blk.1.ffn_up.weight"
    assert whole.count(first) == whole.count(second) == 1
    place = whole.index(second) + len(second) + 4 + 2 * 8 + 4  # dimensions, their sizes, and the number format
    other = whole.index(first) + len(first) + 4 + 2 * 8 + 4
    file.write_bytes(whole[:place] + whole[other : other + 8] + whole[place + 8 :])
    with pytest.raises(ModelAccessError, match="overlaps"):
        read_header(file)


def test_words_of_llama_3_are_kept_that_no_merge_makes(tmp_path: Path) -> None:
    model = sl.load(_llama(tmp_path, rule="llama-bpe"), device="cpu", progress=False)
    assert sl.prompts.tokenize(model, "cd").tolist() == [[len(WORDS) - 2]]
