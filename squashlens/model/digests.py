"""Digests that are the same in every process and on every device: of tensors, of plain values, and of functions.

A function is its source, with what it closes over and was given by `functools.partial`. An object is its type and its
plain attributes. What else changes what a function does, such as the functions that it calls, is not seen.
"""

import functools
import hashlib
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

DEPTH = 8  # levels of nested containers and functions that are covered
PLAIN = bool | int | float | complex | str | bytes | np.generic | range | slice | None
PLAIN |= types.EllipsisType | torch.dtype | torch.device | Enum | PurePath
_FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
)


def digest(value: object) -> str:
    """A digest of an object's repr, eight hexadecimal digits."""
    return sha256(repr(value))[:8]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def tensor_digest(tensor: Tensor) -> str:
    """A digest of shape, dtype and every bit of a tensor, with xxHash: as fast as its bytes come to the CPU."""
    digest_of_all = xxhash.xxh3_128(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    for part in parts(tensor.detach()):
        in_bytes = part.contiguous().view(-1).view(torch.uint8).cpu().numpy()
        digest_of_all.update(xxhash.xxh3_128_digest(in_bytes.data))
    return digest_of_all.hexdigest()


def writes(value: object) -> int:
    """How often PyTorch saw a tensor written to, which it does not count in inference mode; 0 of other objects."""
    if isinstance(value, Tensor) and not value.is_inference():
        return value._version
    return 0


def parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor itself, or the parts of a quantized tensor: integers, scales, zero points."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    # The first item has the names of the attributes that hold the parts, which may have parts themselves.
    for name in tensor.__tensor_flatten__()[0]:  # pyright: ignore[reportAttributeAccessIssue]
        yield from parts(getattr(tensor, name))


def text_of(value: Any, depth: int = DEPTH) -> str:
    """A value as text that is the same in every process, for a digest.

    Tensors and arrays become digests of their content, functions their source and what it closes over, sets and dicts
    are sorted, and other objects become their type and plain attributes. `depth` levels of nested values are covered.
    """

    def inside(items: Iterable[Any]) -> list[str]:
        """The items of a container as texts; none below the deepest level."""
        return [text_of(item, depth - 1) for item in items] if depth else []

    if isinstance(value, Tensor) and value.layout == torch.strided:
        return tensor_digest(value)
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.dtype} {xxhash.xxh3_128_hexdigest(np.ascontiguousarray(value).tobytes())}"
    if isinstance(value, PLAIN):
        return str(value) if isinstance(value, Enum) else repr(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Mapping):
        return f"{sorted(inside(value.items()))}"
    if isinstance(value, set | frozenset):
        return f"{sorted(inside(value))}"
    if isinstance(value, list | tuple):
        return f"{inside(value)}"
    if isinstance(value, _FUNCTIONS):
        return f"{inside(_contents(value))}"
    return f"{type(value).__qualname__} {inside([_plain_attributes(value)])}"


def _plain_attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object that are plain values, tensors or arrays; a configuration lists its own."""
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    if hasattr(value, "to_dict"):
        attributes = value.to_dict()
    plain: dict[str, Any] = {}
    for name, attribute in attributes.items():
        if isinstance(attribute, PLAIN | Tensor | np.ndarray):
            plain[name] = attribute
    return plain


def source_of(function: Any) -> str:
    """What can be told of a function, or of an object that is called like one, without running it."""
    called = [] if isinstance(function, _FUNCTIONS) else [type(function).__call__]
    return text_of([function, *called])


def _contents(function: Any) -> list[Any]:
    """What tells a function apart: its parts if it is partial or a method; else its name, source, defaults and closure.

    For a partial function and a method the first item says which of both it is.
    """
    if isinstance(function, functools.partial):
        return ["partial", function.func, function.args, function.keywords]
    if isinstance(function, types.MethodType):
        return ["method", function.__func__, function.__self__]
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # written in C, or typed into Python
        source = ""
    cells = [_content(cell) for cell in getattr(function, "__closure__", None) or ()]
    return [
        function.__qualname__,
        source,
        getattr(function, "__defaults__", None),
        cells,
    ]


def _content(cell: types.CellType) -> Any:
    """What a function closes over in one cell; None while it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
