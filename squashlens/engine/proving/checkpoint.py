"""Read from the headers of the weight files which tensors a checkpoint has, before a model is built.

A checkpoint in safetensors is one file, or several files (shards) with an index that assigns each tensor to a shard.
These cases raise an error: no safetensors files, a truncated or damaged file, a missing shard, a tensor in two shards,
an adapter next to the weights.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from squashlens.errors import ModelAccessError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
AGAIN = "Download the checkpoint again, or save it again with `save_pretrained`."
FLOATING = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint: its file, and its dtype in the notation of safetensors (``"BF16"``)."""

    file: Path
    dtype: str


def read_checkpoint(source: str, revision: str | None, config: Any) -> dict[str, Stored]:
    """Every tensor that transformers will read for this folder or hub name; missing files are downloaded."""
    refuse_adapter(source, revision)
    named = getattr(config, "transformers_weights", None) or SINGLE
    file = _file(source, named, revision) or _file(source, INDEX, revision)
    if file is None:
        raise ModelAccessError(
            f"{source} has no weights in safetensors.",
            "Convert the weights with `save_pretrained`; pickled weights can run code and are not opened.",
        )
    tensors: dict[str, Stored] = {}
    for shard in [file] if file.suffix == ".safetensors" else _shards(source, revision, file):
        for name, stored in _tensors(shard):
            if name in tensors:
                both = f"{tensors[name].file.name} and {shard.name}"
                raise ModelAccessError(f"{source} has the tensor {name} twice, in {both}.", AGAIN)
            tensors[name] = stored
    return tensors


def refuse_adapter(source: str, revision: str | None) -> None:
    """Raise an error for an adapter, which transformers silently applies if peft is installed, and else ignores."""
    if _file(source, ADAPTER, revision) is not None:
        raise ModelAccessError(
            f"{source} has an adapter ({ADAPTER}), which transformers applies only if peft is installed.",
            "Merge it with peft (`merge_and_unload`) and save the merged model, or remove its files to measure the "
            "model without it.",
        )


def commit_of(stored: Mapping[str, Stored]) -> str | None:
    """The commit of the hub model, from the name of its folder in the cache; None for a local folder."""
    found = [re.search(r"/snapshots/([0-9a-f]{40})/", each.file.as_posix()) for each in stored.values()]
    return next((match.group(1) for match in found if match), None)


def read_tensor(name: str, stored: Stored) -> Tensor:
    """Read one tensor of a checkpoint in its stored dtype."""
    from safetensors import safe_open

    with safe_open(stored.file, framework="pt") as file:
        return file.get_tensor(name)


def _file(source: str, name: str, revision: str | None) -> Path | None:
    """The path of a file of a folder or hub model, downloaded if necessary; None if it does not exist."""
    from transformers.utils.hub import cached_file

    folder = Path(source)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    found = cached_file(source, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def _shards(source: str, revision: str | None, index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelAccessError(f"{index} is not a valid index of weight files ({error!r}).", AGAIN) from error
    files = {name: _file(source, name, revision) for name in names}
    if absent := [name for name, file in files.items() if file is None]:
        raise ModelAccessError(f"{source} lacks {listed(absent)}, listed in {index.name}.", AGAIN)
    return [file for file in files.values() if file is not None]


def _tensors(file: Path) -> Iterator[tuple[str, Stored]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, Stored(file, opened.get_slice(name).get_dtype())
    except (SafetensorError, OSError) as error:
        raise ModelAccessError(f"{file} is damaged or truncated ({error}).", AGAIN) from error


def listed(names: list[str], most: int = 4) -> str:
    """The first few names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
