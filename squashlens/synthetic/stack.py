"""What a synthetic stack is made of, and the two readings of the paper's own (appendix C.3, figure 8)."""

import math
from dataclasses import dataclass

from squashlens._typing import Encoding, Mask, Projections, StackNorm, one_of, positive
from squashlens.arguments import validated
from squashlens.errors import InputError

INPUT_ENCODINGS = ("sinusoidal", "learned")


@validated
@dataclass(frozen=True)
class Stack:
    """A random decoder, layer by layer; nothing in it is trained.

    Layer ℓ, with the sublayers' norm in front (pre-norm, without gains) and each part left out where not asked for:

        z = x + W_O concat_h Σ_i α^h_i W_V^h norm(x_i),    α^h = softmax_i(q^h·k^h_i / √(width/heads) + bias^h)
        x' = z + W_down GELU(W_up norm(z))

    Without `residual` the two sums lose their first term. No norm follows the last layer.

    Args:
        depth: layers.
        heads: attention heads; they divide `width`.
        width: d, coordinates of a token.
        encoding: how positions, counted from 0, enter. ``"sinusoidal"`` and ``"learned"`` (a table of N(0, 1)) are
            added to the inputs; ``"sinusoidal_qk"`` to queries and keys of every layer, over all heads' coordinates in
            a row; ``"rope"`` rotates them head by head, coordinate j with j + half; ``"alibi"`` adds
            −2^(−8h/heads)·distance to the scores of head h = 1…heads; ``"t5"`` adds a value drawn by head for each of
            32 ranges of distance, N(0, scale²), the same in all layers.
        base: of the wavelengths of sines and rotations.
        table: rows of the learned table.
        mask: ``"causal"``; ``"window"``: the last `window` tokens, the query included, and the first `sinks`;
            ``"prefix"``: causal, but the first `prefix` tokens see one another; ``"none"``: all see all.
        residual, norm, mlp: whether a residual connection, which norm, hidden units as a multiple of `width` (0: none).
        scale: standard deviation of the weights times √(their inputs).
        projections: ``"random"``: tokens are N(0, I), the size the original Transformer gives to embeddings (drawn
            N(0, 1/d), times √d); W_Q, W_K, W_V, W_O have entries N(0, scale²/width). ``"direct"``, the paper's text
            read literally: each token's q, k and v are drawn N(0, scale²/width) themselves and the output is the
            weighted mean of the values. One layer, and nothing but attention.

    Refused: what contradicts itself, such as a window without a size or an odd number of coordinates to rotate.

    >>> Stack(encoding="rope", heads=4).per_head
    16
    """

    depth: int = 1
    heads: int = 1
    width: int = 64
    encoding: Encoding = "none"
    base: float = 10000.0
    table: int = 4096
    mask: Mask = "causal"
    window: int | None = None
    sinks: int = 0
    prefix: int = 0
    residual: bool = False
    norm: StackNorm = "none"
    mlp: int = 0
    scale: float = 1.0
    projections: Projections = "random"

    def __post_init__(self) -> None:
        _check_values(self)
        _check_encoding(self)
        _check_mask(self)
        if self.projections == "direct":
            _check_direct(self)

    @property
    def per_head(self) -> int:
        """Coordinates of one head's queries, keys and values."""
        return self.width // self.heads

    def check_lengths(self, lengths: list[int]) -> None:
        """Refuse lengths whose positions the stack does not have."""
        longest = max(lengths) + 1
        if self.encoding == "learned" and longest > self.table:
            raise InputError(
                f"v* of the longest sequence has {longest} tokens, and the learned table has {self.table} rows.",
                f"Give table={longest} or more, or shorter lengths.",
            )


def _check_values(stack: Stack) -> None:
    for name, what in (("depth", "layers"), ("heads", "heads"), ("width", "coordinates"), ("table", "rows")):
        positive(getattr(stack, name), name, f"a number of {what}")
    for name, choices in (("encoding", Encoding), ("mask", Mask), ("norm", StackNorm), ("projections", Projections)):
        one_of(getattr(stack, name), choices, name)
    for name in ("sinks", "prefix", "mlp"):
        positive(getattr(stack, name), name, "a count", or_zero=True)
    for name in ("base", "scale"):
        value = getattr(stack, name)
        if not 0 < value < math.inf:
            raise InputError(f"{name}={value!r} is not a size.", "Give a positive number.")
    if stack.width % stack.heads:
        raise InputError(f"{stack.heads} heads do not divide a width of {stack.width}.", "Change one of them.")


def _check_encoding(stack: Stack) -> None:
    if stack.encoding == "rope" and stack.per_head % 2:
        raise InputError(
            f"RoPE turns pairs of coordinates, and a head has {stack.per_head}.", "Make width ÷ heads even."
        )
    if stack.encoding in ("sinusoidal", "sinusoidal_qk") and stack.width % 2:
        raise InputError(f"Sines and cosines come in pairs, and width={stack.width}.", "Make the width even.")


def _check_mask(stack: Stack) -> None:
    if stack.mask == "window":
        positive(stack.window, "window", "a number of tokens")
    elif stack.window is not None or stack.sinks:
        raise InputError(
            f"window={stack.window} and sinks={stack.sinks} mean nothing to mask={stack.mask!r}.",
            "Give mask='window' with them.",
        )
    if (stack.mask == "prefix") != bool(stack.prefix):
        raise InputError(
            f"mask={stack.mask!r} and prefix={stack.prefix} do not fit.", "Give both mask='prefix' and a prefix ≥ 1."
        )


def _check_direct(stack: Stack) -> None:
    more = [name for name in ("residual", "mlp") if getattr(stack, name)]
    more += [f"depth={stack.depth}"] * (stack.depth > 1) + [f"norm={stack.norm!r}"] * (stack.norm != "none")
    more += [f"encoding={stack.encoding!r}"] * (stack.encoding in INPUT_ENCODINGS)
    if more:
        raise InputError(
            f"projections='direct' draws q, k and v and has no inputs: no room for {', '.join(more)}.",
            "Use projections='random', or leave that out.",
        )


PAPER = {
    "queries_keys": Stack(encoding="sinusoidal_qk", projections="direct"),
    "inputs": Stack(encoding="sinusoidal", projections="random"),
}
"""Figure 8's stack in its two readings: sines added to queries and keys, or to the inputs before the projections."""
