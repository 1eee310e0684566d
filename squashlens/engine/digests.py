"""Digests of tensors that change if any entry changes; exact integer arithmetic makes them equal on every device.

Weights are read at every call of a measurement, since PyTorch does not count all writes. On the CPU a tensor is read
with xxHash, at about the speed of its memory, and its digest is computed only for bytes that were not seen before.

`Canonical` gives values as text that is the same in every process. A function is its code, its defaults, the variables
that it closes over, and the globals that it and its inner functions read. Whatever else may change what it does
(objects, classes, modules, and the code of your own packages) is listed in `unseen`: whoever needs to know everything
must look at what the function does instead. What it reads from files, the environment or random generators of libraries
is not seen.
"""

import functools
import hashlib
import sys
import sysconfig
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from operator import itemgetter
from pathlib import Path, PurePath
from threading import Lock
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from squashlens.engine.memory import to_cpu
from squashlens.errors import InputError

SAMPLED = 1024  # entries of a tensor that `sample_digest` reads
_WORDS, _WORDS_ON_DEVICE = 2**14, 2**22  # at a time; on the CPU, where they should stay in its cache, fewer
_STEP, *_MIX = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))  # of splitmix64
_REMEMBERED = 8192  # digests by the hash of their bytes, those used least recently are dropped
_PIECE = 2**24  # bytes that one thread reads at a time
_remembered: OrderedDict[bytes, bytes] = OrderedDict()
_remembering = Lock()


def tensor_digest(tensor: Tensor) -> str:
    """A digest of shape, dtype and every entry of a tensor, as hexadecimal digits: see `tensor_digests`."""
    return tensor_digests([tensor])[0]


def tensor_digests(tensors: Sequence[Tensor]) -> list[str]:
    """The digest of each tensor. Those on one device are read together, since the host waits for it each time.

    The bits are read as 64-bit words a, padded with zeros, and summed modulo 2⁶⁴ as Σ w_k (a_k + ⌊a_k / 2³²⌋), with an
    odd pseudo-random weight w_k for each place, from Vigna's splitmix64 generator. The upper half of each word is added
    to the lower half because the top bit times an odd number is the top bit again: without this, two flipped signs of
    float64 numbers would cancel.
    """
    pieces = [[part.detach() for part in parts(tensor)] for tensor in tensors]
    read = iter(_digests_of_bytes([part for each in pieces for part in each]))
    found: list[str] = []
    for tensor, each in zip(tensors, pieces, strict=True):
        whole = hashlib.sha256(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        for _ in each:
            whole.update(next(read))
        found.append(whole.hexdigest()[:32])
    return found


def sample_digest(tensors: Iterable[Tensor]) -> str:
    """A digest of evenly spaced entries, one for all tensors on a device: cheap, and different after most writes."""
    found: dict[torch.device, list[Tensor]] = {}
    with torch.no_grad(), torch._C.DisableTorchFunction():  # our own torch modes would change the copies
        for part in (part for tensor in tensors for part in parts(tensor)):
            entries = part.detach().reshape(-1)
            sample = entries[:: max(1, entries.numel() // SAMPLED)].contiguous()
            found.setdefault(part.device, []).append(sample.view(torch.uint8))
        return " ".join(f"{device} {tensor_digest(torch.cat(samples))}" for device, samples in found.items())


def parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor itself, or the parts of a quantized tensor: integers, scales, zero points."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for part in tensor.__tensor_flatten__()[0]:  # pyright: ignore[reportAttributeAccessIssue]
        yield from parts(getattr(tensor, part))


def _digests_of_bytes(tensors: Sequence[Tensor]) -> list[bytes]:
    """The sum of each tensor as bytes; of all on one device, the sums come to the CPU together."""
    found: list[bytes] = [b""] * len(tensors)
    elsewhere: dict[int, Tensor] = {}
    for place, tensor in enumerate(tensors):
        if tensor.is_meta:
            raise InputError("Some weights of this model are offloaded and not in memory.", "Load it onto a device.")
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        if type(flat) is not Tensor or flat.device.type != "cpu":
            elsewhere[place] = _sum(flat)
        else:
            found[place] = _on_the_cpu(flat)
    for place, sums in zip(elsewhere, to_cpu([*elsewhere.values()]), strict=True):
        found[place] = sums.numpy().tobytes()
    return found


def _on_the_cpu(flat: Tensor) -> bytes:
    """The digest of bytes on the CPU, from memory if the same bytes were seen before."""
    seen = _hash(flat.numpy().data)
    with _remembering:
        found = _remembered.pop(seen, None)
    found = found or _sum(flat).numpy().tobytes()
    with _remembering:
        _remembered[seen] = found  # behind all others
        while len(_remembered) > _REMEMBERED:
            _remembered.popitem(last=False)
    return found


def _hash(content: memoryview) -> bytes:
    """A fast hash of bytes: of the hashes of pieces, which threads read side by side."""
    if len(content) <= _PIECE:
        return xxhash.xxh3_128_digest(content)
    pieces = [content[start : start + _PIECE] for start in range(0, len(content), _PIECE)]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        return xxhash.xxh3_128_digest(b"".join(threads.map(xxhash.xxh3_128_digest, pieces)))


def _sum(flat: Tensor) -> Tensor:
    """The weighted sum of bytes, where they are: see `tensor_digests`."""
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)) if flat.numel() % 8 else flat
    # Words must start at a multiple of eight bytes, and a view into a larger storage may start anywhere.
    words = (flat.clone() if flat.storage_offset() % 8 else flat).view(torch.int64)
    size = _WORDS if words.device.type == "cpu" else _WORDS_ON_DEVICE
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, len(words), size):
        part = words[start : start + size]
        weight = torch.arange(start + 1, start + 1 + len(part), device=words.device).mul_(_STEP)
        for shift, factor in zip((30, 27), _MIX, strict=True):
            weight.bitwise_xor_(weight >> shift).mul_(factor)
        weight.bitwise_xor_(weight >> 31).bitwise_or_(1)
        total += weight.mul_((part >> 32).add_(part)).sum()
    return total


DEPTH = 8  # levels of nested containers that are covered
SIMPLE = bool | int | float | complex | str | bytes | np.generic | range | slice | types.EllipsisType | None
SIMPLE |= torch.dtype | torch.device | Enum | PurePath
_PLAIN = frozenset({bool, int, float, str, type(None)})  # most values; a test of the type is the fastest
_BUILTIN = types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType
_CONTAINERS = (dict, OrderedDict, defaultdict, list, tuple, set, frozenset)


def digest(value: object) -> str:
    """A digest of an object's repr, eight hexadecimal digits."""
    return sha256(repr(value))[:8]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Canonical:
    """How values become text: `names` of objects by id, entries of mappings to leave out, and what was not seen."""

    names: Mapping[int, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    unseen: list[str] = field(default_factory=list)
    mutable: list[str] = field(default_factory=list)  # containers, which are seen, and may change while a function runs
    begun: dict[int, Any] = field(default_factory=dict)  # functions; kept, so that no other object gets the same id

    def text(self, value: Any, depth: int = DEPTH) -> str:
        """A value as text."""
        if type(value) in _PLAIN:
            return repr(value)
        if id(value) in self.names:
            return self.names[id(value)]
        if isinstance(value, Tensor | np.ndarray):
            return self._array(value)
        if isinstance(value, SIMPLE):
            return str(value) if isinstance(value, Enum) else repr(getattr(value, "item", lambda: value)())
        if isinstance(value, Mapping | set | frozenset | list | tuple):
            return self._held(value, depth)
        if isinstance(value, nn.Module):
            return self._module(value)
        if callable(value) or isinstance(value, types.CodeType):
            return self.code(value, depth)
        if hasattr(value, "to_dict") and depth:  # a configuration of its own
            self.unseen.append(type(value).__qualname__)
            return self.text(value.to_dict(), depth)
        return self._object(value, depth)

    def _array(self, value: Tensor | np.ndarray) -> str:
        if isinstance(value, Tensor) and value.layout == torch.strided:
            return tensor_digest(value)
        if type(value) is np.ndarray and value.dtype.kind in "biuf" and value.dtype.isnative:
            return tensor_digest(torch.from_numpy(np.ascontiguousarray(value)))
        self.unseen.append(type(value).__qualname__)
        return type(value).__qualname__

    def _held(self, value: Any, depth: int) -> str:
        """A container in a user's value, which may change if it is not a tuple."""
        if not depth or type(value) not in _CONTAINERS:
            self.unseen.append(type(value).__qualname__)
        if not isinstance(value, tuple | frozenset):
            self.mutable.append(type(value).__qualname__)
        return self.container(value, depth - 1) if depth else type(value).__qualname__

    def container(self, value: Mapping[Any, Any] | Iterable[Any], depth: int) -> str:
        """The items of a container as text; those of a mapping or a set in the order of their texts."""
        if isinstance(value, Mapping):
            kept = sorted(((repr(k), v) for k, v in value.items() if k not in self.left_out), key=itemgetter(0))
            return "{" + ", ".join(f"{k}: {self.text(v, depth)}" for k, v in kept) + "}"
        inside = [self.text(v, depth) for v in value]
        return "[" + ", ".join(inside if isinstance(value, list | tuple) else sorted(inside)) + "]"

    def code(self, value: Any, depth: int = DEPTH) -> str:
        """A function as text."""
        if isinstance(value, functools.partial):
            return f"partial {self.text((value.func, value.args, *sorted(value.keywords.items())), depth - 1)}"
        if isinstance(value, types.MethodType):
            return f"method {self.text((value.__func__, value.__self__), depth - 1)}"
        if isinstance(value, type):
            return self._named(value, getattr(sys.modules.get(value.__module__), "__file__", None))
        if isinstance(value, _BUILTIN):
            if not isinstance(getattr(value, "__self__", None), types.ModuleType | type | None):
                self.unseen.append(value.__qualname__)
            return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
        if not isinstance(value, types.FunctionType | types.CodeType):
            return self._object(value, depth)
        if id(value) in self.begun:  # it calls itself, or two functions share it
            return value.__qualname__ if isinstance(value, types.FunctionType) else value.co_qualname
        self.begun[id(value)] = value
        code = value if isinstance(value, types.CodeType) else value.__code__
        lines = [hashlib.sha256(code.co_code).hexdigest()[:16], repr(code.co_names)]
        if depth:
            lines += [self.text(constant, depth - 1) for constant in code.co_consts]
        else:
            self.unseen.append(code.co_qualname)
        if isinstance(value, types.FunctionType) and depth:
            cells = [contents_of(cell) for cell in value.__closure__ or ()]
            given = (*(value.__defaults__ or ()), *sorted((value.__kwdefaults__ or {}).items()), *cells)
            lines += [self.text(one, depth - 1) for one in given]
            read = {name: value.__globals__[name] for name in names_in(code) if name in value.__globals__}
            lines += [f"{name} = {self._global(one, depth - 1)}" for name, one in sorted(read.items())]
            lines += [self.text(value.__dict__, depth - 1)] if value.__dict__ else []
        return f"code {value.__qualname__ if isinstance(value, types.FunctionType) else ''} {' '.join(lines)}"

    def _global(self, value: Any, depth: int) -> str:
        """A global that a function reads: functions of installed packages only by name, if they close over nothing."""
        if isinstance(value, types.ModuleType):
            return self._named(value, getattr(value, "__file__", None))
        if isinstance(value, types.FunctionType) and not value.__closure__ and installed(value.__code__.co_filename):
            return f"{value.__module__}.{value.__qualname__}"
        return self.text(value, depth)

    def _named(self, value: Any, file: str | None) -> str:
        """The name of a class or module; those of your own may change."""
        home = str(getattr(value, "__module__", value.__name__)).partition(".")[0]
        if not (installed(file) if file else home in sys.builtin_module_names):
            self.unseen.append(value.__name__)
        return f"{home}.{getattr(value, '__qualname__', value.__name__)}"

    def _module(self, module: nn.Module) -> str:
        """A module that is not a part of the model, such as a sparse autoencoder that a hook uses."""
        self.unseen.append(type(module).__qualname__)
        held = module.state_dict(keep_vars=True)
        return f"{type(module).__qualname__} {dict(zip(held, tensor_digests([*held.values()]), strict=True))}"

    def _object(self, value: Any, depth: int) -> str:
        """An object as text: all attributes of one of squashlens's own, and the plain attributes of any other."""
        held = getattr(value, "__dict__", {})
        if type(value).__module__.startswith("squashlens.") and depth:
            return f"{type(value).__qualname__} {self.container(held, depth - 1)}"
        self.unseen.append(type(value).__qualname__)
        plain = {key: one for key, one in held.items() if isinstance(one, SIMPLE | Tensor)}
        return f"{type(value).__qualname__} {self.container(plain, 0)}" if plain else type(value).__qualname__


def names_in(code: types.CodeType) -> set[str]:
    """The names that code uses, also in the functions that are defined in it."""
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return {*code.co_names}.union(*map(names_in, inner))


def contents_of(cell: Any) -> Any:
    """What a function closes over in one cell; None while it is empty."""
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return None


@cache
def installed(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package, or to squashlens."""
    path = Path(file)
    if {"site-packages", "dist-packages"} & {*path.parts} or path.is_relative_to(Path(__file__).parent.parent):
        return True
    return any(path.is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
