"""What is drawn at random: tokens, weights, tables. A seed's numbers stay, however long its sequence becomes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import positive, whole
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.synthetic.encodings import BUCKETS, sinusoids
from squashlens.synthetic.stack import Stack

# Each kind of number has a stream of its own. Within one, numbers come row by row, so a longer sequence begins with
# the shorter one, and a deeper stack with the shallower one.
TOKENS, QUERY, KEY, VALUE, OUTPUT, UP, DOWN, TABLE, BIASES = range(9)
Many = Float[Tensor, "seed ..."]
FIRST = 10  # the shortest of `lengths_up_to`, in tokens
FEWEST_MANY, FEWEST_LENGTHS = 6, 5  # of `lengths_up_to`, so that 3 lie in the upper half of the range of log n


@dataclass(frozen=True)
class Weights:
    """One layer's matrices, applied from the right; the MLP's are missing where there is none."""

    query: Float[Tensor, "seed d out"]
    key: Float[Tensor, "seed d out"]
    value: Float[Tensor, "seed d out"]
    output: Float[Tensor, "seed d out"]
    up: Float[Tensor, "seed d hidden"] | None = None
    down: Float[Tensor, "seed hidden d"] | None = None


@dataclass(frozen=True)
class Drawn:
    """Everything random about one stack: its tokens or their q, k, v, its layers, its table or biases."""

    stack: Stack
    tokens: Float[Tensor, "seed content d"] | None
    direct: tuple[Float[Tensor, "seed content d"], ...]
    layers: tuple[Weights, ...]
    table: Float[Tensor, "seed place d"] | None
    biases: Float[Tensor, "seed head bucket"] | None

    def inputs(
        self, content: Int[Tensor, " token"], position: Int[Tensor, " token"]
    ) -> Float[Tensor, "seed token d"] | None:
        """Tokens at their positions, as they enter the first layer; `None` where q, k and v are drawn themselves."""
        if self.tokens is None:
            return None
        x = self.tokens[:, content]
        if self.table is not None:
            return x + self.table[:, position]
        if self.stack.encoding == "sinusoidal":
            return x + sinusoids(position, self.stack.width, self.stack.base).to(x)
        return x


@dataclass(frozen=True)
class _Source:
    """Normal numbers for several seeds: drawn in float64 on the CPU, then cast and moved, so devices agree."""

    seeds: Sequence[int]
    dtype: torch.dtype
    device: torch.device

    def normal(self, stream: int, shape: tuple[int, ...], sd: float, layer: int = 0) -> Many:
        drawn = [np.random.default_rng((seed, stream, layer)).standard_normal(shape) for seed in self.seeds]
        return torch.from_numpy(sd * np.stack(drawn)).to(device=self.device, dtype=self.dtype)


def draw(stack: Stack, longest: int, seeds: Sequence[int], dtype: torch.dtype, device: torch.device) -> Drawn:
    """Draw everything for these seeds, `longest` tokens each."""
    source, d, direct = _Source(seeds, dtype, device), stack.width, stack.projections == "direct"
    sd = stack.scale / d**0.5
    return Drawn(
        stack=stack,
        tokens=None if direct else source.normal(TOKENS, (longest, d), 1.0),
        direct=tuple(source.normal(s, (longest, d), sd) for s in (QUERY, KEY, VALUE)) if direct else (),
        layers=() if direct else tuple(_weights(stack, layer, source) for layer in range(stack.depth)),
        table=source.normal(TABLE, (stack.table, d), 1.0) if stack.encoding == "learned" else None,
        biases=source.normal(BIASES, (stack.heads, BUCKETS), stack.scale) if stack.encoding == "t5" else None,
    )


def _weights(stack: Stack, layer: int, source: _Source) -> Weights:
    d, hidden = stack.width, stack.mlp * stack.width
    query, key, value, output = (
        source.normal(stream, (d, d), stack.scale / d**0.5, layer) for stream in (QUERY, KEY, VALUE, OUTPUT)
    )
    up = source.normal(UP, (d, hidden), stack.scale / d**0.5, layer) if hidden else None
    down = source.normal(DOWN, (hidden, d), stack.scale / hidden**0.5, layer) if hidden else None
    return Weights(query, key, value, output, up, down)


def chosen_seeds(seeds: int | Iterable[int]) -> list[int]:
    """A number of seeds, counted from 0, or the seeds themselves; none, and what is no seed, are refused.

    >>> chosen_seeds(3)
    [0, 1, 2]
    """
    given: Any = [seeds] if isinstance(seeds, bool) else whole(seeds)
    if isinstance(given, int):
        positive(max(given, 1), "seeds", "a number of draws")  # 0 is refused below
    chosen = list(range(given)) if isinstance(given, int) else list(map(whole, given))
    if not chosen or not all(_from(0, seed) for seed in chosen) or len(set(chosen)) < len(chosen):
        raise InputError(f"seeds={seeds!r} names no draws.", "Give how many, or different whole numbers from 0.")
    return chosen


def chosen_lengths(lengths: Iterable[int]) -> list[int]:
    """Lengths in order, each once; what is no length is refused.

    >>> chosen_lengths([30, 10, 30])
    [10, 30]
    """
    chosen = list(map(whole, lengths))
    if not chosen or not all(_from(1, n) for n in chosen):
        raise InputError(f"lengths={chosen} are not numbers of tokens.", "Give positive whole numbers.")
    return sorted(set(chosen))


@validated
def lengths_up_to(longest: int, many: int = 40) -> list[int]:
    """Lengths from 10 to `longest`, in tokens, evenly on a log scale: what exponents are fitted on.

    Args:
        longest: the last of them.
        many: how many; those that round to the same number are there once, so there may be fewer.

    Refused: `many` under 6, and fewer than 5 different lengths. From there on 3 at least lie in the upper half of the
    range of log n, which is what a fit needs with the default ``tail`` of `convergence`.

    >>> lengths_up_to(1000, 7)
    [10, 22, 46, 100, 215, 464, 1000]
    """
    longest, many = whole(longest), whole(many)
    positive(max(many, 1), "many", "a number of lengths")
    if not _from(FEWEST_MANY, many):
        raise InputError(
            f"many={many!r} gives too few lengths to fit an exponent on their upper half.",
            f"Give a whole number, {FEWEST_MANY} or more.",
        )
    if not _from(FIRST, longest):
        raise InputError(f"longest={longest!r} is no length from {FIRST} on.", "Give a whole number of tokens.")
    chosen = sorted({round(FIRST * (longest / FIRST) ** (step / (many - 1))) for step in range(many)})
    if len(chosen) < FEWEST_LENGTHS:
        raise InputError(
            f"From {FIRST} to longest={longest} there are {len(chosen)} different lengths, too few to fit an exponent "
            "on their upper half.",
            "Give a longest length of 20 or more.",
        )
    return chosen


def _from(least: int, value: object) -> bool:
    """Whether this is a whole number and not under `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
