"""What a long call will take on this machine, said before it starts, with what would be cheaper."""

import time
from functools import cache

import torch
from tqdm.auto import tqdm

from squashlens._typing import Bridge
from squashlens.engine.anatomy import device_of, dtype_of, parameters

TOLD = 5.0  # seconds from which a call says what it will take
SIZE, SOME = 1024, 3  # of the matrices that are multiplied to find out how fast a device is, and how often


def tell(
    model: Bridge, what: str, products: float, tokens: int, cheaper: str, dtype: torch.dtype | None = None
) -> None:
    """Print what `products` vector–Jacobian products on some tokens will take, if that is long.

    A product is one pass through the blocks, two operations for each of their weights and each token.
    """
    weights = sum(p.numel() for block in model.blocks for p in parameters(block))
    seconds = 2.0 * products * weights * tokens / speed(device_of(model), dtype or dtype_of(model))
    if seconds > TOLD:
        tqdm.write(f"{what}: about {_rounded(seconds)} on this machine. {cheaper}")


@cache
def speed(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second in a product of matrices, measured once."""
    one = torch.ones(SIZE, SIZE, device=device, dtype=dtype)
    taken = []
    for _ in range(SOME + 1):  # the first is slower
        start = time.perf_counter()
        float((one @ one)[0, 0])  # read, so that the device has finished
        taken.append(time.perf_counter() - start)
    return 2 * SIZE**3 / min(taken)


def _rounded(seconds: float) -> str:
    """A time to one digit: it is an estimate."""
    if seconds < 90:
        return f"{float(f'{seconds:.1g}'):.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
