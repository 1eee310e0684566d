"""How much memory is free, with an error before it runs out; numbers of a device, for which the host waits once."""

from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch
from jaxtyping import Bool
from torch import Tensor

from squashlens._typing import short_repr
from squashlens.bars import human
from squashlens.errors import CapacityError, InputError


def available(device: torch.device) -> int:
    """Free bytes on a CUDA device, or the machine's available memory for any other device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + reusable
    return psutil.virtual_memory().available


def device_named(given: str | torch.device) -> torch.device:
    """The device of this name; raises an error if this machine does not have it, or if it is the meta device."""
    remedy = "Use 'cpu', or 'cuda'." if torch.cuda.is_available() else "Use 'cpu'."
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0][:120]
        raise InputError(f"device={short_repr(given)} is not available on this machine ({reason}).", remedy) from error
    if device.type == "meta":
        raise InputError("device='meta' has no data.", remedy)
    return device


def to_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor on the CPU. Those of one device and dtype come together, since the host waits for it each time."""
    found = list(tensors)
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor.device.type != "cpu":
            alike.setdefault((tensor.device, tensor.dtype), []).append(place)
    for places in alike.values():
        flat = torch.cat([tensors[place].flatten() for place in places]).cpu()
        for place, part in zip(places, flat.split([tensors[place].numel() for place in places]), strict=True):
            found[place] = part.reshape(tensors[place].shape)
    return found


Checks = dict[Any, tuple[Callable[[], Exception], list[Bool[Tensor, ""]]]]  # errors, and whether each result is wrong


def raise_any(checks: Checks) -> None:
    """Raise the first error of which a result is wrong. A device is waited for once for each."""
    for error, wrong in checks.values():
        if any(map(bool, to_cpu(wrong))):
            raise error()


def require_room(n_bytes: int | float, device: torch.device, what: str, remedy: str) -> None:
    """Raise an error, with the size and the remedy, if `n_bytes` do not fit on `device`."""
    free = available(device)
    if n_bytes > free:
        raise CapacityError(f"{what} needs {human(n_bytes)} and {device} has {human(free)} free.", remedy)
