"""Turn a GGUF file into the Hugging Face folder of the same model, in float32.

The package gguf reads the file, and transformers dequantizes the weights and builds the tokenizer. transformers leaves
out what it does not know, without an error: a scale of the rotary frequencies, a tensor, a number of the configuration.
So every entry about the architecture is read here, or the file is refused, and the numbers in the file are counted
against the parameters. Where the tokenizer of transformers gives other tokens than llama.cpp, it is mended here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
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
}
WINDOW = "attention.sliding_window"
# What Gemma's files say besides.
GEMMA_SAYS = {
    WINDOW: "sliding_window",
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
ORIGINAL = "rope.scaling.original_context_length"
LLAMA3_FACTORS = "rope_freqs.weight"  # what Llama 3 divides rotary frequencies by
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
        tokenizers: the only kinds whose tokens were compared with llama.cpp's, as `Header.tokenizer` names them.
        needed: entries that a file must have besides `NEEDED`.
        says: entries that it may have besides `SAYS`, as attributes of a configuration.
        rotary: entries about rotary frequencies that it may have.
        scalings: the scales of rotary frequencies that it may have; "llama3" is a tensor and no entry.
    """

    model_type: str
    tokenizers: tuple[str, ...]
    needed: tuple[str, ...] = ()
    says: Mapping[str, str] = field(default_factory=dict)
    rotary: tuple[str, ...] = (THETA, SCALING, FACTOR, ORIGINAL)
    scalings: tuple[str, ...] = ("linear", "yarn")


SENTENCEPIECE = "llama"
GEMMA_NEEDED = ("attention.key_length", WINDOW)
# Each is compared with llama.cpp in the tests.
FAMILIES = {
    "gemma2": Family(
        "gemma2", (SENTENCEPIECE,), GEMMA_NEEDED, GEMMA_SAYS, scalings=("linear",)
    ),
    "gemma3": Family(
        "gemma3_text",
        (SENTENCEPIECE,),
        GEMMA_NEEDED,
        GEMMA_SAYS,
        (THETA, SCALING, FACTOR, WINDOW_THETA),
        ("linear",),
    ),
    "llama": Family(
        "llama",
        (SENTENCEPIECE, "smollm", "llama-bpe", "tekken"),
        scalings=("linear", "yarn", "llama3"),
    ),
    "qwen2": Family("qwen2", ("qwen2",)),
    "qwen3": Family("qwen3", ("qwen2",)),
    "phi3": Family(
        "phi3",
        (SENTENCEPIECE, "dbrx"),
        (WINDOW,),
        {WINDOW: "sliding_window"},
        (THETA, ORIGINAL),
        (),
    ),
}
# Byte-level tokenizers that begin with a BOS unless the file says no, and take a piece of text that is a token whole.
WHOLE_PIECES = ("llama-bpe", "tekken")
# Entries of the tokenizer that are read or change no tokens, besides the ids of special tokens.
TOKENIZER_ENTRIES = tuple(
    f"tokenizer.ggml.{name}"
    for name in (
        *("model", "pre", "tokens", "token_type", "scores", "merges"),
        *("add_bos_token", "add_eos_token", "add_space_prefix"),
    )
)
KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3's special tokens
# Types of tokens that stay whole in a text.
CONTROL = 3
USER_DEFINED = 4


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
        """The number of entries of all weights: rotary frequencies are none."""
        weights = [tensor for tensor in self.tensors if tensor.name != LLAMA3_FACTORS]
        return sum(int(tensor.n_elements) for tensor in weights)

    @property
    def tokenizer(self) -> str | None:
        """The kind of the tokenizer: how a byte-level one cuts text into pieces, or the model of another."""
        model = self.values.get("tokenizer.ggml.model")
        return self.values.get("tokenizer.ggml.pre") if model == "gpt2" else model

    def about(self) -> dict[str, Any]:
        """The entries about the architecture, without its name: ``"llama.block_count"`` is ``"block_count"`` here."""
        start = f"{self.architecture}."
        about: dict[str, Any] = {}
        for key, value in self.values.items():
            if key.startswith(start):
                about[key.removeprefix(start)] = value
        return about


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
        if reader.byte_order != "I":  # "I" is this machine's order
            raise ValueError("it was written on a machine of the other byte order")
        short: dict[str, Any] = {}
        for key, field in reader.fields.items():
            if len(field.data) <= LONG:
                short[key] = field.contents()
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
    # A bit more than two copies of the weights in float32.
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
            # So that the report lists them with all other problems.
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
        del model  # frees its memory before the tokenizer is read
        if "tokenizer.ggml.model" in header.values:
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            _mend(tokenizer, header)
            _require_special(tokenizer, file)
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
    known = FAMILIES[header.architecture].tokenizers
    if header.tokenizer not in known:
        raise ModelAccessError(
            f"{file} has the tokenizer tokenizer.ggml.model = {header.values['tokenizer.ggml.model']!r}, "
            f"tokenizer.ggml.pre = {header.values.get('tokenizer.ggml.pre')!r}. For {header.architecture}, only "
            f"{listed(known)} are known to give the tokens of llama.cpp.",
            FOLDER,
        )
    for key, value in header.values.items():
        is_known = key in TOKENIZER_ENTRIES or key.endswith("_token_id")
        if key.startswith("tokenizer.ggml.") and value and not is_known:
            raise ModelAccessError(
                f"{file} says {key} = {value!r}, which is not known to give the tokens of llama.cpp.",
                FOLDER,
            )


def _mend(tokenizer: Any, header: Header) -> None:
    """Change the tokenizer that transformers builds where its tokens are not those of llama.cpp."""
    from tokenizers import AddedToken, normalizers, pre_tokenizers

    backend = tokenizer.backend_tokenizer
    if header.tokenizer == "smollm":  # each digit is a piece of text of its own
        digits = pre_tokenizers.Digits(individual_digits=True)
        pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    if header.tokenizer in WHOLE_PIECES:
        backend.model.ignore_merges = True
        if "tokenizer.ggml.add_bos_token" not in header.values:
            tokenizer.add_bos_token = True
    is_gemma = header.architecture.startswith("gemma")
    if header.tokenizer == SENTENCEPIECE and not is_gemma:
        # One space more comes before a text, also before one that begins with a space. ▁ is the sign of a space.
        steps: list[Any] = []
        if header.values.get("tokenizer.ggml.add_space_prefix", True):
            steps.append(normalizers.Prepend("▁"))
        steps.append(normalizers.Replace(" ", "▁"))
        backend.normalizer = normalizers.Sequence(steps)
        backend.pre_tokenizer = None
    if header.tokenizer == SENTENCEPIECE and header.architecture == "phi3":
        # White space after a token such as <|user|> is no part of the text.
        without_space: list[Any] = []
        for token in tokenizer.added_tokens_decoder.values():
            if token.content not in KEEP_SPACE:
                added = AddedToken(
                    token.content, rstrip=True, normalized=False, special=token.special
                )
                without_space.append(added)
        backend.add_tokens(without_space)


def _require_special(tokenizer: Any, file: Path) -> None:
    """Raise an error unless the tokens that stay whole in a text have the file's ids; transformers leaves some out."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import get_gguf_tokenizer

    _, stored, _ = get_gguf_tokenizer(str(file))
    kinds = np.array(stored.get("token_type", ()))
    whole = np.flatnonzero(np.isin(kinds, (CONTROL, USER_DEFINED)))
    id_of = tokenizer.convert_tokens_to_ids
    lost: list[str] = []
    for token in map(int, whole):
        text = stored["tokens"][token]
        # transformers spells the runs of spaces in Gemma's file with the sign of a space.
        if token not in (id_of(text), id_of(text.replace(" ", "▁"))):
            lost.append(text)
    if lost:
        raise ModelAccessError(
            f"transformers does not keep {listed(lost)} of {file} as tokens of their own.",
            FOLDER,
        )


def origin_of(header: Header, sha256: str) -> dict[str, Any]:
    """What results state about the weights: their number formats in the file, and the file's digest."""
    formats: dict[str, int] = {}  # how many numbers the file has in each format
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

    stated = header.values.get("general.file_type")
    for kind in LlamaFileType:
        if kind.value == stated and kind.name != "GUESSED":
            return kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    return None


def _describe(config: Any, header: Header, file: Path) -> None:
    """Write what the file says of the architecture into the configuration; raise an error for what is not known."""
    family = FAMILIES[header.architecture]
    entries = header.about()
    # transformers takes a name of the model for an architecture.
    if config.model_type != family.model_type:
        raise ModelAccessError(
            f"transformers takes {file} for a model of the type {config.model_type!r}, and it says "
            f"{header.architecture!r}.",
            FOLDER,
        )
    absent = [key for key in (*NEEDED, *family.needed) if key not in entries]
    if absent:  # transformers would take another value, silently
        raise ModelAccessError(
            f"{file} does not say {listed(absent)}.", "Convert the model again."
        )
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight":
            config.vocab_size = int(tensor.shape[-1])
    # The usual one of Phi-3 is no token of a smaller vocabulary.
    config.pad_token_id = header.values.get("tokenizer.ggml.padding_token_id")
    usual = entries["embedding_length"] // entries["attention.head_count"]
    config.head_dim = entries.get("attention.key_length", usual)
    _carry_over(config, header, file)
    # Gemma scales logits by this attribute, 256 by default, which files do not have.
    if config.head_dim != getattr(config, "query_pre_attn_scalar", config.head_dim):
        raise ModelAccessError(
            f"{file} has heads of {config.head_dim} instead of 256, and does not say how attention logits are scaled.",
            FOLDER,
        )
    _set_rotary(config, header, file)


def _carry_over(config: Any, header: Header, file: Path) -> None:
    """Set what the entries say as attributes of the configuration; raise an error for one that has no place there."""
    family = FAMILIES[header.architecture]
    attribute_of = {**SAYS, **family.says}
    for key, value in header.about().items():
        if key in family.rotary:  # see `_set_rotary`
            continue
        name = attribute_of.get(key, "")
        has_a_place = hasattr(config, name)
        if name in FIXED:
            has_a_place = value == getattr(config, name, None)
        if not has_a_place:
            raise ModelAccessError(
                f"{file} says {header.architecture}.{key} = {value!r}, which cannot be carried over to "
                f"{type(config).__name__}.",
                FOLDER,
            )
        has_no_window = key == WINDOW and value == 0  # in a file of Phi 4
        setattr(config, name, None if has_no_window else value)


def _set_rotary(config: Any, header: Header, file: Path) -> None:
    """Set base and scale of the rotary frequencies; those of Gemma 3's blocks with windows are never scaled."""
    entries = header.about()
    known = FAMILIES[header.architecture].scalings
    # Gemma 3 has one set of parameters for blocks with full attention, and one for those with windows.
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    rope["rope_theta"] = entries.get(THETA, rope["rope_theta"])
    if WINDOW_THETA in entries:
        of_windows = config.rope_parameters["sliding_attention"]
        of_windows["rope_theta"] = entries[WINDOW_THETA]
    factors = [tensor for tensor in header.tensors if tensor.name == LLAMA3_FACTORS]
    kind = "llama3" if factors else entries.get(SCALING, "none")
    factor = entries.get(FACTOR, 1.0)
    if kind == "none" and factor == 1:
        return
    is_clear = FACTOR in entries and factor >= 1
    if factors:
        is_clear = SCALING not in entries and FACTOR not in entries
    if kind not in known or not is_clear:
        raise ModelAccessError(
            f"{file} scales rotary frequencies in a way that is not supported ({SCALING} = {kind!r}, "
            f"{FACTOR} = {factor}).",
            FOLDER,
        )
    if kind == "llama3":
        _set_llama3(config, factors[0].data, file)
        return
    rope |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        original = entries.get(ORIGINAL, entries["context_length"])
        rope["original_max_position_embeddings"] = original


def _set_llama3(config: Any, factors: np.ndarray, file: Path) -> None:
    """Set the scale of Llama 3's rotary frequencies; the file has only the numbers by which they are divided."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    # The frequencies that the file describes.
    exponents = np.arange(0, config.head_dim, 2) / config.head_dim
    divided = rope["rope_theta"] ** -exponents / factors
    # Llama 3's own numbers, but for the factor; they must give the same frequencies.
    rope |= {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    if not np.allclose(divided, expected.numpy(), rtol=1e-5, atol=0):
        raise ModelAccessError(
            f"{file} divides rotary frequencies by {LLAMA3_FACTORS}, which are not the numbers of Llama 3.",
            FOLDER,
        )


def _require_all_used(
    model: Any, report: Mapping[str, Any], header: Header, file: Path
) -> None:
    """Raise an error unless the file's numbers are exactly the model's parameters."""
    # A tensor of another shape is replaced by random numbers, as a missing one is.
    missing = set(report["missing_keys"])
    for name, *_ in report["mismatched_keys"]:
        missing.add(str(name))
    needed = sum(parameter.numel() for parameter in model.parameters())
    if not missing and header.numbers == needed:
        return
    problem = f"it has {header.numbers:,} numbers, the model {needed:,}."
    if missing:
        problem += f" It lacks {listed(sorted(missing))}."
    known = _names_in_file(model, header)
    unused = [tensor.name for tensor in header.tensors if tensor.name not in known]
    if unused:
        problem += f" The model has no place for {listed(unused)}."
    raise ModelAccessError(
        f"{file} does not match {type(model).__name__}: {problem}",
        "Use a GGUF file of an unchanged model, or load it from a Hugging Face folder.",
    )


def _names_in_file(model: Any, header: Header) -> set[str]:
    """The names that a GGUF file has for the weights of a model."""
    from gguf import get_tensor_name_map
    from gguf.constants import MODEL_ARCH_NAMES

    number_of = {name: number for number, name in MODEL_ARCH_NAMES.items()}
    blocks = model.config.num_hidden_layers
    name_map = get_tensor_name_map(number_of[header.architecture], blocks)
    names: set[str] = set()
    for weight in model.state_dict():
        names.add(str(name_map.get_name(weight, try_suffixes=(".weight", ".bias"))))
    return names
