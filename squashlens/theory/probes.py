"""Random directions of a certificate, which no model may have been built to avoid.

A failure probability is one over the draw of the directions, for a model that was fixed before. A hook can be
orthogonal to directions that are drawn with a seed that everybody knows. So by default the seed of a certificate is
drawn from the system's entropy, and the result records it.
"""

import math
import secrets
from collections.abc import Callable

import torch
from torch import Tensor

PROBES = 8  # random directions that show what a derivative misses, and what rounding does to it
# A generator of PyTorch keeps 32 bits of its seed: few enough that a model could avoid many of them.
WORD = 2**32


def seed_of(seed: int | None, *, certifies: bool = True) -> int:
    """The given seed; if there is none, one from the system's entropy for a certificate, and 0 for anything else."""
    if seed is not None:
        return seed
    return secrets.randbits(63) if certifies else 0


def normals(seed: int) -> Callable[..., Tensor]:
    """A function that gives standard normal numbers of a shape, further ones with each call, in float64 on the CPU.

    They depend on 63 bits of the seed. Below `WORD` they are those of a generator of PyTorch; beyond it they are the
    sum of the numbers of two generators, divided by √2.
    """
    low = seed % WORD
    high = seed // WORD % (WORD // 2)
    words = [low, high] if high else [low]
    generators = [torch.Generator().manual_seed(word) for word in words]

    def drawn(*shape: int) -> Tensor:
        total = torch.zeros(shape, dtype=torch.float64)
        for generator in generators:
            total += torch.randn(shape, generator=generator, dtype=torch.float64)
        return total / math.sqrt(len(generators))

    return drawn
