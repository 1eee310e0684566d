"""Keep a capture on disk: one safetensors file for each tensor, written during the pass and read at each lookup.

An index has the shape, dtype and digest of each tensor, and a digest of itself. Both are checked on reading, so a
damaged, exchanged or edited file raises an error. The digests have no secret, so they do not detect a capture whose
tensors and index were all replaced.
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

from squashlens._typing import dtype_name
from squashlens.bars import human
from squashlens.errors import CapacityError, InputError, OutputError
from squashlens.saving.files import replacing, require_folder, write

INDEX = "capture.json"  # written last: a folder without it has no complete capture
KINDS = ("residual", "pattern", "y")


@dataclass(frozen=True)
class TensorsOnDisk(Mapping[int, Tensor]):
    """Tensors of one kind by layer, each in a file that is read and checked at every lookup."""

    folder: Path
    kind: str
    entries: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __getitem__(self, number: int) -> Tensor:
        entry, path = self.entries[number], self._file(number)
        try:
            tensor = load_file(path)["tensor"]
        except (OSError, SafetensorError, KeyError) as error:
            raise damaged(self.folder, f"{path.name} cannot be read ({error})") from error
        if description(tensor) != entry:
            raise damaged(self.folder, f"{path.name} is not the tensor that was captured")
        return tensor

    def __iter__(self) -> Iterator[int]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __setitem__(self, number: int, tensor: Tensor) -> None:
        path = self._file(number)
        try:
            with replacing(path) as file:
                save_file({"tensor": tensor.contiguous()}, file.name)
        except SafetensorError as error:
            raise OutputError(f"Cannot write {str(path)!r}: {error}.", "Free some disk space, or choose a folder "
                              "on another disk.") from error  # fmt: skip
        self.entries[number] = description(tensor)

    def _file(self, number: int) -> Path:
        return self.folder / f"{self.kind}_{number:03d}.safetensors"


def description(tensor: Tensor) -> dict[str, Any]:
    """Shape, dtype and digest of a tensor; the digest is the SHA-256 of its bytes in row-major order."""
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    facts = {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}
    return facts | {"sha256": hashlib.sha256(raw.data).hexdigest()}


def damaged(folder: str | Path, why: str) -> InputError:
    return InputError(f"The capture in {str(folder)!r} is damaged: {why}.", "Capture again.")


def prepared_folder(folder: str | Path, size: int = 0) -> Path:
    """A folder for a capture of `size` bytes; raises an error if it has a capture already, or too little space."""
    path = Path(folder)
    if (path / INDEX).exists():
        raise InputError(
            f"There is already a capture in {str(path)!r}.", "Choose another folder, or remove that capture."
        )
    path = require_folder(path)
    free = psutil.disk_usage(str(path)).free
    if size > free:
        raise CapacityError(
            f"This capture needs {human(size)}, and {str(path)!r} has {human(free)} free.",
            "Use fewer layers=, keep='residuals', or a larger disk.",
        )
    return path


def write_index(folder: Path, facts: Mapping[str, Any], tensors_of: Mapping[str, TensorsOnDisk]) -> None:
    """Write the facts about the capture, and shape, dtype and digest of each of its tensors."""
    tensors = {kind: {str(n): entry for n, entry in tensors_of[kind].entries.items()} for kind in KINDS}
    content = {**facts, "tensors": tensors}
    text = json.dumps({**content, "digest": _digest(content)}, ensure_ascii=False, indent=1)
    write(folder / INDEX, text.encode("utf-8"))


def read_index(folder: str | Path) -> tuple[dict[str, Any], dict[str, TensorsOnDisk]]:
    """Read what `write_index` wrote: the facts, and the tensors, which stay on disk."""
    folder = Path(folder)
    path = folder / INDEX
    try:
        if not path.is_file():
            raise InputError(f"There is no capture in {str(folder)!r}.", "Give the folder that capture(out=…) wrote.")
        content = json.loads(path.read_text(encoding="utf-8"))
        written = content.pop("digest")
        if written != _digest(content):
            raise damaged(folder, f"{INDEX} was changed")
        tensors = content.pop("tensors")
        tensors_of = {
            kind: TensorsOnDisk(folder, kind, {int(n): each for n, each in tensors[kind].items()}) for kind in KINDS
        }
    except OSError as error:
        raise damaged(folder, f"{INDEX} cannot be read ({error.strerror})") from error
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(folder, f"{INDEX} is not the index of a capture") from error
    return content, tensors_of


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
