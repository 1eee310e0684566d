"""A number that changes when any weight does: exact integer arithmetic, the same on every device."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

_CHUNK = 1 << 20
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weights_fingerprint(model: nn.Module) -> str:
    """Sixteen hexadecimal digits over the name, shape, dtype and every entry of every parameter.

    Each parameter's bits, read as integers, are summed modulo 2⁶⁴ with odd weights that depend on the place,
    so a changed entry, or two exchanged ones, change the sum. Of a quantised parameter every part is read.
    """
    whole = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        for place, tensor in _kept(name, parameter.detach()):
            header = f"{place} {tuple(tensor.shape)} {tensor.dtype}"
            whole.update(f"{header} {_weighted_sum(tensor)}\n".encode())
    return whole.hexdigest()[:16]


def _kept(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensor itself, or those that one of a kind of its own is made of: whole numbers, scales, zero points."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor
        return
    for part in tensor.__tensor_flatten__()[0]:  # pyright: ignore[reportAttributeAccessIssue]
        yield from _kept(f"{name}.{part}", getattr(tensor, part))


def _weighted_sum(tensor: Tensor) -> int:
    flat = tensor.contiguous().view(-1)
    words = flat.view(_WORDS[flat.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK].to(torch.int64)
        place = torch.arange(start, start + part.numel(), device=flat.device)
        total += (part * (place * 0x5851F42D4C957F2D | 1)).sum()
    return int(total)


def digest(numbers: object) -> str:
    """Eight hexadecimal digits for numbers too many to write down."""
    return hashlib.sha256(repr(numbers).encode()).hexdigest()[:8]
