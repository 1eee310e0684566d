"""A capture on disk: one safetensors file a tensor, written as soon as the pass has it, read when it is asked for.

An index says shape, dtype and digest of each tensor, and has a digest of itself; both are checked on reading. So a
file that was damaged, exchanged with another or edited is refused. Digests without a secret do not tell a capture that
was forged as a whole, index and all.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from squashlens.errors import CapacityError, InputError, OutputError
from squashlens.files import as_path, replacing, require_folder, write
from squashlens.sizes import human

INDEX = "capture.json"  # written last: a folder without it is no capture
KINDS = ("residual", "pattern", "y")


@dataclass(frozen=True)
class Shelf(Mapping[int, Tensor]):
    """Tensors of one kind by layer, in files; each is read from the disk, and checked, when it is looked up."""

    folder: Path
    kind: str
    entries: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __getitem__(self, number: int) -> Tensor:
        entry, path = self.entries[number], self._file(number)
        try:
            tensor = load_file(path)["tensor"]
        except (OSError, SafetensorError, KeyError) as error:
            raise damaged(self.folder, f"{path.name} cannot be read ({error})") from error
        if described(tensor) != entry:
            raise damaged(self.folder, f"{path.name} is not what was captured")
        return tensor

    def __iter__(self) -> Iterator[int]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, number: int, tensor: Tensor) -> None:
        path = self._file(number)
        try:
            with replacing(path) as file:
                save_file({"tensor": tensor.contiguous()}, file.name)
        except SafetensorError as error:
            raise OutputError(f"Cannot write {str(path)!r}: {error}.", "Free some space there, or choose a folder "
                              "on another disk.") from error  # fmt: skip
        self.entries[number] = described(tensor)

    def _file(self, number: int) -> Path:
        return self.folder / f"{self.kind}_{number:03d}.safetensors"


def described(tensor: Tensor) -> dict[str, Any]:
    """Shape, dtype and digest of a tensor: SHA-256 over its bytes in row-major order."""
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    shown = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    return shown | {"sha256": hashlib.sha256(raw.data).hexdigest()}


def damaged(folder: str | Path, why: str) -> InputError:
    return InputError(f"The capture in {str(folder)!r} is damaged: {why}.", "Capture again.")


def prepared(folder: str | Path, size: int = 0) -> Path:
    """A folder for a capture of that size; refused where one is already, or where it does not fit."""
    path = as_path(folder, "folder")
    if (path / INDEX).exists():
        raise InputError(f"There is a capture in {str(path)!r} already.", "Name another folder, or remove that one.")
    path = require_folder(path)
    free = psutil.disk_usage(str(path)).free
    if size > free:
        raise CapacityError(
            f"This capture takes {human(size)}, and {str(path)!r} has {human(free)}.",
            "Choose fewer layers=, patterns=False, or a larger disk.",
        )
    return path


def write_index(folder: Path, facts: Mapping[str, Any], shelves: Mapping[str, Shelf]) -> None:
    """Write what the capture is of, and shape, dtype and digest of each of its tensors."""
    tensors = {kind: {str(n): entry for n, entry in shelves[kind].entries.items()} for kind in KINDS}
    content = {**facts, "tensors": tensors}
    text = json.dumps({**content, "digest": _digest(content)}, ensure_ascii=False, indent=1)
    write(folder / INDEX, text.encode("utf-8"))


def read_index(folder: str | Path) -> tuple[dict[str, Any], dict[str, Shelf]]:
    """What `write_index` wrote: the facts, and the tensors still on disk."""
    folder = as_path(folder, "folder")
    path = folder / INDEX
    try:
        if not path.is_file():
            raise InputError(
                f"There is no capture in {str(folder)!r}.", "Give the folder that capture(folder=…) wrote."
            )
        content = json.loads(path.read_text(encoding="utf-8"))
        written = content.pop("digest")
        if written != _digest(content):
            raise damaged(folder, f"{INDEX} was changed")
        tensors = content.pop("tensors")
        shelves = {kind: Shelf(folder, kind, {int(n): each for n, each in tensors[kind].items()}) for kind in KINDS}
    except OSError as error:
        raise damaged(folder, f"{INDEX} cannot be read ({error.strerror})") from error
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(folder, f"{INDEX} is no index of a capture") from error
    return content, shelves


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
