"""The pretended device refuses what a graphics card refuses, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from squashlens.engine.differentiating.exact import Jittered
from tests.device.pretended import MixedDevicesError, Pretended

HERE = "lazy:0"


@pytest.fixture
def x() -> Tensor:
    return torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device=HERE)


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "sum with the CPU": lambda x: x + torch.ones(3),
    "numpy": lambda x: x.numpy(),
    "random numbers": lambda x: torch.randn(3, device=HERE),
}
ALLOWED: dict[str, tuple[Callable[[Tensor], Tensor], list[Any]]] = {
    "a number of the CPU": (lambda x: x + torch.tensor(1.0), [[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]),
    "indices of the CPU in brackets": (lambda x: x[torch.tensor([1]), torch.tensor([2])], [6.0]),
    "a view that is written to": (lambda x: _written(x.clone()), [[1.0, 2.0, 0.0], [4.0, 5.0, 0.0]]),
}


def _written(x: Tensor) -> Tensor:
    x[:, 2] = 0
    return x


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, x: Tensor) -> None:
    with pytest.raises((MixedDevicesError, RuntimeError), match="lazy|LAZY"):
        REFUSED[name](x)


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str, x: Tensor) -> None:
    call, expected = ALLOWED[name]
    found = call(x)
    assert isinstance(found, Pretended)
    assert str(found.device) == HERE
    assert found.tolist() == expected
    assert torch.equal(found.cpu(), torch.tensor(expected))


def test_the_size_of_rounding_is_that_of_the_cpu() -> None:
    """Every result is moved by the same random numbers, on a device too."""
    x = torch.linspace(0.5, 2.0, 7, dtype=torch.float64)
    found = []
    for place in (x, x.to(HERE)):
        with Jittered(place.device):
            moved = place.exp()
        assert not torch.equal(moved.cpu(), x.exp())
        found.append(moved.cpu())
    assert torch.equal(*found)
