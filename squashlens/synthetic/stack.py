"""The description of a random stack, two readings of the paper's own (appendix C.3, figure 8), and its random draws."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Encoding, Projections, StackNorm, positive, short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError


@validated
@dataclass(frozen=True)
class Stack:
    """A random, untrained decoder.

    A layer has pre-norms without gains, and leaves out every part that is not chosen:

        z = x + W_O concat_h Σ_i α^h_i W_V^h norm(x_i),    α^h = softmax_i(q^h·k^h_i / √(width/heads) + bias^h)
        x' = z + W_down GELU(W_up norm(z))

    Without `residual` the two sums have no first term. No norm follows the last layer.

    Args:
        depth: number of layers.
        heads: number of attention heads, a divisor of `width`.
        width: d, number of coordinates of a token.
        encoding: positional encoding, with positions counted from 0. ``"sinusoidal"`` and ``"learned"`` (a table of
            N(0, 1), as long as the sequence) are added to the inputs. ``"sinusoidal_qk"`` is added to the queries and
            keys of every layer, over the concatenated coordinates of all heads. ``"rope"`` rotates coordinates j and
            j + half of queries and keys in each head. ``"alibi"`` adds −2^(−8h/heads)·distance to the scores of head
            h = 1…heads. ``"t5"`` adds a bias from N(0, scale²) for each head and each of 32 ranges of distance, the
            same in all layers.
        base: base of the wavelengths of sines and rotations.
        window: number of last tokens that each token attends to, itself included; all by default.
        residual: whether there are residual connections.
        norm: ``"none"``, ``"rms"`` or ``"layer"``.
        mlp: number of hidden units of the MLP as a multiple of `width`; 0 for no MLP.
        scale: standard deviation of the weights, times the square root of their number of inputs.
        projections: ``"random"``: tokens are N(0, I), the scale of embeddings in the original Transformer (N(0, 1/d)
            times √d), and W_Q, W_K, W_V, W_O have entries from N(0, scale²/width). ``"direct"``, the literal reading of
            the paper: each token's q, k and v are drawn from N(0, scale²/width), and the output is the weighted mean of
            the values; this has one layer of attention and nothing else.

    Raises:
        InputError: if options contradict each other, such as a width that `heads` does not divide.

    >>> Stack(encoding="rope", heads=4).per_head
    16
    """

    depth: int = 1
    heads: int = 1
    width: int = 64
    encoding: Encoding = "none"
    base: float = 10000.0
    window: int | None = None
    residual: bool = False
    norm: StackNorm = "none"
    mlp: int = 0
    scale: float = 1.0
    projections: Projections = "random"

    def __post_init__(self) -> None:
        """Raise for an option out of its range, and for options that contradict each other."""
        positive(self.depth, "depth", "a number of layers")
        positive(self.heads, "heads", "a number of heads")
        positive(self.width, "width", "a number of coordinates")
        positive(self.mlp, "mlp", "a count", or_zero=True)
        if self.window is not None:
            positive(self.window, "window", "a number of tokens")
        for name in ("base", "scale"):
            value = getattr(self, name)
            if value <= 0:
                cause = f"{name}={value!r} is not a positive number."
                raise InputError(cause, "Give a positive number.")
        if self.width % self.heads:
            cause = f"heads={self.heads} does not divide width={self.width}."
            raise InputError(cause, "Make width a multiple of heads.")
        if self.encoding == "rope" and self.per_head % 2:
            cause = f"RoPE rotates pairs of coordinates, and a head has {self.per_head}, which is odd."
            raise InputError(cause, "Make width ÷ heads even.")
        if self.encoding.startswith("sin") and self.width % 2:
            cause = f"Sines and cosines come in pairs, and width={self.width}."
            raise InputError(cause, "Make the width even.")
        if self.projections == "direct":
            self._require_nothing_else()

    def _require_nothing_else(self) -> None:
        """Raise for options that need the tokens' inputs, which direct draws of q, k and v do not have."""
        bare = Stack(heads=self.heads, width=self.width)  # for the defaults
        names = ["depth", "residual", "norm", "mlp"]
        if self.encoding in ("sinusoidal", "learned"):
            names.append("encoding")
        more = [
            f"{name}={getattr(self, name)!r}"
            for name in names
            if getattr(self, name) != getattr(bare, name)
        ]
        if more:
            raise InputError(
                f"projections='direct' is one layer of attention without inputs, so it cannot have {', '.join(more)}.",
                "Use projections='random', or leave these options out.",
            )

    @property
    def per_head(self) -> int:
        """The number of coordinates of one head's queries, keys and values."""
        return self.width // self.heads


PAPER = {
    "queries_keys": Stack(encoding="sinusoidal_qk", projections="direct"),
    "inputs": Stack(encoding="sinusoidal", projections="random"),
}
"""Two readings of the stack of figure 8: sines added to queries and keys, or to the inputs before the projections."""


BUCKETS = 32  # T5: number of ranges of distance
FARTHEST = 128  # T5: the distance at which the last range begins


def sinusoids(
    position: Int[Tensor, " token"], width: int, base: float
) -> Float[Tensor, "token d"]:
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
    cos = angle.cos().to(x)
    sin = angle.sin().to(x)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _angles(
    position: Int[Tensor, " token"], width: int, base: float
) -> Float[Tensor, "token dot"]:
    """The angle p base^(−2j/d) of position p in coordinate pair j."""
    pair = torch.arange(0, width, 2, dtype=torch.float64, device=position.device)
    return position[:, None].double() * base ** -(pair / width)


def alibi(
    distance: Int[Tensor, "row key"], heads: int
) -> Float[Tensor, "head row key"]:
    """ALiBi biases: −2^(−8h/H) |distance| for heads h = 1…H (Press et al. 2022)."""
    head = torch.arange(1, heads + 1, dtype=torch.float64, device=distance.device)
    return -(2 ** (-8 * head / heads))[:, None, None] * distance.abs()


def t5_bucket(distance: Int[Tensor, "row key"]) -> Int[Tensor, "row key"]:
    """The index of T5's range for each distance, query minus key: one for each small distance, wider ones up to 128.

    Source: Raffel et al. 2020, appendix; `relative_position_bucket` of the published code, for decoders.
    """
    distance = distance.clamp(min=0)
    exact = BUCKETS // 2  # distances below have a range of their own
    # The published code uses float32, and at distances that are exact powers the last bit decides.
    farthest = torch.tensor(FARTHEST / exact).log().item()
    ratio = (distance.clamp(min=1).float() / exact).log() / farthest
    wide = (exact + (ratio * (BUCKETS - exact)).long()).clamp(max=BUCKETS - 1)
    return torch.where(distance < exact, distance, wide)


# Each kind of number has a separate random stream. Numbers are drawn row by row, so a longer sequence begins with the
# shorter one, and a deeper stack begins with the shallower one.
STREAMS = ("tokens", "query", "key", "value", "output", "up", "down", "table", "biases")
PROJECTIONS = ("query", "key", "value", "output")
Many = Float[Tensor, "seed ..."]


@dataclass(frozen=True)
class Drawn:
    """All random numbers of one stack: its tokens or their q, k and v, its layers, its table or biases.

    The matrices of a layer are applied from the right.
    """

    stack: Stack
    tokens: Float[Tensor, "seed content d"] | None
    direct: tuple[Float[Tensor, "seed content d"], ...]
    layers: tuple[dict[str, Many], ...]
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


def draw(
    stack: Stack,
    longest: int,
    seeds: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Drawn:
    """All random numbers of a stack for these seeds, with `longest` tokens each."""

    def normal(
        name: str, shape: tuple[int, ...], sd: float = 1.0, layer: int = 0
    ) -> Many:
        """Normal numbers for all seeds, drawn in float64 on the CPU, so that all devices get the same ones."""
        stream = STREAMS.index(name)
        draws = [
            np.random.default_rng((seed, stream, layer)).standard_normal(shape)
            for seed in seeds
        ]
        return torch.from_numpy(sd * np.stack(draws)).to(device=device, dtype=dtype)

    def matrices(layer: int) -> dict[str, Many]:
        """The weights of a layer, with entries from N(0, scale² ÷ number of inputs)."""
        sd = stack.scale / d**0.5
        weights = {name: normal(name, (d, d), sd, layer) for name in PROJECTIONS}
        if stack.mlp:
            hidden = stack.mlp * d
            weights["up"] = normal("up", (d, hidden), sd, layer)
            sd_down = stack.scale / hidden**0.5
            weights["down"] = normal("down", (hidden, d), sd_down, layer)
        return weights

    d = stack.width
    table = None
    biases = None
    if stack.encoding == "learned":
        table = normal("table", (longest + 1, d))
    if stack.encoding == "t5":
        biases = normal("biases", (stack.heads, BUCKETS), stack.scale)
    if stack.projections == "direct":
        sd = stack.scale / d**0.5
        qkv = tuple(normal(name, (longest, d), sd) for name in PROJECTIONS[:3])
        return Drawn(stack, None, qkv, (), table, biases)
    tokens = normal("tokens", (longest, d))
    layers = tuple(matrices(layer) for layer in range(stack.depth))
    return Drawn(stack, tokens, (), layers, table, biases)


def chosen_seeds(seeds: int | Iterable[int]) -> list[int]:
    """Random seeds as a list, given as their number or as the seeds themselves; an error for anything else."""
    chosen = list(range(seeds) if isinstance(seeds, int) else seeds)
    if not chosen or min(chosen) < 0 or len(set(chosen)) < len(chosen):
        remedy = "Give their number, or different whole numbers of at least 0."
        raise InputError(f"seeds={short_repr(seeds)} does not give any draws.", remedy)
    return chosen


def chosen_lengths(lengths: Iterable[int]) -> list[int]:
    """Lengths in ascending order, each once; an error for anything else."""
    chosen = sorted(set(lengths))
    if not chosen or chosen[0] < 1:
        raise InputError(
            f"lengths={short_repr(chosen)} are not numbers of tokens.",
            "Give positive whole numbers.",
        )
    return chosen
