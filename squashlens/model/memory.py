"""How much memory is free, with an error before it runs out; numbers of a device, for which the host waits once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import psutil
import torch
from jaxtyping import Bool
from torch import Tensor

from squashlens._typing import short_repr
from squashlens.bars import human
from squashlens.errors import CapacityError, InputError, one_line


def available(device: torch.device) -> int:
    """Free bytes on a CUDA device, or the machine's available memory for any other device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # PyTorch keeps memory of freed tensors, which it can use again.
        unused = torch.cuda.memory_reserved(device)
        unused -= torch.cuda.memory_allocated(device)
        return free + unused
    return psutil.virtual_memory().available


def device_named(given: str | torch.device) -> torch.device:
    """The device of this name; raises an error if this machine does not have it, or if it is the meta device."""
    remedy = "Use 'cpu', or 'cuda'." if torch.cuda.is_available() else "Use 'cpu'."
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise InputError(
            f"device={short_repr(given)} is not available on this machine ({one_line(error)}).",
            remedy,
        ) from error
    if device.type == "meta":
        raise InputError("device='meta' has no data.", remedy)
    return device


def to_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor on the CPU, in the given order.

    Tensors of one device and dtype are joined and come together, since the host waits for the device each time.
    """
    on_cpu = list(tensors)
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor.device.type != "cpu":
            alike.setdefault((tensor.device, tensor.dtype), []).append(index)
    for indices in alike.values():
        together = [tensors[index].flatten() for index in indices]
        parts = torch.cat(together).cpu().split([len(flat) for flat in together])
        for index, part in zip(indices, parts, strict=True):
            on_cpu[index] = part.reshape(tensors[index].shape)
    return on_cpu


class PutOff(NamedTuple):
    """An error that is raised if any of the results on a device is wrong."""

    error: Callable[[], Exception]
    wrong: list[Bool[Tensor, ""]]


_put_off: ContextVar[dict[tuple[str, ...], PutOff] | None] = ContextVar(
    "put_off", default=None
)


def raise_later(
    wrong: Bool[Tensor, ""], error: Callable[[], Exception], *key: str
) -> None:
    """Raise the error if `wrong`: on a device at the end of `awaited`, so that nobody waits for it before.

    Results with the same `key` are read together, and raise the error that was given first.
    """
    checks = _put_off.get()  # None outside of `awaited`
    if checks is not None and wrong.device.type != "cpu":
        check = checks.setdefault(key, PutOff(error, []))
        check.wrong.append(wrong)
    elif bool(wrong):
        raise error()


@contextmanager
def awaited() -> Iterator[None]:
    """After the body, raise the first error that was put off until now.

    It takes the place of an error of the body, which may be its consequence. A nested context also reads, and raises,
    what was put off before it.
    """
    checks = _put_off.get()
    if checks is None:
        checks = {}
    token = _put_off.set(checks)
    try:
        yield
    finally:
        _put_off.reset(token)
        waiting = list(checks.values())
        checks.clear()
        for error, flags in waiting:  # a device is waited for once for each
            if any(map(bool, to_cpu(flags))):
                raise error()


def require_room(
    n_bytes: int | float, device: torch.device, what: str, remedy: str
) -> None:
    """Raise an error, with the size and the remedy, if `n_bytes` do not fit on `device`."""
    free = available(device)
    if n_bytes > free:
        raise CapacityError(
            f"{what} needs {human(n_bytes)} and {device} has {human(free)} free.",
            remedy,
        )
