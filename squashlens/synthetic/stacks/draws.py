"""Random draws of tokens, weights and tables. A seed gives the same numbers at every length of its sequence."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import positive
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.synthetic.stacks.stack import Stack

BUCKETS, FARTHEST = 32, 128  # T5: number of ranges of distance, and the distance at which the last range begins


def sinusoids(position: Int[Tensor, " token"], width: int, base: float) -> Float[Tensor, "token d"]:
    """Sinusoidal encodings, PE(p, 2j) = sin(p base^(−2j/d)), with cosines in odd coordinates (Vaswani et al. 2017)."""
    angle = _angles(position, width, base)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def rotate(
    x: Float[Tensor, "*many token dot"], position: Int[Tensor, " token"], base: float
) -> Float[Tensor, "*many token dot"]:
    """Rotary embeddings (RoPE, Su et al. 2021): coordinates j and j + half are rotated by p base^(−2j/d).

    So ⟨R_p q, R_s k⟩ depends on positions only through p − s.
    """
    angle = _angles(position, x.shape[-1], base)
    cos, sin = angle.cos().to(x), angle.sin().to(x)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _angles(position: Int[Tensor, " token"], width: int, base: float) -> Float[Tensor, "token dot"]:
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=position.device) / width
    return position[:, None].double() * base**-exponent


def alibi(distance: Int[Tensor, "row key"], heads: int) -> Float[Tensor, "head row key"]:
    """ALiBi biases: −2^(−8h/H) |distance| for heads h = 1…H (Press et al. 2022)."""
    head = torch.arange(1, heads + 1, dtype=torch.float64, device=distance.device)
    return -(2 ** (-8 * head / heads))[:, None, None] * distance.abs()


def t5_bucket(distance: Int[Tensor, "row key"], *, both_ways: bool) -> Int[Tensor, "row key"]:
    """The index of T5's range for each distance, query minus key: one for each small distance, wider ones up to 128.

    With `both_ways` half of the ranges are for keys after the query; otherwise all such keys count as distance 0.

    Source: Raffel et al. 2020, appendix; `relative_position_bucket` of the published code.
    """
    count = BUCKETS // 2 if both_ways else BUCKETS
    start = torch.where(distance < 0, count, 0) if both_ways else torch.zeros_like(distance)
    far = distance.abs() if both_ways else distance.clamp(min=0)
    exact = count // 2
    # The published code uses float32, and at distances that are exact powers the last bit decides.
    ratio = (far.clamp(min=1).float() / exact).log() / torch.tensor(FARTHEST / exact).log().item()
    wide = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
    return start + torch.where(far < exact, far, wide)


# Each kind of number has a separate random stream. Numbers are drawn row by row, so a longer sequence begins with the
# shorter one, and a deeper stack begins with the shallower one.
TOKENS, QUERY, KEY, VALUE, OUTPUT, UP, DOWN, TABLE, BIASES = range(9)
Many = Float[Tensor, "seed ..."]
FIRST = 10  # the shortest length of `lengths_up_to`, in tokens
FEWEST_MANY, FEWEST_LENGTHS = 6, 5  # minima of `lengths_up_to`: they put 3 lengths in the upper half of log n


@dataclass(frozen=True)
class Weights:
    """The matrices of one layer, applied from the right; those of the MLP are None without an MLP."""

    query: Float[Tensor, "seed d out"]
    key: Float[Tensor, "seed d out"]
    value: Float[Tensor, "seed d out"]
    output: Float[Tensor, "seed d out"]
    up: Float[Tensor, "seed d hidden"] | None = None
    down: Float[Tensor, "seed hidden d"] | None = None


@dataclass(frozen=True)
class Drawn:
    """All random numbers of one stack: its tokens or their q, k and v, its layers, its table or biases."""

    stack: Stack
    tokens: Float[Tensor, "seed content d"] | None
    direct: tuple[Float[Tensor, "seed content d"], ...]
    layers: tuple[Weights, ...]
    table: Float[Tensor, "seed place d"] | None
    biases: Float[Tensor, "seed head bucket"] | None

    def inputs(
        self, content: Int[Tensor, " token"], position: Int[Tensor, " token"]
    ) -> Float[Tensor, "seed token d"] | None:
        """Inputs of the first layer for tokens at their positions; `None` if q, k and v are drawn directly."""
        if self.tokens is None:
            return None
        x = self.tokens[:, content]
        if self.table is not None:
            return x + self.table[:, position]
        if self.stack.encoding == "sinusoidal":
            return x + sinusoids(position, self.stack.width, self.stack.base).to(x)
        return x


def draw(stack: Stack, longest: int, seeds: Sequence[int], dtype: torch.dtype, device: torch.device) -> Drawn:
    """All random numbers of a stack for these seeds, with `longest` tokens each."""
    d, direct = stack.width, stack.projections == "direct"
    sd = stack.scale / d**0.5

    def normal(stream: int, shape: tuple[int, ...], sd: float, layer: int = 0) -> Many:
        """Normal numbers for all seeds, drawn in float64 on the CPU, so that all devices get the same ones."""
        drawn = [np.random.default_rng((seed, stream, layer)).standard_normal(shape) for seed in seeds]
        return torch.from_numpy(sd * np.stack(drawn)).to(device=device, dtype=dtype)

    return Drawn(
        stack=stack,
        tokens=None if direct else normal(TOKENS, (longest, d), 1.0),
        direct=tuple(normal(s, (longest, d), sd) for s in (QUERY, KEY, VALUE)) if direct else (),
        layers=() if direct else tuple(_weights(stack, layer, normal) for layer in range(stack.depth)),
        table=normal(TABLE, (stack.table, d), 1.0) if stack.encoding == "learned" else None,
        biases=normal(BIASES, (stack.heads, BUCKETS), stack.scale) if stack.encoding == "t5" else None,
    )


def _weights(stack: Stack, layer: int, normal: Callable[..., Many]) -> Weights:
    d, hidden = stack.width, stack.mlp * stack.width
    query, key, value, output = (
        normal(stream, (d, d), stack.scale / d**0.5, layer) for stream in (QUERY, KEY, VALUE, OUTPUT)
    )
    up = normal(UP, (d, hidden), stack.scale / d**0.5, layer) if hidden else None
    down = normal(DOWN, (hidden, d), stack.scale / hidden**0.5, layer) if hidden else None
    return Weights(query, key, value, output, up, down)


def chosen_seeds(seeds: int | Iterable[int]) -> list[int]:
    """Random seeds as a list, given as their number or as the seeds themselves; an error for anything else."""
    if isinstance(seeds, int):
        positive(seeds, "seeds", "a number of draws")
    chosen = list(range(seeds) if isinstance(seeds, int) else seeds)
    if not chosen or min(chosen) < 0 or len(set(chosen)) < len(chosen):
        raise InputError(
            f"seeds={seeds!r} does not give any draws.", "Give their number, or different whole numbers of at least 0."
        )
    return chosen


def chosen_lengths(lengths: Iterable[int]) -> list[int]:
    """Lengths in ascending order, each once; an error for anything else."""
    chosen = sorted(set(lengths))
    if not chosen or chosen[0] < 1:
        raise InputError(f"lengths={chosen} are not numbers of tokens.", "Give positive whole numbers.")
    return chosen


@validated
def lengths_up_to(longest: int, many: int = 40) -> list[int]:
    """Lengths from 10 to `longest` tokens, evenly spaced on a logarithmic scale, for fitting exponents.

    Args:
        longest: the longest length, in tokens.
        many: number of lengths, at least 6. There may be fewer, because lengths that round to the same number count
            once.

    Raises:
        InputError: if there are fewer than 5 different lengths. With 5, at least 3 are in the upper half of the range
            of log n, as a fit with the default ``tail`` of `convergence` requires.

    >>> lengths_up_to(1000, 7)
    [10, 22, 46, 100, 215, 464, 1000]
    """
    positive(many, "many", "a number of lengths")
    steps = range(many) if many >= FEWEST_MANY and longest >= FIRST else ()
    chosen = sorted({round(FIRST * (longest / FIRST) ** (step / (many - 1))) for step in steps})
    if len(chosen) < FEWEST_LENGTHS:
        raise InputError(
            f"longest={longest} and many={many} give too few lengths to fit an exponent on their upper half.",
            f"Give a longest length of 20 or more, and many= of at least {FEWEST_MANY}.",
        )
    return chosen
