"""The files of a model folder before anything is built from them: a folder may come from anywhere.

Its JSON files are read here once, and config.json is checked for numbers that no model has: no heads, a vocabulary
that does not fit into memory, millions of blocks. What is left for transformers to find is refused by `load`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from squashlens._typing import shown
from squashlens.errors import ModelAccessError
from squashlens.model.memory import require_room

FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json")
LARGEST = 512 * 2**20  # bytes of a JSON file; the largest tokenizers have 35 MB
MOST_BLOCKS = 2048  # ten times as many as the deepest decoders; building a block takes a millisecond without weights
SIZES = (
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim", "intermediate_size",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip


def require_readable(folder: Path) -> None:
    """Refuse a folder in which one of the JSON files is none."""
    for name in FILES:
        path = folder / name
        if path.is_symlink() or path.exists():
            _require_object(path)
    if (folder / "tokenizer.json").exists():
        _require_tokenizer(folder / "tokenizer.json")


def require_plausible(config: Any, source: str, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse sizes that are no whole numbers from 1 on, too many blocks, and a matrix that does not fit."""
    sizes = {name: _numbers(getattr(config, name, None)) for name in SIZES}
    for name, values in sizes.items():
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
                raise _refused(source, f"config.json has {name}={shown(value)}, which is no size", "Correct it.")
    blocks = max(sizes["num_hidden_layers"], default=1)
    if blocks > MOST_BLOCKS:
        raise _refused(source, f"config.json has {blocks} blocks", f"At most {MOST_BLOCKS} are built.")
    largest = {name: max(values, default=1) for name, values in sizes.items()}
    rows = max(
        largest["vocab_size"], largest["intermediate_size"], largest["num_attention_heads"] * largest["head_dim"]
    )
    needed = rows * largest["hidden_size"] * dtype.itemsize
    remedy = "Check vocab_size, intermediate_size and hidden_size in config.json."
    require_room(needed, device, f"One matrix of {source}", remedy)


def _numbers(value: Any) -> list[Any]:
    """One number, or one for each block."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _require_object(path: Path) -> None:
    try:
        if not path.is_file():
            raise _refused(path.parent, f"{path.name} is not a file", "Check what it is, or remove it.")
        if path.stat().st_size > LARGEST:
            raise _refused(path.parent, f"{path.name} has more than {LARGEST >> 20} MB", "Check the file.")
        found = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise _refused(path.parent, f"{path.name} is nested too deeply", "Check the file.") from error
    except (ValueError, OSError) as error:
        raise _refused(path.parent, f"{path.name} is no JSON file ({error})", "Download or save it again.") from error
    if not isinstance(found, Mapping):
        raise _refused(path.parent, f"{path.name} holds no JSON object but a {type(found).__name__}", "Save it again.")


def _require_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(path))
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of Rust, which is neither
            raise
        raise _refused(path.parent, f"{path.name} is no tokenizer ({error})", "Download or save it again.") from error


def _refused(source: object, cause: str, remedy: str) -> ModelAccessError:
    return ModelAccessError(f"{source} cannot be opened: {' '.join(cause.split())[:300]}.", remedy)
