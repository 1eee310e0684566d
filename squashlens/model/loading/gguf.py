"""Turn a GGUF file into the Hugging Face folder of the same model, in float32.

The package gguf reads the file, and transformers dequantizes the weights and builds the tokenizer. transformers leaves
out what it does not know, without an error: a scale of the rotary frequencies, a tensor, a number of the configuration.
So every entry about the architecture is read here, or the file is refused, and the numbers in the file are counted
against the parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from squashlens._typing import listed
from squashlens.errors import CapacityError, ModelAccessError
from squashlens.model.finite import require_finite
from squashlens.model.memory import require_room

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
    "vocab_size": "vocab_size",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "_sliding_window_pattern",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
THETA, SCALING, FACTOR = "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"
WINDOW_THETA = "rope.freq_base_swa"  # of Gemma 3's blocks with windows
NEEDED = (
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "context_length",
    "attention.layer_norm_rms_epsilon",
)
PLAIN = ("F32", "F16", "BF16", "F64")
ORIGIN = "squashlens_origin"  # the entry of config.json that says what a folder was converted from
MAGIC = b"GGUF"
LONG = 64  # values of an array; longer ones are those of the tokenizer, with an object for each of its tokens


@dataclass(frozen=True)
class Family:
    """What the files of an architecture have in common.

    Attributes:
        model_type: what transformers calls the architecture.
        needed: entries that a file must have besides `NEEDED`.
        tokenizer: entries of the tokenizer, and the only values with which its tokens were compared.
    """

    model_type: str
    needed: tuple[str, ...]
    tokenizer: Mapping[str, str]


_GEMMA_ENTRIES = ("attention.key_length", "attention.sliding_window")
_SENTENCEPIECE = {"tokenizer.ggml.model": "llama"}
# Each is compared with the model that a file was written from in the tests.
FAMILIES = {
    "gemma2": Family("gemma2", _GEMMA_ENTRIES, _SENTENCEPIECE),
    "gemma3": Family("gemma3_text", _GEMMA_ENTRIES, _SENTENCEPIECE),
    "llama": Family(
        "llama", (), {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    ),
}


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself, without long arrays; `tensors` as gguf describes them."""

    values: dict[str, Any]
    tensors: list[Any]


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do, or is named as one."""
    try:
        with path.open("rb") as file:
            return path.suffix == ".gguf" or file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> Header:
    """The header of a GGUF file; raises an error for a file of another kind, a damaged or a truncated one."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ModelAccessError(
            f"GGUF files need the package gguf, which cannot be imported ({error}).",
            "pip install squashlens[gguf]",
        ) from error
    try:
        reader = GGUFReader(path)
        if reader.byte_order != "I":
            raise ValueError("it was written on a machine of the other byte order")
        short = {
            name: field.contents()
            for name, field in reader.fields.items()
            if len(field.data) <= LONG
        }
    except (
        Exception
    ) as error:  # the many errors of gguf and numpy on bytes that mean something else
        reason = " ".join(str(error).split())[:200]
        raise ModelAccessError(
            f"{path} cannot be read: it is not a GGUF file, or it is damaged or truncated ({reason}).",
            "Download the file again, or give a model folder.",
        ) from error
    return Header(short, reader.tensors)


def convert(file: Path, sha256: str, folder: Path) -> None:
    """Write the configuration, the weights in float32, and the tokenizer of a GGUF file to an empty folder."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    header = read_header(file)
    if (parts := header.values.get("split.count", 1)) > 1:
        raise ModelAccessError(
            f"{file} is part {header.values.get('split.no', 0) + 1} of {parts} of a split GGUF file.",
            "Merge them with the program of llama.cpp, and give the result: llama-gguf-split --merge FIRST_PART "
            "whole.gguf",
        )
    architecture = header.values.get("general.architecture")
    if architecture not in FAMILIES:
        raise ModelAccessError(
            f"{file} has the architecture {architecture!r}, whose GGUF files are not supported.",
            f"Supported are {', '.join(FAMILIES)}. Other models can be loaded from a Hugging Face folder.",
        )
    has_tokenizer = "tokenizer.ggml.model" in header.values
    if has_tokenizer:
        _require_known_tokenizer(header, file)
    size = 4 * _numbers(header)
    remedy = "Use a smaller model, or a machine with more memory."
    require_room(2.2 * size, torch.device("cpu"), f"Dequantizing {file.name}", remedy)
    try:
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
        _describe(config, header, file)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        model, report = loaded
        _require_all_used(model, report, header, file)
        require_finite(model, str(file))
        setattr(model.config, ORIGIN, origin_of(header, sha256))
        # transformers refuses to save a model that it knows as quantized, which this one no longer is.
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(folder)
        del model
        if has_tokenizer:
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            if header.values.get("tokenizer.ggml.pre") == "smollm":
                _split_digits(tokenizer)
            tokenizer.save_pretrained(folder)
    except (ModelAccessError, CapacityError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the many errors of transformers, tokenizers and gguf
        reason = " ".join(str(error).split())[:300]
        raise ModelAccessError(
            f"transformers cannot read {file} ({type(error).__name__}: {reason}).",
            "Use a GGUF file that llama.cpp converted from a model of Hugging Face.",
        ) from error


def _require_known_tokenizer(header: Header, file: Path) -> None:
    """Raise an error for a kind of tokenizer whose tokens were not compared: transformers builds one of any kind."""
    for key, known in FAMILIES[header.values["general.architecture"]].tokenizer.items():
        if (value := header.values.get(key)) != known:
            raise ModelAccessError(
                f"{file} says {key} = {value!r}, and only {known!r} is known to give the tokens of llama.cpp.",
                "Load the model from a Hugging Face folder.",
            )


def _split_digits(tokenizer: Any) -> None:
    """Make each digit a piece of text of its own, before pieces become tokens; transformers leaves this out."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    pieces = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pieces


def _numbers(header: Header) -> int:
    return sum(int(tensor.n_elements) for tensor in header.tensors)


def origin_of(header: Header, sha256: str) -> dict[str, Any]:
    """What results state about the weights: their number formats in the file, and the file's digest."""
    formats: dict[str, int] = {}
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.tensor_type.name):
        kind = tensor.tensor_type.name
        formats[kind] = formats.get(kind, 0) + int(tensor.n_elements)
    name = _format(header) or max(formats, key=formats.__getitem__)
    lossless = formats.keys() <= {*PLAIN}
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
    return (
        None
        if declared == "GUESSED"
        else declared.removeprefix("MOSTLY_").removeprefix("ALL_")
    )


def _describe(config: Any, header: Header, file: Path) -> None:
    """Write what the file says of the architecture into the configuration; raise an error for what is not known."""
    architecture = header.values["general.architecture"]
    family = FAMILIES[architecture]
    if (
        config.model_type != family.model_type
    ):  # transformers takes a name of the model for an architecture
        raise ModelAccessError(
            f"transformers takes {file} for a model of the type {config.model_type!r}, and it says {architecture!r}.",
            "Load the model from a Hugging Face folder.",
        )
    said = {
        key.removeprefix(f"{architecture}."): value
        for key, value in header.values.items()
        if key.startswith(f"{architecture}.")
    }
    absent = [key for key in (*NEEDED, *family.needed) if key not in said]
    if absent:  # transformers would take another value, silently
        raise ModelAccessError(
            f"{file} does not say {listed(absent)}.", "Convert the model again."
        )
    config.vocab_size = next(
        (int(t.shape[-1]) for t in header.tensors if t.name == "token_embd.weight"),
        config.vocab_size,
    )
    config.head_dim = _head_width(said)
    for key, value in said.items():
        if key in SAYS:
            if _has_a_place(config, key, said):
                setattr(config, SAYS[key], value)
                continue
        elif key in (THETA, SCALING, FACTOR) or (
            key == WINDOW_THETA and architecture == "gemma3"
        ):
            continue
        raise ModelAccessError(
            f"{file} says {architecture}.{key} = {value!r}, which cannot be carried over to {type(config).__name__}.",
            "Load the model from a Hugging Face folder.",
        )
    if config.head_dim != getattr(config, "query_pre_attn_scalar", config.head_dim):
        raise ModelAccessError(
            f"{file} has heads of {config.head_dim} instead of 256, and does not say how attention logits are scaled.",
            "Load the model from a Hugging Face folder.",
        )
    _set_rotary(config, said, file)


def _has_a_place(config: Any, key: str, said: Mapping[str, Any]) -> bool:
    """Whether the configuration uses this entry. It has one width for queries, keys, values and rotary embeddings."""
    if SAYS[key] == "head_dim":
        return said[key] == _head_width(said)
    if key == "vocab_size":  # set already, from the embeddings
        return said[key] == config.vocab_size
    if (
        SAYS[key] == "_sliding_window_pattern"
    ):  # the kinds of blocks follow from it, and are set already
        return said[key] == getattr(config, SAYS[key], None)
    return hasattr(config, SAYS[key])


def _head_width(said: Mapping[str, Any]) -> int:
    return said.get(
        "attention.key_length", said["embedding_length"] // said["attention.head_count"]
    )


def _set_rotary(config: Any, said: Mapping[str, Any], file: Path) -> None:
    """Set base and scale of the rotary frequencies; those of Gemma 3's blocks with windows are never scaled."""
    by_kind = "full_attention" in config.rope_parameters
    rope = (
        config.rope_parameters["full_attention"] if by_kind else config.rope_parameters
    )
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


def _require_all_used(
    model: Any, report: Mapping[str, Any], header: Header, file: Path
) -> None:
    """Raise an error unless the file's numbers are exactly the model's parameters."""
    missing = sorted(
        {*report["missing_keys"], *(str(key[0]) for key in report["mismatched_keys"])}
    )
    stored = _numbers(header)
    needed = sum(parameter.numel() for parameter in model.parameters())
    if missing or stored != needed:
        lacks = f" It lacks {listed(missing)}." if missing else ""
        unused = [
            tensor.name
            for tensor in header.tensors
            if tensor.name not in _places(model, header)
        ]
        homeless = f" The model has no place for {listed(unused)}." if unused else ""
        sizes = f"it has {stored:,} numbers, the model {needed:,}"
        raise ModelAccessError(
            f"{file} does not match {type(model).__name__}: {sizes}.{lacks}{homeless}",
            "Use a GGUF file of an unchanged model, or load it from a Hugging Face folder.",
        )


def _places(model: Any, header: Header) -> set[str]:
    """The names that a GGUF file has for the weights of a model."""
    from gguf import get_tensor_name_map
    from gguf.constants import MODEL_ARCH_NAMES

    architecture = header.values["general.architecture"]
    known = next(
        arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture
    )
    names = get_tensor_name_map(known, model.config.num_hidden_layers)
    return {
        str(names.get_name(weight, try_suffixes=(".weight", ".bias")))
        for weight in model.state_dict()
    }
