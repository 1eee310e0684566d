"""What the weight files of a checkpoint hold, read from their headers before any model is built from them.

A checkpoint in safetensors is one file, or several files (shards) and an index that says which tensor is in which.
Refused here: no such files, a file that is cut off or damaged, a shard that is missing, an index that names a tensor
its shard does not hold, the same tensor in two shards, an adapter beside the weights.
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
# Files of this form, one for each process, are read by transformers in place of model.safetensors.
_BY_RANK = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint: where it is and its dtype as safetensors writes it (``"BF16"``)."""

    file: Path
    dtype: str


def read_checkpoint(source: str, revision: str | None, config: Any) -> dict[str, Stored]:
    """Every tensor that transformers will read for this folder or hub name; files that are not here are downloaded."""
    refuse_adapter(source, revision)
    if Path(source).is_dir() and any(_BY_RANK.fullmatch(path.name) for path in Path(source).iterdir()):
        raise ModelAccessError(
            f"{source} holds one weight file for each process of a training run.",
            "Load it in transformers and save it again with `save_pretrained`.",
        )
    named = getattr(config, "transformers_weights", None)
    single = _file(source, named or SINGLE, revision)
    if single is not None and single.suffix == ".safetensors":
        return _filled(dict(_tensors(single)), single)
    index = single or _file(source, INDEX, revision)
    if index is None:
        raise ModelAccessError(
            f"{source} has no weights in safetensors.",
            "Pickled weights can run code and are not opened; convert them with `save_pretrained`.",
        )
    return _sharded(source, revision, index)


def refuse_adapter(source: str, revision: str | None) -> None:
    """transformers applies an adapter where peft is installed and ignores it elsewhere, and says nothing either way."""
    if _file(source, ADAPTER, revision) is not None:
        raise ModelAccessError(
            f"{source} holds an adapter ({ADAPTER}). transformers applies it only where peft is installed.",
            "Merge it with peft (`merge_and_unload`) and save the merged model, or remove its files to measure the "
            "model without it.",
        )


def commit_of(stored: Mapping[str, Stored]) -> str | None:
    """The commit of the hub model that the files are from, as their folder in the cache is named; None for a folder."""
    file = next(iter(stored.values())).file
    found = re.search(r"/snapshots/([0-9a-f]{40})/", file.as_posix())
    return None if found is None else found.group(1)


def read_tensor(name: str, stored: Stored) -> Tensor:
    """One tensor of a checkpoint, as it is stored."""
    from safetensors import safe_open

    with safe_open(stored.file, framework="pt") as file:
        return file.get_tensor(name)


def _file(source: str, name: str, revision: str | None) -> Path | None:
    """A file of a folder or of a hub model, downloaded if it is not here; None if there is no such file."""
    from transformers.utils.hub import cached_file

    folder = Path(source)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    found = cached_file(source, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def _sharded(source: str, revision: str | None, index: Path) -> dict[str, Stored]:
    try:
        described = json.loads(index.read_text(encoding="utf-8"))
        shard_of, _ = described["weight_map"], described["metadata"]  # without which transformers cannot read it
        shards = sorted(set(shard_of.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelAccessError(f"{index} is no index of weight files ({error!r}).", AGAIN) from error
    files = {shard: _file(source, shard, revision) for shard in shards}
    absent = [shard for shard, file in files.items() if file is None]
    if absent:
        raise ModelAccessError(f"{source} lacks {listed(absent)}, which {index.name} names.", AGAIN)
    tensors: dict[str, Stored] = {}
    for file in files.values():
        for name, stored in _tensors(file):  # pyright: ignore[reportArgumentType]
            if name in tensors:
                both = f"{tensors[name].file.name} and {stored.file.name}"
                raise ModelAccessError(f"{source} holds the tensor {name} twice, in {both}.", AGAIN)
            tensors[name] = stored
    wrong = [name for name, shard in shard_of.items() if name not in tensors or tensors[name].file != files[shard]]
    if wrong:
        raise ModelAccessError(
            f"{index.name} of {source} names tensors that their file does not hold: {listed(wrong)}.", AGAIN
        )
    return _filled(tensors, index)


def _filled(tensors: dict[str, Stored], file: Path) -> dict[str, Stored]:
    if not tensors:
        raise ModelAccessError(f"{file} holds no tensors.", AGAIN)
    return tensors


def _tensors(file: Path) -> Iterator[tuple[str, Stored]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, Stored(file, opened.get_slice(name).get_dtype())
    except (SafetensorError, OSError) as error:
        raise ModelAccessError(f"{file} is damaged or cut off ({error}).", AGAIN) from error


def listed(names: list[str], most: int = 4) -> str:
    """The first few of many names, and how many there are besides."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
