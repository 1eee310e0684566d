"""Read the header of a GGUF file, check that the file is whole, and copy it without its long arrays.

A GGUF file has entries (a name and a value each), a table of its tensors, and their data:

    "GGUF"  version  n_tensors  n_entries  (key, type, value)…  (name, n_dims, dims, type, offset)…  padding  data

The arrays of a tokenizer have hundreds of thousands of values, which readers that make an object of each take more than
ten seconds to read. They are only counted here, and left out of the copy from which weights and configuration are read.
"""

import math
import mmap
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squashlens.errors import ModelAccessError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = "general.alignment"
LONG = 64  # values of an array; longer ones are counted
AGAIN = "Download the file again."
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9  # the other types of values


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a GGUF file: name, shape in PyTorch's order, number format, and its place behind `Header.data`."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Its size in the file."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        values, size = GGML_QUANT_SIZES[GGMLQuantizationType[self.kind]]
        return -(-self.count // values) * size


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself. An array of more than `LONG` values is given by its length."""

    version: int
    values: dict[str, Any]
    places: dict[str, tuple[int, int]]  # where each entry begins and ends in the file
    tensors: tuple[StoredTensor, ...]
    table: tuple[int, int]  # where the table of tensors begins and ends
    data: int  # where the data begin


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
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _header(content, path)
    except (struct.error, IndexError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        if isinstance(error, ModelAccessError):
            raise
        raise _damaged(path, f"its header ends early or is damaged ({error})") from error
    except OSError as error:
        raise ModelAccessError(f"{path} cannot be read ({error.strerror}).", "Check its permissions.") from error


def write_without_long_arrays(path: Path, header: Header, to: Path) -> None:
    """Copy a GGUF file without the entries that are long arrays; tensors and all other entries stay as they are."""
    kept = [place for name, place in header.places.items() if not isinstance(header.values[name], Counted)]
    with path.open("rb") as given, to.open("wb") as made:
        made.write(MAGIC + struct.pack("<IQQ", header.version, len(header.tensors), len(kept)))
        for start, end in (*kept, header.table):
            given.seek(start)
            made.write(given.read(end - start))
        made.write(bytes(-made.tell() % header.values.get(ALIGNMENT, 32)))
        given.seek(header.data)
        shutil.copyfileobj(given, made, 2**24)


class Counted(int):
    """The length of an array that is too long to be read."""


def _header(content: mmap.mmap, path: Path) -> Header:
    if content[:4] != MAGIC:
        raise ModelAccessError(
            f"{path} is not a GGUF file: it does not begin with GGUF.", "Give a GGUF file, or a model folder."
        )
    version, n_tensors, n_entries = struct.unpack_from("<IQQ", content, 4)
    if version not in VERSIONS:
        raise ModelAccessError(
            f"{path} has version {version} of GGUF, or was written on a big-endian machine.",
            "Convert the model again with a current llama.cpp, on a little-endian machine.",
        )
    values, places, at = {}, {}, 24
    for _ in range(n_entries):
        start = at
        key, at = _text(content, at)
        (kind,) = struct.unpack_from("<I", content, at)
        values[key], at = _value(content, at + 4, kind, path)
        places[key] = start, at
    first, tensors = at, []
    for _ in range(n_tensors):
        tensor, at = _tensor(content, at, path)
        tensors.append(tensor)
    data = at + -at % values.get(ALIGNMENT, 32)
    end = data + max(one.offset + one.n_bytes for one in tensors)
    if end > len(content):
        raise _damaged(path, f"it is truncated: it has {len(content):,} bytes, and its tensors end at {end:,}")
    return Header(version, values, places, tuple(tensors), (first, at), data)


def _tensor(content: mmap.mmap, at: int, path: Path) -> tuple[StoredTensor, int]:
    from gguf.constants import GGMLQuantizationType

    name, at = _text(content, at)
    (n_dims,) = struct.unpack_from("<I", content, at)
    *dims, kind, offset = struct.unpack_from(f"<{n_dims}QIQ", content, at + 4)
    try:
        format_name = GGMLQuantizationType(kind).name
    except ValueError:
        raise ModelAccessError(
            f"The tensor {name!r} of {path} has the number format {kind}, which the installed gguf does not know.",
            "Update the package gguf.",
        ) from None
    return StoredTensor(name, tuple(reversed(dims)), format_name, offset), at + 4 + 8 * n_dims + 12


def _value(content: mmap.mmap, at: int, kind: int, path: Path) -> tuple[Any, int]:
    if kind == TEXT:
        return _text(content, at)
    if kind in NUMBERS:
        form = f"<{NUMBERS[kind]}"
        return struct.unpack_from(form, content, at)[0], at + struct.calcsize(form)
    if kind != ARRAY:
        raise _damaged(path, f"it has a value of the unknown type {kind}")
    inner, length = struct.unpack_from("<IQ", content, at)
    at += 12
    if length > LONG and inner in NUMBERS:
        return Counted(length), at + length * struct.calcsize(f"<{NUMBERS[inner]}")
    found = []
    for _ in range(length):
        value, at = _skipped_text(content, at) if length > LONG and inner == TEXT else _value(content, at, inner, path)
        found.append(value)
    return (Counted(length) if length > LONG else found), at


def _text(content: mmap.mmap, at: int) -> tuple[str, int]:
    _, end = _skipped_text(content, at)
    return content[at + 8 : end].decode("utf-8"), end


def _skipped_text(content: mmap.mmap, at: int) -> tuple[None, int]:
    """The end of a text that is not read."""
    (length,) = struct.unpack_from("<Q", content, at)
    end = at + 8 + length
    if end > len(content):
        raise IndexError(f"a text of {length} bytes at {at}")
    return None, end


def _damaged(path: Path, how: str) -> ModelAccessError:
    return ModelAccessError(f"{path} is damaged: {how}.", AGAIN)
