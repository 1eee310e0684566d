"""Which devices a worker gets: as much of them as its model needs, so that small models share one.

A worker is started for a model, its home, with room for that model: its weights, and the batches for which the engine
would take memory on a device with the rest. It computes the cells of its home first. Then it helps with other models
that fit into its room, as far as no worker has their last cells in hand.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from squashlens.bars import human
from squashlens.errors import CapacityError, SquashlensError
from squashlens.study.cells import Model

STEP = 10_000  # shares of a GPU are multiples of 1 / STEP, as in Ray


@dataclass(frozen=True)
class Hardware:
    """The devices that one worker can have at most, by name, each with its bytes; `kind` is that of PyTorch."""

    kind: str
    sizes: Mapping[str, int]

    @property
    def largest(self) -> int:
        return max(self.sizes.values())

    def need(self, weights: int) -> int:
        """The bytes of a model with its batches; raises an error for a model that all devices together cannot hold."""
        from squashlens.engine.budget import batch_within

        size = self.largest if weights <= self.largest else sum(self.sizes.values())
        return weights + int(batch_within(max(0, size - weights), self.kind))

    def require(self, model: Model, need: int) -> None:
        """An error if a model fits neither on one of the devices nor, on GPUs, on all of them together."""
        most = sum(self.sizes.values()) if self.kind == "cuda" else self.largest
        if need > most:
            where = f"{len(self.sizes)} devices ({self.kind})" if self.kind == "cuda" else self.kind
            raise CapacityError(
                f"{model.name!r} in {model.dtype} needs {human(need)}, and a worker has {human(most)} on {where}.",
                "Leave the model out, give it another dtype, or use a machine with more or larger devices.",
            )

    def share(self, need: int) -> float:
        """The part of a device that a worker takes; a whole number of them if one is not enough."""
        part = need / self.largest
        return math.ceil(part) if part > 1 else math.ceil(part * STEP) / STEP


def need_of(model: Model | None, hardware: Hardware | None) -> int:
    """The bytes that a model needs; 0 without a model, on unknown hardware, and if its size cannot be found."""
    from squashlens.engine.loading.load import weight_bytes

    if model is None or hardware is None:
        return 0
    try:
        weights = weight_bytes(model.name, model.dtype, model.revision)
    except SquashlensError:  # which is raised again, and stored, when a cell of the model is computed
        return 0
    need = hardware.need(weights * (1 if model.untrained is None else 2))  # the random model is made beside the other
    hardware.require(model, need)
    return need


class Rooms:
    """What is free on each device of a machine."""

    def __init__(self, hardware: Hardware) -> None:
        self.free, self.sizes = dict(hardware.sizes), hardware.sizes

    def take(self, need: int) -> dict[str, int] | None:
        """Bytes by device: on the fullest that has room, or on unused ones for more than one can hold; None if none."""
        fitting = [name for name, free in self.free.items() if free >= need]
        taken = {min(fitting, key=lambda name: self.free[name]): need} if fitting else {}
        for name, free in self.free.items() if need > max(self.sizes.values()) else ():
            if free == self.sizes[name] and need > sum(taken.values()):
                taken[name] = free
        if need > sum(taken.values()):
            return None
        for name, size in taken.items():
            self.free[name] -= size
        return taken

    def give_back(self, taken: Mapping[str, int]) -> None:
        for name, size in taken.items():
            self.free[name] += size


def homes(needs: Sequence[int], left: Sequence[int], running: Sequence[int]) -> list[int]:
    """Models by number, in the order in which another worker is started for them: first the largest without a worker.

    Then those with the most cells for each worker that they have, but none with as many workers as cells.
    """
    at = Counter(running)
    waiting = [model for model in range(len(needs)) if left[model] > at[model]]
    new = sorted((model for model in waiting if not at[model]), key=lambda model: -needs[model])
    return new + sorted((model for model in waiting if at[model]), key=lambda model: -left[model] / at[model])


def device_for(model: Model) -> str | None:
    """Where to load a model: spread if it is too large for one of several GPUs that this process has."""
    import torch

    from squashlens.engine.loading.load import weight_bytes

    if torch.cuda.device_count() < 2:
        return None
    size = weight_bytes(model.name, model.dtype, model.revision)
    return "auto" if size > torch.cuda.get_device_properties(0).total_memory else None
