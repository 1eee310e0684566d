"""Checks of many results on a device, read once: the device waits for the host each time that one is read."""

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor


class Deferred:
    """A check of every result of a loop. On the CPU, one that fails raises at once; on a device, at `require`."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self.error = error
        self._wrong: dict[torch.device, Tensor] = {}

    def add(self, wrong: Bool[Tensor, ""]) -> None:
        """Whether one more result is wrong, as a single truth value where the result is."""
        if wrong.device.type == "cpu":
            if bool(wrong):
                raise self.error()
            return
        before = self._wrong.get(wrong.device)
        self._wrong[wrong.device] = wrong if before is None else before | wrong

    def require(self) -> None:
        """Raise the error if any result was wrong."""
        if any(bool(wrong) for wrong in self._wrong.values()):
            raise self.error()
