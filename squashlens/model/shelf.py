"""A capture on disk: one safetensors file a tensor, written as soon as the pass has it, read when it is asked for."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file, save_file
from torch import Tensor

from squashlens.errors import CapacityError, InputError
from squashlens.model.memory import human
from squashlens.results import write_atomically

INDEX = "capture.json"  # written last: a folder without it is no capture


@dataclass(frozen=True)
class Shelf(Mapping[int, Tensor]):
    """Tensors of one kind by layer, in files; each is read from the disk when it is looked up."""

    folder: Path
    kind: str
    numbers: tuple[int, ...]

    def __getitem__(self, number: int) -> Tensor:
        if number not in self.numbers:
            raise KeyError(number)
        return load_file(self._file(number))["tensor"]

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def put(self, number: int, tensor: Tensor) -> None:
        write_atomically(self._file(number), lambda path: save_file({"tensor": tensor.contiguous()}, path))

    def _file(self, number: int) -> Path:
        return self.folder / f"{self.kind}_{number:03d}.safetensors"


def prepared(folder: str | Path, size: int) -> Path:
    """A folder for a capture of that size; refused where one is already, or where it does not fit."""
    path = Path(folder)
    if (path / INDEX).exists():
        raise InputError(f"There is a capture in {str(path)!r} already.", "Name another folder, or remove that one.")
    path.mkdir(parents=True, exist_ok=True)
    free = psutil.disk_usage(str(path)).free
    if size > free:
        raise CapacityError(
            f"This capture takes {human(size)}, and {str(path)!r} has {human(free)}.",
            "Choose fewer layers=, patterns=False, or a larger disk.",
        )
    return path


def write_index(folder: Path, facts: Mapping[str, Any]) -> None:
    text = json.dumps(facts, ensure_ascii=False, indent=1)
    write_atomically(folder / INDEX, lambda path: path.write_text(text, encoding="utf-8"))


def read_index(folder: str | Path) -> dict[str, Any]:
    path = Path(folder) / INDEX
    if not path.is_file():
        raise InputError(f"There is no capture in {str(folder)!r}.", "Give the folder that capture(folder=…) wrote.")
    return json.loads(path.read_text(encoding="utf-8"))
