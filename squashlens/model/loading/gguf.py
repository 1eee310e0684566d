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
from squashlens.errors import CapacityError, ModelAccessError, one_line
from squashlens.model.memory import require_room
from squashlens.model.verify import require_finite

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
# Attributes that are set before, or from which others were made: an entry may only say the same.
FIXED = ("head_dim", "vocab_size", "_sliding_window_pattern")
THETA = "rope.freq_base"
WINDOW_THETA = "rope.freq_base_swa"  # of Gemma 3's blocks with windows
SCALING = "rope.scaling.type"
FACTOR = "rope.scaling.factor"
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
FOLDER = "Load the model from a Hugging Face folder."
LONG = 64  # values of an array; longer ones are those of the tokenizer, with an object for each of its tokens


@dataclass(frozen=True)
class Family:
    """What the files of an architecture have in common.

    Attributes:
        model_type: what transformers calls the architecture.
        tokenizer: entries of the tokenizer, and the only values with which its tokens were compared.
        needed: entries that a file must have besides `NEEDED`.
        rotary: entries about rotary frequencies that it may have.
    """

    model_type: str
    tokenizer: Mapping[str, str]
    needed: tuple[str, ...] = ("attention.key_length", "attention.sliding_window")
    rotary: tuple[str, ...] = (THETA, SCALING, FACTOR)


_SENTENCEPIECE = {"tokenizer.ggml.model": "llama"}
_SMOLLM = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
# Each is compared with the model that a file was written from in the tests.
FAMILIES = {
    "gemma2": Family("gemma2", _SENTENCEPIECE),
    "gemma3": Family(
        "gemma3_text", _SENTENCEPIECE, rotary=(THETA, SCALING, FACTOR, WINDOW_THETA)
    ),
    "llama": Family("llama", _SMOLLM, needed=()),
}


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself, without long arrays; `tensors` as gguf describes them."""

    values: dict[str, Any]
    tensors: list[Any]

    @property
    def architecture(self) -> Any:
        return self.values.get("general.architecture")

    @property
    def numbers(self) -> int:
        """The number of entries of all tensors."""
        return sum(int(tensor.n_elements) for tensor in self.tensors)

    def about(self) -> dict[str, Any]:
        """The entries about the architecture, without its name."""
        start = f"{self.architecture}."
        entries = self.values.items()
        return {k.removeprefix(start): v for k, v in entries if k.startswith(start)}


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
        fields = reader.fields.items()
        short = {k: field.contents() for k, field in fields if len(field.data) <= LONG}
    except Exception as error:
        # The many errors of gguf and numpy on bytes that mean something else.
        raise ModelAccessError(
            f"{path} cannot be read: it is not a GGUF file, or it is damaged or truncated ({one_line(error)}).",
            "Download the file again, or give a model folder.",
        ) from error
    return Header(short, reader.tensors)


def convert(file: Path, sha256: str, folder: Path) -> None:
    """Write the configuration, the weights in float32, and the tokenizer of a GGUF file to an empty folder."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    header = read_header(file)
    _require_whole(header, file)
    _require_known(header, file)
    has_tokenizer = "tokenizer.ggml.model" in header.values
    remedy = "Use a smaller model, or a machine with more memory."
    cpu = torch.device("cpu")
    require_room(2.2 * 4 * header.numbers, cpu, f"Dequantizing {file.name}", remedy)
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
        model.hf_quantizer = None
        model.is_quantized = False
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
        raise ModelAccessError(
            f"transformers cannot read {file} ({type(error).__name__}: {one_line(error)}).",
            "Use a GGUF file that llama.cpp converted from a model of Hugging Face.",
        ) from error


def _require_whole(header: Header, file: Path) -> None:
    """Raise an error for a part of a split file."""
    parts = header.values.get("split.count", 1)
    if parts > 1:
        raise ModelAccessError(
            f"{file} is part {header.values.get('split.no', 0) + 1} of {parts} of a split GGUF file.",
            "Merge them with the program of llama.cpp, and give the result: llama-gguf-split --merge FIRST_PART "
            "whole.gguf",
        )


def _require_known(header: Header, file: Path) -> None:
    """Raise an error for an architecture, or a kind of tokenizer, whose numbers or tokens were not compared."""
    if header.architecture not in FAMILIES:
        raise ModelAccessError(
            f"{file} has the architecture {header.architecture!r}, whose GGUF files are not supported.",
            f"Supported are {', '.join(FAMILIES)}. Other models can be loaded from a Hugging Face folder.",
        )
    if "tokenizer.ggml.model" not in header.values:
        return
    for key, known in FAMILIES[header.architecture].tokenizer.items():
        if header.values.get(key) != known:
            raise ModelAccessError(
                f"{file} says {key} = {header.values.get(key)!r}, and only {known!r} is known to give the tokens of "
                "llama.cpp.",
                FOLDER,
            )


def _split_digits(tokenizer: Any) -> None:
    """Make each digit a piece of text of its own, before pieces become tokens; transformers leaves this out."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    pieces = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pieces


def origin_of(header: Header, sha256: str) -> dict[str, Any]:
    """What results state about the weights: their number formats in the file, and the file's digest."""
    formats: dict[str, int] = {}
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.tensor_type.name):
        kind = tensor.tensor_type.name
        formats[kind] = formats.get(kind, 0) + int(tensor.n_elements)
    name = _format(header) or max(formats, key=formats.__getitem__)
    note = f"dequantized from {name}; not the published weights"
    if formats.keys() <= {*PLAIN}:
        note = f"read from {name} in a GGUF file"
    return {
        "note": note,
        "quantization": name,
        "formats": formats,
        "sha256": sha256,
        "name": header.values.get("general.name"),
    }


def _format(header: Header) -> str | None:
    """The name of the quantization that a file states, such as Q4_K_M."""
    from gguf import LlamaFileType

    known: dict[Any, str] = {
        kind.value: kind.name for kind in LlamaFileType if kind.name != "GUESSED"
    }
    name = known.get(header.values.get("general.file_type"))
    return name and name.removeprefix("MOSTLY_").removeprefix("ALL_")


def _describe(config: Any, header: Header, file: Path) -> None:
    """Write what the file says of the architecture into the configuration; raise an error for what is not known."""
    family = FAMILIES[header.architecture]
    said = header.about()
    # transformers takes a name of the model for an architecture.
    if config.model_type != family.model_type:
        raise ModelAccessError(
            f"transformers takes {file} for a model of the type {config.model_type!r}, and it says "
            f"{header.architecture!r}.",
            FOLDER,
        )
    absent = [key for key in (*NEEDED, *family.needed) if key not in said]
    if absent:  # transformers would take another value, silently
        raise ModelAccessError(
            f"{file} does not say {listed(absent)}.", "Convert the model again."
        )
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight":
            config.vocab_size = int(tensor.shape[-1])
    heads = said["embedding_length"] // said["attention.head_count"]
    config.head_dim = said.get("attention.key_length", heads)
    for key, value in said.items():
        if key in family.rotary:
            continue
        name = SAYS.get(key, "")
        has_a_place = hasattr(config, name)
        if name in FIXED:
            has_a_place = value == getattr(config, name, None)
        if not has_a_place:
            raise ModelAccessError(
                f"{file} says {header.architecture}.{key} = {value!r}, which cannot be carried over to "
                f"{type(config).__name__}.",
                FOLDER,
            )
        setattr(config, name, value)
    if config.head_dim != getattr(config, "query_pre_attn_scalar", config.head_dim):
        raise ModelAccessError(
            f"{file} has heads of {config.head_dim} instead of 256, and does not say how attention logits are scaled.",
            FOLDER,
        )
    _set_rotary(config, said, file)


def _set_rotary(config: Any, said: Mapping[str, Any], file: Path) -> None:
    """Set base and scale of the rotary frequencies; those of Gemma 3's blocks with windows are never scaled."""
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    rope["rope_theta"] = said.get(THETA, rope["rope_theta"])
    if WINDOW_THETA in said:
        config.rope_parameters["sliding_attention"]["rope_theta"] = said[WINDOW_THETA]
    kind = said.get(SCALING, "none")
    factor = said.get(FACTOR)
    if kind == "linear" and isinstance(factor, float) and factor > 0:
        rope |= {"rope_type": "linear", "factor": factor}
    elif kind != "none" or factor not in (None, 1.0):
        raise ModelAccessError(
            f"{file} scales rotary frequencies in a way that is not supported ({kind}, factor {factor}).",
            FOLDER,
        )


def _require_all_used(
    model: Any, report: Mapping[str, Any], header: Header, file: Path
) -> None:
    """Raise an error unless the file's numbers are exactly the model's parameters."""
    absent = {str(name) for name, *_ in report["mismatched_keys"]}
    missing = sorted(absent | {*report["missing_keys"]})
    needed = sum(parameter.numel() for parameter in model.parameters())
    if not missing and header.numbers == needed:
        return
    problem = f"it has {header.numbers:,} numbers, the model {needed:,}."
    if missing:
        problem += f" It lacks {listed(missing)}."
    places = _places(model, header)
    unused = [tensor.name for tensor in header.tensors if tensor.name not in places]
    if unused:
        problem += f" The model has no place for {listed(unused)}."
    raise ModelAccessError(
        f"{file} does not match {type(model).__name__}: {problem}",
        "Use a GGUF file of an unchanged model, or load it from a Hugging Face folder.",
    )


def _places(model: Any, header: Header) -> set[str]:
    """The names that a GGUF file has for the weights of a model."""
    from gguf import get_tensor_name_map
    from gguf.constants import MODEL_ARCH_NAMES

    numbers = {name: number for number, name in MODEL_ARCH_NAMES.items()}
    blocks = model.config.num_hidden_layers
    names = get_tensor_name_map(numbers[header.architecture], blocks)
    ends = (".weight", ".bias")
    return {str(names.get_name(w, try_suffixes=ends)) for w in model.state_dict()}
