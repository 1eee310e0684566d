"""Digests of tensors that change if any entry changes; exact integer arithmetic makes them equal on every device.

Weights are read at every call of a measurement, since PyTorch does not count all writes. On the CPU a tensor is read
with xxHash, at about the speed of its memory, and its digest is computed only for bytes that were not seen before.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Lock

import torch
import xxhash
from torch import Tensor

from squashlens.engine.memory import to_cpu
from squashlens.errors import InputError

SAMPLED = 1024  # entries of a tensor that `sample_digest` reads
_WIDTH = 4096  # words in a row; part of the definition
_ROWS = 16  # rows at a time on the CPU, where they should stay in its cache
_ROWS_ON_DEVICE = 2048
_REMEMBERED = 8192  # digests by the hash of their bytes, those used least recently are dropped
_PIECE = 2**24  # bytes that one thread reads at a time
_remembered: OrderedDict[bytes, bytes] = OrderedDict()
_remembering = Lock()


def tensor_digest(tensor: Tensor) -> str:
    """A digest of shape, dtype and every entry of a tensor, as hexadecimal digits: see `tensor_digests`."""
    return tensor_digests([tensor])[0]


def tensor_digests(tensors: Sequence[Tensor]) -> list[str]:
    """The digest of each tensor. Those on one device are read together, since the host waits for it each time.

    The bits are read as 64-bit words a, padded with zeros, and arranged in rows. Each row is summed modulo 2⁶⁴ as
    Σ w_k (a_k + ⌊a_k / 2³²⌋) with odd pseudo-random weights w, and SHA-256 is taken over the sums. The upper half of
    each word is added to the lower half because the top bit times an odd number is the top bit again: without this, two
    flipped signs in a row of float64 numbers would cancel.
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
    """A digest of evenly spaced entries of each tensor: cheap, and different after most writes.

    All samples on a device share one digest, since most tensors are small and each digest takes time.
    """
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
    """The SHA-256 digest of the row sums of each tensor; of all on one device, the sums come to the CPU together."""
    found: list[bytes] = [b""] * len(tensors)
    elsewhere: dict[int, Tensor] = {}
    for place, tensor in enumerate(tensors):
        if tensor.is_meta:
            raise InputError("Some weights of this model are offloaded and not in memory.", "Load it onto a device.")
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        if type(flat) is not Tensor or flat.device.type != "cpu":
            elsewhere[place] = _row_sums(flat)
        else:
            found[place] = _on_the_cpu(flat)
    for place, sums in zip(elsewhere, to_cpu([*elsewhere.values()]), strict=True):
        found[place] = _sealed(sums)
    return found


def _on_the_cpu(flat: Tensor) -> bytes:
    """The digest of bytes on the CPU, from memory if the same bytes were seen before."""
    seen = _hash(flat.numpy().data)
    with _remembering:
        if found := _remembered.get(seen):
            _remembered.move_to_end(seen)
            return found
    found = _sealed(_row_sums(flat))
    with _remembering:
        _remembered[seen] = found
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


def _row_sums(flat: Tensor) -> Tensor:
    """The sums of all rows of bytes."""
    whole = flat.numel() // (8 * _WIDTH) * (8 * _WIDTH)
    sums = [_sums(_as_words(flat[:whole]).view(whole // (8 * _WIDTH), _WIDTH))]
    rest = flat[whole:]
    if rest.numel():
        sums.append(_sums(_as_words(torch.nn.functional.pad(rest, (0, 8 * _WIDTH - rest.numel())))[None]))
    return torch.cat(sums)


def _sealed(sums: Tensor) -> bytes:
    return hashlib.sha256(sums.numpy().tobytes()).digest()


def _as_words(flat: Tensor) -> Tensor:
    # Words must start at a multiple of eight bytes, and a view into a larger storage may start anywhere.
    return (flat.clone() if flat.storage_offset() % 8 else flat).view(torch.int64)


def _sums(words: Tensor) -> Tensor:
    weights = _weights(words.device)
    step = _ROWS if words.device.type == "cpu" else _ROWS_ON_DEVICE
    found = torch.empty(len(words), dtype=torch.int64, device=words.device)
    room = torch.empty((min(step, len(words)), _WIDTH), dtype=torch.int64, device=words.device)
    for start in range(0, len(words), step):
        rows = words[start : start + step]
        mixed = room[: len(rows)]
        torch.bitwise_right_shift(rows, 32, out=mixed)
        mixed.add_(rows).mul_(weights)
        torch.sum(mixed, dim=1, out=found[start : start + len(rows)])
    return found


@lru_cache(maxsize=8)
def _weights(device: torch.device) -> Tensor:
    """Odd weights from Vigna's splitmix64 generator with seed 0."""
    mask, state, found = 2**64 - 1, 0, []
    for _ in range(_WIDTH):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        found.append((z ^ (z >> 31)) | 1)
    return torch.tensor([w - 2**64 if w >= 2**63 else w for w in found], device=device)
