"""Tiny GGUF files with random weights, by llama.cpp's conventions alone: the same bytes at every call.

They are written from names and shapes, with no model of transformers, so what llama.cpp computes from them
(`record_llama_cpp.py`) is an independent reference.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize

WIDTH, INNER = 32, 64
TEXTS = [
    "The old ferry left the island at noon.",
    "In 1969 there were 23 ships; 7 sank, so 1111111111",
    "3.14159 and -20 % of 1,000,000",
    " one space before,  two, three   , a tab\tand\n\n\ntwo empty lines \n",
    "   ",
    "It's what they'll say; I'M sure we've heard it'd WORK iPhone",
    "x²³ is ½ or ¾, ١٢٣ and Ⅳ",
    "naïve café, Straße, Ελλάδα, Москва",
    "中文字符 和 日本語のテキスト 🙂 e\u0301",
    "for (int i = 0; i < 10; ++i) { a[i] += 0x1F; }  // end",
    "<|user|>\n Hi<|end|>\n<|other|> there</s> then<|endoftext|> no",
    "a\u00a0b\u2003c\u200bd ----====",
]
PROMPT = TEXTS[0]
SPECIAL = ("<|endoftext|>", "<|user|>", "<|end|>", "<|other|>")
UNMERGED = "island"  # with its space a token, to which no merges lead
N_MERGES = 120
N_PLAIN = (
    6  # texts whose characters are tokens in SentencePiece; others are bytes there
)


@dataclass(frozen=True)
class Tiny:
    """A file: its architecture and tokenizer, what differs from the usual, and the tokens that are run."""

    architecture: str
    tokenizer: str  # "llama" for SentencePiece, else how a byte-level one cuts text
    entries: Mapping[str, Any] = field(default_factory=dict)
    tokens: Mapping[str, Any] = field(default_factory=dict)  # entries of the tokenizer
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    blocks: int = 2
    heads: int = 4
    shared: int = 2
    of_head: int = 8
    tied: bool = False
    kind: str = "F32"
    name: str = ""
    length: int = 24


def llama3_divisors(theta: float, of_head: int) -> np.ndarray:
    """What Llama 3.1 divides rotary frequencies by: 1 for fast ones, 8 for slow ones, and between them by a formula."""
    turns = 8192 * theta ** (-np.arange(0, of_head, 2) / of_head) / (2 * np.pi)
    share = np.clip((turns - 1) / (4 - 1), 0, 1)
    return (1 / ((1 - share) / 8 + share)).astype(np.float32)


WIDE = {"attention.key_length": 16, "attention.value_length": 16}
GEMMA: dict[str, Any] = {
    "heads": 2,
    "shared": 1,
    "of_head": 256,
    "tied": True,
    "tokens": {"add_space_prefix": False},
}
GEMMA_ENTRIES = {
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.sliding_window": 5,
}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 512,
    "context_length": 2048,
}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
FILES: dict[str, Tiny] = {
    "llama": Tiny("llama", "llama-bpe", {"vocab_size": 0, "rope.dimension_count": 8}),
    "qwen2": Tiny("qwen2", "qwen2"),
    "phi3": Tiny("phi3", "llama", {"attention.sliding_window": 64}, name="Phi-3 mini"),
    "qwen3": Tiny("qwen3", "qwen2", WIDE, {"add_bos_token": False}, of_head=16),
    "mistral": Tiny(
        "llama", "llama", {"rope.freq_base": 1e6}, name="mistral-7b", shared=1
    ),
    "gemma3": Tiny(
        "gemma3",
        "llama",
        GEMMA_ENTRIES
        | {"rope.freq_base_swa": 2e4, "attention.sliding_window_pattern": 6},
        blocks=7,
        **GEMMA,
    ),
    "gemma2": Tiny(
        "gemma2",
        "llama",
        GEMMA_ENTRIES
        | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        blocks=3,
        **GEMMA,
    ),
    "llama with Llama 3's frequencies": Tiny(
        "llama",
        "llama-bpe",
        {"rope.freq_base": 5e5, "context_length": 1024},
        {"add_bos_token": True},
        {"rope_freqs.weight": llama3_divisors(5e5, 8)},
        tied=True,
        length=700,
    ),
    "llama tied": Tiny("llama", "smollm", tokens={"add_bos_token": False}, tied=True),
    "llama linear": Tiny("llama", "llama", LINEAR, {"add_space_prefix": False}),
    "llama yarn": Tiny("llama", "smollm", YARN | {"rope.freq_base": 1e4}, length=600),
    "mistral nemo": Tiny(
        "llama", "tekken", WIDE | {"rope.dimension_count": 16}, of_head=16
    ),
    "qwen2 yarn tied": Tiny("qwen2", "qwen2", YARN, tied=True, length=600),
    "qwen3 linear": Tiny("qwen3", "qwen2", WIDE | LINEAR, of_head=16, shared=4),
    "phi4": Tiny("phi3", "dbrx", {"attention.sliding_window": 0}, shared=1),
    "gemma3 linear": Tiny(
        "gemma3",
        "llama",
        GEMMA_ENTRIES
        | {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
        | {"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4},
        blocks=7,
        **GEMMA,
    ),
    "llama F16": Tiny("llama", "llama", kind="F16"),
    "qwen2 Q8_0": Tiny("qwen2", "qwen2", kind="Q8_0"),
}


def write_gguf(
    tiny: Tiny,
    path: Path,
    *,
    also: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
    split: int = 0,
) -> Path:
    """The file, or files of `split` tensors each; `also` adds or replaces entries, `tensors` weights (None: none)."""
    words = words_of(tiny)
    writer = GGUFWriter(path, tiny.architecture, split_max_tensors=split)
    if tiny.name:
        writer.add_name(tiny.name)
    entries = entries_of(tiny) | dict(tiny.entries) | dict(also or {})
    if "vocab_size" in tiny.entries:
        entries |= {"vocab_size": len(words)} | dict(also or {})
    for key, value in entries.items():
        _add(writer, f"{tiny.architecture}.{key}", value)
    _add_tokenizer(writer, tiny, words)
    for name, values in (weights(tiny, len(words)) | dict(tensors or {})).items():
        if values is None:
            continue
        plain = values.ndim == 1 or tiny.kind == "F32"
        form = GGMLQuantizationType.F32 if plain else GGMLQuantizationType[tiny.kind]
        stored = values if plain else quantize(values, form)
        writer.add_tensor(name, stored, raw_dtype=None if plain else form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, name: str, value: Any) -> None:
    add = {
        str: writer.add_string,
        float: writer.add_float32,
        int: writer.add_uint32,
        bool: writer.add_bool,
    }
    add[type(value)](name, value)


def entries_of(tiny: Tiny) -> dict[str, Any]:
    """What the converter writes for every architecture."""
    return {
        "context_length": 64,
        "embedding_length": WIDTH,
        "block_count": tiny.blocks,
        "feed_forward_length": INNER,
        "attention.head_count": tiny.heads,
        "attention.head_count_kv": tiny.shared,
        "attention.layer_norm_rms_epsilon": 1e-3,
        "rope.freq_base": 100.0,
    }


def weights(tiny: Tiny, n_words: int) -> dict[str, np.ndarray]:
    """Random tensors of the shapes that llama.cpp expects. A tensor depends on its name and shape alone."""
    queries, keys = tiny.heads * tiny.of_head, tiny.shared * tiny.of_head
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (n_words, WIDTH)}
    shapes["output_norm.weight"] = (WIDTH,)
    if not tiny.tied:
        shapes["output.weight"] = (n_words, WIDTH)
    of_block: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (WIDTH,),
        "ffn_norm.weight": (WIDTH,),
        "attn_output.weight": (WIDTH, queries),
        "ffn_down.weight": (WIDTH, INNER),
    }
    if tiny.architecture == "phi3":
        of_block["attn_qkv.weight"] = (queries + 2 * keys, WIDTH)
        of_block["ffn_up.weight"] = (2 * INNER, WIDTH)
    else:
        for part, rows in (("q", queries), ("k", keys), ("v", keys)):
            of_block[f"attn_{part}.weight"] = (rows, WIDTH)
            if tiny.architecture == "qwen2":
                of_block[f"attn_{part}.bias"] = (rows,)
        of_block["ffn_up.weight"] = of_block["ffn_gate.weight"] = (INNER, WIDTH)
    if tiny.architecture in ("qwen3", "gemma3"):
        of_block["attn_q_norm.weight"] = of_block["attn_k_norm.weight"] = (
            tiny.of_head,
        )
    if tiny.architecture in ("gemma2", "gemma3"):
        of_block["post_attention_norm.weight"] = (WIDTH,)
        of_block["post_ffw_norm.weight"] = (WIDTH,)
    for block in range(tiny.blocks):
        shapes |= {f"blk.{block}.{name}": shape for name, shape in of_block.items()}
    return {name: _random(name, shape) for name, shape in shapes.items()} | dict(
        tiny.tensors
    )


def _random(name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
    if "norm" in name:
        values = 1 + values / 3
    elif name != "token_embd.weight":
        values = values / 4
    return values.astype(np.float32)


def byte_spelling() -> dict[int, str]:
    """How byte-level tokenizers write each byte: printable ones as they are, others from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }


def merges_of(lines: Iterable[str]) -> list[tuple[str, str]]:
    """The most frequent pairs, one after the other, also across words: where text is cut is seen in the tokens."""
    pieces = [[*line] for line in lines]
    merges: list[tuple[str, str]] = []
    for _ in range(N_MERGES):
        counts = Counter(pair for piece in pieces for pair in pairwise(piece))
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        pieces = [_merged(piece, best) for piece in pieces]
    return merges


def _merged(piece: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for symbol in piece:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


def _is_sentencepiece(tiny: Tiny) -> bool:
    return tiny.tokenizer == "llama"


def _merges(tiny: Tiny) -> list[tuple[str, str]]:
    if _is_sentencepiece(tiny):
        return merges_of(text.replace(" ", "▁") for text in TEXTS[:N_PLAIN])
    spelling = byte_spelling()
    return merges_of("".join(spelling[b] for b in text.encode()) for text in TEXTS)


def words_of(tiny: Tiny) -> list[str]:
    """The tokens: special ones, bytes, characters, what pairs are merged into, and one word beside them."""
    words = ["<unk>", "<s>", "</s>", *SPECIAL]
    if _is_sentencepiece(tiny):
        words += [f"<0x{byte:02X}>" for byte in range(256)]
        words += sorted({*"".join(TEXTS[:N_PLAIN]).replace(" ", "▁")})
    else:
        words += byte_spelling().values()
    merged = ["".join(pair) for pair in _merges(tiny)]
    space = "▁" if _is_sentencepiece(tiny) else "Ġ"
    return list(dict.fromkeys([*words, *merged, space + UNMERGED]))


def _add_tokenizer(writer: GGUFWriter, tiny: Tiny, words: list[str]) -> None:
    """The tokenizer; a SentencePiece one merges what is earlier in the list first."""
    types = [TokenType.UNKNOWN, *[TokenType.CONTROL] * (2 + len(SPECIAL))]
    types += [TokenType.NORMAL] * (len(words) - len(types))
    if _is_sentencepiece(tiny):
        writer.add_tokenizer_model("llama")
        types[7 : 7 + 256] = [TokenType.BYTE] * 256
        writer.add_token_scores([-float(i) for i in range(len(words))])
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(tiny.tokenizer)
        writer.add_token_merges([" ".join(pair) for pair in _merges(tiny)])
    writer.add_token_list(words)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in tiny.tokens.items():
        _add(writer, f"tokenizer.ggml.{key}", value)


def ids_of(tiny: Tiny, n_words: int) -> list[int]:
    """The tokens that a file is run on."""
    return np.random.default_rng(tiny.length).integers(7, n_words, tiny.length).tolist()


def kept_positions(tiny: Tiny) -> list[int]:
    """The positions whose logits are recorded."""
    return [0, tiny.length // 3, 2 * tiny.length // 3, tiny.length - 1]
