"""Turn a GGUF file into the Hugging Face folder of the same model, in float32.

transformers dequantizes the weights and builds the tokenizer. Its own reading of a file leaves out what it does not
know, without an error: a scale of the rotary frequencies, a tensor, a number of the configuration. So every entry about
the architecture is read here, or the file is refused, and the numbers in the file are counted against the parameters.
"""

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from squashlens.engine.loading.converting.header import Header, StoredTensor, read_header, write_without_long_arrays
from squashlens.engine.memory import human, require_room
from squashlens.engine.proving.complete import require_finite
from squashlens.errors import CapacityError, ModelAccessError

# Each is compared with the model that a file was written from in the tests. Files of Mistral's models name "llama".
ARCHITECTURES = ("gemma2", "gemma3", "llama", "qwen2", "qwen3")
# What an entry says, as attributes of a configuration of transformers; families name some of them differently.
SAYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.dimension_count": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "_sliding_window_pattern",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "vocab_size": "vocab_size",
}
THETA, SCALING, FACTOR = "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"
WINDOW_THETA = "rope.freq_base_swa"  # of Gemma 3's blocks with windows
NEEDED = (
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
    "context_length",
)  # fmt: skip
FACTORS = "rope_freqs.weight"  # Llama 3.1's, one for each rotary frequency
PLAIN = ("F32", "F16", "BF16", "F64")
ORIGIN = "squashlens_origin"  # the entry of config.json that says what a folder was converted from


def convert(file: Path, sha256: str, folder: Path) -> None:
    """Write the configuration, the weights in float32, and the tokenizer of a GGUF file to an empty folder.

    Raises:
        ModelAccessError: the file is damaged, truncated, of an unsupported architecture, or says something that
            transformers would leave out.
        CapacityError: the weights do not fit into memory or on the disk.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    _require_gguf()
    header = read_header(file)
    _require_supported(header, file)
    _require_known_tokenizer(header, file)
    _require_space(header, file, folder)
    plain = folder / "without_long_arrays.gguf"
    write_without_long_arrays(file, header, plain)
    try:
        config = AutoConfig.from_pretrained(folder, gguf_file=plain.name)
        _describe(config, header, file)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=plain.name, config=config, dtype=torch.float32, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
        model, report = loaded
        _require_all_used(model, report, header, file)
        require_finite(model, str(file))
        plain.unlink()
        setattr(model.config, ORIGIN, origin_of(header, sha256))
        # transformers refuses to save a model that it knows as quantized, which this one no longer is.
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(folder)
        del model
        if "tokenizer.ggml.model" in header.values:
            _tokenizer(header, file).save_pretrained(folder)
    except (ModelAccessError, CapacityError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the many errors of transformers, tokenizers and gguf
        reason = " ".join(str(error).split())[:300]
        raise ModelAccessError(
            f"transformers cannot read {file} ({type(error).__name__}: {reason}).",
            "Use a GGUF file that llama.cpp converted from a model of Hugging Face.",
        ) from error


def _require_gguf() -> None:
    """Raise an error if the package gguf is not installed, without which GGUF files cannot be read."""
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModelAccessError(
            f"GGUF files need the package gguf, which cannot be imported ({error}).", "pip install squashlens[gguf]"
        ) from error


def _require_supported(header: Header, file: Path) -> None:
    """Raise an error for a file that is a part of a model, no language model, or of an untested architecture."""
    architecture = header.values.get("general.architecture")
    if header.values.get("split.count", 1) > 1:
        raise ModelAccessError(
            f"{file} is one of {header.values['split.count']} parts of a model.",
            "Merge them with llama.cpp's `llama-gguf-split --merge`.",
        )
    if architecture not in ARCHITECTURES:
        raise ModelAccessError(
            f"{file} has the architecture {architecture!r}, whose GGUF files are not supported.",
            f"Supported are {', '.join(ARCHITECTURES)}. Other models can be loaded from a Hugging Face folder.",
        )


def origin_of(header: Header, sha256: str) -> dict[str, Any]:
    """What results state about the weights: their number formats in the file, and the file's digest."""
    kinds = sorted({tensor.kind for tensor in header.tensors})
    formats = {kind: sum(tensor.count for tensor in header.tensors if tensor.kind == kind) for kind in kinds}
    name = _format(header) or max(kinds, key=formats.__getitem__)
    lossless = all(kind in PLAIN for kind in kinds)
    return {
        "note": f"read from {name} in a GGUF file"
        if lossless
        else f"dequantized from {name}; not the published weights",
        "quantization": name,
        "formats": formats,
        "sha256": sha256,
        "name": header.values.get("general.name"),
    }


def _format(header: Header) -> str | None:
    """The name of the quantization that a file states, such as Q4_K_M."""
    from gguf import LlamaFileType

    try:
        declared = LlamaFileType(header.values["general.file_type"]).name
    except (KeyError, ValueError):
        return None
    return None if declared == "GUESSED" else declared.removeprefix("MOSTLY_").removeprefix("ALL_")


def _describe(config: Any, header: Header, file: Path) -> None:
    """Write what the file says of the architecture into the configuration; raise an error for what is not known."""
    architecture = header.values["general.architecture"]
    said = {
        key.removeprefix(f"{architecture}."): value
        for key, value in header.values.items()
        if key.startswith(f"{architecture}.")
    }
    _require_said(said, header, file)
    config.vocab_size = next((t.shape[0] for t in header.tensors if t.name == "token_embd.weight"), config.vocab_size)
    if "attention.key_length" not in said:
        said = {"attention.key_length": said["embedding_length"] // said["attention.head_count"]} | said
    for key, value in said.items():
        if key in SAYS:
            if _has_a_place(config, key, said):
                setattr(config, SAYS[key], value)
                continue
        elif key in (THETA, SCALING, FACTOR) or (key == WINDOW_THETA and architecture == "gemma3"):
            continue
        raise ModelAccessError(
            f"{file} says {architecture}.{key} = {value!r}, which cannot be carried over to {type(config).__name__}.",
            "Load the model from a Hugging Face folder.",
        )
    if architecture in ("gemma2", "gemma3") and config.head_dim != config.query_pre_attn_scalar:
        raise ModelAccessError(
            f"{file} has heads of {config.head_dim} instead of 256, and does not say how attention logits are scaled.",
            "Load the model from a Hugging Face folder.",
        )
    factors = next((tensor for tensor in header.tensors if tensor.name == FACTORS), None)
    _set_rotary(config, said, None if factors is None else _read(factors, header, file), file)


def _has_a_place(config: Any, key: str, said: Mapping[str, Any]) -> bool:
    """Whether the configuration uses this entry. It has one width for queries, keys, values and rotary embeddings."""
    if SAYS[key] == "head_dim":
        return said[key] == said["attention.key_length"]
    if SAYS[key] == "sliding_window":
        return "sliding_attention" in (getattr(config, "layer_types", None) or [])
    if SAYS[key] == "_sliding_window_pattern":  # the kinds of blocks follow from it, and are set already
        return said[key] == getattr(config, SAYS[key], None)
    return hasattr(config, SAYS[key])


def _require_said(said: Mapping[str, Any], header: Header, file: Path) -> None:
    """Raise an error for an entry that is absent or impossible: transformers would take another value, silently."""
    windows = ("attention.sliding_window",) if header.values["general.architecture"].startswith("gemma") else ()
    for key in (*NEEDED, *windows):
        if type(said.get(key)) is not int or said[key] < 1:
            raise _impossible(file, key, said.get(key), "a positive whole number")
    eps = said.get("attention.layer_norm_rms_epsilon")
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise _impossible(file, "attention.layer_norm_rms_epsilon", eps, "a number between 0 and 1")
    blocks = len({tensor.name.split(".")[1] for tensor in header.tensors if tensor.name.startswith("blk.")})
    if said["block_count"] != blocks:  # also before a model of a damaged size is built
        raise _impossible(file, "block_count", said["block_count"], f"{blocks}, of which it has tensors")
    largest = max(tensor.count for tensor in header.tensors)
    if said["embedding_length"] * max(said["feed_forward_length"], said.get("vocab_size", 1)) > largest:
        raise _impossible(file, "embedding_length", said["embedding_length"], "the width of its tensors")


def _impossible(file: Path, key: str, value: object, wanted: str) -> ModelAccessError:
    return ModelAccessError(f"{file} has {key} = {value!r}, not {wanted}.", "Convert the model again.")


def _set_rotary(config: Any, said: Mapping[str, Any], factors: np.ndarray | None, file: Path) -> None:
    """Set base and scale of the rotary frequencies; those of Gemma 3's blocks with windows are never scaled."""
    by_kind = "full_attention" in config.rope_parameters
    rope = config.rope_parameters["full_attention"] if by_kind else config.rope_parameters
    rope["rope_theta"] = said.get(THETA, rope["rope_theta"])
    if WINDOW_THETA in said:
        config.rope_parameters["sliding_attention"]["rope_theta"] = said[WINDOW_THETA]
    kind, factor = said.get(SCALING, "none"), said.get(FACTOR)
    if kind == "linear" and isinstance(factor, float) and factor > 0:
        rope |= {"rope_type": "linear", "factor": factor}
    elif kind != "none" or factor not in (None, 1.0):
        raise ModelAccessError(
            f"{file} scales rotary frequencies in a way that is not supported ({kind}, factor {factor}).",
            "Load the model from a Hugging Face folder.",
        )
    if factors is not None:
        rope |= _llama3(factors, rope["rope_theta"], file)


def _llama3(factors: np.ndarray, theta: float, file: Path) -> dict[str, Any]:
    """Llama 3.1's scale of the rotary frequencies, recognised by computing its factors again.

    With wavelength λ = 2π θ^(2i/d) and the context N = 8192 before scaling: 1 for λ < N/4, f for λ > N, and between
    them 1 / ((1 − s)/f + s) with s = (N/λ − 1) / (4 − 1).
    """
    given = {"factor": float(factors.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    context = 8192
    expected = []
    for i in range(len(factors)):
        wavelength = 2 * math.pi * theta ** (i / len(factors))
        smooth = min(max((context / wavelength - 1) / 3, 0.0), 1.0)
        expected.append(1 / ((1 - smooth) / given["factor"] + smooth))
    if not np.allclose(factors, expected, rtol=1e-5, atol=0):
        raise ModelAccessError(
            f"{file} has factors for the rotary frequencies ({FACTORS}) that are not Llama 3.1's.",
            "Load the model from a Hugging Face folder.",
        )
    return {"rope_type": "llama3", **given, "original_max_position_embeddings": context}


def _read(tensor: StoredTensor, header: Header, file: Path) -> np.ndarray:
    """Read one tensor of float32 numbers."""
    return np.fromfile(file, "<f4", tensor.count, offset=header.data + tensor.offset)


def _require_all_used(model: Any, report: Mapping[str, Any], header: Header, file: Path) -> None:
    """Raise an error unless the file's numbers are exactly the model's parameters."""
    missing = sorted({*report["missing_keys"], *(str(one[0]) for one in report["mismatched_keys"])})
    stored = sum(tensor.count for tensor in header.tensors if tensor.name != FACTORS)
    needed = sum(parameter.numel() for parameter in model.parameters())
    if missing or stored != needed:
        lacks = f", and lacks {', '.join(missing[:4])}" if missing else ""
        raise ModelAccessError(
            f"{file} does not match {type(model).__name__}: it has {stored:,} numbers, the model {needed:,}{lacks}.",
            "Use a GGUF file of an unchanged model, or load it from a Hugging Face folder.",
        )


def _require_known_tokenizer(header: Header, file: Path) -> None:
    """Raise an error for settings of a tokenizer that transformers leaves out."""
    said = {key.removeprefix("tokenizer.ggml."): value for key, value in header.values.items()}
    byte_pairs, qwen = said.get("model") == "gpt2", header.values["general.architecture"].startswith("qwen")
    rule, wrong = said.get("pre"), ""
    if said.get("add_eos_token"):
        wrong = "puts EOS behind a text"
    elif qwen and rule not in (None, "qwen2"):
        wrong = f"splits text by the rule {rule!r} instead of 'qwen2'"
    elif byte_pairs and not qwen and "add_bos_token" not in said:
        wrong = "does not say whether a text begins with BOS"
    if "model" in said and wrong:
        raise ModelAccessError(
            f"The tokenizer of {file} {wrong}, which transformers' does not follow.",
            "Load the model from a Hugging Face folder.",
        )


def _tokenizer(header: Header, file: Path) -> Any:
    """The file's tokenizer; raises an error if it does not put a space before a text as the file says."""
    from transformers import AutoTokenizer

    spaced = header.values.get("tokenizer.ggml.add_space_prefix")
    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if header.values.get("tokenizer.ggml.pre") == "llama-bpe":
        tokenizer.backend_tokenizer.model.ignore_merges = True  # words of the vocabulary that no merge makes
    first = tokenizer.convert_ids_to_tokens(tokenizer("1", add_special_tokens=False)["input_ids"])[0]
    if spaced is not None and first.startswith("▁") != spaced:
        raise ModelAccessError(
            f"{file} says that its tokenizer puts {'a' if spaced else 'no'} space before a text, and transformers' "
            "tokenizer for it does otherwise.",
            "Load the model from a Hugging Face folder.",
        )
    return tokenizer


def _require_space(header: Header, file: Path, folder: Path) -> None:
    size = 4 * sum(tensor.count for tensor in header.tensors)
    remedy = "Use a smaller model, or a machine with more memory."
    require_room(2.2 * size, torch.device("cpu"), f"Dequantizing {file.name}", remedy)
    needed, free = size + 2 * file.stat().st_size, shutil.disk_usage(folder).free
    if needed > free:
        raise CapacityError(
            f"The dequantized weights of {file.name} need {human(needed)} on the disk of {folder.parent}, which has "
            f"{human(free)} free.",
            "Free some space, or set SQUASHLENS_CACHE to a folder on another disk.",
        )
