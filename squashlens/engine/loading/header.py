"""Read the header of a GGUF file with the package gguf, and copy the file without its long arrays.

The arrays of a tokenizer have hundreds of thousands of values. The package makes an object of each, which takes more
than ten seconds at every reading. They are skipped here, and left out of the copy from which weights and configuration
are read.
"""

import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squashlens.errors import ModelAccessError

MAGIC = b"GGUF"
LONG = 64  # values of an array; longer ones are skipped
Place = tuple[int, int]  # where something begins and ends in the file


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself, without long arrays; `tensors` as gguf describes them."""

    version: int
    values: dict[str, Any]
    tensors: list[Any]
    entries: list[Place]
    table: Place  # of the tensors
    data: int  # where the data begin
    alignment: int


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
        reader: Any = _reader(path)
        if reader.byte_order != "I":
            raise ValueError("it was written on a machine of the other byte order")
        entries = [f for f in reader.fields.values() if not f.name.startswith("GGUF.") and not _is_long(f)]
        fields = [tensor.field for tensor in reader.tensors]
        return Header(
            int(reader.fields["GGUF.version"].contents()), {f.name: f.contents() for f in entries}, reader.tensors,
            [_place(f) for f in entries], (_place(fields[0])[0], _place(fields[-1])[1]), reader.data_offset,
            int(reader.alignment),
        )  # fmt: skip
    except Exception as error:  # the many errors of gguf and numpy on bytes that mean something else
        reason = " ".join(str(error).split())[:200]
        raise ModelAccessError(
            f"{path} cannot be read: it is not a GGUF file, or it is damaged or truncated ({reason}).",
            "Download the file again, or give a model folder.",
        ) from error


def _reader(path: Path) -> Any:
    """gguf's reader of a file, which skips long arrays."""
    from gguf import GGUFReader, GGUFValueType

    class Reader(GGUFReader):
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == GGUFValueType.ARRAY:
                inner, length = struct.unpack_from("<IQ", self.data[orig_offs : orig_offs + 12].tobytes())
                if length > LONG:
                    return self._end(orig_offs + 12, inner, length) - orig_offs, [], [], [GGUFValueType.ARRAY]
            return super()._get_field_parts(orig_offs, raw_type)

        def _end(self, at: int, inner: int, length: int) -> int:
            if inner != GGUFValueType.STRING:
                return at + length * self.gguf_scalar_to_np[GGUFValueType(inner)]().itemsize
            for _ in range(length):
                at += 8 + struct.unpack_from("<Q", self.data[at : at + 8].tobytes())[0]
            return at

    return Reader(path)


def _is_long(field: Any) -> bool:
    """Whether an entry is an array that was skipped: it has its name and its type only."""
    return len(field.parts) == 3 and field.types[0].name == "ARRAY"


def _place(field: Any) -> Place:
    return field.offset, field.offset + sum(int(part.nbytes) for part in field.parts)


def write_without_long_arrays(path: Path, header: Header, to: Path) -> None:
    """Copy a GGUF file without the entries that are long arrays; tensors and all other entries stay as they are."""
    with path.open("rb") as given, to.open("wb") as made:
        made.write(MAGIC + struct.pack("<IQQ", header.version, len(header.tensors), len(header.entries)))
        for start, end in (*header.entries, header.table):
            given.seek(start)
            made.write(given.read(end - start))
        made.write(bytes(-made.tell() % header.alignment))
        given.seek(header.data)
        shutil.copyfileobj(given, made, 2**24)
