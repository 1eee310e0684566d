"""Check the files of a model folder before a model is built from them, since a folder may come from anywhere.

The JSON files are read once. config.json is checked for impossible sizes: no heads, a vocabulary that does not fit into
memory, millions of blocks. `load` reports the errors that transformers finds later.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from squashlens._typing import short_repr
from squashlens.engine.memory import require_room
from squashlens.errors import ModelAccessError

FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
LARGEST = 512 * 2**20  # bytes of a JSON file; the largest tokenizers have 35 MB
MOST_BLOCKS = 2048  # ten times more than the deepest decoders have; an empty block takes a millisecond to build
SIZES = (
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim", "intermediate_size",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip


def require_readable(folder: Path) -> None:
    """Raise an error if one of the folder's JSON files cannot be read or is not a JSON object."""
    for name in FILES:
        path = folder / name
        if path.is_symlink() or path.exists():
            _require_object(path)
    tokenizer = folder / "tokenizer.json"  # it is read once, by `read_tokenizer`: large ones take seconds
    if tokenizer.is_symlink() or tokenizer.exists():
        _require_file(tokenizer)


def require_plausible(config: Any, source: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise an error for sizes that are not positive whole numbers, too many blocks, or too large a matrix."""
    sizes = {name: _numbers(getattr(config, name, None)) for name in SIZES}
    for name, values in sizes.items():
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
                raise _refused(
                    source, f"config.json has {name}={short_repr(value)}, not a positive whole number", "Correct it."
                )
    blocks = max(sizes["num_hidden_layers"], default=1)
    if blocks > MOST_BLOCKS:
        raise _refused(source, f"config.json has {blocks} blocks", f"The limit is {MOST_BLOCKS} blocks.")
    largest = {name: max(values, default=1) for name, values in sizes.items()}
    rows = max(
        largest["vocab_size"], largest["intermediate_size"], largest["num_attention_heads"] * largest["head_dim"]
    )
    needed = rows * largest["hidden_size"] * dtype.itemsize
    remedy = "Check vocab_size, intermediate_size and hidden_size in config.json."
    require_room(needed, device, f"One weight matrix of {source}", remedy)


def _numbers(value: Any) -> list[Any]:
    """A configuration entry as a list: it is one number, or one number for each block."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise _refused(path.parent, f"{path.name} is not a file", "Check it, or remove it.")
    if path.stat().st_size > LARGEST:
        raise _refused(path.parent, f"{path.name} is larger than {LARGEST >> 20} MB", "Check the file.")


def _require_object(path: Path) -> None:
    _require_file(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise _refused(path.parent, f"{path.name} is nested too deeply", "Check the file.") from error
    except (ValueError, OSError) as error:
        raise _refused(
            path.parent, f"{path.name} is not a JSON file ({error})", "Download or save it again."
        ) from error
    if not isinstance(found, Mapping):
        raise _refused(
            path.parent, f"{path.name} holds a {type(found).__name__} instead of a JSON object", "Save it again."
        )


def read_tokenizer(source: str, revision: str | None) -> Any:
    """The tokenizer of a folder or a hub model with its own settings; None for a folder without one.

    Also None for a hub model whose tokenizer transformers cannot read.
    """
    from transformers import AutoTokenizer

    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZERS):
        return None
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # raised by Rust code
            raise
        if not folder.is_dir():
            return None  # TransformerLens has ways to read some of the hub's
        raise _refused(folder, f"its tokenizer cannot be read ({error})", "Download or save it again.") from error


def _refused(source: object, cause: str, remedy: str) -> ModelAccessError:
    return ModelAccessError(f"{source} cannot be opened: {' '.join(cause.split())[:300]}.", remedy)
