"""Check the files of a model folder before a model is built from them, since a folder may come from anywhere.

`load` reports the errors that transformers finds later.
"""

from pathlib import Path
from typing import Any

from squashlens.errors import ModelAccessError

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
LARGEST = 512 * 2**20  # bytes of a JSON file; the largest tokenizers have 35 MB
MOST_BLOCKS = 2048  # ten times more than the deepest decoders have; an empty block takes a millisecond to build


def require_readable(folder: Path) -> None:
    """Raise an error if one of the folder's JSON files is a pipe, a device or a broken link, or is too large."""
    for path in folder.glob("*.json"):
        if not path.is_file():
            raise _refused(folder, f"{path.name} is not a file", "Check it, or remove it.")
        if path.stat().st_size > LARGEST:
            raise _refused(folder, f"{path.name} is larger than {LARGEST >> 20} MB", "Check the file.")


def require_plausible(config: Any, source: str) -> None:
    """Raise an error for so many blocks that they would take hours to build."""
    blocks = getattr(config, "num_hidden_layers", None)
    if isinstance(blocks, int) and blocks > MOST_BLOCKS:
        raise _refused(source, f"config.json has {blocks} blocks", f"The limit is {MOST_BLOCKS} blocks.")


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
