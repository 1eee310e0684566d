"""How much memory there is, and refusals before it runs out."""

import psutil
import torch

from squashlens._typing import shown
from squashlens.errors import CapacityError, InputError
from squashlens.sizes import human


def available(device: torch.device) -> int:
    """Free bytes on a CUDA device, or the machine's available memory for any other."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + reusable
    return psutil.virtual_memory().available


def device_named(given: str | torch.device) -> torch.device:
    """A device by its name; one that is not on this machine, or holds no numbers, is refused."""
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [""])[0][:120]
        raise InputError(f"device={shown(given)} is not on this machine ({reason}).", _devices()) from error
    if device.type == "meta":
        raise InputError("device='meta' holds no numbers.", _devices())
    return device


def _devices() -> str:
    """Those of this machine, as a remedy."""
    return "Use 'cpu', or 'cuda'." if torch.cuda.is_available() else "Use 'cpu'."


def require_room(n_bytes: int | float, device: torch.device, what: str, remedy: str) -> None:
    """Refuse what does not fit on `device`, with its size and the remedy."""
    free = available(device)
    if n_bytes > free:
        raise CapacityError(f"{what} needs {human(n_bytes)} and {device} has {human(free)} free.", remedy)
