"""Digests of tensors that change when any entry does: exact integer arithmetic, the same on every device."""

import hashlib
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from squashlens.errors import InputError

SAMPLED = 1024  # entries of a tensor that `sample_digest` reads
_WIDTH = 4096  # words in a row; part of the definition
_ROWS = 16  # rows at a time on the CPU, where they should stay in its cache
_ROWS_ON_DEVICE = 2048


def tensor_digest(tensor: Tensor) -> str:
    """Hexadecimal digits over shape, dtype and every entry of a tensor.

    The bits, read as 64-bit words a and padded with zeros, are laid out in rows. Each row is summed modulo 2⁶⁴ as
    Σ w_k (a_k + ⌊a_k / 2³²⌋) with odd weights w that look random, and SHA-256 is taken over the sums. The upper half is
    added to the lower because the top bit of a word, times an odd number, is the top bit again: two flipped signs in
    a row of float64 numbers would cancel.
    """
    whole = hashlib.sha256(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    for part in parts(tensor):
        whole.update(_row_sums(part.detach()))
    return whole.hexdigest()[:32]


@torch.no_grad()
def sample_digest(tensor: Tensor) -> str:
    """Digits over some entries of a tensor, evenly spaced: cheap, and different after most writes."""
    found = []
    for part in parts(tensor):
        with torch._C.DisableTorchFunction():  # in a mode of ours, copies would be altered
            entries = part.detach().reshape(-1)
            found.append(tensor_digest(entries[:: max(1, entries.numel() // SAMPLED)].clone()))
    return "".join(found)


def parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor itself, or those that a quantized one is made of: integers, scales, zero points."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for part in tensor.__tensor_flatten__()[0]:  # pyright: ignore[reportAttributeAccessIssue]
        yield from parts(getattr(tensor, part))


def _row_sums(tensor: Tensor) -> bytes:
    if tensor.is_meta:
        raise InputError("Some weights of this model are offloaded and not in memory.", "Load it onto a device.")
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    whole = flat.numel() // (8 * _WIDTH) * (8 * _WIDTH)
    sums = [_sums(_as_words(flat[:whole]).view(whole // (8 * _WIDTH), _WIDTH))]
    rest = flat[whole:]
    if rest.numel():
        sums.append(_sums(_as_words(torch.nn.functional.pad(rest, (0, 8 * _WIDTH - rest.numel())))[None]))
    return torch.cat(sums).cpu().numpy().tobytes()


def _as_words(flat: Tensor) -> Tensor:
    # A view into a larger storage may start anywhere; words must start at a multiple of eight bytes.
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
    """Odd numbers from Vigna's splitmix64 with seed 0."""
    mask, state, found = 2**64 - 1, 0, []
    for _ in range(_WIDTH):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        found.append((z ^ (z >> 31)) | 1)
    return torch.tensor([w - 2**64 if w >= 2**63 else w for w in found], device=device)
